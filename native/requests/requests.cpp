#include "requests/requests.hpp"

#include <utility>
#include <vector>

#include "frames/handshake.hpp"
#include "node/peer.hpp"
#include "requests/completions.hpp"

namespace antiphon {

void Pending::tell(std::shared_ptr<Completions> completions) {
    {
        std::lock_guard lock(mutex_);
        if (!done()) {
            if (completions_) {
                others_.push_back(std::move(completions));
            } else {
                completions_ = std::move(completions);
            }
            return;
        }
    }
    completions->push(id);
}

void Pending::forget(const Completions& completions) {
    std::lock_guard lock(mutex_);
    if (completions_.get() == &completions) completions_.reset();
    std::erase_if(others_, [&](const auto& other) { return other.get() == &completions; });
}

void Pending::end(State state, std::uint16_t reply_kind, std::string_view text, Buffer* buffer, std::size_t offset) {
    std::shared_ptr<Completions> told;
    std::vector<std::shared_ptr<Completions>> also;
    {
        std::lock_guard lock(mutex_);
        state_ = state;
        reply_kind_ = reply_kind;
        if (text.size() <= kInside) {
            small_ = text.size();
            text.copy(inside_, kInside);
        } else {
            text_ = text;
        }
        buffer_ = buffer;
        offset_ = offset;
        told = completions_;
        also.swap(others_);
        done_.set();
    }
    if (told) told->push(id);
    for (const auto& other : also) other->push(id);
    // The leader reads by itself; only what others end has to be told to it.
    if (leads.load(std::memory_order_seq_cst)) peer.wake_leader();
}

Requests::Requests() : next_(random_u64()) {}

std::shared_ptr<Pending> Requests::add(Peer& peer, std::uint16_t kind) {
    std::lock_guard lock(mutex_);
    auto pending = std::make_shared<Pending>(next_++, peer, kind);
    pending_.emplace(pending->id, pending);
    peer.asking.fetch_add(1, std::memory_order_seq_cst);
    open_.store(pending_.size(), std::memory_order_relaxed);
    return pending;
}

std::shared_ptr<Pending> Requests::take(std::uint64_t id, const Peer* peer, bool sent) {
    std::lock_guard lock(mutex_);
    const auto found = pending_.find(id);
    if (found == pending_.end() || &found->second->peer != peer || (sent && !found->second->sent)) return nullptr;
    auto pending = std::move(found->second);
    pending->place_ = pending_.extract(found);
    pending->peer.asking.fetch_sub(1, std::memory_order_seq_cst);
    open_.store(pending_.size(), std::memory_order_relaxed);
    return pending;
}

bool Requests::answer(Peer& peer, const ResponseHead& head, std::string_view body, Buffer* buffer,
                      std::size_t offset) {
    const auto pending = take(head.id, &peer, true);
    if (!pending) {
        late_.fetch_add(1, std::memory_order_relaxed);
        if (buffer) buffer->release();
        return false;
    }
    Pending::State state = Pending::State::failed;
    switch (head.status) {
        case ResponseHead::Status::answer: state = Pending::State::answered; break;
        case ResponseHead::Status::unknown_kind: state = Pending::State::unknown_kind; break;
        case ResponseHead::Status::cannot: state = Pending::State::cannot; break;
        default: break;
    }
    pending->end(state, head.kind, buffer ? std::string_view() : body, buffer, offset);
    return true;
}

bool Requests::give_up(Pending& pending, Pending::State state) {
    const auto mine = take(pending.id, &pending.peer, false);
    if (mine) mine->end(state, 0, {}, nullptr, 0);
    return mine != nullptr;
}

void Requests::end_all(Peer* peer, Pending::State state, const std::string& text) {
    std::vector<std::shared_ptr<Pending>> ended;
    {
        std::lock_guard lock(mutex_);
        for (auto at = pending_.begin(); at != pending_.end();) {
            if (peer != nullptr && (&at->second->peer != peer || !at->second->sent)) {
                ++at;
                continue;
            }
            at->second->peer.asking.fetch_sub(1, std::memory_order_seq_cst);
            ended.push_back(std::move(at->second));
            at = pending_.erase(at);
        }
        open_.store(pending_.size(), std::memory_order_relaxed);
    }
    for (auto& pending : ended) pending->end(state, 0, text, nullptr, 0);
}

}  // namespace antiphon

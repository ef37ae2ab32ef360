#include "groups/outgoing.hpp"

#include <algorithm>

#include "base/wait.hpp"

namespace antiphon::groups {

namespace {

using Status = Attempt::Status;
using window::PartHead;
using window::Tag;

constexpr Nanos kLook = 100 * kMillisecond;  // for signals
constexpr std::size_t kMostPerBatch = 4096;

std::string_view tag_of(Tag tag) {
    static constexpr char tags[] = {0, 1, 2, 3};
    return {tags + static_cast<std::size_t>(tag), 1};
}

std::string part_head(Tag tag, std::uint32_t stream, std::uint64_t total) {
    const PartHead head{stream, total};
    std::string made(tag_of(tag));
    made.append(reinterpret_cast<const char*>(&head), sizeof head);
    return made;
}

Message piece(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

// --- taking messages ---------------------------------------------------------------------------------

bool Outgoing::push(std::string_view head, std::string_view body, bool reserved) {
    if (!lane_.window().append(head, body, reserved)) return false;
    if (deliver_ != nullptr) node_->scheduler().notify(*deliver_);
    return true;
}

Outgoing::Put Outgoing::try_put(std::string_view message) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return Put::busy;
    if (!allowed_ && !closed_) return Put::forbidden;
    // Those who wait come first, or they might wait for ever.
    if (!open_ || closed_ || waiting_ != 0 || large(message.size())) return Put::full;
    if (!push(tag_of(Tag::whole), message)) {
        full_ = true;
        return Put::full;
    }
    ++sent_;
    bytes_ += message.size();
    pump();
    return Put::put;
}

Outcome Outgoing::wait_for_room(std::unique_lock<std::mutex>& lock, std::size_t bytes, Nanos deadline,
                                const Interrupted* interrupted) {
    bool counted = false;
    Outcome outcome;
    Nanos look = now_ns() + kLook;
    ++waiting_;
    while (closed_ || !allowed_ || !open_ || !lane_.window().fits(bytes)) {
        if (!counted) ++waits_;
        counted = true;
        full_ |= open_ && !closed_ && allowed_;
        const Nanos now = now_ns();
        if (closed_) outcome.code = Outcome::Code::closed;
        else if (!allowed_) outcome.code = Outcome::Code::forbidden;
        else if (now >= deadline) outcome.code = Outcome::Code::timeout;
        if (!outcome.ok()) break;
        wait_until(room_, lock, interrupted ? std::min(deadline, look) : deadline);
        if (interrupted == nullptr || now_ns() < look) continue;
        lock.unlock();
        if ((*interrupted)()) outcome.code = Outcome::Code::interrupted;
        look = now_ns() + kLook;
        lock.lock();
        if (!outcome.ok()) break;
    }
    --waiting_;
    return outcome;
}

Outcome Outgoing::put(std::string_view message, Nanos deadline, const Interrupted* interrupted) {
    Scheduler::Blocked blocked;
    std::unique_lock lock(mutex_);
    const bool parts = large(message.size());
    const std::uint32_t stream = parts ? ++streams_ : 0;
    std::size_t done = 0;
    do {
        const std::size_t size = std::min(part_bytes_, message.size() - done);
        Outcome outcome = wait_for_room(lock, size + 1 + sizeof(PartHead), deadline, interrupted);
        if (!outcome.ok()) {
            // Whoever has the beginning is told that there is no end.
            if (done != 0) push(part_head(Tag::abort, stream, message.size()), {}, true);
            pump();
            return outcome;
        }
        const bool last = done + size == message.size();
        const std::string head = parts ? part_head(last ? Tag::last : Tag::part, stream, message.size())
                                       : std::string(tag_of(Tag::whole));
        push(head, message.substr(done, size));
        done += size;
        pump();
    } while (done < message.size());
    ++sent_;
    bytes_ += message.size();
    return {};
}

// --- who gets them -----------------------------------------------------------------------------------

void Outgoing::identify(std::uint64_t self) {
    std::lock_guard lock(mutex_);
    self_ = self;
}

void Outgoing::open(std::uint64_t self) {
    std::lock_guard lock(mutex_);
    self_ = self;
    open_ = true;
    room_.notify_all();
}

void Outgoing::shut() {
    std::lock_guard lock(mutex_);
    open_ = false;
}

void Outgoing::allow(bool allowed) {
    std::lock_guard lock(mutex_);
    allowed_ = allowed;
    room_.notify_all();
}

void Outgoing::close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    room_.notify_all();
}

void Outgoing::add(const Route& route) {
    Peer* peer = node_->find_peer(route.node);
    if (peer == nullptr) return;
    auto way = node_->subscription_flow(*peer, route.incarnation, route.flow, route.least_charge, kGroupKind);
    std::lock_guard lock(mutex_);
    targets_.try_emplace(route.member, Target{*peer, std::move(way), route.incarnation, route.node});
    lane_.add(route.member);
    if (peer->session.load(std::memory_order_seq_cst) == 0) node_->want_connection(*peer);
}

void Outgoing::remove(std::uint64_t member) {
    std::lock_guard lock(mutex_);
    targets_.erase(member);
    if (lane_.remove(member)) made_room();
    room_.notify_all();
}

void Outgoing::remove_all() {
    std::lock_guard lock(mutex_);
    bool room = false;
    for (const auto& [member, target] : targets_) room |= lane_.remove(member);
    targets_.clear();
    if (room) made_room();
}

// --- sending -----------------------------------------------------------------------------------------

Attempt Outgoing::send_batch(std::uint64_t member, Target& target, window::Lane::Receiver& receiver,
                             std::uint64_t end, std::size_t& taken) {
    const window::SendWindow& window = lane_.window();
    end = std::min<std::uint64_t>(end, receiver.next + kMostPerBatch);
    lengths_.clear();
    for (std::uint64_t number = receiver.next; number < end; ++number) lengths_.push_back(window.length(number));
    const BatchHead head{self_,         member,
                         receiver.next, receiver.base,
                         static_cast<std::uint32_t>(kind_),
                         static_cast<std::uint32_t>(std::max<std::size_t>(1, window.capacity() / 8))};
    const auto pieces = window.bytes(receiver.next, end);
    ++batches_;
    return node_->try_batch(target.peer, target.flow, static_cast<std::uint32_t>(receiver.session),
                           {reinterpret_cast<const char*>(&head), sizeof head}, lengths_.data(), lengths_.size(),
                           piece(pieces.first), piece(pieces.second), taken);
}

// True: it has everything, or there is nothing to wait for.
bool Outgoing::pump_one(std::uint64_t member, Target& target, window::Lane::Receiver& receiver) {
    bool watched = false;
    for (;;) {
        const std::uint32_t session = target.peer.session.load(std::memory_order_seq_cst);
        const bool other_life = session != 0 && target.peer.incarnation.load(std::memory_order_seq_cst) != target.incarnation;
        if (other_life || target.flow.withdrawn.load(std::memory_order_seq_cst)) return true;  // a view will say so
        if (session != 0 && !lane_.ready(receiver, session)) return true;
        if (session == 0 && receiver.next == lane_.next() && receiver.acked == receiver.next) return true;
        Attempt attempt{Status::not_connected};
        std::size_t taken = 0;
        if (session != 0) {
            attempt = send_batch(member, target, receiver, lane_.next(), taken);
            lane_.sent(receiver, taken);
        }
        if (attempt.status == Status::sent || attempt.status == Status::again) continue;
        if (attempt.status == Status::closed) return true;
        if (watched) {
            if (attempt.status == Status::not_connected) node_->want_connection(target.peer);
            if (attempt.status == Status::no_credit) node_->want_credit(target.peer, attempt);
            return false;
        }
        // Asked to be told first, then tried once more: what changes in between is not missed. Also where its
        // window is too small for a frame (`large`): that changes when its node has less to do.
        park(target.peer);
        watched = true;
    }
}

bool Outgoing::pump() {
    bool all = true;
    for (auto& [member, target] : targets_) {
        window::Lane::Receiver* receiver = lane_.find(member);
        if (receiver != nullptr) all &= pump_one(member, target, *receiver);
    }
    return all;
}

bool Outgoing::run_slice(Nanos) {
    std::lock_guard lock(mutex_);
    pump();
    return false;
}

void Outgoing::tick() {
    std::lock_guard lock(mutex_);
    pump();
    for (auto& [member, target] : targets_) {
        window::Lane::Receiver* receiver = lane_.find(member);
        if (receiver == nullptr || !lane_.quiet(*receiver)) continue;
        if (receiver->session == 0 || target.peer.session.load(std::memory_order_seq_cst) != receiver->session) continue;
        std::size_t taken = 0;
        ++probes_;
        const Attempt attempt = send_batch(member, target, *receiver, receiver->next, taken);
        if (attempt.status == Status::no_credit) node_->want_credit(target.peer, attempt);
    }
}

// --- stability ---------------------------------------------------------------------------------------

void Outgoing::made_room() {
    // A full window is worth a wake-up when it has become a quarter free, not with every message.
    const window::SendWindow& window = lane_.window();
    if (window.used() * 4 > window.capacity() * 3 && window.messages() != 0) return;
    full_ = false;
    if (waiting_ != 0) room_.notify_all();
}

void Outgoing::acknowledged(std::uint16_t node, const Acknowledgement& word) {
    std::lock_guard lock(mutex_);
    const auto found = targets_.find(word.from);
    if (word.to != self_ || found == targets_.end() || found->second.node != node) return;
    if (lane_.acknowledge(word.from, word.upto, word.resume != 0)) made_room();
    if (word.resume != 0) pump();
}

bool Outgoing::settle(Nanos deadline, const Interrupted* interrupted) {
    std::unique_lock lock(mutex_);
    ++waiting_;
    bool raised = false;
    hasten();
    while (!lane_.settled() && !closed_ && !raised && now_ns() < deadline) {
        wait_until(room_, lock, std::min(deadline, now_ns() + kLook));
        if (interrupted == nullptr) continue;
        lock.unlock();
        raised = (*interrupted)();
        lock.lock();
    }
    --waiting_;
    return lane_.settled();
}

// --- this member itself --------------------------------------------------------------------------------

bool Outgoing::has_own() {
    std::lock_guard lock(mutex_);
    return deliver_ != nullptr && lane_.delivered() < lane_.next();
}

std::uint64_t Outgoing::own(std::vector<std::string_view>& raw, std::vector<std::string>& wrapped, std::size_t most) {
    std::lock_guard lock(mutex_);
    raw.clear();
    wrapped.clear();
    const std::uint64_t begin = lane_.delivered(), end = std::min<std::uint64_t>(lane_.next(), begin + most);
    for (std::uint64_t number = begin; number < end; ++number) {
        const auto pieces = lane_.window().bytes(number, number + 1);
        if (pieces.second.empty()) {
            raw.push_back(pieces.first);
            continue;
        }
        // At most one of them lies across the end of the ring.
        wrapped.emplace_back(pieces.first).append(pieces.second);
        raw.push_back(wrapped.back());
    }
    return end;
}

void Outgoing::delivered(std::uint64_t upto) {
    std::lock_guard lock(mutex_);
    if (lane_.delivered_here(upto)) made_room();
}

std::map<std::uint64_t, double> Outgoing::held_up() {
    std::lock_guard lock(mutex_);
    std::map<std::uint64_t, double> seconds;
    for (const auto& [member, since] : lane_.held_up(now_ns(), full_)) {
        seconds.emplace(member, static_cast<double>(since) / kSecond);
    }
    return seconds;
}

Outgoing::Counts Outgoing::counts() {
    std::lock_guard lock(mutex_);
    const window::SendWindow& window = lane_.window();
    return {sent_,         bytes_,            lane_.repeated(),   waits_,            batches_,
            window.used(), window.capacity(), lane_.receivers(), window.messages(), probes_};
}

}  // namespace antiphon::groups

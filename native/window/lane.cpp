#include "window/lane.hpp"

#include <algorithm>

namespace antiphon::window {

void Lane::add(std::uint64_t member) {
    const std::uint64_t next = window_.next();
    receivers_.try_emplace(member, Receiver{.base = next, .next = next, .acked = next});
}

bool Lane::remove(std::uint64_t member) { return receivers_.erase(member) != 0 && release(); }

Lane::Receiver* Lane::find(std::uint64_t member) {
    const auto found = receivers_.find(member);
    return found == receivers_.end() ? nullptr : &found->second;
}

bool Lane::ready(Receiver& receiver, std::uint64_t session) {
    if (receiver.session != session) {
        receiver.session = session;
        repeated_ += receiver.next - receiver.acked;
        receiver.next = receiver.acked;
    }
    return receiver.next < window_.next();
}

bool Lane::acknowledge(std::uint64_t member, std::uint64_t upto, bool resume) {
    Receiver* receiver = find(member);
    if (receiver == nullptr || upto > window_.next()) return false;
    receiver->acked = std::max(receiver->acked, upto);
    receiver->next = std::max(receiver->next, receiver->acked);  // sent in a session before this one
    if (resume && receiver->next > receiver->acked) {
        repeated_ += receiver->next - receiver->acked;
        receiver->next = receiver->acked;
    }
    return release();
}

bool Lane::quiet(Receiver& receiver) {
    const bool silent = receiver.acked < receiver.next && receiver.acked == receiver.seen;
    receiver.seen = receiver.acked;
    return silent;
}

std::map<std::uint64_t, Nanos> Lane::held_up(Nanos now, bool full) {
    std::map<std::uint64_t, Nanos> since;
    for (auto& [member, receiver] : receivers_) {
        if (!full || receiver.acked != window_.first()) {
            receiver.held_since = 0;
            continue;
        }
        if (receiver.held_since == 0 || receiver.held != receiver.acked) {
            receiver.held = receiver.acked;
            receiver.held_since = now;
        }
        since.emplace(member, now - receiver.held_since);
    }
    return since;
}

void Lane::deliver_here(bool here) {
    here_ = here;
    own_ = window_.next();
    release();
}

bool Lane::delivered_here(std::uint64_t upto) {
    own_ = std::max(own_, upto);
    return release();
}

bool Lane::release() {
    std::uint64_t stable = here_ ? own_ : window_.next();
    for (const auto& [member, receiver] : receivers_) stable = std::min(stable, receiver.acked);
    if (stable <= window_.first()) return false;
    window_.release(stable);
    return true;
}

}  // namespace antiphon::window

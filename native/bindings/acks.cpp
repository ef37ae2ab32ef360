#include "bindings/acks.hpp"

#include <algorithm>

#include "base/wait.hpp"

namespace antiphon::python {

namespace {

constexpr std::size_t kAtOnce = 1024;  // ranges in one message
constexpr Nanos kLook = 100 * kMillisecond;

// A connection that is only being given back is not lost: what is said goes with the next one.
bool gone(Peer& peer, const Attempt& tried) {
    return tried.status == Attempt::Status::not_connected && peer.session.load(std::memory_order_seq_cst) == 0;
}

}  // namespace

bool Acks::add(const AckOf& event, AckRange::Verdict verdict) {
    if (event.broker == 0) return false;
    std::lock_guard lock(mutex_);
    if (broker_ != event.broker) clear();  // another one: the one before hands them out again
    broker_ = event.broker;
    if (!ranges_.empty()) {
        AckRange& last = ranges_.back();
        if (last.topic == event.topic && last.epoch == event.epoch && last.verdict == verdict &&
            last.last + 1 == event.number) {
            last.last = event.number;
            return false;
        }
    }
    ranges_.push_back({flow_, event.topic, event.epoch, event.number, event.number, verdict});
    if (ranges_.size() == 1) node_->begin_word();
    return ranges_.size() == 1;
}

void Acks::send() {
    std::unique_lock lock(mutex_);
    Peer* peer = broker_ == 0 ? nullptr : node_->find_peer(broker_);
    std::size_t most = kAtOnce;
    for (bool parked = false; !ranges_.empty() && peer != nullptr;) {
        const std::size_t count = std::min(ranges_.size(), most);
        const Attempt tried = node_->try_message(
            *peer, kAckKind, {reinterpret_cast<const char*>(ranges_.data()), count * sizeof(AckRange)});
        if (tried.status == Attempt::Status::sent) {
            ranges_.erase(ranges_.begin(), ranges_.begin() + static_cast<std::ptrdiff_t>(count));
            if (ranges_.empty()) node_->end_word();
        } else if (tried.status == Attempt::Status::large && count > 1) {
            most = count / 2;  // than the broker's window has room for
        } else if (tried.status == Attempt::Status::closed && !node_->closed()) {
            lock.unlock();
            return nudge();  // it is closing, and only slices may send
        } else if (tried.status == Attempt::Status::closed || gone(*peer, tried)) {
            clear();
        } else if (tried.status != Attempt::Status::again) {
            wait_for(*peer, tried);
            if (std::exchange(parked, true)) return;
        }
    }
    if (ranges_.empty()) sent_.notify_all();
}

void Acks::clear() {
    if (ranges_.empty()) return;
    ranges_.clear();
    node_->end_word();
}

bool Acks::wait_sent(Nanos until) {
    std::unique_lock lock(mutex_);
    while (!ranges_.empty() && !node_->closed() && now_ns() < until) {
        wait_until(sent_, lock, std::min(until, now_ns() + kLook));  // no slice tells of a node that has closed
    }
    return ranges_.empty();
}

}  // namespace antiphon::python

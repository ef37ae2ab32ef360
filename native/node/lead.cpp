#include "node/lead.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/descriptors.hpp"
#include "node/node.hpp"

namespace antiphon {

LeadWakes::~LeadWakes() {
    for (int wake : idle_) close_descriptor(wake);
}

int LeadWakes::take() {
    if (!idle_.empty()) {
        const int wake = idle_.back();  // the one that was used last
        idle_.pop_back();
        return wake;
    }
    idle_.reserve(made_ + 1);
    const int wake = open_descriptor([] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
    if (wake >= 0) ++made_;
    return wake;
}

Lead::Lead(Node& node, Peer& peer, Channel* Peer::*which) : node_(node), peer_(peer), which_(which) {
    if (which == nullptr) return;
    Selector::Turn turn(node.selector_, std::try_to_lock);
    if (!turn) return;
    Channel* channel = peer.*which;
    if (channel == nullptr || channel->state != Channel::State::open || channel->paused || channel->led ||
        peer.led.load(std::memory_order_relaxed) != Peer::kNobody) {
        return;
    }
    wake_ = node.lead_wakes_.take();
    if (wake_ < 0) return;
    channel->led = true;
    node.watch(*channel);
    peer.led.store(wake_, std::memory_order_seq_cst);
    channel_ = channel;
    fd_ = channel->fd;
}

Lead::~Lead() {
    if (channel_ == nullptr) return;
    Selector::Turn turn(node_.selector_);
    end();
    if (!still()) return;
    channel_->led = false;
    if (!channel_->paused) node_.watch(*channel_);
}

void Lead::end() {
    peer_.led.store(Peer::kNobody, std::memory_order_seq_cst);
    node_.lead_wakes_.give_back(wake_);
}

// A channel that was closed may have a successor at the same address, but that one is not led.
bool Lead::still() const { return peer_.*which_ == channel_ && channel_->led; }

bool Lead::wait(Nanos until) {
    pollfd watched[] = {{fd_, POLLIN, 0}, {wake_, POLLIN, 0}};
    const Nanos left = std::max<Nanos>(0, until - now_ns());
    const timespec length{left / kSecond, left % kSecond};
    if (ppoll(watched, 2, until >= kNever ? nullptr : &length, nullptr) <= 0) return false;
    if (watched[1].revents != 0) {
        std::uint64_t drained;
        [[maybe_unused]] const ssize_t ignored = read(wake_, &drained, sizeof drained);
    }
    // Woken: perhaps because the channel is closed, and its descriptor somebody else's by now.
    Selector::Turn turn(node_.selector_);
    const bool reads = watched[0].revents != 0 && still() && !channel_->paused;
    if (reads) {
        peer_.led.store(Peer::kNobody, std::memory_order_relaxed);  // what this thread does need not wake it
        channel_->ready(EPOLLIN);  // throws nothing
        peer_.led.store(wake_, std::memory_order_seq_cst);
    }
    if (!still() || channel_->paused) {
        // Closed, or out of buffers: the rest is the selector's.
        end();
        if (still()) channel_->led = false;
        channel_ = nullptr;
    }
    return reads;
}

}  // namespace antiphon

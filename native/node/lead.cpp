#include "node/lead.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "node/node.hpp"

namespace antiphon {

Lead::Lead(Node& node, Peer& peer, Channel* Peer::*which) : node_(node), peer_(peer), which_(which) {
    if (which == nullptr) return;
    Selector::Turn turn(node.selector_, std::try_to_lock);
    if (!turn) return;
    Channel* channel = peer.*which;
    if (channel == nullptr || channel->state != Channel::State::open || channel->paused || channel->led ||
        peer.led.load(std::memory_order_relaxed)) {
        return;
    }
    if (peer.lead_wake < 0) {
        peer.lead_wake = open_descriptor([] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
        if (peer.lead_wake < 0) return;
    }
    channel->led = true;
    node.watch(*channel);
    peer.led.store(true, std::memory_order_seq_cst);
    channel_ = channel;
    fd_ = channel->fd;
}

Lead::~Lead() {
    if (channel_ == nullptr) return;
    Selector::Turn turn(node_.selector_);
    peer_.led.store(false, std::memory_order_seq_cst);
    if (!still()) return;
    channel_->led = false;
    if (!channel_->paused) node_.watch(*channel_);
}

// A channel that was closed may have a successor at the same address, but that one is not led.
bool Lead::still() const { return peer_.*which_ == channel_ && channel_->led; }

void Lead::wait(Nanos until) {
    pollfd watched[] = {{fd_, POLLIN, 0}, {peer_.lead_wake, POLLIN, 0}};
    const Nanos left = std::max<Nanos>(0, until - now_ns());
    const timespec length{left / kSecond, left % kSecond};
    if (ppoll(watched, 2, until >= kNever ? nullptr : &length, nullptr) <= 0) return;
    if (watched[1].revents != 0) {
        std::uint64_t drained;
        [[maybe_unused]] const ssize_t ignored = read(peer_.lead_wake, &drained, sizeof drained);
    }
    // Woken: perhaps because the channel is closed, and its descriptor somebody else's by now.
    Selector::Turn turn(node_.selector_);
    if (watched[0].revents != 0 && still() && !channel_->paused) {
        peer_.led.store(false, std::memory_order_relaxed);  // what this thread does need not wake it
        channel_->ready(EPOLLIN);  // throws nothing
        peer_.led.store(true, std::memory_order_seq_cst);
    }
    if (!still() || channel_->paused) {
        // Closed, or out of buffers: the rest is the selector's.
        peer_.led.store(false, std::memory_order_seq_cst);
        if (still()) channel_->led = false;
        channel_ = nullptr;
    }
}

}  // namespace antiphon

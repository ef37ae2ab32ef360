// What is needed no more: flows of subscriptions that have gone, at both ends; registrations that were removed; pages
// of rings that have become quiet, and the memory of those without a connection. On the selector thread.
//
// Ids of flows are never given again. Whoever sends to one that has gone is told so; what was already on its way is
// discarded.
#include <algorithm>
#include <utility>

#include "node/node.hpp"

namespace antiphon {

namespace {

// After a registration was removed, what was on its way to it may still come, and goes to whoever has its kind by
// then: as long as options().rest. With many of them, less must do.
constexpr Nanos kShortRest = kSecond;
constexpr std::size_t kManyRetired = 4096;
// A thread that found a flow before it was replaced has put its message into the ring long before that.
constexpr Nanos kOldFlow = 60 * kSecond, kYoungerFlow = kSecond;
constexpr std::size_t kManyOldFlows = 4096, kMostOldFlows = 65536;
// A ring that has had so much since its pages were last freed, and little since the last beat.
constexpr std::uint64_t kWorthFreeing = 256 << 10, kLittle = 64 << 10;

void add(Peer::Past& past, std::uint64_t messages, std::uint64_t bytes, std::uint64_t waits) {
    past.messages += messages;
    past.bytes += bytes;
    past.waits += waits;
}

void leave(Peer& peer, const OutFlow& flow) {
    add(peer.past_out, flow.messages.load(std::memory_order_relaxed), flow.bytes.load(std::memory_order_relaxed),
        flow.waits.load(std::memory_order_relaxed));
}

}  // namespace

// Of a kind that the peer announces under another id. Threads that use the flow before this one hold no reference,
// so that stays where it is, and is used again after a time in which they are all through. Only a large message may
// take longer. Null: there are too many of them.
std::unique_ptr<OutFlow> Node::fresh_flow(Peer& peer, std::uint16_t kind) {
    const Nanos rest = peer.old_flows.size() < kManyOldFlows ? kOldFlow : kYoungerFlow;
    if (peer.old_flows.empty() || selector_.now() - peer.old_flows.front().since < rest ||
        peer.busy.load(std::memory_order_seq_cst) != 0) {
        return peer.old_flows.size() < kMostOldFlows ? std::make_unique<OutFlow>(kind) : nullptr;
    }
    auto flow = std::move(peer.old_flows.front().flow);
    peer.old_flows.pop_front();
    leave(peer, *flow);
    flow->kind = kind;
    flow->messages.store(0, std::memory_order_relaxed);
    flow->bytes.store(0, std::memory_order_relaxed);
    flow->waits.store(0, std::memory_order_relaxed);
    flow->seen = 0;
    flow->hasty.store(false, std::memory_order_relaxed);
    return flow;
}

// Of subscriptions to which nobody sends any more, and which say nothing that is still to be told.
void Node::drop_unused_flows(Peer& peer) {
    std::lock_guard lock(peer.mutex);
    std::erase_if(peer.subscription_flows, [&](const auto& entry) {
        const auto& [key, flow] = entry;
        if (flow.use_count() != 1) return false;
        const bool past = key.first != peer.incarnation.load(std::memory_order_relaxed) ||
                          flow->session != peer.sessions || flow->withdrawn.load(std::memory_order_relaxed);
        const bool untouched = flow->window.load(std::memory_order_relaxed) == 0 &&
                               !flow->asked.load(std::memory_order_relaxed) &&
                               flow->messages.load(std::memory_order_relaxed) == flow->at_session_start;
        if (!past && !untouched) return false;
        leave(peer, *flow);
        return true;
    });
}

// A ring goes round through all its pages, so one that is used little has as many as one that is used much. When it
// is quiet they are given back.
void Node::trim_ring(Peer& peer) {
    Ring& ring = *peer.ring.load(std::memory_order_relaxed);
    const std::uint64_t head = ring.head();
    const bool quiet = head - std::exchange(peer.seen_head, head) < kLittle;
    if (!quiet || head - peer.trimmed_head < std::min<std::uint64_t>(kWorthFreeing, ring.capacity())) return;
    if (peer.write_token.exchange(true, std::memory_order_acquire)) return;
    if (ring.vacate()) peer.seen_head = peer.trimmed_head = ring.head();
    peer.write_token.store(false, std::memory_order_seq_cst);
    if (peer.handover.load(std::memory_order_seq_cst) && peer.handover.exchange(false, std::memory_order_seq_cst)) {
        add_interest(peer, kWrite);
    }
    peer.wake();
}

// Without a connection nothing in a ring is for anybody. A thread that has just found the session over may still claim
// some of it: then this is tried again with the next beat. One that is being dialled has its ring already.
void Node::retire_ring(Peer& peer) {
    Ring* ring = peer.ring.load(std::memory_order_relaxed);
    if (ring != nullptr && peer.out == nullptr && peer.dialling == nullptr) ring->retire();
}

void Node::reclaim() {
    const Nanos now = selector_.now();
    for (std::size_t left = retired_.size(); left != 0; --left) {
        const Nanos rest = retired_.size() > kManyRetired ? std::min(options_.rest, kShortRest) : options_.rest;
        if (now - retired_.front().since < rest) return;
        Retired next = std::move(retired_.front());
        retired_.pop_front();
        if (reclaim(next)) continue;
        next.since = now;  // somebody still has something of it in hand
        retired_.push_back(std::move(next));
    }
}

// False, and as it was, while a run of it is not finished.
bool Node::reclaim(const Retired& retired) {
    const std::uint32_t id = retired.flow;
    for (const Peer* peer : retired.senders) {
        const auto found = peer->in_flows.find(id);
        if (found == peer->in_flows.end()) continue;
        const InFlow& flow = *found->second;
        if (flow.pins.load(std::memory_order_acquire) != 0) return false;
    }
    for (Peer* peer : retired.senders) {
        const auto found = peer->in_flows.find(id);
        if (found == peer->in_flows.end()) continue;
        InFlow& flow = *found->second;
        if (peer->in) {  // all of it is confirmed, also what is less than a unit
            queue_credit(flow, true);
            add_interest(*peer, kWriteBack);
        }
        {
            // Without a pin nobody adds to this any more. A mark may be wrong, where a connection has ended.
            std::lock_guard lock(peer->mutex);
            std::erase(peer->credits_due, &flow);
        }
        add(peer->past_in, flow.messages.load(std::memory_order_relaxed), flow.bytes.load(std::memory_order_relaxed), 0);
        peer->in_flows.erase(found);
    }
    flows_.erase(id);
    std::shared_ptr<Registration> last;  // ends behind the mutex: its queue gives back what it has
    std::lock_guard lock(mutex_);
    const auto found = registrations_.find(id);
    if (found == registrations_.end()) return true;
    last = std::move(found->second);
    if (last->topics) events_dropped_ += last->queue->dropped();
    registrations_.erase(found);
    return true;
}

}  // namespace antiphon

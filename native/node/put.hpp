// Into the ring: the common part of everything that is sent.
#pragma once

#include <algorithm>

#include "node/node.hpp"

namespace antiphon {

template <typename Fill>
Attempt Node::put_uncharged(Peer& peer, Header header, std::uint32_t session, Fill&& fill, Haste haste) {
    Ring& ring = *peer.ring.load(std::memory_order_acquire);
    const std::size_t total = kHeaderBytes + header.length;
    std::uint64_t position;
    if (!ring.claim(total, position)) {
        // A ring whose session is over has no room, and none to wait for.
        if (peer.session.load(std::memory_order_seq_cst) != session) return {Attempt::Status::again, nullptr, 0, session};
        return {Attempt::Status::ring_full, nullptr, static_cast<std::uint32_t>(total), session};
    }
    // Session and phase are read again behind the claim. A new session starts at the ring's tail, and
    // a farewell is said when the tail has been written: either they come behind this claim, or these
    // reads see them.
    // Nor does a new message slip into a connection that is being given back.
    const bool fresh = header.kind >= kFirstDataKind && (header.flags & (kFragment | kResponse)) == 0;
    const bool current = peer.session.load(std::memory_order_seq_cst) == session && sends_allowed() &&
                         !(fresh && peer.held.load(std::memory_order_seq_cst));
    if (!current) {
        header.kind = static_cast<std::uint16_t>(Control::pad);
        header.flags = 0;
        header.flow = 0;
    }
    ring.write(position, &header, kHeaderBytes);
    if (current) fill(ring, position + kHeaderBytes);
    ring.wait_turn(position);
    if (current && header.kind >= kFirstDataKind) fill.count();
    ring.publish(position + total);
    signal_data(peer, haste);
    return {current ? Attempt::Status::sent : Attempt::Status::again, nullptr, 0, session};
}

inline void add_alone(std::atomic<std::uint64_t>& counter, std::uint64_t amount) {
    // Only between wait_turn and publish, where one producer is alone: no read-modify-write needed.
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

template <typename Copy>
struct Fill {
    OutFlow* flow;
    std::uint32_t messages;
    std::uint64_t bytes;
    Copy copy;

    void operator()(Ring& ring, std::uint64_t position) const { copy(ring, position); }
    void count() const {
        if (flow == nullptr) return;
        add_alone(flow->messages, messages);
        add_alone(flow->bytes, bytes);
    }
};

template <typename Copy>
Attempt Node::put(Peer& peer, std::uint16_t kind, std::uint16_t flags, std::size_t payload,
                  std::uint32_t messages, Copy&& copy, Haste haste) {
    if (!sends_allowed()) return {Attempt::Status::closed};
    const std::uint32_t session = peer.session.load(std::memory_order_seq_cst);
    if (session == 0 || peer.held.load(std::memory_order_seq_cst)) return {Attempt::Status::not_connected};
    OutFlow* flow = peer.kinds.find(kind);
    return put_on(peer, flow ? *flow : peer.unannounced, session, kind, flags, payload, messages, copy, haste);
}

// A frame of so many bytes, header included, on a flow with that window.
inline bool goes_in_fragments(const Peer& peer, std::uint32_t window, std::uint32_t least, std::uint16_t flags,
                              std::uint64_t total) {
    return total > peer.max_frame.load(std::memory_order_relaxed) ||
           (flags != kPacked && total - kHeaderBytes > peer.max_message.load(std::memory_order_relaxed)) ||
           (window != 0 && total > window / 4 && total > least);
}

template <typename Copy>
Attempt Node::put_on(Peer& peer, OutFlow& to, std::uint32_t session, std::uint16_t kind, std::uint16_t flags,
                     std::size_t payload, std::uint32_t messages, Copy&& copy, Haste haste) {
    OutFlow* const flow = &to;
    const std::uint32_t window = flow->window.load(std::memory_order_acquire);
    const std::uint32_t least = flow->least_charge.load(std::memory_order_relaxed);
    const std::size_t total = kHeaderBytes + payload;
    if (goes_in_fragments(peer, window, least, flags, total)) {
        return {Attempt::Status::large, flow, 0, session};
    }
    const auto charge = static_cast<std::uint32_t>(
        std::max<std::uint64_t>(total, std::uint64_t{least} * messages));
    if (!flow->in_flight.add(session, charge, window)) {
        return {Attempt::Status::no_credit, flow, charge, session, window};
    }
    const Header header{static_cast<std::uint32_t>(payload), kind, flags,
                        flow->id.load(std::memory_order_relaxed)};
    Attempt attempt = put_uncharged(peer, header, session,
                                    Fill<Copy&>{flow, messages, total, copy}, haste);
    if (attempt.status != Attempt::Status::sent) flow->in_flight.subtract(session, charge);
    return attempt;
}

}  // namespace antiphon

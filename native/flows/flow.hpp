// Credit: how many bytes a sender may have on their way to one handler or inbox of one peer.
//
// The receiver gives a window to every sender that opens a flow, and gives credit back in units (a
// fraction of the window) as messages are handled. Both ends charge a message the larger of its wire
// bytes and the flow's least charge, window / capacity, so that a bound in messages and a bound in
// bytes agree. Both counters carry the session they belong to: a thread that still works for an old
// session changes nothing in the new one.
#pragma once

#include <atomic>
#include <cstdint>

namespace antiphon {

class Peer;
struct Registration;

// A count that belongs to a session: the upper half names it, the lower half counts.
class SessionCount {
   public:
    void reset(std::uint32_t session) {
        word_.store(std::uint64_t{session} << 32, std::memory_order_seq_cst);
    }
    // Adds while the sum stays at or below `most`; false when it would not, or the session is over.
    bool add(std::uint32_t session, std::uint32_t amount, std::uint32_t most) {
        std::uint64_t word = word_.load(std::memory_order_relaxed);
        do {
            if (static_cast<std::uint32_t>(word >> 32) != session) return false;
            if ((word & kCount) + amount > most) return false;
        } while (!word_.compare_exchange_weak(word, word + amount, std::memory_order_seq_cst,
                                              std::memory_order_relaxed));
        return true;
    }
    // Takes off what is there, up to `amount`; returns the count left.
    std::uint32_t subtract(std::uint32_t session, std::uint64_t amount) {
        std::uint64_t word = word_.load(std::memory_order_relaxed);
        std::uint64_t next;
        do {
            if (static_cast<std::uint32_t>(word >> 32) != session) return 0;
            const std::uint64_t count = word & kCount;
            next = word - (amount < count ? amount : count);
        } while (!word_.compare_exchange_weak(word, next, std::memory_order_seq_cst,
                                              std::memory_order_relaxed));
        return static_cast<std::uint32_t>(next & kCount);
    }
    std::uint32_t count(std::uint32_t session) const {
        const std::uint64_t word = word_.load(std::memory_order_seq_cst);
        return static_cast<std::uint32_t>(word >> 32) == session
                   ? static_cast<std::uint32_t>(word & kCount)
                   : 0;
    }

   private:
    static constexpr std::uint64_t kCount = 0xffffffffu;
    // Written by every thread that charges or credits; one word, so no two facts can disagree.
    std::atomic<std::uint64_t> word_{0};
};

// The sender's side of a flow to one peer. Sessions come and go. Of a kind, it lives as long as its peer; of a
// subscription, as long as somebody sends there.
struct OutFlow {
    explicit OutFlow(std::uint16_t kind_) : kind(kind_) {}

    std::uint16_t kind;  // the selector's, once it is in use
    // Set by the selector before the flow is published in the peer's table or the window is set.
    std::atomic<std::uint32_t> id{0};
    std::atomic<std::uint32_t> least_charge{0};
    std::uint32_t unit = 0;     // the selector's: bytes of one credit unit
    std::uint32_t session = 0;  // the selector's: in which it was announced
    // Set by the selector, zero until the receiver has given one; read by producers.
    std::atomic<std::uint32_t> window{0};
    // Set by the producer that asks for a window, cleared by the selector.
    std::atomic<bool> asked{false};
    // Of a subscription: it does not exist any more. Set by the selector, for good.
    std::atomic<bool> withdrawn{false};
    // Of a subscription: a broker has waited for it in vain. Cleared by the selector when credit comes, and by
    // whoever gets something through.
    std::atomic<bool> stalled{false};
    SessionCount in_flight;
    // Kept by the producer whose turn it is in the ring; read for statistics.
    std::atomic<std::uint64_t> messages{0}, bytes{0};
    std::atomic<std::uint64_t> waits{0};
    // The selector's: messages that the receiver has confirmed in this session, and the count of
    // messages at the last look, for finding idle flows.
    std::uint64_t confirmed = 0, at_session_start = 0, seen = 0;
    int idle_ticks = 0;
    // Somebody who does not wait has found it without a window: one is kept for longer then, or whoever tries
    // more rarely than idle windows are given back would never have any.
    std::atomic<bool> hasty{false};
};

// Of a subscription, for a session that begins now; with the peer's mutex.
inline void begin_session(OutFlow& flow, std::uint32_t session) {
    flow.window.store(0, std::memory_order_relaxed);
    flow.asked.store(false, std::memory_order_relaxed);
    flow.confirmed = 0;
    flow.at_session_start = flow.messages.load(std::memory_order_relaxed);
    flow.session = session;
    flow.in_flight.reset(session);
}

// The receiver's side of a flow from one peer.
struct InFlow {
    InFlow(Peer* peer_, Registration* registration_) : peer(peer_), registration(registration_) {}

    Peer* const peer;
    Registration* const registration;  // null for flow 0, which carries kinds without a registration
    // The selector's: what this sender may have on its way, the most that it ever might in this
    // session, and what it has, as far as it can know.
    std::uint32_t window = 0, largest_window = 0;
    std::uint64_t outstanding = 0;
    // Written by the selector with the window, read by handlers.
    std::atomic<std::uint32_t> unit{1};
    // Bytes handled and not yet given back, in the session they came in.
    SessionCount handled;
    // Messages handled or dropped since the flow exists, and how many of them the sender knows of.
    std::atomic<std::uint64_t> handled_messages{0};
    std::uint64_t confirmed_messages = 0;
    // Set by the thread that finds a unit full, cleared by the selector before it takes the units.
    std::atomic<bool> credit_due{false};
    std::atomic<std::uint64_t> messages{0}, bytes{0};  // written by the reader of the channel
    // Runs of it that are not finished: as long it stays. Raised by whoever makes or divides a run; the release of
    // the last one pairs with the acquire of the selector, which may then take it away.
    std::atomic<std::uint32_t> pins{0};
};

}  // namespace antiphon

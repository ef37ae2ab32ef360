// One remote node: the way to it, the credit towards it, and everyone who waits for it.
//
// A peer lives as long as its node. Connections to it come and go as sessions: a number that is not
// zero while data can be sent. A producer reads the session, claims, and reads it again; if it has
// changed, the claim becomes padding. So a ring needs no lock against its connection's death: a new
// session begins at the ring's tail, behind everything that was claimed for the old one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <unistd.h>

#include "base/clock.hpp"
#include "flows/flow.hpp"
#include "frames/bytes.hpp"
#include "ring/ring.hpp"
#include "scheduler/run.hpp"

namespace antiphon {

struct Channel;

// A peer that makes us answer and never reads is cut off.
inline constexpr std::size_t kMaxLane = 1 << 20;

// Kind -> flow towards one peer. Read by producers, written by the selector; pages never go away.
class KindTable {
   public:
    ~KindTable() {
        for (auto& page : pages_) delete page.load(std::memory_order_relaxed);
    }
    OutFlow* find(std::uint16_t kind) const {
        const Page* page = pages_[kind >> 8].load(std::memory_order_acquire);
        return page ? (*page)[kind & 255].load(std::memory_order_acquire) : nullptr;
    }
    void set(std::uint16_t kind, OutFlow* flow) {
        Page* page = pages_[kind >> 8].load(std::memory_order_relaxed);
        if (page == nullptr) {
            if (flow == nullptr) return;
            page = new Page{};
            pages_[kind >> 8].store(page, std::memory_order_release);
        }
        (*page)[kind & 255].store(flow, std::memory_order_release);
    }

   private:
    using Page = std::array<std::atomic<OutFlow*>, 256>;
    std::array<std::atomic<Page*>, 256> pages_{};
};

// Why a peer cannot be reached, in the terms of the errors that users see.
struct Failure {
    enum class Code : std::uint8_t { none, unreachable, authentication, duplicate, protocol };
    Code code = Code::none;
    std::string text;
    std::string address;
    std::string other;     // the address of the node that holds a duplicate id
    std::uint16_t id = 0;  // that id
};
inline Failure removed_peer() { return {Failure::Code::unreachable, "the peer was removed", "", ""}; }

// A large message that wants to go out: asked, then granted or refused by the receiver.
struct Reservation {
    bool granted = false, refused = false;
};

class Peer;

// Somebody who waits for a change of a peer without a thread. Told once for each time that it is parked,
// after the change, by whoever makes it, with no lock of the peer held. Must not wait.
//
// It is the one that hands out references to itself: a weak pointer to something derived from it could be made a pointer
// to this only by taking hold of it for a moment, and whoever does that in its own slice may be left as the last to hold it.
class Sleeper : public std::enable_shared_from_this<Sleeper> {
   public:
    virtual ~Sleeper() = default;
    // `self` keeps it meanwhile. It may be all that does, and this may be its own slice.
    virtual void woken(Peer& peer, std::shared_ptr<Sleeper> self) = 0;
};

class Peer {
   public:
    explicit Peer(std::uint16_t id_) : id(id_) {}

    const std::uint16_t id;

    // --- producers and the selector --------------------------------------------------------------
    // Not zero while data can be sent. Written by the selector, read by producers before and after
    // they claim; all sequentially consistent, with the ring's claim between the two reads.
    std::atomic<std::uint32_t> session{0};
    // Set by the selector before the first session and never changed.
    std::atomic<Ring*> ring{nullptr};
    // The largest frame and the largest message of this session; set before the session.
    std::atomic<std::uint32_t> max_frame{0};
    std::atomic<std::uint64_t> max_message{0};
    KindTable kinds;
    OutFlow unannounced{0};  // flow 0: kinds that the receiver has not announced
    // True while the selector knows of data in the ring, or is writing it. A producer that finds it
    // false sets it and registers the interest; the selector clears it, then looks at the ring again.
    std::atomic<bool> write_armed{false};
    std::atomic<std::uint8_t> interests{0};
    // The write token of the channel we send on: `out` and its socket's writing half, `lane_out`,
    // `block_left`, `out_blocked`. Taken by try-lock; the selector alone waits for it, to close the channel.
    std::atomic<bool> write_token{false};
    // Set by the selector when it found the token taken; the holder then registers the interest.
    std::atomic<bool> handover{false};

    // --- giving the connection back (node/part.cpp) ----------------------------------------------
    // True until it is closed, or kept after all: nothing new goes out. Written by the selector.
    std::atomic<bool> held{false};
    // Calls that need the session to last, and requests that are not done. Raised before `held` is
    // looked at.
    std::atomic<int> busy{0}, asking{0};
    // The last session that did not end with everything delivered.
    std::atomic<std::uint32_t> lost_session{0};
    std::atomic<Nanos> used{0};  // when data last came or went, or it was opened; roughly
    std::atomic<bool> unused{false};  // since it was opened

    // --- waiters ---------------------------------------------------------------------------------
    std::mutex mutex;
    std::condition_variable changed;
    // Raised by a thread before it looks at what it waits for; read by the selector after a change.
    std::atomic<int> waiters{0};
    // Those who have no thread to wait with; raised and read in the same order.
    std::atomic<bool> parked{false};
    std::vector<std::weak_ptr<Sleeper>> sleepers;  // under mutex
    static constexpr std::size_t kManySleepers = 256;
    std::size_t sweep_at = kManySleepers;  // under mutex: with so many, those that have gone are looked for
    // The eventfd that one of them waits for, and not for the condition; kNobody: none does. Written with
    // the selector's turn. It is the node's (LeadWakes), and open as long as that: whoever comes too late
    // wakes another leader for nothing.
    static constexpr int kNobody = -1;
    std::atomic<int> led{kNobody};
    // Until then callers that wait for its answers come first: a scheduler thread leaves them the lead.
    std::atomic<Nanos> callers_until{0};
    // Under mutex:
    std::uint64_t failures = 0;  // attempts to connect that ended for good
    Failure failure;             // of the last one, or of the connection that was lost
    std::map<std::uint64_t, Reservation> reservations;
    std::uint64_t next_flush = 0, flushed = 0;
    std::uint64_t first_flush = 0;  // of this session: those before it are answered by nobody
    std::vector<InFlow*> credits_due;
    // To subscriptions, by the life of the peer and the flow: made by publishers, changed by the selector.
    // Those that nobody has but this list are dropped, with the selector's turn.
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::shared_ptr<OutFlow>> subscription_flows;
    std::string forward;  // control frames for the channel we send on; written at frame boundaries
    std::string back;     // control frames for the channel we receive on
    std::atomic<int> flushes{0};  // asked for and not answered
    // Set by the thread that answers a flush: the sender is told of all that was handled, so that
    // nothing of it counts as unconfirmed.
    std::atomic<bool> confirm_all{false};
    // Until when somebody wants a connection; raised by anybody.
    std::atomic<Nanos> wanted_until{0};

    // --- the selector's --------------------------------------------------------------------------
    Channel* out = nullptr;      // we send on it
    Channel* in = nullptr;       // we receive on it
    Channel* dialling = nullptr;  // will become out
    Channel* offering = nullptr;  // dialled for the peer to send on: will become in
    // To give the connection back: the question that we asked, the one of the peer that we agreed to.
    std::uint32_t asked = 0, agreed = 0;
    std::uint32_t part_seen = 0;  // the last question of this incarnation
    Nanos held_since = 0;
    Nanos ask_again = 0;  // it said that it needs the connection
    int refusals = 0;     // how often, one after the other
    bool ending = false;  // and it is done
    std::atomic<std::uint32_t> features{0};  // that both ends have; written by the selector, before a session begins
    std::atomic<std::uint64_t> incarnation{0};  // set before the session, and read by publishers
    std::string explicit_address;  // under mutex: add_peer and remove_peer change it
    std::string learned_address;
    bool undiallable = false;  // it has no listener: it opens both channels
    bool known = false;        // under mutex: it was added, or it has connected to us
    bool removing = false;     // under mutex: it was removed, and its connection is not closed yet
    bool up = false;           // on_connected was reported
    std::uint32_t sessions = 0;
    // The session we receive in, even between two of them; written by the selector, read by threads that
    // answer a flush and by those who ask whether the peer is connected.
    std::atomic<std::uint32_t> in_session{0};
    std::uint64_t connects = 0, losses = 0;
    int attempts = 0;
    std::uint64_t retry_timer = 0;
    std::string looking_up;  // the address whose name is being looked up; empty: none
    Nanos last_heard = 0, heartbeat = 0;
    bool sign_on_out = false;  // where the last sign of life went
    Nanos excused = 0;  // until then its silence is our own doing
    std::uint32_t remote_age_ms = 0;
    std::string lane_out;  // what is being written of `forward`; with the write token
    std::size_t lane_written = 0;
    std::uint64_t block_left = 0;  // bytes of the ring up to the next known frame boundary; token
    bool lingering = false;        // the selector looks at the ring again in a moment
    std::uint64_t seen_head = 0, trimmed_head = 0;  // of the ring: at the last beat, and when its pages were last freed
    bool out_blocked = false;      // the socket takes no more; token
    std::map<std::uint16_t, std::unique_ptr<OutFlow>> out_flows;
    // Flows whose kind was registered anew under another id, the oldest first: threads may still hold them.
    struct OldFlow {
        std::unique_ptr<OutFlow> flow;
        Nanos since;
    };
    std::deque<OldFlow> old_flows;
    std::unordered_map<std::uint32_t, std::unique_ptr<InFlow>> in_flows;  // by flow id
    // What went and came by flows that are no more.
    struct Past {
        std::uint64_t messages = 0, bytes = 0, waits = 0;
    } past_out, past_in;

    struct Assembly {
        Buffer* buffer;
        std::uint64_t size, filled;
        std::uint16_t kind;
        std::uint32_t asked_for, flow;  // the flow as it came, and the one whose part of the budget it takes
        Nanos touched;
    };
    std::unordered_map<std::uint64_t, Assembly> assemblies;

    // Statistics, written by the selector, read by anybody.
    std::atomic<std::uint64_t> bytes_written{0}, writes{0}, inline_writes{0}, bytes_read{0}, reads{0};
    std::atomic<std::uint64_t> ring_waits{0}, dropped_bytes{0}, unconfirmed_messages{0};
    std::atomic<std::uint64_t> large_out{0}, large_in{0};

    void use(Nanos now) {
        used.store(now, std::memory_order_relaxed);
        unused.store(false, std::memory_order_relaxed);
    }
    // Wakes whoever waits for a change that was made before this call.
    void wake() {
        if (parked.load(std::memory_order_seq_cst)) wake_sleepers();
        if (waiters.load(std::memory_order_seq_cst) == 0) return;
        { std::lock_guard lock(mutex); }
        changed.notify_all();
        wake_leader();
    }
    // Whoever parks looks at what it waits for once more afterwards.
    void park(std::weak_ptr<Sleeper> sleeper) {
        std::lock_guard lock(mutex);
        if (sleepers.size() >= sweep_at) {
            std::erase_if(sleepers, [](const auto& one) { return one.expired(); });
            sweep_at = std::max(kManySleepers, 2 * sleepers.size());
        }
        sleepers.push_back(std::move(sleeper));
        parked.store(true, std::memory_order_seq_cst);
    }
    bool awaited() const {
        return waiters.load(std::memory_order_seq_cst) != 0 || parked.load(std::memory_order_seq_cst);
    }
    void wake_sleepers() {
        std::vector<std::weak_ptr<Sleeper>> woken;
        {
            std::lock_guard lock(mutex);
            parked.store(false, std::memory_order_seq_cst);
            woken.swap(sleepers);
        }
        for (const auto& one : woken) {
            if (auto sleeper = one.lock()) {
                Sleeper& it = *sleeper;
                it.woken(*this, std::move(sleeper));
            }
        }
    }
    void wake_leader() {
        const int leader = led.load(std::memory_order_seq_cst);
        if (leader == kNobody) return;
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t ignored = write(leader, &one, sizeof one);
    }
    void send_forward(Control kind, std::string_view payload, std::uint32_t flow = 0) {
        std::lock_guard lock(mutex);
        append_frame(forward, kind, payload, flow);
    }
    std::size_t send_back(Control kind, std::string_view payload, std::uint32_t flow = 0) {
        std::lock_guard lock(mutex);
        append_frame(back, kind, payload, flow);
        return back.size();
    }
};

}  // namespace antiphon

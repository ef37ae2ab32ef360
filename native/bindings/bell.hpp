// Calls that wait for a peer without a thread: one thread of Python's tries all of them again, each when something
// about its peer has changed.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "node/node.hpp"
#include "requests/completions.hpp"

namespace antiphon::python {

// Pushes its number when the peer that it is parked at has changed. One bell, one peer.
class Bell : public Sleeper {
   public:
    Bell(std::shared_ptr<Completions> completions, std::uint64_t number)
        : completions_(std::move(completions)), number_(number) {}

    void woken(Peer&, std::shared_ptr<Sleeper>) override {
        // In this order: whoever finds it parked, and looks no further, is pushed afterwards.
        parked_.store(false, std::memory_order_seq_cst);
        completions_->push_once(number_);
    }
    // Before the attempt that may find that it has to wait.
    void park(Peer& peer) {
        if (parked_.exchange(true, std::memory_order_seq_cst)) return;
        try {
            peer.park(weak_from_this());
        } catch (...) {
            parked_.store(false, std::memory_order_seq_cst);
            throw;
        }
    }

   private:
    const std::shared_ptr<Completions> completions_;
    const std::uint64_t number_;
    std::atomic<bool> parked_{false};  // set by the one who tries, cleared by whoever wakes
};

// How far one such call has come. While it lives its peer counts as waited for.
class Waits {
   public:
    enum class Next { went, later, steps, failed };

    Waits(Peer& peer, Nanos deadline) : sending_{peer, deadline, now_ns()} {
        peer.waiters.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Waits() { sending_.peer.waiters.fetch_sub(1, std::memory_order_seq_cst); }
    Waits(const Waits&) = delete;

    // Never blocks. `later`: when the bell has rung, or at until(). `steps`: it is so large that it goes in steps
    // which wait for each other, and needs a thread. `failed`: outcome() says how.
    template <typename Try>
    Next attempt(Node& node, Bell& bell, Try&& attempt_once) {
        for (;;) {
            bell.park(sending_.peer);
            const Attempt attempt = attempt_once();
            if (attempt.status == Attempt::Status::sent) return Next::went;
            if (attempt.status == Attempt::Status::large) return Next::steps;
            outcome_ = node.wait_apart(sending_, attempt, until_);
            if (!outcome_.ok()) return Next::failed;
            if (until_ > now_ns()) return Next::later;
        }
    }
    Nanos until() const { return until_; }
    Nanos waited() const { return now_ns() - sending_.began; }
    const Outcome& outcome() const { return outcome_; }

   private:
    Node::Sending sending_;
    Nanos until_ = kNever;
    Outcome outcome_;
};

}  // namespace antiphon::python

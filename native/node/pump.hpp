// A task that sends without a thread of its own that waits: when there is no room it is parked at the
// peer, and runs again when something about that has changed.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "node/node.hpp"

namespace antiphon {

class Pump : public Task, public Sleeper {
   public:
    explicit Pump(std::shared_ptr<Node> node) : node_(std::move(node)) {}

    // Any thread: it has something to do.
    void nudge() { node_->scheduler().notify(*this); }
    void woken(Peer& peer, std::shared_ptr<Sleeper> self) override {
        {
            std::lock_guard lock(parking_);
            std::erase(parked_, &peer);
        }
        nudge();
        // Its owner may have let it go by now: it must not end in the middle of its slice, which may be this thread's.
        node_->scheduler().keep_while_running(std::static_pointer_cast<Pump>(std::move(self)));
    }

   protected:
    // Before the last look at what it waits for.
    void park(Peer& peer) {
        {
            std::lock_guard lock(parking_);
            if (std::find(parked_.begin(), parked_.end(), &peer) != parked_.end()) return;
            parked_.push_back(&peer);
        }
        try {
            peer.park(weak_from_this());
        } catch (...) {
            std::lock_guard lock(parking_);
            std::erase(parked_, &peer);
            throw;
        }
    }
    // What an attempt to send found is seen to: credit is asked for, a connection is wanted, and the next
    // change of the peer is heard of. Also after the last look: that may have found something else than the one
    // before, which nobody has asked for yet.
    void wait_for(Peer& peer, const Attempt& attempt) {
        park(peer);
        if (attempt.status == Attempt::Status::no_credit) node_->want_credit(peer, attempt);
        if (attempt.status == Attempt::Status::not_connected) node_->want_connection(peer);
    }
    // No slice begins after this, and none runs, but the caller's own. Never with a lock that a slice takes.
    void retire() { node_->scheduler().forget(*this, kNever); }

    const std::shared_ptr<Node> node_;

   private:
    std::mutex parking_;
    std::vector<Peer*> parked_;  // where it is on the list
};

}  // namespace antiphon

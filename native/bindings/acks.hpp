// What a subscription has done with the events that a broker wants acknowledged, on its way there.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "node/pump.hpp"

namespace antiphon::python {

// Events of one topic to one subscription, by their numbers, which have no gap.
struct AckRange {
    enum Verdict : std::uint32_t { done = 0, again = 1 };
    std::uint32_t flow, topic, epoch;
    std::uint32_t first, last;
    std::uint32_t verdict;
};
static_assert(sizeof(AckRange) == 24);

// Which event it was.
struct AckOf {
    std::uint16_t broker = 0;  // 0: nobody asks
    std::uint32_t topic = 0, epoch = 0, number = 0;
};

// Thread-safe, and needs no interpreter's lock. What a broker was not told before the connection ended it
// will hand out again.
class Acks : public Pump {
   public:
    Acks(std::shared_ptr<Node> node, std::uint32_t flow) : Pump(std::move(node)), flow_(flow) {}
    ~Acks() override {
        if (node_->forked()) return;
        retire();
        if (!ranges_.empty()) node_->end_word();
    }

    // In a child of the process that it belongs to: nothing may be called then.
    bool forked() const { return node_->forked(); }
    // True: there was nothing to be sent before it. Whoever may be busy with the next event for long then
    // nudges; those that come before the task has its turn go together.
    bool add(const AckOf& event, AckRange::Verdict verdict);
    void send();  // never waits; what has no room goes later
    // May block: until nothing is left to be sent, the node is closed, or the point in time. False: something is.
    bool wait_sent(Nanos until);
    bool run_slice(Nanos) override {
        send();
        return false;
    }

   private:
    void clear();  // with the mutex: nobody will send these

    const std::uint32_t flow_;
    std::mutex mutex_;
    std::condition_variable sent_;
    std::uint16_t broker_ = 0;  // whom these are for
    std::vector<AckRange> ranges_;  // a word that the node's close waits for, while there are any
};

}  // namespace antiphon::python

// A subscription's events on the scheduler's threads.
#pragma once

#include <memory>
#include <vector>

#include "base/histogram.hpp"
#include "bindings/event_reader.hpp"
#include "bindings/tasks.hpp"

namespace antiphon::python {

// Made when the first event comes: a node may have very many subscriptions that are silent.
struct Delays {
    Histogram response;  // from arrival at this node to the end of the handler
    std::atomic<double> sum{0};
    std::atomic<std::uint64_t> events{0}, expired{0}, malformed{0}, missed{0};
};

class SubscriptionTask : public HandlerTask {
   public:
    SubscriptionTask(std::shared_ptr<Node> node, std::shared_ptr<Registration> registration,
                     std::shared_ptr<Handler> handler)
        : HandlerTask(std::move(node), std::move(registration), std::move(handler)), reader_(*registration_, *handler_) {}
    ~SubscriptionTask() override { delete delays_.load(std::memory_order_relaxed); }

    const EventReader& reader() const { return reader_; }  // with the interpreter's lock
    const Delays* delays() const { return delays_.load(std::memory_order_acquire); }

   protected:
    void handle(Nanos until) override;

   private:
    void handle_batches(const Calls& calls, Nanos until, std::uint64_t& count, std::uint64_t& failed);
    void handle_events(const Calls& calls, Nanos until, std::uint64_t& count, std::uint64_t& failed);
    bool hand_over(const Calls& calls, const EventReader::Topic& topic, std::uint32_t missed);
    bool pass_on(const Calls& calls, const EventReader::Topic& topic, std::uint32_t missed);
    void took(Nanos now, std::uint64_t events);
    void pace(Nanos used);

    EventReader reader_;
    std::atomic<Delays*> delays_{nullptr};
    std::vector<EventView> views_;  // of one batch
    std::vector<std::uint16_t> sources_;  // of the same
    std::uint8_t attempt_ = 0;            // the highest of them
    std::size_t most_relayed_ = 1;        // at once, while shares have to be kept to
};

}  // namespace antiphon::python

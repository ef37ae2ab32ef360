// One publisher's events on their way into a log, and the receipts on their way back.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>

#include "bindings/quota.hpp"
#include "bindings/route.hpp"
#include "log/store.hpp"
#include "node/pump.hpp"

namespace antiphon::python {

// What a publisher is told: everything up to this number is in the log, or why the next one is not.
struct ReceiptMessage {
    std::uint64_t producer;
    std::uint64_t upto;     // numbers of the publisher
    std::uint32_t number;   // the publisher's, of its topic
    std::uint32_t status;   // log::Status
    std::int32_t error;     // errno
    std::uint32_t unused = 0;
};
static_assert(sizeof(ReceiptMessage) == 32);

class Recorder : public Route, public log::Listener, public Pump {
   public:
    // `producer` 0: it sends nothing again, and is told nothing.
    Recorder(std::shared_ptr<Node> node, std::shared_ptr<log::Store> store, std::shared_ptr<log::Log> log,
             std::uint16_t source, std::uint32_t number, std::uint64_t producer);
    ~Recorder() override;

    void relay(const std::vector<EventView>& views, std::uint32_t missed, Nanos arrived, Nanos patience) override;
    // With the interpreter's lock. What it may take; null: everything. What is above is lost, or left to a
    // publisher that sends it again.
    void limit(std::shared_ptr<Quota> quota) { quota_ = std::move(quota); }
    bool serves(std::uint64_t producer) const override { return producer == producer_; }
    void resume(std::uint64_t first) override { expected_ = std::max(expected_, first); }
    void appended(std::uint64_t token, const log::Receipt& receipt) override;
    bool run_slice(Nanos until) override;
    void close();  // without the interpreter's lock

    std::uint64_t received() const { return received_.load(std::memory_order_relaxed); }
    std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

   private:
    std::size_t allowed(const std::vector<EventView>& views);
    bool append(log::Block&& block, std::uint64_t token);
    void refuse(std::uint64_t number);
    void note(std::uint64_t number, const log::Receipt& receipt);
    ReceiptMessage receipt();

    const std::shared_ptr<log::Store> store_;
    const std::shared_ptr<log::Log> log_;
    const std::uint16_t source_;
    const std::uint32_t number_;
    const std::uint64_t producer_;
    std::atomic<bool> closed_{false};  // set once, looked at between two blocks
    std::atomic<std::uint64_t> received_{0}, dropped_{0};

    std::shared_ptr<Quota> quota_;  // with the interpreter's lock
    std::uint64_t paid_ = 0;        // below that number the quota has been asked; of the one task that relays
    std::uint64_t expected_ = 0;  // the publisher's next number; of the one task that relays
    std::mutex mutex_;            // what the log has said
    std::uint64_t upto_ = 0;
    std::uint64_t trouble_ = 0;  // the highest number that is known not to have been taken; 0: none
    log::Status status_ = log::Status::ok;
    int error_ = 0;
};

}  // namespace antiphon::python

// One recorded topic on its way from a log to one subscription: from a place on, for as long as it grows.
//
// Nothing is lost for want of room: what has not been sent yet is in the log. So a slow subscription
// holds up nobody, and misses only what the log no longer keeps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bindings/python.hpp"
#include "bindings/targets.hpp"
#include "log/reader.hpp"
#include "log/store.hpp"
#include "node/pump.hpp"
#include "scheduler/timers.hpp"

namespace antiphon::python {

class Replay : public Pump, public log::Watcher, public Alarm {
   public:
    struct Options {
        std::uint32_t topic;  // our number for it
        std::string name;
        log::Start start;
        double speed;         // of the original; 0: as fast as it goes
    };
    Replay(std::shared_ptr<Node> node, std::shared_ptr<log::Store> store, std::shared_ptr<log::Log> log,
           std::shared_ptr<Target> target, Options options, Reference judge);
    ~Replay() override;

    void start();
    // With the interpreter's lock, before `close`: whoever holds it last may not have that.
    void forget_judge() { judge_ = {}; }
    void close();  // without the interpreter's lock

    bool run_slice(Nanos until) override;
    void more() override { nudge(); }
    void tick(Nanos, std::uint64_t, std::uint64_t) override { nudge(); }
    std::uint64_t handled() const override { return sent_.load(std::memory_order_relaxed); }

    std::uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
    std::uint64_t missed() const { return missed_.load(std::memory_order_relaxed); }
    std::uint64_t position() const { return position_.load(std::memory_order_relaxed); }

   private:
    Attempt bind(std::uint32_t session);
    void introduce();
    bool read();
    void keep_what_passes();
    bool send(bool& parked);
    Outcome::Code send_large(const EventView& view);
    std::size_t due();
    void look_again(Nanos in) { node_->timers().set(*this, now_ns() + in); }

    const std::shared_ptr<log::Store> store_;
    const std::shared_ptr<log::Log> log_;
    const std::shared_ptr<Target> target_;
    const std::uint32_t topic_;
    const std::string name_;
    const double speed_;
    const bool judged_;  // somebody looks into the data of each event
    Reference judge_;    // who does: for a list of bodies a list of verdicts; with the interpreter's lock
    log::Reader reader_;
    const std::uint64_t first_;  // where it begins, if that is where the log ended then; else 0
    std::atomic<bool> closed_{false};  // set once; a slice looks at it between two batches
    bool watches_ = false, ticks_ = false;

    // Of the thread that runs it:
    std::vector<EventView> views_;  // of the batch that was read last, and lies in the reader
    std::size_t next_ = 0;          // of them
    LargePause large_;
    Nanos began_ = 0;               // of a replay at a speed, by our clock,
    std::int64_t from_ns_ = 0;      // and by its publishers'
    // Written by that thread, read by whoever asks; relaxed.
    std::atomic<std::uint64_t> sent_{0}, missed_{0}, position_{0};
};

}  // namespace antiphon::python

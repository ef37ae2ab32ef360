// A function that is called at equal distances, as a task with a share.
#pragma once

#include <memory>
#include <utility>

#include "base/histogram.hpp"
#include "bindings/python.hpp"
#include "scheduler/timers.hpp"

namespace antiphon::python {

class Timer;

// Holds at most one deadline: whoever is not done with one when the next comes misses that.
class TimerTask : public Task, public Ticker {
   public:
    explicit TimerTask(Node& node) : node_(node) {}
    void tick(Nanos intended, std::uint64_t number, std::uint64_t skipped) override;
    bool run_slice(Nanos until) override;
    std::uint64_t handled() const override { return calls.load(std::memory_order_relaxed); }
    // One deadline fits in: it was full if another has been missed.
    bool filled() override {
        const std::uint64_t now = missed.load(std::memory_order_relaxed);
        return std::exchange(seen_missed_, now) != now;
    }

    // Written by the thread that runs it, but `missed`, which the timers' thread writes too.
    std::atomic<std::uint64_t> calls{0}, failed{0}, late{0}, missed{0};
    Histogram lateness;

   private:
    friend class Timer;
    Node& node_;  // whose scheduler runs it, and keeps it while it runs
    std::atomic<Nanos> due_{0};  // set by the timers' thread, cleared by the one that runs it
    // Of that one: its number, and how many had been missed before it.
    std::uint64_t number_ = 0, missed_before_ = 0;
    std::uint64_t told_missed_ = 0, seen_missed_ = 0;
    // With the interpreter's lock:
    Reference call_, on_error_;
    bool wants_event_ = false;
    Nanos period_ = 0;
};

class Timer {
   public:
    // `wants_event`: it is called with an Event that says when, how late and how many were missed.
    Timer(std::shared_ptr<Node> node, double period, Reference call, Reference on_error, bool wants_event);
    ~Timer();
    bool start();
    // With the interpreter's lock, which it lets go while a running call ends. False with an exception set.
    bool close();
    bool active() const { return !closed_ && !node_->closed(); }
    bool set_share(double share) { return node_->scheduler().set_share(*task_, share); }
    const TimerTask& task() const { return *task_; }
    std::shared_ptr<const Task> held_task() const { return task_; }
    double period() const { return static_cast<double>(task_->period_) / 1e9; }

   private:
    std::shared_ptr<Node> node_;
    std::shared_ptr<TimerTask> task_;
    bool started_ = false, closed_ = false;
};

}  // namespace antiphon::python

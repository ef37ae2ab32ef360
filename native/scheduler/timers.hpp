// Absolute deadlines, at equal distances, for ever: a thread that tells whom they concern.
//
// A deadline is computed from the first one and its number, never from the moment at which the one
// before was met: what is late stays late, and nothing drifts.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.hpp"

namespace antiphon {

class Ticker {
   public:
    virtual ~Ticker() = default;
    // On the timers' thread, with their lock: must not wait. Deadlines that were passed over since the
    // last call, because the thread did not get to run, are `skipped`.
    virtual void tick(Nanos intended, std::uint64_t number, std::uint64_t skipped) = 0;
};

class Timers {
   public:
    ~Timers() { stop(); }
    // From `first` on, every `period`. Starts the thread. False: stopped already, or there is no thread.
    bool add(Ticker& ticker, Nanos first, Nanos period);
    // Once this returns, it is not called any more. Not within tick().
    void remove(Ticker& ticker);
    void stop();

   private:
    struct Entry {
        Nanos first, period;
        std::uint64_t number;
        Ticker* ticker;
    };
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::multimap<Nanos, Entry> due_;
    std::thread thread_;
    bool stopped_ = false;
};

}  // namespace antiphon

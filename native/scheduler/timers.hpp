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

class Alarm;

struct TimerEntry {
    Nanos first, period;
    std::uint64_t number;
    Ticker* ticker;
    Alarm* alarm;  // null: it comes again every period
};

// One deadline, which may be moved: for whoever has something to do seldom, at times that change.
class Alarm : public Ticker {
    friend class Timers;
    std::multimap<Nanos, TimerEntry>::iterator place_;  // with the timers' lock, as the next
    bool set_ = false;
};

class Timers {
   public:
    ~Timers() { stop(); }
    // From `first` on, every `period`. Starts the thread. False: stopped already, or there is no thread.
    bool add(Ticker& ticker, Nanos first, Nanos period);
    // Once this returns, it is not called any more. Not within tick().
    void remove(Ticker& ticker);
    // Once, at that time, instead of the one that was set before; kNever: not at all, and then it is not
    // called any more once this returns. Not within tick(). False as with add().
    bool set(Alarm& alarm, Nanos at);
    void stop();

   private:
    bool begin();  // with the mutex: whether there is a thread
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::multimap<Nanos, TimerEntry> due_;
    std::thread thread_;
    bool stopped_ = false;
};

}  // namespace antiphon

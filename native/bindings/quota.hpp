// What one client of a broker may publish in a second, whichever of its topics it uses.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/clock.hpp"
#include "topics/event_head.hpp"

namespace antiphon::python {

// Two buckets that fill at a rate and hold one second of it. A message may leave that of the bytes in
// debt, so that one which is larger than the bucket passes after all, and is paid for by those behind it.
class Quota {
   public:
    // 0: any number.
    Quota(double events_per_s, double bytes_per_s) { set(events_per_s, bytes_per_s); }

    void set(double events_per_s, double bytes_per_s) {
        std::lock_guard lock(mutex_);
        event_rate_ = events_per_s;
        byte_rate_ = bytes_per_s;
        events_ = event_rate_;
        bytes_ = byte_rate_;
        at_ = now_ns();
    }

    // How many of these may pass, from the first one on; the others are counted as dropped, unless they
    // come again.
    std::size_t take(const EventView* views, std::size_t count, bool again = false) {
        std::lock_guard lock(mutex_);
        const Nanos now = now_ns();
        const double seconds = static_cast<double>(now - at_) / static_cast<double>(kSecond);
        at_ = now;
        events_ = std::min(event_rate_, events_ + seconds * event_rate_);
        bytes_ = std::min(byte_rate_, bytes_ + seconds * byte_rate_);
        std::size_t passed = 0;
        for (; passed < count; ++passed) {
            if ((event_rate_ > 0 && events_ < 1) || (byte_rate_ > 0 && bytes_ <= 0)) break;
            events_ -= 1;
            bytes_ -= static_cast<double>(views[passed].head.properties + views[passed].size);
        }
        if (!again) dropped_.fetch_add(count - passed, std::memory_order_relaxed);
        return passed;
    }

    std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

   private:
    std::mutex mutex_;
    double event_rate_ = 0, byte_rate_ = 0, events_ = 0, bytes_ = 0;
    Nanos at_ = 0;
    // Written with the mutex, read for statistics; relaxed, a count by itself.
    std::atomic<std::uint64_t> dropped_{0};
};

}  // namespace antiphon::python

// Waiting on a condition variable until a point of the monotonic clock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.hpp"

namespace antiphon {

// False once the point has passed.
inline bool wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                       Nanos until) {
    if (until >= kNever) {
        condition.wait(lock);
        return true;
    }
    const Nanos left = until - now_ns();
    if (left <= 0) return false;
    condition.wait_for(lock, std::chrono::nanoseconds(left));
    return true;
}

}  // namespace antiphon

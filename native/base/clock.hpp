// Time as the core counts it: nanoseconds of the monotonic clock.
#pragma once

#include <time.h>

#include <cstdint>

namespace antiphon {

using Nanos = std::int64_t;

inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
// A deadline that never comes. Half the range, so that adding to it cannot overflow.
inline constexpr Nanos kNever = INT64_MAX / 2;

inline Nanos now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<Nanos>(t.tv_sec) * kSecond + t.tv_nsec;
}

// The time of day, since 1970: for what is told to others.
inline std::int64_t wall_clock_ns() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return static_cast<std::int64_t>(t.tv_sec) * kSecond + t.tv_nsec;
}

// What this thread has used of a processor: a system call, so not for every message.
inline Nanos thread_cpu_ns() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<Nanos>(t.tv_sec) * kSecond + t.tv_nsec;
}

inline Nanos seconds_to_ns(double seconds) {
    if (!(seconds >= 0)) return 0;
    if (seconds > 1e9) return kNever;
    return static_cast<Nanos>(seconds * 1e9);
}

}  // namespace antiphon

// What the loops of the benchmark share: their errors, and how long they wait in a socket.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/clock.hpp"

namespace antiphon::bench {

[[noreturn]] inline void raise(const char* what, int error = errno) {
    throw std::system_error(error, std::generic_category(), what);
}

// Bounds a blocking call from inside the kernel: no second system call beside each, as poll() would
// be. `option` is SO_SNDTIMEO or SO_RCVTIMEO.
inline void limit(int fd, int option, Nanos nanos) {
    const Nanos micros = std::max<Nanos>(nanos / kMicrosecond, 1);
    timeval value{};
    value.tv_sec = static_cast<time_t>(micros / 1'000'000);
    value.tv_usec = static_cast<suseconds_t>(micros % 1'000'000);
    if (::setsockopt(fd, SOL_SOCKET, option, &value, sizeof value) != 0) raise("setsockopt");
}

}  // namespace antiphon::bench

// A byte stream with nothing in it but the system calls: what this machine's loopback can carry.
//
// The benchmark holds the node's rates against it. Both functions block the calling thread, hold no
// lock and touch no Python object, so a binding releases the GIL around them. Every wait has an end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace antiphon::bench {

struct StreamResult {
    std::uint64_t bytes;
    double seconds;
};

// Connects to host:port and calls send() with chunks of `size` bytes until `seconds` have passed,
// then closes, so that the receiver sees the end of the stream. Returns the bytes that the kernel
// took and the time from the first send() to the last. A receiver that stops reading delays the
// return by at most kStreamPatience. Throws std::invalid_argument (size, seconds, host) and
// std::system_error (refused, reset, no progress within kStreamPatience).
StreamResult raw_stream_send(const std::string& host, std::uint16_t port, std::size_t size,
                             double seconds);

// Accepts one connection on the listening socket `fd` and reads it to its end, or for at most
// `seconds_max`, the wait for the connection included. Returns the bytes read and the time between
// the first and the last byte: how long the sender took to arrive does not count. `fd` stays open
// and listening. No connection in time: zero bytes. Throws std::system_error.
StreamResult raw_stream_receive(int fd, double seconds_max);

// How long one send() or connect() may make no progress.
inline constexpr double kStreamPatience = 10.0;

}  // namespace antiphon::bench

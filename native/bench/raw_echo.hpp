// A ping-pong with nothing in it but the system calls: how soon this machine's loopback can answer.
//
// The benchmark holds the round trips of requests against it. Both functions work on a connected,
// blocking stream socket that stays the caller's. They block the calling thread, hold no lock and
// touch no Python object, so a binding releases the GIL around them. Every wait has an end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace antiphon::bench {

// Sends `size` bytes, waits for them to come back, and again until `seconds` have passed, at least
// once. Returns the nanoseconds of every round trip. Throws std::invalid_argument (size, seconds),
// std::system_error (lost, no answer within kEchoPatience) and std::runtime_error (another answer).
std::vector<std::int64_t> raw_echo_call(int fd, std::size_t size, double seconds);

// Returns every `size` bytes to where they came from, until the other end closes, the socket is
// shut down or nothing has come for `seconds_max`. Returns how often. Throws std::invalid_argument
// and std::system_error.
std::uint64_t raw_echo_serve(int fd, std::size_t size, double seconds_max);

// How long a call waits for its answer, and either end for room to send.
inline constexpr double kEchoPatience = 10.0;

}  // namespace antiphon::bench

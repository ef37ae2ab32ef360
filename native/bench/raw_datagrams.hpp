// Datagrams with nothing around them but the system calls, many to a call: what this machine's UDP
// can carry.
//
// Both functions block the calling thread, hold no lock and touch no Python object, so a binding
// releases the GIL around them. The sockets are the caller's, and blocking ones; how long a call
// waits in them (SO_SNDTIMEO, SO_RCVTIMEO) is set here. Every wait has an end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace antiphon::bench {

// Sends `data` as one datagram, `count` times, over the connected socket `fd`. One that finds
// nobody there, or no room in the device's queue, is lost and no error, as on any network: all that
// is known afterwards is that `count` were tried. Throws std::invalid_argument (nothing to send)
// and std::system_error, ETIMEDOUT if the socket took nothing within kDatagramPatience.
void raw_datagrams_send(int fd, std::span<const char> data, std::uint64_t count);

struct Datagrams {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
    std::uint64_t wrong = 0;  // of another size
    std::int64_t last_ns = 0;  // when the last ones were there; 0: there were none
    // Of those that are marked, one after the other: the head, and when it was there (eight bytes).
    std::vector<char> marked;
};

// Receives from the bound socket `fd` for about `seconds`, or until none has come for so long, or
// until kMostMarked marked ones have come and perhaps a few more. Those of `size` bytes that begin
// with `mark` are kept: their first `head` bytes. The clock is that of now_ns().
// Throws std::invalid_argument (size, head, seconds) and std::system_error.
Datagrams raw_datagrams_receive(int fd, std::size_t size, double seconds, std::uint8_t mark,
                                std::size_t head);

inline constexpr std::size_t kMostMarked = 4096;
inline constexpr double kDatagramPatience = 10.0;

}  // namespace antiphon::bench

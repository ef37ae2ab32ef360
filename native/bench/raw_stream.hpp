// A byte stream with nothing in it but the system calls: what this machine's loopback can carry.
//
// The benchmark holds the node's rates against it, with one stream for a given time. The lab keeps
// one connection for a whole run, counts while it goes on, and times some of its chunks. All of this
// blocks the calling thread and touches no Python object, so a binding releases the GIL around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

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

// Sends `data` as one chunk after the other, `count` times, a send() for each, over the connected
// and blocking socket `fd`, which stays the caller's. A socket with a limit (SO_SNDTIMEO) that takes
// nothing for so long: ETIMEDOUT. Throws std::invalid_argument (nothing to send), std::system_error.
void raw_stream_write(int fd, std::span<const char> data, std::uint64_t count);

// What has come over streams of chunks of one size.
struct StreamCounts {
    std::uint64_t messages = 0;  // whole chunks
    std::uint64_t bytes = 0;
    std::uint64_t wrong = 0;    // chunks that begin with neither byte that they may begin with
    std::int64_t last_ns = 0;   // when the last bytes were there; 0: there were none
    std::uint64_t dropped = 0;  // marked ones that nobody took in time
    // Of those that are marked, one after the other: the head, and when it was there (eight bytes).
    std::vector<char> marked;
};

// Reads streams of chunks, each on a thread of its own, and counts them together. Chunks have no
// frame: their size tells where one ends. Each begins with `first`, or with `mark` if its first
// `head` bytes are to be kept; those are kept only where a chunk is at least that long.
class StreamReader {
   public:
    // Throws std::invalid_argument (size, head).
    StreamReader(std::size_t size, std::uint8_t first, std::uint8_t mark, std::size_t head);

    // Reads the connected, blocking socket `fd` to its end. To shut the socket down ends it too.
    // Any number of threads may be in here. Throws std::system_error.
    void read(int fd);

    // All counts so far, and the marked ones since the last call. Any thread, at any time.
    StreamCounts take();

   private:
    struct Place;
    void count(Place& place, std::span<const char> data, StreamCounts& found) const;
    void add(const StreamCounts& found);

    const std::size_t size_;
    const std::uint8_t first_;
    const std::uint8_t mark_;
    const std::size_t head_;
    // Taken once per recv() and once per take(). Atomics would do without it, and would hand out
    // counts of different moments.
    std::mutex mutex_;
    StreamCounts counts_;
};

// Marked ones that a StreamReader holds, at the most.
inline constexpr std::size_t kMostHeld = 1'000'000;

}  // namespace antiphon::bench

// What a store is told when it is opened, and what it says when something is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/clock.hpp"

namespace antiphon::log {

// When an append is acknowledged: after the write; after the next sync, which comes at intervals; after
// a sync at once. Appends that wait together share one.
enum class Fsync { none, interval, always };

struct Settings {
    Fsync fsync = Fsync::interval;
    Nanos interval = 10 * kMillisecond;
    std::uint64_t segment_bytes = 64 << 20;    // a new segment is begun at this size,
    std::uint64_t segment_records = 1 << 20;   // after so many sequences,
    Nanos segment_age = 3600 * kSecond;        // or at this age
    std::uint64_t keep_bytes = 0;              // of each log, in whole segments; 0: all
    Nanos keep_age = 0;                        // how long; 0: for ever
    std::size_t queue_bytes = 80 << 20;        // that wait to be written; a node's largest message fits
    std::size_t max_open = 256;                // files
    std::size_t max_producers = 4096;          // of each log
    Nanos retry = 100 * kMillisecond;          // after a disk was full or failed: how soon it is tried again
    bool writable = true;                      // false: look only; needs no lock, repairs nothing
    bool threaded = true;                      // false: step() does the log thread's work
};

// Both clocks: periods are measured with the one, files carry the other.
struct Now {
    Nanos steady;
    std::int64_t wall;
};
Now now();

// A store or a log that cannot be opened, or a store that is closed.
class Failure : public std::runtime_error {
   public:
    enum class Kind { in_use, not_a_store, damaged, topic, disk, closed };
    Failure(Kind kind, const std::string& text, int error = 0)
        : std::runtime_error(text), kind(kind), error(error) {}

    const Kind kind;
    const int error;  // errno, if the disk said so
};

// Something about the files that somebody should know.
struct Finding {
    bool damage;  // what was once acknowledged may be gone; otherwise it is what a crash leaves behind
    std::string path;
    std::uint64_t position;
    std::string what;
};

}  // namespace antiphon::log

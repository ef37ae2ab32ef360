// Appending: what is handed to a store, and what comes back.
#pragma once

#include <cstdint>
#include <memory>

#include "log/block.hpp"

namespace antiphon::log {

class Log;

enum class Status {
    ok,
    full,    // the disk is; it can be tried again
    failed,  // the disk did something else; nobody knows whether the records are there. Again is safe for
             // a producer with numbers, once this log goes on
    out_of_order,  // an earlier block of this producer was not taken; that one first, or it would be missed.
                   // A producer that gives it up sends an empty block with its number
    closed,
};

struct Receipt {
    Status status = Status::ok;
    int error = 0;                // errno
    std::uint64_t sequence = 0;   // of the first record that was appended; 0: all were here already
    std::uint32_t count = 0;      // appended
    std::uint32_t duplicates = 0; // of the block's first records: they were here already
};

class Listener {
   public:
    virtual ~Listener() = default;
    // On the log thread, with no lock held; in the order of the appends of each log. Must not wait, and
    // not take the interpreter's lock.
    virtual void appended(std::uint64_t token, const Receipt& receipt) = 0;
};

// Whether a block was taken. A full queue is an answer and not an error: somebody else waits, or drops.
enum class Put { taken, no_room, too_large, closed };

struct Item {
    std::shared_ptr<Log> log;
    Block block;
    std::shared_ptr<Listener> listener;
    std::uint64_t token = 0;
};

}  // namespace antiphon::log

// Opening a log: what is in its directory, what of it is valid, and where it goes on.
//
// Only the last segment can have suffered from a crash: the others were synced before the next one was
// made, whose head says how far they are valid. A crash loses what was not synced, page by page and in
// no order. So behind the last sync there may be bad batches before good ones, and that is no damage:
// none of them was acknowledged. Every batch says how far the segment was synced when it was written. A
// bad batch before the highest such mark is damage; at the first bad place behind it the log ends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "log/disk.hpp"
#include "log/log.hpp"
#include "log/settings.hpp"
#include "log/writer.hpp"

namespace antiphon::log {

// What was counted on the way; `antiphon broker check` prints it.
struct Tally {
    std::uint64_t batches = 0, records = 0, bytes = 0;
    std::uint64_t first = 0, last = 0;  // sequences that are there; 0: none
    std::int64_t first_ns = 0, last_ns = 0;
    std::uint32_t epoch = 0;  // the last one

    void add(const BatchHead& head);
    void add(const Tally& other);  // which comes behind
};

struct Recovered {
    std::string topic;
    std::vector<std::shared_ptr<Segment>> segments;
    Continuation from;
    std::vector<Finding> findings;
    Tally tally;  // only when everything was read
};

struct Recovery {
    std::string directory;
    std::string topic;    // empty: whatever the segments say
    bool repair = false;  // may write: cut a torn tail, sync what was not, make missing indexes
    bool read_all = false;  // every batch, and not only those that no index vouches for
};

// Throws Failure when the directory or the last segment cannot be read: to go on would give up what may
// well be there.
Recovered recover(Disk& disk, const Settings& settings, const Recovery& wanted, Now now);

}  // namespace antiphon::log

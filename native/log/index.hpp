// Where in a segment a sequence or a time is, roughly: one entry for so many bytes.
//
// The index of the segment that is written grows in memory. A finished segment leaves it in a file of
// its own, and has none in memory: seeking is rare, and logs are many. That file is never synced. It
// says nothing that cannot be found in the segment, so one that is missing or damaged is made again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "log/disk.hpp"
#include "log/format.hpp"

namespace antiphon::log {

// How far a segment goes.
struct Extent {
    std::uint64_t bytes = 0;
    std::uint64_t next = 0;     // no sequence in it is so high
    std::uint64_t records = 0;
    std::int64_t last_ns = std::numeric_limits<std::int64_t>::min();  // the latest time of a record
    std::int64_t touched_ns = 0;  // when something was last written, by this machine's clock
};

struct IndexEntry {
    std::uint64_t position;  // of a batch
    std::uint64_t sequence;  // of its first record
    std::uint64_t records;   // before it, in this segment
    std::int64_t last_ns;    // the latest time of those: it never falls, so it can be searched
};

class Index {
   public:
    static constexpr std::uint64_t kEvery = 64 << 10;  // bytes of the segment

    // A batch, behind what `before` says.
    void add(const BatchHead& head, const Extent& before) {
        if (!entries_.empty() && head.position - entries_.back().position < kEvery) return;
        entries_.push_back({head.position, head.base, before.records, before.last_ns});
    }
    void cut(std::uint64_t bytes) {
        while (!entries_.empty() && entries_.back().position >= bytes) entries_.pop_back();
    }
    void append(const std::vector<IndexEntry>& more) { entries_.insert(entries_.end(), more.begin(), more.end()); }
    void clear() { entries_ = {}; }

    // The last entry at or before the sequence, or before anything as late as that; null: there is none.
    const IndexEntry* by_sequence(std::uint64_t sequence) const;
    const IndexEntry* by_time(std::int64_t time_ns) const;

    const std::vector<IndexEntry>& entries() const { return entries_; }

   private:
    std::vector<IndexEntry> entries_;
};

// One producer of a log: the last of its records that is here.
struct ProducerMark {
    std::uint64_t producer, last;
};

// What the file holds. The producers are all that the log knew when the segment ended, least recently
// heard first: so that opening a log need not read all of it.
struct IndexFile {
    std::uint64_t salt = 0;
    Extent extent;
    Index index;
    std::vector<ProducerMark> producers;

    std::string encode() const;
    // False: this is none, or it is damaged.
    bool decode(std::string_view bytes);
};

// Both as well as they can: without it things take longer, and that is all.
void write_index(Disk& disk, const std::string& path, const IndexFile& file);
bool read_index(Disk& disk, const std::string& path, IndexFile& file);

}  // namespace antiphon::log

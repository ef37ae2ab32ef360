// Reading a log: from a place on, batch by batch, for as long as it grows.
//
// A reader holds no lock while it reads, and no descriptor between two calls. It sees what is
// acknowledged, and nothing else. One thread at a time; many readers at once.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "log/log.hpp"

namespace antiphon::log {

struct Start {
    enum class At { earliest, latest, sequence, time };
    At at = At::earliest;
    std::uint64_t sequence = 0;
    std::int64_t time_ns = 0;  // the first record that is so late or later, in the order of the log
};

enum class Read { batch, timeout, closed, failed };

class Reader {
   public:
    Reader(std::shared_ptr<Log> log, const Start& start);

    // The next batch, valid until the next call. Waits for one until then. A failed one can be tried again.
    Read next(Batch& batch, Nanos until);

    // Of the batch that came last:
    std::uint32_t first() const { return first_; }   // the first of its records that was asked for
    std::uint64_t missed() const { return missed_; } // records just before it that are no longer kept. An
                                                     // upper bound for a place that nobody knows any more
    const std::string& damage() const { return damage_; }  // what was passed over just before it; mostly empty

    std::uint64_t position() const { return expected_; }  // the sequence that comes next, or a later one
    int error() const { return error_; }                  // why it failed: errno
    const std::shared_ptr<Log>& log() const { return log_; }

   private:
    enum class Step { batch, again, failed };

    void enter(std::shared_ptr<Segment> segment);
    void seek();
    std::optional<IndexEntry> entry() const;
    Step step(Batch& batch, const Extent& extent);
    Step fill(std::size_t bytes, const Extent& extent);
    Step fallen_out();
    Step skip_damage(const char* wrong, const Extent& extent);
    bool wanted(const Batch& batch);
    std::uint64_t held_end() const { return begin_ + held_; }

    const std::shared_ptr<Log> log_;
    Start start_;  // its sequence or time holds until something that fits was found
    std::shared_ptr<Segment> segment_;
    std::uint64_t position_ = 0;  // in the segment
    std::uint64_t records_ = 0;   // of the segment, before that
    std::uint64_t expected_ = 0;

    std::unique_ptr<char[]> buffer_;
    std::size_t capacity_ = 0, held_ = 0;
    std::uint64_t begin_ = 0;  // of the buffer, in the segment

    std::uint32_t first_ = 0;
    std::uint64_t missed_ = 0, missing_ = 0;  // missing: for the next batch
    std::string damage_, damaged_;            // as well
    int error_ = 0;
};

}  // namespace antiphon::log

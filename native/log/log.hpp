// One topic's log as its readers see it: a list of segments that grows at one end and shrinks at the
// other.
//
// The log thread writes files, then shows here how far they may be read. Readers look here, let go of
// the lock, then read the files. A segment that is dropped stays readable to those who have it open.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "log/damages.hpp"
#include "log/files.hpp"
#include "log/index.hpp"
#include "log/settings.hpp"

namespace antiphon::log {

struct Segment {
    Segment(const SegmentHead& head, std::string path, std::uint64_t begin)
        : head(head), path(std::move(path)), begin(begin) {
        extent.bytes = begin;
        extent.next = head.base;
        extent.touched_ns = head.created_ns;
    }

    const SegmentHead head;
    const std::string path;
    const std::uint64_t begin;  // of the first batch

    // Guarded by Log::mutex_ once the log has it.
    Extent extent;          // what may be read
    Index index;            // while it is written
    bool finished = false;  // it grows no more
};

// Wants to know when there is more to read.
class Watcher {
   public:
    virtual ~Watcher() = default;
    // On the log thread, with no lock held. Must not wait, and not take the interpreter's lock.
    virtual void more() = 0;
};

struct LogFacts {
    std::uint64_t first = 0, next = 0;  // sequences: of the first record that may be read, behind the last
    std::uint64_t records = 0, bytes = 0;
    std::size_t segments = 0;
};

class Writer;

class Log {
   public:
    Log(std::string topic, std::string directory, std::shared_ptr<Files> files, std::shared_ptr<Damages> damages);
    ~Log();
    Log(const Log&) = delete;

    const std::string& topic() const { return topic_; }
    const std::string& directory() const { return directory_; }
    Files& files() const { return *files_; }
    LogFacts facts() const;
    std::vector<Finding> findings() const;
    // A place that cannot be read, as a reader found it. Any thread.
    void passed(const std::string& damage) { damages_->add(topic_, damage); }

    // For readers. The segment with the sequence, or the first one behind it; with the first record that
    // is so late or later; the last one; the first one behind another. Null: there is none, yet.
    std::shared_ptr<Segment> first() const;
    std::shared_ptr<Segment> last() const;
    std::shared_ptr<Segment> with_sequence(std::uint64_t sequence) const;
    std::shared_ptr<Segment> with_time(std::int64_t time_ns) const;
    std::shared_ptr<Segment> behind(const Segment& segment) const;

    struct Sight {
        Extent extent;
        bool finished;
    };
    Sight look(const Segment& segment) const;
    // From the index in memory; none: the segment is finished, or nothing is indexed yet.
    std::optional<IndexEntry> entry(const Segment& segment, std::uint64_t sequence) const;
    std::optional<IndexEntry> entry(const Segment& segment, std::int64_t time_ns) const;

    // True: there is something behind that place (null: anything at all). False: not until then, or the
    // log is closed.
    bool wait(const Segment* segment, std::uint64_t position, Nanos until);
    bool closed() const;
    void watch(std::shared_ptr<Watcher> watcher);
    void unwatch(const Watcher* watcher);

    // For the log thread.
    void begin(std::vector<std::shared_ptr<Segment>> segments, std::vector<Finding> findings);
    void add(std::shared_ptr<Segment> segment);
    void show(Segment& segment, const Extent& extent, const std::vector<IndexEntry>& more);
    Index finish(Segment& segment, const Extent& extent);  // takes the index out
    struct Oldest {
        std::shared_ptr<Segment> segment;  // null: there is none
        std::int64_t touched_ns = 0;
        std::uint64_t records = 0;
        std::size_t count = 0;    // of all segments
        std::uint64_t bytes = 0;  // as well
    };
    Oldest oldest() const;
    void drop_first();
    void note(Finding finding);
    void close();
    Writer& writer() { return *writer_; }
    void give(std::unique_ptr<Writer> writer);

   private:
    bool behind_locked(const Segment* segment, std::uint64_t position) const;
    void tell(std::unique_lock<std::mutex>& lock);

    const std::string topic_, directory_;
    const std::shared_ptr<Files> files_;  // a reader may outlive its store
    const std::shared_ptr<Damages> damages_;
    std::unique_ptr<Writer> writer_;  // the log thread's; null if the store is not writable

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Segment>> segments_;
    std::vector<Finding> findings_;
    std::vector<std::shared_ptr<Watcher>> watchers_;
    std::size_t waiting_ = 0;
    bool closed_ = false;
};

}  // namespace antiphon::log

// The end of a log at which it grows. Everything here belongs to the log thread.
//
//   put ──▶ staged ──flush: write──▶ written ──sync: fdatasync──▶ shown to readers, acknowledged
//
// Without syncs the last step comes with the write.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "log/append.hpp"
#include "log/log.hpp"
#include "log/producers.hpp"

namespace antiphon::log {

// Where a log goes on after it was opened.
struct Continuation {
    std::uint64_t next = 1;            // sequence
    std::uint64_t previous_base = 0;   // the last segment, and what is valid of it
    std::uint64_t previous_bytes = 0;
    std::uint64_t records = 0;         // so far
    std::vector<ProducerMark> producers;
};

// Of all logs of a store. Written by the log thread, before anybody hears of what was counted; read by
// whoever asks. Each number by itself, so relaxed.
struct Counts {
    std::atomic<std::uint64_t> appended{0}, duplicates{0};  // records
    std::atomic<std::uint64_t> refused{0};                  // blocks that the disk did not take
    std::atomic<std::uint64_t> no_space{0};                 // of these, for want of space
    std::atomic<std::uint64_t> syncs{0}, rounds{0};

    static void add(std::atomic<std::uint64_t>& count, std::uint64_t more) {
        count.store(count.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
    }
};

class Writer {
   public:
    // `epoch` is not on the disk while `not_yet` is an error: until then no segment is begun.
    Writer(Log& log, Disk& disk, const Settings& settings, std::uint32_t epoch, const std::atomic<int>& not_yet,
           Continuation from, Counts& counts);

    // Appends, or fails, in the end: the listener hears. May write.
    void put(Item&& item, Now now);
    void flush(Now now);
    // Everything written is on the disk and acknowledged, or has failed.
    void sync(Now now);
    bool unsynced() const { return !unsynced_.empty() || (active_ && written_.bytes > synced_.bytes); }
    // What time brings: a segment that has become old, and those that need not be kept.
    void tend(Now now);
    // Ends the segment in good order: the log goes on without a gap.
    void finish(Now now);
    std::uint64_t next() const { return next_; }

    // Whether it is on the store's list of those written in this round, and of those not synced.
    bool in_round = false, in_dirty = false;

   private:
    struct Entry {
        std::shared_ptr<Listener> listener;
        std::uint64_t token;
        Receipt receipt;
        Producers::Undo undo;
        std::uint64_t producer, first;  // the first of them that is new, if one is
    };
    using Entries = std::vector<Entry>;

    bool has_room(const Block& block, Now now) const;
    void stage(Item&& item);
    void open_batch(const Block& block);
    void close_batch();
    void unstage(int error, Now now);
    bool roll(Now now);
    int create(Now now);
    void end_segment(Extent extent);
    void keep(Now now);
    void acknowledge(Entries& entries);
    void fail(Entries& entries, int error);
    void refuse(const Item& item, Status status, int error);
    void give_up(int error, Now now);
    void show();
    void tire(int error, Now now);
    std::string path_of(const std::string& name) const { return log_.directory() + "/" + name; }

    Log& log_;
    Disk& disk_;
    const Settings& settings_;
    Counts& counts_;
    const std::uint32_t epoch_;
    const std::atomic<int>& not_yet_;  // written by the log thread, as this is
    Producers producers_;
    std::uint64_t next_;                                // sequence; never goes back
    std::uint64_t previous_base_, previous_bytes_, records_;  // before the active segment
    bool directory_made_ = false;                       // and its name is on the disk

    std::shared_ptr<Segment> active_;
    std::shared_ptr<File> file_;  // held while there is something to sync: see Files
    Extent synced_, written_, ahead_;  // of the active segment; ahead: with what is staged

    std::string buffer_;   // staged batches as they will be written
    BatchHead open_;       // the last of them, while it can take more; count 0: there is none
    std::size_t open_at_ = 0;  // in the buffer
    Entries staged_, unsynced_;
    std::vector<IndexEntry> entries_;  // of batches that are not shown yet
    std::uint64_t indexed_ = 0;        // position of the last one

    Nanos tired_until_ = 0;  // the disk refused: not tried again before
    int tired_ = 0;          // what it said
};

}  // namespace antiphon::log

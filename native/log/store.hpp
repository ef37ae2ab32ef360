// A directory of logs, and the one thread that writes them.
//
// Appends come from any thread: a lock for a moment, and the block waits in a bounded queue. The log
// thread takes all that waits, writes it, syncs each log once for everybody, and tells the listeners.
// It never takes the interpreter's lock, and it is the only one that writes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/descriptors.hpp"
#include "log/append.hpp"
#include "log/disk.hpp"
#include "log/files.hpp"
#include "log/log.hpp"
#include "log/settings.hpp"
#include "log/writer.hpp"

namespace antiphon::log {

struct StoreFacts {
    std::uint64_t appended = 0, duplicates = 0;  // records
    std::uint64_t refused = 0, no_space = 0;     // blocks that the disk did not take; of these, for want of space
    std::uint64_t rounds = 0, syncs = 0;         // of the log thread; of single logs
    std::size_t queued_bytes = 0, logs = 0, open_files = 0;
    std::size_t damaged = 0;  // places that could not be read
    bool waits = false;       // for space to begin: nothing is taken before
};

class Store {
   public:
    // Makes the directory if it is not there. Throws Failure.
    Store(Disk& disk, std::string directory, const Settings& settings);
    ~Store();
    Store(const Store&) = delete;

    // The log of a topic; opening it may take as long as reading a segment. Throws Failure, also for a
    // topic that is empty or longer than kLongestTopic, and once the store is closed for one that was not
    // open. One that has no records yet takes no space.
    std::shared_ptr<Log> log(const std::string& topic);
    bool has_open(const std::string& topic) const;  // never waits for the disk
    std::vector<std::string> topics() const;  // all that have a segment, in order; reads the directory

    // Any thread; never waits for the disk, and needs no interpreter's lock. An empty block is taken and
    // acknowledged as any other. The listener hears exactly once of a block that was taken.
    Put append(const std::shared_ptr<Log>& log, Block&& block, std::shared_ptr<Listener> listener = nullptr,
               std::uint64_t token = 0);
    // Until there is room for so much. False: not until then, or the store is closed.
    bool wait_for_room(std::size_t bytes, Nanos until);
    // Called on the log thread, with no lock held, when there is room again after a no_room. Set it before
    // the first append.
    void on_room(std::function<void()> call) { on_room_ = std::move(call); }

    // Writes and syncs what waits, ends every segment in good order, wakes all readers. Idempotent.
    void close();

    // One round of the log thread, for stores without one.
    void step(Now now);

    StoreFacts facts() const;
    // Topics and what is wrong in their logs: what was found since this was asked last.
    std::vector<std::pair<std::string, std::string>> take_damages() { return damages_->take(); }
    const std::string& directory() const { return directory_; }
    const Settings& settings() const { return settings_; }
    std::uint32_t epoch() const { return epoch_; }
    // Drawn when the directory became a store; a sequence means something in the store that gave it only.
    // 0: not known, of one that is only looked at and was made before there were such numbers.
    std::uint64_t id() const { return id_; }
    bool forked() const { return fork_generation() != generation_; }

   private:
    void prepare();
    void set_epoch();
    int write_epoch();
    void run();
    void round(std::vector<Item>& items, Now now);
    void sync_all(Now now);
    bool due(Nanos steady) const;
    void finish();
    std::vector<std::shared_ptr<Log>> all_logs() const;

    Disk& disk_;
    const std::string directory_;
    const Settings settings_;
    const std::uint32_t generation_ = fork_generation();
    std::uint32_t epoch_ = 0;
    std::uint64_t id_ = 0;
    std::shared_ptr<void> held_;  // the lock of the directory
    const std::shared_ptr<Files> files_;
    const std::shared_ptr<Damages> damages_ = std::make_shared<Damages>();
    // Why the epoch is not on the disk. Written before the log thread begins and then by it alone; relaxed,
    // since whoever else looks only tells people.
    std::atomic<int> epoch_error_{0};
    std::function<void()> on_room_;

    std::mutex opening_;  // held while a log is opened, which reads the disk
    mutable std::mutex logs_mutex_;
    std::unordered_map<std::string, std::shared_ptr<Log>> logs_;

    mutable std::mutex mutex_;
    std::condition_variable arrived_, room_;
    std::vector<Item> queue_;
    std::size_t queued_bytes_ = 0;  // also those that are being written
    std::size_t wake_at_ = 0;       // so many bytes wake the log thread; 0: it is awake
    bool starved_ = false;          // somebody found no room
    bool closing_ = false;

    // The log thread's.
    std::vector<Writer*> written_, dirty_;  // in this round; not synced
    Counts counts_;
    Nanos last_sync_ = -kNever;
    Nanos next_tend_ = 0;
    Nanos next_epoch_ = 0;  // when it is tried again to write it

    std::unique_ptr<std::thread> thread_;
    std::once_flag closed_;
};

}  // namespace antiphon::log

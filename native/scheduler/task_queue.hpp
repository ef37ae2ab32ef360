// The queue of one registration: runs in, runs out, bounded by what the senders were granted.
//
// With `block` the bound is the flow's window, so parking always succeeds. With a drop policy credit
// goes back at once and the queue itself holds to its capacity.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/patience.hpp"
#include "scheduler/run.hpp"

namespace antiphon {

enum class WhenFull : std::uint8_t { block, drop_oldest, drop_newest };

// A deque that has no memory before something was put into it: a node may have very many queues, most of
// which stay empty for ever.
class RunDeque {
   public:
    bool empty() const { return !runs_ || runs_->empty(); }
    std::size_t size() const { return runs_ ? runs_->size() : 0; }
    Run& front() { return runs_->front(); }
    Run& back() { return runs_->back(); }
    void pop_front() { runs_->pop_front(); }
    void push_back(Run&& run) {
        if (!runs_) runs_ = std::make_unique<std::deque<Run>>();
        runs_->push_back(std::move(run));
    }
    void swap(std::deque<Run>& other) {
        if (runs_) runs_->swap(other);
    }

   private:
    std::unique_ptr<std::deque<Run>> runs_;
};

class TaskQueue {
   public:
    using Finish = std::function<void(Run&)>;  // gives credit and memory back

    TaskQueue(WhenFull when_full, std::uint64_t capacity, std::uint64_t window, Finish finish)
        : when_full_(when_full), capacity_(capacity), window_(window), finish_(std::move(finish)) {}
    ~TaskQueue() { clear(); }

    // Called after something was put into an empty queue, and on request when it is closed. Once this
    // returns, nobody is inside the call that was set before.
    void set_on_ready(std::function<void()> call, bool on_close = false) {
        std::lock_guard lock(ready_mutex_);
        on_ready_ = std::move(call);
        ready_on_close_ = on_close;
    }

    // Whoever takes runs from this queue, one at a time. Several may, when order does not matter.
    struct Slice {
        bool busy = false;  // it has a run that is not finished
        // Marks that were reached while it was busy with earlier messages.
        std::vector<std::shared_ptr<Barrier>> behind;
    };

    void push(Run run);
    // A slice takes part from begin() to end().
    void begin(Slice& slice);
    void end(Slice& slice);
    // The next run of messages; with several slices, a part of it, so that the others get some too.
    // The slice is busy until done().
    // `before`: takes the marks that were reached before this run, for a slice that has several out.
    bool pop(Run& run, Slice& slice, std::vector<std::shared_ptr<Barrier>>* before = nullptr);
    // The run is finished. Marks that waited for it are passed.
    void done(Slice& slice);
    // For a slice that has several runs out at once: the marks that were reached, and whether it is
    // still busy.
    std::vector<std::shared_ptr<Barrier>> take_behind(Slice& slice, bool busy);
    // Waits until there is something, the deadline, or close; with `nudges` also until there was one more
    // nudge than that. True when there is something.
    bool wait(Nanos until, const std::uint64_t* nudges = nullptr);
    // Wakes everyone who waits: when a run was popped that others may take messages of too; and by whoever
    // was woken by something and leaves without it.
    void nudge();
    std::uint64_t nudges() const { return nudges_.load(std::memory_order_acquire); }
    void finish(Run& run) { finish_(run); }
    // Wakes everyone; push() drops from now on.
    void close();
    std::uint64_t clear();  // how many messages were in it
    bool closed() const { return closed_.load(std::memory_order_acquire); }

    bool empty() const { return runs_count_.load(std::memory_order_seq_cst) == 0; }
    std::uint64_t pending() const { return pending_.load(std::memory_order_relaxed); }
    std::uint64_t pending_bytes() const { return pending_bytes_.load(std::memory_order_relaxed); }
    std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
    // What every message has found waiting before it, added up.
    std::uint64_t found() const { return found_.load(std::memory_order_relaxed); }
    Nanos oldest();
    WhenFull when_full() const { return when_full_; }
    std::uint64_t capacity() const { return capacity_; }
    // Nearly: senders that wait for credit keep it a little below.
    bool filled() {
        return brimmed_.exchange(false, std::memory_order_relaxed) || pending() * 10 >= capacity_ * 9 ||
               pending_bytes() * 10 >= window_ * 9;
    }
    // A sender has used up its credit: what it may have under way is here, or was, and waits for a turn.
    void brim() { brimmed_.store(true, std::memory_order_relaxed); }

   private:
    void account(const Run& run, bool in);
    bool cut_newest(Run& run, std::vector<Run>& dropped);
    void cut_oldest(Run& run, std::vector<Run>& dropped);
    void pass_marks(std::vector<std::shared_ptr<Barrier>>& reached);
    bool reach(const std::shared_ptr<Barrier>& barrier);
    void wake_all();  // with the lock

    const WhenFull when_full_;
    std::atomic<bool> brimmed_{false};
    const std::uint64_t capacity_, window_;
    const Finish finish_;
    std::mutex ready_mutex_;  // of on_ready_, held while it is called; taken without mutex_
    std::function<void()> on_ready_;
    bool ready_on_close_ = false;

    std::mutex mutex_;
    std::condition_variable filled_;
    RunDeque runs_;
    std::vector<Slice*> slices_;
    int waiters_ = 0;
    Patience patience_;
    // Written under mutex_; read without it for statistics and quick checks.
    std::atomic<std::uint64_t> pending_{0}, pending_bytes_{0}, dropped_{0}, found_{0};
    std::atomic<std::size_t> runs_count_{0};
    std::atomic<bool> closed_{false};
    // Written under mutex_. Read without it before somebody looks for messages and, having found none, waits:
    // the acquire there pairs with the release of whoever popped a run meanwhile.
    std::atomic<std::uint64_t> nudges_{0};
};

}  // namespace antiphon

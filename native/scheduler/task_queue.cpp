#include "scheduler/task_queue.hpp"

#include "base/wait.hpp"

namespace antiphon {

void TaskQueue::account(const Run& run, bool in) {
    if (in) {
        pending_.fetch_add(run.count, std::memory_order_relaxed);
        pending_bytes_.fetch_add(run.bytes, std::memory_order_relaxed);
    } else {
        pending_.fetch_sub(run.count, std::memory_order_relaxed);
        pending_bytes_.fetch_sub(run.bytes, std::memory_order_relaxed);
    }
    runs_count_.store(runs_.size(), std::memory_order_seq_cst);
}

void TaskQueue::push(Run run) {
    std::vector<Run> dropped;
    bool ready = false;
    {
        std::lock_guard lock(mutex_);
        const bool drops = when_full_ != WhenFull::block && run.shape != Run::Shape::mark;
        auto full = [&] {
            return pending() + run.count > capacity_ || pending_bytes() + run.bytes > window_;
        };
        if (closed()) {
            dropped.push_back(std::move(run));
        } else if (drops && when_full_ == WhenFull::drop_newest && pending() != 0 && full()) {
            dropped_.fetch_add(run.count, std::memory_order_relaxed);
            dropped.push_back(std::move(run));
        } else {
            while (drops && when_full_ == WhenFull::drop_oldest && !runs_.empty() && full()) {
                Run oldest = std::move(runs_.front());
                runs_.pop_front();
                account(oldest, false);
                if (oldest.shape != Run::Shape::mark) {
                    dropped_.fetch_add(oldest.count, std::memory_order_relaxed);
                }
                dropped.push_back(std::move(oldest));
            }
            ready = runs_.empty();
            runs_.push_back(std::move(run));
            account(runs_.back(), true);
            if (waiters_ != 0) filled_.notify_one();
        }
    }
    // Outside the lock: finishing may queue credit, and dropping a mark may answer a flush.
    for (Run& old : dropped) finish_(old);
    if (ready && on_ready_) on_ready_();
}

void TaskQueue::begin(Slice& slice) {
    std::lock_guard lock(mutex_);
    slices_.push_back(&slice);
}

void TaskQueue::end(Slice& slice) {
    std::vector<std::shared_ptr<Barrier>> reached;  // dropped after the lock
    std::lock_guard lock(mutex_);
    std::erase(slices_, &slice);
    reached.swap(slice.behind);
}

void TaskQueue::pass_marks(Slice& slice, std::vector<std::shared_ptr<Barrier>>& reached) {
    while (!runs_.empty() && runs_.front().shape == Run::Shape::mark) {
        for (Slice* other : slices_) {
            if (other != &slice) other->behind.push_back(runs_.front().barrier);
        }
        reached.push_back(std::move(runs_.front().barrier));
        runs_.pop_front();
    }
    runs_count_.store(runs_.size(), std::memory_order_seq_cst);
}

bool TaskQueue::pop(Run& run, Slice& slice) {
    std::vector<std::shared_ptr<Barrier>> reached;  // dropped after the lock: that answers a flush
    std::lock_guard lock(mutex_);
    reached.swap(slice.behind);
    pass_marks(slice, reached);
    if (runs_.empty()) return false;
    run = std::move(runs_.front());
    runs_.pop_front();
    account(run, false);
    return true;
}

void TaskQueue::settle(Slice& slice) {
    if (empty()) return;
    std::vector<std::shared_ptr<Barrier>> reached;
    std::lock_guard lock(mutex_);
    reached.swap(slice.behind);
    pass_marks(slice, reached);
}

void TaskQueue::push_front(Run run) {
    std::lock_guard lock(mutex_);
    runs_.push_front(std::move(run));
    account(runs_.front(), true);
}

bool TaskQueue::wait(Nanos until) {
    std::unique_lock lock(mutex_);
    ++waiters_;
    while (runs_.empty() && !closed()) {
        if (!wait_until(filled_, lock, until)) break;
    }
    --waiters_;
    return !runs_.empty();
}

void TaskQueue::close() {
    std::lock_guard lock(mutex_);
    closed_.store(true, std::memory_order_release);
    filled_.notify_all();
}

void TaskQueue::clear() {
    std::deque<Run> old;
    {
        std::lock_guard lock(mutex_);
        old.swap(runs_);
        pending_.store(0, std::memory_order_relaxed);
        pending_bytes_.store(0, std::memory_order_relaxed);
        runs_count_.store(0, std::memory_order_seq_cst);
    }
    for (Run& run : old) finish_(run);
}

Nanos TaskQueue::oldest() {
    std::lock_guard lock(mutex_);
    return runs_.empty() ? 0 : runs_.front().arrived;
}

}  // namespace antiphon

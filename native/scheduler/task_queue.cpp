#include "scheduler/task_queue.hpp"

#include <algorithm>

#include "base/wait.hpp"

namespace antiphon {

void TaskQueue::account(const Run& run, bool in) {
    if (in) {
        pending_.fetch_add(run.size(), std::memory_order_relaxed);
        pending_bytes_.fetch_add(run.bytes, std::memory_order_relaxed);
    } else {
        pending_.fetch_sub(run.size(), std::memory_order_relaxed);
        pending_bytes_.fetch_sub(run.bytes, std::memory_order_relaxed);
    }
    runs_count_.store(runs_.size(), std::memory_order_seq_cst);
}

namespace {

// Messages that are cut off a run: whoever asked is to be told.
void lose(const Run& run, std::uint32_t first, std::uint32_t last, std::vector<Run>& dropped) {
    if (!run.request || first == last || run.buffer == nullptr) return;
    Run lost = run.share();
    lost.first = first;
    lost.last = last;
    // Counted, charged and paid for with the rest.
    lost.count = lost.charge = lost.returned = lost.done = 0;
    lost.large_bytes = 0;
    dropped.push_back(std::move(lost));
}

}  // namespace

// Loses the newest messages of the run that do not fit; true when one is left.
bool TaskQueue::cut_newest(Run& run, std::vector<Run>& dropped) {
    const std::uint64_t room = capacity_ - std::min(capacity_, pending());
    const bool bytes_fit = pending() == 0 || pending_bytes() + run.bytes <= window_;
    const auto kept = bytes_fit ? static_cast<std::uint32_t>(std::min<std::uint64_t>(run.size(), room)) : 0;
    dropped_.fetch_add(run.size() - kept, std::memory_order_relaxed);
    if (kept != 0) lose(run, run.first + kept, run.last, dropped);
    if (kept != 0) run.last = run.first + kept;  // else the whole run goes, and says so
    return kept != 0;
}

// Loses the oldest messages, of this run too if it must be, until the run fits.
void TaskQueue::cut_oldest(Run& run, std::vector<Run>& dropped) {
    if (run.size() > capacity_) {
        dropped_.fetch_add(run.size() - capacity_, std::memory_order_relaxed);
        lose(run, run.first, run.last - static_cast<std::uint32_t>(capacity_), dropped);
        run.first = run.last - static_cast<std::uint32_t>(capacity_);
    }
    while (pending() != 0 &&
           (pending() + run.size() > capacity_ || pending_bytes() + run.bytes > window_)) {
        Run& oldest = runs_.front();
        const std::uint64_t over = pending() + run.size() - std::min(pending() + run.size(), capacity_);
        if (oldest.shape != Run::Shape::mark && over != 0 && over < oldest.size()) {
            lose(oldest, oldest.first, oldest.first + static_cast<std::uint32_t>(over), dropped);
            oldest.first += static_cast<std::uint32_t>(over);
            pending_.fetch_sub(over, std::memory_order_relaxed);
            dropped_.fetch_add(over, std::memory_order_relaxed);
            continue;
        }
        if (oldest.shape == Run::Shape::mark) reach(oldest.barrier);
        Run whole = std::move(oldest);
        runs_.pop_front();
        account(whole, false);
        dropped_.fetch_add(whole.size(), std::memory_order_relaxed);
        dropped.push_back(std::move(whole));
    }
}

void TaskQueue::push(Run run) {
    std::vector<Run> dropped;
    bool ready = false;
    {
        std::lock_guard lock(mutex_);
        const bool message = run.shape != Run::Shape::mark;
        if (!message && runs_.empty()) {
            // Everything before it was taken: it waits for those who are at it, or for nobody.
            reach(run.barrier);
            dropped.push_back(std::move(run));
        } else if (closed() || (message && when_full_ == WhenFull::drop_newest && !cut_newest(run, dropped))) {
            dropped.push_back(std::move(run));
        } else {
            if (message && when_full_ == WhenFull::drop_oldest) cut_oldest(run, dropped);
            ready = runs_.empty();
            if (const std::uint64_t count = run.size()) {
                found_.fetch_add(count * pending() + count * (count - 1) / 2, std::memory_order_relaxed);
            }
            runs_.push_back(std::move(run));
            account(runs_.back(), true);
            if (waiters_ != 0) filled_.notify_one();
        }
    }
    // Outside the lock: finishing may queue credit, and dropping a mark may answer a flush.
    for (Run& old : dropped) finish_(old);
    if (!ready) return;
    std::lock_guard lock(ready_mutex_);
    if (on_ready_) on_ready_();
}

void TaskQueue::begin(Slice& slice) {
    std::lock_guard lock(mutex_);
    slices_.push_back(&slice);
}

void TaskQueue::end(Slice& slice) {
    done(slice);
    std::lock_guard lock(mutex_);
    std::erase(slices_, &slice);
}

// Hands a mark to everyone who is busy with earlier messages. False when nobody is.
bool TaskQueue::reach(const std::shared_ptr<Barrier>& barrier) {
    bool waits = false;
    for (Slice* slice : slices_) {
        if (!slice->busy) continue;
        slice->behind.push_back(barrier);
        waits = true;
    }
    return waits;
}

void TaskQueue::pass_marks(std::vector<std::shared_ptr<Barrier>>& reached) {
    while (!runs_.empty() && runs_.front().shape == Run::Shape::mark) {
        reach(runs_.front().barrier);
        reached.push_back(std::move(runs_.front().barrier));
        runs_.pop_front();
    }
    runs_count_.store(runs_.size(), std::memory_order_seq_cst);
}

bool TaskQueue::pop(Run& run, Slice& slice, std::vector<std::shared_ptr<Barrier>>* before) {
    std::vector<std::shared_ptr<Barrier>> reached;  // dropped after the lock: that answers a flush
    std::lock_guard lock(mutex_);
    pass_marks(reached);
    if (before) before->swap(slice.behind);
    if (runs_.empty()) return false;
    Run& front = runs_.front();
    const std::uint32_t fair = slices_.size() < 2
                                   ? front.size()
                                   : (front.size() + static_cast<std::uint32_t>(2 * slices_.size()) - 1) /
                                         static_cast<std::uint32_t>(2 * slices_.size());
    if (fair < front.size()) {
        run = front.share();
        run.last = run.first + fair;
        run.count = fair;
        run.charge = static_cast<std::uint32_t>(std::uint64_t{front.charge} * fair / front.count);
        run.returned = std::min(front.returned, run.charge);
        front.first += fair;
        front.count -= fair;
        front.charge -= run.charge;
        front.returned -= run.returned;
        pending_.fetch_sub(fair, std::memory_order_relaxed);
        run.bytes = 0;  // counted with the rest, which still holds the place
    } else {
        run = std::move(front);
        runs_.pop_front();
        account(run, false);
    }
    slice.busy = true;
    // There is something in it for others as well. Counted also when nobody waits: one may be about to.
    if (run.size() > 1) wake_all();
    return true;
}

void TaskQueue::done(Slice& slice) {
    std::vector<std::shared_ptr<Barrier>> reached;
    std::lock_guard lock(mutex_);
    slice.busy = false;
    reached.swap(slice.behind);
    pass_marks(reached);
}

std::vector<std::shared_ptr<Barrier>> TaskQueue::take_behind(Slice& slice, bool busy) {
    std::vector<std::shared_ptr<Barrier>> reached, behind;
    std::lock_guard lock(mutex_);
    slice.busy = busy;
    pass_marks(reached);
    behind.swap(slice.behind);
    // Handed over, not dropped here: dropping answers a flush, which takes other locks.
    for (auto& barrier : reached) behind.push_back(std::move(barrier));
    return behind;
}

bool TaskQueue::wait(Nanos until, const std::uint64_t* nudges) {
    const auto nudged = [&] { return nudges != nullptr && this->nudges() != *nudges; };
    if (patience_.wait([&] { return !empty() || closed() || nudged(); })) return !empty();
    std::unique_lock lock(mutex_);
    ++waiters_;
    while (runs_.empty() && !closed() && !nudged()) {
        if (!wait_until(filled_, lock, until)) break;
    }
    --waiters_;
    return !runs_.empty();
}

void TaskQueue::nudge() {
    std::lock_guard lock(mutex_);
    wake_all();
}

void TaskQueue::wake_all() {
    nudges_.store(nudges_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (waiters_ != 0) filled_.notify_all();
}

void TaskQueue::close() {
    {
        std::lock_guard lock(mutex_);
        closed_.store(true, std::memory_order_release);
        filled_.notify_all();
    }
    std::lock_guard lock(ready_mutex_);
    if (ready_on_close_ && on_ready_) on_ready_();
}

std::uint64_t TaskQueue::clear() {
    std::deque<Run> old;
    std::uint64_t count;
    {
        std::lock_guard lock(mutex_);
        runs_.swap(old);
        count = pending_.exchange(0, std::memory_order_relaxed);
        pending_bytes_.store(0, std::memory_order_relaxed);
        runs_count_.store(0, std::memory_order_seq_cst);
    }
    for (Run& run : old) finish_(run);
    return count;
}

Nanos TaskQueue::oldest() {
    std::lock_guard lock(mutex_);
    return runs_.empty() ? 0 : runs_.front().arrived;
}

}  // namespace antiphon

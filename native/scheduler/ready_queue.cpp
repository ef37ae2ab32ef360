#include "scheduler/ready_queue.hpp"

#include <algorithm>
#include <bit>

#include "scheduler/scheduler.hpp"

namespace antiphon {

ReadyQueue::ReadyQueue(Nanos period, int buckets, bool penalty)
    : period_(period),
      step_(std::max<Nanos>(1, period / std::max(1, buckets))),
      penalty_(penalty),
      buckets_(static_cast<std::size_t>(std::max(1, buckets)) + 1),
      filled_((buckets_.size() + 63) / 64),
      rest_credits_(period) {}

Nanos ReadyQueue::allotment(const Task& task) const {
    return std::max<Nanos>(1, static_cast<Nanos>(task.share_ * static_cast<double>(period_)));
}

// Never nothing: the library's own work has no share, and must go on beside shares that sum to one.
Nanos ReadyQueue::rest_allotment() const {
    return std::max(step_, static_cast<Nanos>((1 - shares_) * static_cast<double>(period_)));
}

std::size_t ReadyQueue::bucket_of(Nanos credits) const {
    if (credits <= 0) return 0;
    return std::min(buckets_.size() - 1, static_cast<std::size_t>(1 + (credits - 1) / step_));
}

void ReadyQueue::renew(Task& task) const {
    if (task.round_ == round_) return;
    task.round_ = round_;
    const Nanos owed = penalty_ ? std::min<Nanos>(0, task.credits_) : 0;
    task.credits_ = std::max<Nanos>(0, allotment(task) + owed);
}

void ReadyQueue::put(Task& task) {
    const std::size_t at = bucket_of(task.credits_);
    task.bucket_ = static_cast<int>(at);
    buckets_[at].push_back(&task);
    filled_[at / 64] |= std::uint64_t{1} << (at % 64);
}

void ReadyQueue::push(Task& task) {
    task.queued_ = true;
    ++size_;
    if (task.share_ <= 0) {
        rest_.push_back(&task);
        return;
    }
    renew(task);
    put(task);
}

std::size_t ReadyQueue::best() const {
    for (std::size_t word = filled_.size(); word-- > 0;) {
        if (filled_[word] != 0) return word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(filled_[word]));
    }
    return 0;
}

void ReadyQueue::renew_all() {
    ++round_;
    const Nanos owed = penalty_ ? std::min<Nanos>(0, rest_credits_) : 0;
    rest_credits_ = std::max<Nanos>(0, rest_allotment() + owed);
    std::deque<Task*> waiting;
    waiting.swap(buckets_[0]);
    filled_[0] &= ~std::uint64_t{1};
    for (Task* task : waiting) {
        renew(*task);
        put(*task);
    }
}

Task* ReadyQueue::pop() {
    if (size_ == 0) return nullptr;
    // The second time for those who had to pay for the period before.
    for (int i = 0; i < 2 && best() == 0 && (rest_.empty() || rest_credits_ <= 0); ++i) renew_all();
    const std::size_t at = best();
    Task* task;
    // What is guaranteed goes first, as long as there are credits for it. Were the rest to go by its
    // credits too, one that floods would be ahead of a small share for most of every period.
    if (at == 0 && !rest_.empty() && (rest_credits_ > 0 || buckets_[0].empty())) {
        task = rest_.front();
        rest_.pop_front();
    } else {
        task = buckets_[at].front();
        buckets_[at].pop_front();
        if (buckets_[at].empty()) filled_[at / 64] &= ~(std::uint64_t{1} << (at % 64));
    }
    task->queued_ = false;
    --size_;
    return task;
}

void ReadyQueue::clear() {
    for (auto& bucket : buckets_) bucket.clear();
    for (auto& word : filled_) word = 0;
    rest_.clear();
    size_ = 0;
}

void ReadyQueue::erase(Task& task) {
    if (!task.queued_) return;
    task.queued_ = false;
    if (size_ == 0) return;  // all were cleared
    --size_;
    if (task.share_ <= 0) {
        std::erase(rest_, &task);
        return;
    }
    const auto at = static_cast<std::size_t>(task.bucket_);
    std::erase(buckets_[at], &task);
    if (buckets_[at].empty()) filled_[at / 64] &= ~(std::uint64_t{1} << (at % 64));
}

void ReadyQueue::set_share(Task& task, double share) {
    const bool queued = task.queued_;
    if (queued) erase(task);
    if (task.share_ > 0) --count_;
    shares_ -= task.share_;
    task.share_ = share;
    shares_ += share;
    if (share > 0) ++count_;
    if (count_ == 0) shares_ = 0;  // without the rounding of what came and went
    task.round_ = round_ - 1;  // its credits follow from the share
    task.credits_ = 0;
    if (queued) push(task);
}

Nanos ReadyQueue::allowance(const Task& task) const {
    return std::max(step_, task.share_ > 0 ? task.credits_ : rest_credits_);
}

Nanos ReadyQueue::charge(Task& task, Nanos used) {
    if (task.share_ <= 0) {
        rest_credits_ -= used;
        return 0;  // it was promised nothing
    }
    if (task.round_ != round_) {
        // Renewed by another thread while it ran: the new credits pay for what the old ones did not.
        used = std::max<Nanos>(0, used - std::max<Nanos>(0, task.credits_));
        task.credits_ = 0;
        renew(task);
    }
    const Nanos granted = allowance(task);
    task.credits_ -= used;
    return used > granted + step_ ? used - granted : 0;
}

}  // namespace antiphon

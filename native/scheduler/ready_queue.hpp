// Tasks that have work, ordered by the credits that they have left.
//
// A period's time is divided by the shares. A task with a share has credits of its own; all tasks
// without one take theirs from what the shares leave over, in turn. Of those with a share and credits
// left the one with the most goes first; then come those without a share. When nobody who has work has credits left, all credits are renewed: time that nobody wants
// goes to whoever has work. Credits are told apart in as many steps as there are buckets.
//
// The scheduler's mutex protects all of it. The paper's queue does without a lock; see
// docs/explanation/shares.md for the comparison that decided this.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/clock.hpp"

namespace antiphon {

class Task;

class ReadyQueue {
   public:
    ReadyQueue(Nanos period, int buckets, bool penalty);

    // Behind those with as many credits. The task is in no queue yet.
    void push(Task& task);
    // One that comes first; null when there is none. Renews all credits if nobody has any.
    Task* pop();
    void erase(Task& task);
    // Without a look at the tasks: they may be gone when a scheduler ends that nobody stopped.
    void clear();
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }

    // Of the period, above 0; 0 for none. The caller sees to it that the sum stays at or below 1.
    void set_share(Task& task, double share);
    double shares() const { return shares_; }
    // Whether anybody has a share: otherwise nothing needs to be charged.
    bool shared() const { return count_ != 0; }

    // How long a slice may be by the task's credits; at least one step.
    Nanos allowance(const Task& task) const;
    // Takes what a slice has used from the task's credits. The result is by how much it has overrun what
    // it was allowed: up to a step is what a queue of steps cannot tell.
    Nanos charge(Task& task, Nanos used);

    Nanos period() const { return period_; }
    std::uint64_t renewals() const { return round_; }

   private:
    Nanos allotment(const Task& task) const;
    Nanos rest_allotment() const;
    void renew(Task& task) const;
    void renew_all();
    std::size_t bucket_of(Nanos credits) const;
    std::size_t best() const;  // of the tasks with a share; 0 also when there is none
    void put(Task& task);

    const Nanos period_, step_;
    const bool penalty_;
    std::vector<std::deque<Task*>> buckets_;  // [0]: without credits
    std::vector<std::uint64_t> filled_;       // a bit per bucket
    std::deque<Task*> rest_;                  // without a share
    Nanos rest_credits_;
    double shares_ = 0;
    std::size_t size_ = 0, count_ = 0;
    std::uint64_t round_ = 0;
};

}  // namespace antiphon

#include "scheduler/scheduler.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <system_error>

#include "base/wait.hpp"

namespace antiphon {

thread_local Scheduler* Scheduler::current_ = nullptr;
thread_local Scheduler::Worker* Scheduler::worker_ = nullptr;

bool Task::charged() { return Scheduler::worker_ != nullptr && Scheduler::worker_->charged; }

bool Task::outranked() const {
    return yields_ && Scheduler::current_->urgent_.load(std::memory_order_relaxed);
}

bool Scheduler::on_scheduler_thread() { return current_ != nullptr; }

bool Scheduler::running_here(const Task& task) { return worker_ != nullptr && worker_->task == &task; }

void Scheduler::notify(Task& task) {
    int state = task.state_.load(std::memory_order_seq_cst);
    for (;;) {
        if (state == Task::idle) {
            if (!task.state_.compare_exchange_weak(state, Task::ready)) continue;
            enqueue(task);
            return;
        }
        if (state != Task::running) return;  // it will be looked at again anyway
        if (task.state_.compare_exchange_weak(state, Task::running_notified)) return;
    }
}

void Scheduler::enqueue(Task& task) {
    std::lock_guard lock(mutex_);
    if (stopping_ || task.forgotten_) return;
    task.ready_since_ = now_ns();
    task.resumed_ = false;
    ready_.push(task);
    if (task.share_ > 0 && humble_ != 0) urgent_.store(true, std::memory_order_relaxed);
    if (workers_.empty()) {
        for (int i = 0; i < threads_; ++i) add_worker();
    }
    ready_count_.store(ready_.size(), std::memory_order_seq_cst);
    // Whoever runs a slice or is still awake takes it next. Another thread is needed only to notice
    // when that slice does not end.
    const bool attended = running_ == 0 ? eager_ != nullptr : watcher_ != nullptr && !may_enter(now_ns());
    if (!attended) return wake_one();
    // A leader takes what it reads by itself. What others bring goes to a thread that sleeps, if there is
    // one: to stop leading takes the selector's turn, and whoever brings it may have that.
    if (running_ == 0 && worker_ != eager_ && hooks_.leads()) wake_one();
}

// The one that slept last: its core is likely to be awake and to have its data.
void Scheduler::wake_one() {
    if (!sleeping_.empty()) {
        sleeping_.back()->wake.notify_one();
        sleeping_.pop_back();
        return;
    }
    // Whoever is neither in a slice nor blocked looks at what is ready before it sleeps. With nobody left to look,
    // a blocked thread is missed: what is ready would wait for the slices that run, however long they take.
    const int alive = static_cast<int>(workers_.size());
    const bool nobody = running_ + blocked_ == alive;
    if (nobody && running_ < threads_ && alive < most_threads_ && !ready_.empty() && !stopping_) return add_worker();
    hooks_.wake_leader();
}

void Scheduler::add_worker() {
    Worker& worker = workers_.emplace_back();
    try {
        worker.thread = std::thread([this, &worker] { work(worker); });
    } catch (const std::system_error&) {
        // The system has no thread for us now. Without any, the next notify tries again.
        workers_.pop_back();
        refused_.fetch_add(1, std::memory_order_relaxed);
    }
}

bool Scheduler::may_enter(Nanos now) const {
    if (running_ == 0) return true;
    // Somebody overran: let one more in for each that did.
    int overrun = 0;
    for (const Worker& worker : workers_) {
        if (worker.task != nullptr && !worker.blocked && now - worker.since > 2 * kSlice) ++overrun;
    }
    return running_ <= overrun;
}

void Scheduler::work(Worker& worker) {
    current_ = this;
    worker_ = &worker;
    prctl(PR_SET_NAME, "ap-scheduler");
    settle_in();
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        if (ready_.empty() && running_ == 0 && eager_ == nullptr) {
            // The last one to have worked stays awake for a moment: it is on a core, and its data in
            // the core's cache.
            eager_ = &worker;
            lock.unlock();
            const std::function<bool()> wanted = [this] {
                return ready_count_.load(std::memory_order_seq_cst) != 0 || stopping_.load(std::memory_order_seq_cst);
            };
            if (!hooks_.lead(wanted)) patience_.wait(wanted);
            lock.lock();
            eager_ = nullptr;
            if (stopping_) break;
        }
        if (ready_.empty() || !may_enter(now_ns())) {
            sleeping_.push_back(&worker);
            if (running_ != 0 && watcher_ == nullptr) {
                // Looks whether the running slice overruns while others are ready.
                watcher_ = &worker;
                wait_until(worker.wake, lock, now_ns() + 2 * kSlice);
                watcher_ = nullptr;
            } else {
                wait_until(worker.wake, lock, kNever);
            }
            std::erase(sleeping_, &worker);
            continue;
        }
        const Nanos now = now_ns();
        Task& task = *ready_.pop();
        ready_count_.store(ready_.size(), std::memory_order_seq_cst);
        ++running_;
        worker.task = &task;
        worker.since = now;
        task.state_.store(Task::running, std::memory_order_seq_cst);
        const bool charged = ready_.shared();
        task.yields_ = charged && task.share_ <= 0;
        if (task.yields_) ++humble_;
        worker.charged = charged;
        worker.away = worker.unpaid = 0;
        if (charged) engage(1, now);
        urgent_.store(false, std::memory_order_relaxed);  // the best one was taken
        const Nanos until = now + (charged ? std::min(kSlice, ready_.allowance(task)) : kSlice);
        const Nanos waited = now - task.ready_since_;
        const bool resumed = task.resumed_;
        if (!ready_.empty() && watcher_ == nullptr) wake_one();  // this may have been the watcher
        lock.unlock();

        bool more = false;
        const bool full = task.filled();
        const std::uint64_t handled = task.handled();
        const Nanos cpu = charged ? thread_cpu_ns() : 0;
        try {
            more = task.run_slice(until);
        } catch (const std::exception&) {
            failed_slices_.fetch_add(1, std::memory_order_relaxed);  // out of memory: the thread lives on
        }
        slices_.fetch_add(1, std::memory_order_relaxed);
        const Nanos used = charged ? thread_cpu_ns() - cpu - worker.unpaid : 0;
        const Nanos ended = now_ns();
        task.meter.slice({waited, resumed, ended - now, used, task.handled() - handled, full});

        lock.lock();
        if (charged) {
            if (const Nanos overrun = ready_.charge(task, used); overrun > 0) task.meter.overran(overrun);
            engage(-1, ended);
            usage_.lasted += ended - now - worker.away;
            usage_.used += used;
        }
        worker.charged = false;
        worker.task = nullptr;
        --running_;
        if (task.yields_) --humble_;
        int state = Task::running;
        if (!task.forgotten_ && (more || !task.state_.compare_exchange_strong(state, Task::idle))) {
            task.state_.store(Task::ready, std::memory_order_seq_cst);
            task.ready_since_ = ended;
            task.resumed_ = more;
            ready_.push(task);
            ready_count_.store(ready_.size(), std::memory_order_seq_cst);
        }
        if (!ready_.empty() && blocked_ != 0) wake_one();
        quiet_.notify_all();
        if (!kept_.empty()) {
            std::vector<std::shared_ptr<Task>> ended;
            std::erase_if(kept_, [&](std::shared_ptr<Task>& kept) {
                const bool idle = !runs(*kept);
                if (idle) ended.push_back(std::move(kept));
                return idle;
            });
            lock.unlock();
            ended.clear();
            lock.lock();
        }
    }
    worker.gone = true;
    lock.unlock();
    hooks_.thread_ends();
    lock.lock();
    quiet_.notify_all();
}

// So many threads more, or fewer, are in slices that are charged.
void Scheduler::engage(int change, Nanos now) {
    now = std::max(now, changed_);  // whoever has ended a slice may have waited for the mutex
    if (engaged_ != 0) {
        usage_.worked += now - changed_;
        usage_.engaged += engaged_ * (now - changed_);
    }
    changed_ = now;
    engaged_ += change;
}

Scheduler::Usage Scheduler::usage() {
    std::lock_guard lock(mutex_);
    engage(0, now_ns());
    return usage_;
}

// Priority and processors, as the schedule wants them. Where that is not permitted the thread works as
// any other, and refusal() says so.
void Scheduler::settle_in() {
    std::string refusal;
    if (schedule_.fifo_priority > 0) {
        const sched_param parameters{schedule_.fifo_priority};
        if (const int error = pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameters)) {
            refusal = "SCHED_FIFO " + std::to_string(schedule_.fifo_priority) + " is not permitted here (" +
                      std::generic_category().message(error) + "); it takes CAP_SYS_NICE or an rtprio limit";
        }
    }
    if (!schedule_.cpus.empty()) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (const int cpu : schedule_.cpus) CPU_SET(cpu, &set);
        const int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
        // Of several the system takes those that are there, and does not say which.
        cpu_set_t got;
        CPU_ZERO(&got);
        if (error == 0) pthread_getaffinity_np(pthread_self(), sizeof got, &got);
        std::string missing;
        for (const int cpu : schedule_.cpus) {
            if (!CPU_ISSET(cpu, &got)) missing += (missing.empty() ? "" : ", ") + std::to_string(cpu);
        }
        if (!missing.empty()) {
            refusal += refusal.empty() ? "" : "; ";
            refusal += "processor " + missing + " cannot be had here";
            if (error != 0) refusal += " (" + std::generic_category().message(error) + "), so the threads run anywhere";
        }
    }
    if (refusal.empty()) return;
    {
        std::lock_guard lock(mutex_);
        if (!refusal_.empty()) return;
        refusal_ = refusal;
    }
    hooks_.refused(refusal);
}

bool Scheduler::set_share(Task& task, double share) {
    constexpr double kRounding = 1e-9;
    std::lock_guard lock(mutex_);
    if (task.forgotten_ || ready_.shares() - task.share_ + share > 1 + kRounding) return false;
    ready_.set_share(task, share);
    return true;
}

double Scheduler::shares() {
    std::lock_guard lock(mutex_);
    return ready_.shares();
}

std::uint64_t Scheduler::renewals() {
    std::lock_guard lock(mutex_);
    return ready_.renewals();
}

std::string Scheduler::refusal() {
    std::lock_guard lock(mutex_);
    return refusal_;
}

Scheduler::Blocked::Blocked() : scheduler_(current_ != nullptr && !worker_->blocked ? current_ : nullptr) {
    if (scheduler_ == nullptr) return;
    std::lock_guard lock(scheduler_->mutex_);
    if (worker_->charged) {
        const Nanos now = now_ns();
        scheduler_->engage(-1, now);
        worker_->away -= now;
    }
    worker_->blocked = true;
    --scheduler_->running_;
    ++scheduler_->blocked_;
    const int alive = static_cast<int>(scheduler_->workers_.size());
    if (scheduler_->blocked_ >= alive && !scheduler_->stopping_) {
        if (alive < scheduler_->most_threads_) {
            scheduler_->add_worker();
        } else {
            scheduler_->refused_.fetch_add(1, std::memory_order_relaxed);
        }
    }
    scheduler_->wake_one();
}

Scheduler::Blocked::~Blocked() {
    if (scheduler_ == nullptr) return;
    std::lock_guard lock(scheduler_->mutex_);
    const Nanos now = now_ns();
    worker_->resumed = now;
    if (worker_->charged) {
        scheduler_->engage(1, now);
        worker_->away += now;
    }
    worker_->blocked = false;
    ++scheduler_->running_;
    --scheduler_->blocked_;
}

Scheduler::Unpaid::Unpaid() : charged_(worker_ != nullptr && worker_->charged), began_(charged_ ? thread_cpu_ns() : 0) {}

Scheduler::Unpaid::~Unpaid() {
    if (charged_) worker_->unpaid += thread_cpu_ns() - began_;
}

void Scheduler::keep_while_running(std::shared_ptr<Task> task) {
    std::lock_guard lock(mutex_);
    if (runs(*task)) kept_.push_back(std::move(task));
}

// With the mutex.
bool Scheduler::runs(const Task& task) const {
    return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) { return worker.task == &task; });
}

bool Scheduler::awaits_this_thread(const Task& task) const {
    if (current_ != this || worker_->task == nullptr) return false;
    const Task* next = &task;
    for (std::size_t steps = 0; steps < workers_.size(); ++steps) {
        const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& w) { return w.task == next; });
        if (found == workers_.end() || found->awaits == nullptr) return false;
        next = found->awaits;
        if (next == worker_->task) return true;
    }
    return false;
}

bool Scheduler::forget(Task& task, Nanos until, bool* in_a_ring) {
    std::unique_lock lock(mutex_);
    if (!task.forgotten_) ready_.set_share(task, 0);
    task.forgotten_ = true;
    ready_.erase(task);
    ready_count_.store(ready_.size(), std::memory_order_seq_cst);
    for (;;) {
        const bool elsewhere = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
            return w.task == &task && &w != worker_;
        });
        if (!elsewhere) return true;
        if (in_a_ring != nullptr && awaits_this_thread(task)) {
            *in_a_ring = true;
            return false;
        }
        if (current_ == this) worker_->awaits = &task;
        const bool in_time = wait_until(quiet_, lock, until);
        if (current_ == this) worker_->awaits = nullptr;
        if (!in_time) return false;
    }
}

bool Scheduler::wait_idle(Nanos until) {
    std::unique_lock lock(mutex_);
    while (!ready_.empty() || running_ + blocked_ != 0) {
        if (stopping_ || !wait_until(quiet_, lock, until)) return false;
    }
    return true;
}

bool Scheduler::stop(Nanos until) {
    std::unique_lock lock(mutex_);
    stopping_.store(true, std::memory_order_seq_cst);
    ready_.clear();
    ready_count_.store(0, std::memory_order_seq_cst);
    hooks_.wake_leader();
    for (Worker& worker : workers_) worker.wake.notify_all();
    auto all_gone = [&] {
        return std::all_of(workers_.begin(), workers_.end(),
                           [](const Worker& worker) { return worker.gone; });
    };
    while (!all_gone()) {
        if (!wait_until(quiet_, lock, until)) break;
    }
    const bool done = all_gone();
    for (Worker& worker : workers_) {
        if (!worker.gone || !worker.thread.joinable()) continue;
        lock.unlock();
        worker.thread.join();
        lock.lock();
    }
    return done;
}

void Scheduler::leave() {
    std::lock_guard lock(mutex_);
    left_ = true;
    for (Worker& worker : workers_) {
        if (worker.thread.joinable()) worker.thread.detach();
    }
}

Nanos Scheduler::longest_slice() {
    std::lock_guard lock(mutex_);
    const Nanos now = now_ns();
    Nanos longest = 0;
    for (const Worker& worker : workers_) {
        if (worker.task != nullptr) longest = std::max(longest, now - worker.since);
    }
    return longest;
}

Nanos Scheduler::running_for(const Task& task) {
    std::lock_guard lock(mutex_);
    for (const Worker& worker : workers_) {
        if (worker.task == &task) return worker.blocked ? 0 : now_ns() - std::max(worker.since, worker.resumed);
    }
    return 0;
}

int Scheduler::thread_count() {
    std::lock_guard lock(mutex_);
    return static_cast<int>(workers_.size());
}

}  // namespace antiphon

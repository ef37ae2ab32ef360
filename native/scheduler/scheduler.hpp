// Scheduler threads: they take tasks that have work and run a bounded slice of each, in turn.
//
// Which task comes next is decided by its share of the time (ready_queue.hpp); without shares they take
// turns. A slice is charged the processor time that its thread used.
//
// Python tasks run one at a time on a build with a global interpreter lock: the second thread enters
// only when the first overruns two slices or blocks in one of our own calls, so that threads do not
// queue up on the interpreter's lock. A thread that blocks in our calls is replaced by a spare, once there
// is something for it to do.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/patience.hpp"
#include "scheduler/meter.hpp"
#include "scheduler/ready_queue.hpp"

namespace antiphon {

inline constexpr Nanos kSlice = 2 * kMillisecond;

struct Schedule {
    Nanos period = 10 * kMillisecond;
    int buckets = 100;
    bool penalty = false;     // an overrun is taken from the next period
    int fifo_priority = 0;    // above 0: SCHED_FIFO
    std::vector<int> cpus{};  // that the threads may run on; empty: all
};

class Task {
   public:
    virtual ~Task() = default;
    // Runs until the work or the slice is used up. True when work is left. On a scheduler thread.
    virtual bool run_slice(Nanos until) = 0;
    // How many events it has handled so far; asked before and after a slice, by the thread that runs it.
    virtual std::uint64_t handled() const { return 0; }
    // Whether its queue has had no room since the last time; asked before a slice.
    virtual bool filled() { return false; }

    Meter meter;

   protected:
    // In a slice: somebody who comes first waits. Tasks without a share then end their slice early.
    bool outranked() const;
    // In a slice: whether it is charged for, as it is while anybody has a share.
    static bool charged();

   private:
    friend class Scheduler;
    friend class ReadyQueue;
    enum State : int { idle, ready, running, running_notified };
    // Idle to ready by whoever brings work, ready to running and back by the scheduler.
    std::atomic<int> state_{idle};
    // With the scheduler's mutex:
    bool forgotten_ = false;  // it is not to run any more
    bool queued_ = false;     // it is in the ready queue, in
    int bucket_ = 0;          // this bucket, if it has a share
    double share_ = 0;
    Nanos credits_ = 0;  // of
    std::uint64_t round_ = 0;  // this round
    bool yields_ = false;  // set for a slice, and read in it
    Nanos ready_since_ = 0;
    bool resumed_ = false;  // and why
};

class Scheduler {
   public:
    struct Hooks {
        std::function<void()> thread_ends = [] {};  // on the thread, before it ends
        // How the last thread that worked waits for more, when it can bring it about by itself: until
        // done(), or until there is nothing to wait with any more. False, at once, if there is nothing.
        std::function<bool(const std::function<bool()>& done)> lead = [](const auto&) { return false; };
        std::function<bool()> leads = [] { return false; };  // whether a thread waits so; any thread
        std::function<void()> wake_leader = [] {};  // it looks at done() again; any thread
        // What the schedule asks for and the system does not permit; once, on the first thread that is
        // refused something, with no lock held.
        std::function<void(const std::string&)> refused = [](const std::string&) {};
    };

    Scheduler(int threads, int most_threads, Hooks hooks, Schedule schedule = {})
        : threads_(threads),
          most_threads_(most_threads),
          hooks_(std::move(hooks)),
          schedule_(std::move(schedule)),
          ready_(schedule_.period, schedule_.buckets, schedule_.penalty) {}
    ~Scheduler() {
        if (!left_) stop(kNever);
    }

    // The task has work. Threads are started by the first one.
    void notify(Task& task);
    // Nothing ready and nothing running, or the deadline.
    bool wait_idle(Nanos until);
    // No slice starts any more. Waits for the running ones until the deadline and joins the threads;
    // false when one is still in a handler then. May be called again.
    bool stop(Nanos until);
    // Gives up on threads that do not come back: they end by themselves, and need this object then.
    void leave();
    // The task will not run again once this returns true, unless it is running on this very thread.
    // False when it still ran at the deadline. With `in_a_ring` also, at once and with that set, when the
    // thread that runs it waits here for what this thread runs, by itself or by way of others.
    bool forget(Task& task, Nanos until, bool* in_a_ring = nullptr);
    // Whether the calling thread is in a slice of it.
    static bool running_here(const Task& task);
    // One that was forgotten lives until its slice has ended, if it is in one. It is dropped by a thread
    // of the scheduler.
    void keep_while_running(std::shared_ptr<Task> task);

    // Gives the task a fraction of the time, or none (0). False, and nothing has changed, when all the
    // shares would sum to more than one.
    bool set_share(Task& task, double share);
    double shares();
    const Schedule& schedule() const { return schedule_; }
    std::uint64_t renewals();
    // What a thread could not be given that the schedule asks for; empty when all is well.
    std::string refusal();

    // How the threads have spent their time in slices, from the first share on: without one nothing is
    // measured. Time in which a slice waits in one of our own calls is none of it.
    struct Usage {
        Nanos worked = 0;   // by the clock, with at least one thread in a slice
        Nanos engaged = 0;  // the same for each of the threads, added up
        Nanos lasted = 0, used = 0;  // of slices that have ended: by the clock, and of a processor
    };
    Usage usage();

    static bool on_scheduler_thread();

    // While this lives, the calling scheduler thread does not count as running. Within another one it changes nothing.
    class Blocked {
       public:
        Blocked();
        ~Blocked();

       private:
        Scheduler* scheduler_;
    };

    // While this lives, the calling thread only looks for what it waits for: the task whose slice it runs does not
    // pay for that, as it would not for sleeping. One at a time. Calls of ours that do something are paid for.
    class Unpaid {
       public:
        Unpaid();
        ~Unpaid();
        Unpaid(const Unpaid&) = delete;

       private:
        const bool charged_;
        const Nanos began_;
    };

    // How long the slice that runs longest has been running; zero when none is.
    Nanos longest_slice();
    // How long the task has been in the slice that it is in, or has gone on since it last waited in one of our
    // own calls there; zero when it is in none, or waits so now.
    Nanos running_for(const Task& task);
    int thread_count();
    std::uint64_t slices() const { return slices_.load(std::memory_order_relaxed); }
    std::uint64_t spares_refused() const { return refused_.load(std::memory_order_relaxed); }

   private:
    struct Worker {
        std::thread thread;
        Task* task = nullptr;
        Nanos since = 0;
        Nanos resumed = 0;  // since when it has not waited in one of our own calls
        const Task* awaits = nullptr;  // whose end it waits for in forget()
        std::condition_variable wake;
        bool blocked = false;
        bool gone = false;
        bool charged = false;  // the slice that it runs
        Nanos away = 0;        // and how long that has been blocked
        Nanos unpaid = 0;      // of the slice's processor time; touched by its own thread alone
    };

    void enqueue(Task& task);
    bool runs(const Task& task) const;
    bool awaits_this_thread(const Task& task) const;  // with mutex_ held: whoever runs it
    void work(Worker& worker);
    void wake_one();    // with mutex_ held
    void add_worker();  // with mutex_ held
    void settle_in();
    void engage(int change, Nanos now);  // with mutex_ held
    bool may_enter(Nanos now) const;

    friend class Task;
    static thread_local Scheduler* current_;
    static thread_local Worker* worker_;

    const int threads_, most_threads_;
    const Hooks hooks_;
    std::mutex mutex_;
    std::condition_variable quiet_;
    std::vector<Worker*> sleeping_;  // the last one to fall asleep is the last one here
    const Schedule schedule_;
    ReadyQueue ready_;
    std::string refusal_;
    Usage usage_;
    int engaged_ = 0;    // threads in slices that are charged
    Nanos changed_ = 0;  // when that was last looked at
    std::deque<Worker> workers_;
    std::vector<std::shared_ptr<Task>> kept_;  // while they run
    Patience patience_;
    // Written under the mutex; read by the thread that is eager.
    std::atomic<std::size_t> ready_count_{0};
    Worker* eager_ = nullptr;     // it leads, or stays awake for a moment, although nothing is ready
    Worker* watcher_ = nullptr;  // looks at a running slice from time to time
    int running_ = 0, blocked_ = 0;
    int humble_ = 0;  // of those that run: without a share
    // Written under the mutex, read within slices: one with a share is ready, and one without runs.
    std::atomic<bool> urgent_{false};
    std::atomic<bool> stopping_{false};  // written under the mutex
    bool left_ = false;
    std::atomic<std::uint64_t> slices_{0}, refused_{0}, failed_slices_{0};
};

}  // namespace antiphon

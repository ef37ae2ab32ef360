// Scheduler threads: slices in turn, spares for threads that wait, an end that waits for the rest.
//
// Forbidden: work that nobody runs; two threads in one task; a task that runs after it was forgotten;
// a pool in which everybody waits for a slice that no thread is left to run.
#include "scheduler/scheduler.hpp"

#include <memory>
#include <new>

#include "check.hpp"

using namespace antiphon;

namespace {

// Work that is counted: one unit per call of add().
class Counter : public Task {
   public:
    explicit Counter(Scheduler& scheduler) : scheduler_(scheduler) {}
    void add(std::uint64_t units = 1) {
        waiting_.fetch_add(units, std::memory_order_release);
        scheduler_.notify(*this);
    }
    bool run_slice(Nanos until) override {
        CHECK(!inside_.exchange(true, std::memory_order_acquire));
        ++slices;
        bool more = false;
        while (waiting_.load(std::memory_order_acquire) != 0) {
            if (now_ns() >= until) {
                more = true;
                break;
            }
            waiting_.fetch_sub(1, std::memory_order_acquire);
            ++plain;  // not atomic: one thread at a time, and each sees what the last one did
            if (step) step();
        }
        inside_.store(false, std::memory_order_release);
        return more;
    }
    bool done() const { return waiting_.load(std::memory_order_acquire) == 0 && !inside_.load(std::memory_order_acquire); }

    std::uint64_t plain = 0, slices = 0;
    std::function<void()> step;

   private:
    Scheduler& scheduler_;
    std::atomic<std::uint64_t> waiting_{0};
    std::atomic<bool> inside_{false};
};

// A task made of one function that is called per slice.
class Calling : public Task {
   public:
    explicit Calling(std::function<bool(Nanos)> call) : call_(std::move(call)) {}
    bool run_slice(Nanos until) override { return call_(until); }

   private:
    std::function<bool(Nanos)> call_;
};

// A gate that threads wait at.
class Gate {
   public:
    void open() {
        std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex_);
        while (!open_) changed_.wait(lock);
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
};

void spin_for(Nanos time) {
    for (const Nanos until = now_ns() + time; now_ns() < until;) {
    }
}

}  // namespace

TEST("a scheduler without work has no threads") {
    Scheduler scheduler(2, 4, {});
    CHECK_EQUAL(scheduler.thread_count(), 0);
    CHECK(scheduler.wait_idle(0));
    CHECK_EQUAL(scheduler.longest_slice(), 0);
    CHECK(!Scheduler::on_scheduler_thread());
    CHECK(scheduler.stop(kNever));
}

TEST("no unit of work is lost between many notifiers and one task") {
    const std::uint64_t each = check::count(100'000, 5'000'000);
    for (const int threads : {1, 2, 4}) {
        Scheduler scheduler(threads, 8, {});
        Counter task(scheduler);
        std::vector<std::thread> notifiers;
        for (std::uint64_t n = 0; n < 4; ++n) {
            notifiers.emplace_back([&, n] {
                auto random = check::random(n);
                for (std::uint64_t i = 0; i < each; ++i) {
                    task.add();
                    // Often enough the task goes idle, which is where a wake-up could be lost.
                    if (check::below(random, 50) == 0) std::this_thread::yield();
                }
            });
        }
        for (std::thread& notifier : notifiers) notifier.join();
        CHECK(scheduler.wait_idle(now_ns() + check::patience(20 * kSecond)));
        CHECK(task.done());
        CHECK_EQUAL(task.plain, 4 * each);
        CHECK_EQUAL(scheduler.slices(), task.slices);
        CHECK(scheduler.stop(kNever));
    }
}

TEST("a task that goes idle again and again is woken every time") {
    // One unit at a time, the next only when the last one is done: every one of them meets an idle
    // task or one that is about to be.
    Scheduler scheduler(2, 8, {});
    Counter task(scheduler);
    std::atomic<std::uint64_t> ran{0};
    task.step = [&] { ran.fetch_add(1); };
    const std::uint64_t rounds = check::count(20'000, 500'000);
    for (std::uint64_t i = 1; i <= rounds; ++i) {
        task.add();
        const Nanos until = now_ns() + check::patience(10 * kSecond);
        while (ran.load() < i) CHECK_SAYS(now_ns() < until, "unit " + std::to_string(i) + " was never run");
    }
    CHECK(scheduler.stop(kNever));
}

TEST("what the system does not permit is told once, without a lock, and the threads work all the same") {
    Schedule schedule;
    schedule.cpus = {1023};  // there is no such processor
    std::atomic<int> told{0};
    std::string text;
    Scheduler* itself = nullptr;
    Scheduler::Hooks hooks;
    hooks.refused = [&](const std::string& what) {
        text = what;
        CHECK_EQUAL(itself->refusal(), what);  // takes the scheduler's lock
        told.fetch_add(1);
    };
    Scheduler scheduler(4, 4, hooks, schedule);
    itself = &scheduler;
    Counter task(scheduler);
    task.add(1000);
    CHECK(scheduler.wait_idle(now_ns() + check::patience(20 * kSecond)));
    CHECK(check::soon([&] { return told.load() == 1; }));
    CHECK(scheduler.stop(kNever));
    CHECK_EQUAL(told.load(), 1);
    CHECK_EQUAL(task.plain, 1000);
    CHECK_SAYS(text.find("processor 1023 cannot be had") != std::string::npos, text);

    Scheduler plain(2, 2, {});
    Counter other(plain);
    other.add(10);
    CHECK(plain.wait_idle(now_ns() + check::patience(20 * kSecond)));
    CHECK_EQUAL(plain.refusal(), "");
    CHECK(plain.stop(kNever));
}

TEST("many tasks run one thread at a time each, and all of them get their turn") {
    Scheduler scheduler(3, 8, {});
    constexpr std::size_t kTasks = 40;
    std::vector<std::unique_ptr<Counter>> tasks;
    for (std::size_t i = 0; i < kTasks; ++i) tasks.push_back(std::make_unique<Counter>(scheduler));
    const std::uint64_t each = check::count(40'000, 1'000'000);
    std::vector<std::thread> notifiers;
    for (std::uint64_t n = 0; n < 3; ++n) {
        notifiers.emplace_back([&, n] {
            auto random = check::random(10 + n);
            for (std::uint64_t i = 0; i < each; ++i) tasks[check::below(random, kTasks)]->add();
        });
    }
    for (std::thread& notifier : notifiers) notifier.join();
    CHECK(scheduler.wait_idle(now_ns() + check::patience(20 * kSecond)));
    std::uint64_t total = 0;
    for (const auto& task : tasks) total += task->plain;
    CHECK_EQUAL(total, 3 * each);
    CHECK(scheduler.stop(kNever));
}

TEST("two busy tasks share the time in turns") {
    Scheduler scheduler(2, 8, {});
    Counter first(scheduler), second(scheduler);
    std::mutex mutex;  // should a slice overrun, the other runs beside it
    std::vector<int> order;
    auto note = [&](int who) {
        {
            std::lock_guard lock(mutex);
            if (order.empty() || order.back() != who) order.push_back(who);
        }
        spin_for(100 * kMicrosecond);
    };
    first.step = [&] { note(1); };
    second.step = [&] { note(2); };
    // Enough for many slices each, and both there before the first slice ends.
    first.add(1000);
    second.add(1000);
    CHECK(scheduler.wait_idle(now_ns() + check::patience(20 * kSecond)));
    CHECK_EQUAL(first.plain + second.plain, 2000);
    // 200 ms in slices of 2 ms: far from all of one, then all of the other.
    CHECK(order.size() > 20);
    CHECK(scheduler.stop(kNever));
}

TEST("one slice runs at a time while slices keep to their time") {
    // A machine that takes a core away makes a slice overrun, and lets another enter beside it: the best
    // of many rounds counts. Were they not held back, four threads would overlap nearly all the time.
    constexpr std::uint64_t kUnits = 20'000;
    std::uint64_t best = kUnits;
    const Nanos until = now_ns() + check::patience(60 * kSecond);
    while (best >= kUnits / 4 && now_ns() < until) {
        Scheduler scheduler(4, 8, {});
        std::atomic<int> inside{0};
        std::atomic<std::uint64_t> overlaps{0};
        std::vector<std::unique_ptr<Counter>> tasks;
        for (int i = 0; i < 4; ++i) {
            tasks.push_back(std::make_unique<Counter>(scheduler));
            tasks.back()->step = [&] {
                overlaps.fetch_add(inside.fetch_add(1) != 0);
                spin_for(5 * kMicrosecond);
                inside.fetch_sub(1);
            };
            tasks.back()->add(kUnits / 4);
        }
        CHECK(scheduler.wait_idle(now_ns() + check::patience(20 * kSecond)));
        best = std::min(best, overlaps.load());
        CHECK(scheduler.stop(kNever));
    }
    CHECK(best < kUnits / 4);
}

TEST("a slice that overruns lets another thread in") {
    Scheduler scheduler(2, 8, {});
    Gate gate;
    std::atomic<bool> began{false};
    Calling slow([&](Nanos) {
        began.store(true);
        gate.wait();  // in code that is not ours: no spare, but no monopoly either
        return false;
    });
    Counter quick(scheduler);
    scheduler.notify(slow);
    CHECK(check::soon([&] { return began.load(); }));
    quick.add(100);
    CHECK(check::soon([&] { return quick.done(); }));
    CHECK(scheduler.longest_slice() > 2 * kSlice);
    CHECK(!scheduler.wait_idle(now_ns() + kMillisecond));
    gate.open();
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK_EQUAL(scheduler.thread_count(), 2);
    CHECK(scheduler.stop(kNever));
}

TEST("a slice tells how long it has gone on since it last waited in one of our own calls") {
    Scheduler scheduler(2, 8, {});
    Gate waits, works;
    std::atomic<bool> waiting{false}, working{false};
    Calling task([&](Nanos) {
        {
            Scheduler::Blocked blocked;
            waiting.store(true);
            waits.wait();
        }
        working.store(true);
        works.wait();
        return false;
    });
    Calling other([](Nanos) { return false; });
    CHECK_EQUAL(scheduler.running_for(task), 0);
    scheduler.notify(task);
    CHECK(check::soon([&] { return waiting.load(); }));
    const Nanos waited = now_ns();
    CHECK_EQUAL(scheduler.running_for(task), 0);
    waits.open();
    CHECK(check::soon([&] { return working.load(); }));
    CHECK(scheduler.running_for(task) <= now_ns() - waited);
    CHECK(check::soon([&] { return scheduler.running_for(task) > 20 * kMillisecond; }));
    CHECK_EQUAL(scheduler.running_for(other), 0);
    works.open();
    CHECK(check::soon([&] { return scheduler.running_for(task) == 0; }));
    CHECK(scheduler.stop(kNever));
}

TEST("every slice that overruns lets one more thread in") {
    Scheduler scheduler(4, 8, {});
    Gate gate;
    std::atomic<int> began{0};
    auto slow = [&](Nanos) {
        began.fetch_add(1);
        gate.wait();
        return false;
    };
    Calling first(slow), second(slow), third(slow);
    scheduler.notify(first);
    scheduler.notify(second);
    scheduler.notify(third);
    CHECK(check::soon([&] { return began.load() == 3; }));
    gate.open();
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK(scheduler.stop(kNever));
}

TEST("threads that wait in our own calls are replaced, so that the last one can wake them") {
    Scheduler scheduler(2, 32, {});
    Gate gate;
    constexpr int kWaiting = 20;
    std::atomic<int> waiting{0}, left{0};
    std::vector<std::unique_ptr<Calling>> tasks;
    for (int i = 0; i < kWaiting; ++i) {
        tasks.push_back(std::make_unique<Calling>([&](Nanos) {
            CHECK(Scheduler::on_scheduler_thread());
            {
                Scheduler::Blocked blocked;
                waiting.fetch_add(1);
                gate.wait();
            }
            left.fetch_add(1);
            return false;
        }));
    }
    Calling last([&](Nanos) {
        if (waiting.load() < kWaiting) return true;  // not before all the others wait
        gate.open();
        return false;
    });
    for (auto& task : tasks) scheduler.notify(*task);
    scheduler.notify(last);
    CHECK(check::soon([&] { return left.load() == kWaiting; }));
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK(scheduler.thread_count() > kWaiting);
    CHECK(scheduler.thread_count() <= 32);
    CHECK_EQUAL(scheduler.spares_refused(), 0);
    CHECK(scheduler.stop(kNever));
}

TEST("a thread that waits in our own calls is replaced while another one takes long in other code") {
    Scheduler scheduler(2, 8, {});
    Gate ours, others;
    std::atomic<bool> waiting{false}, busy{false};
    Calling waits([&](Nanos) {
        Scheduler::Blocked blocked;
        waiting.store(true);
        ours.wait();
        return false;
    });
    Calling slow([&](Nanos) {
        busy.store(true);
        others.wait();
        return false;
    });
    Counter first(scheduler), second(scheduler);
    scheduler.notify(waits);
    CHECK(check::soon([&] { return waiting.load(); }));
    scheduler.notify(slow);
    CHECK(check::soon([&] { return busy.load(); }));
    first.add(100);  // it becomes ready when nobody is left to see it
    CHECK(check::soon([&] { return first.done(); }));
    CHECK_EQUAL(scheduler.thread_count(), 3);
    second.add(100);
    CHECK(check::soon([&] { return second.done(); }));
    CHECK_EQUAL(scheduler.thread_count(), 3);
    ours.open();
    others.open();
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK(scheduler.stop(kNever));
}

TEST("a thread that begins to wait while others have work and the rest take long is replaced at once") {
    Scheduler scheduler(2, 8, {});
    Gate ours, others, begin;
    std::atomic<int> inside{0};
    Calling waits([&](Nanos) {
        inside.fetch_add(1);
        begin.wait();
        Scheduler::Blocked blocked;
        ours.wait();
        return false;
    });
    Calling slow([&](Nanos) {
        inside.fetch_add(1);
        others.wait();
        return false;
    });
    Counter later(scheduler);
    scheduler.notify(slow);
    scheduler.notify(waits);
    CHECK(check::soon([&] { return inside.load() == 2; }));
    later.add(100);  // both threads are in slices: it waits
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(!later.done());
    CHECK_EQUAL(scheduler.thread_count(), 2);
    begin.open();
    CHECK(check::soon([&] { return later.done(); }));
    CHECK_EQUAL(scheduler.thread_count(), 3);
    ours.open();
    others.open();
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK(scheduler.stop(kNever));
}

TEST("waiting in our own calls takes no thread more while there is nothing else to do") {
    Scheduler scheduler(2, 8, {});
    std::atomic<int> round{0};
    Calling asks([&](Nanos) {
        for (int i = 0; i < 200; ++i) {
            Scheduler::Blocked blocked;
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
        round.fetch_add(1);
        return false;
    });
    Counter other(scheduler);
    for (int i = 1; i <= 5; ++i) {
        scheduler.notify(asks);
        other.add(1);
        CHECK(check::soon([&] { return round.load() == i && other.done(); }));
    }
    CHECK_EQUAL(scheduler.thread_count(), 2);
    CHECK(scheduler.stop(kNever));
}

TEST("threads that wait for each other's tasks to end are told so, and not left waiting") {
    Scheduler scheduler(3, 8, {});
    constexpr std::size_t kRing = 3;
    std::atomic<int> inside{0}, left{0}, rings{0};
    std::vector<std::unique_ptr<Calling>> tasks(kRing);
    for (std::size_t i = 0; i < kRing; ++i) {
        tasks[i] = std::make_unique<Calling>([&, i](Nanos) {
            inside.fetch_add(1);
            while (inside.load() < static_cast<int>(kRing)) std::this_thread::yield();
            bool in_a_ring = false;
            Task& next = *tasks[(i + 1) % kRing];
            CHECK(scheduler.forget(next, kNever, &in_a_ring) != in_a_ring);
            rings.fetch_add(in_a_ring);
            left.fetch_add(1);
            return false;
        });
    }
    for (auto& task : tasks) scheduler.notify(*task);
    CHECK(check::soon([&] { return left.load() == static_cast<int>(kRing); }));
    CHECK_EQUAL(rings.load(), 1);  // the last one to ask; the others have waited
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK(scheduler.stop(kNever));
}

TEST("spares are bounded, and their refusal is counted") {
    Scheduler scheduler(1, 3, {});
    Gate gate;
    std::atomic<int> waiting{0};
    std::vector<std::unique_ptr<Calling>> tasks;
    for (int i = 0; i < 5; ++i) {
        tasks.push_back(std::make_unique<Calling>([&](Nanos) {
            Scheduler::Blocked blocked;
            waiting.fetch_add(1);
            gate.wait();
            return false;
        }));
        scheduler.notify(*tasks.back());
    }
    CHECK(check::soon([&] { return waiting.load() == 3 && scheduler.spares_refused() == 1; }));
    CHECK_EQUAL(scheduler.thread_count(), 3);
    gate.open();
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK_EQUAL(waiting.load(), 5);
    CHECK(scheduler.stop(kNever));
}

TEST("tasks that block and wake each other in a ring never stand still") {
    // Each passes a token to the next and waits for it to come round, as handlers do that send to
    // each other. With one thread this lives on spares alone.
    Scheduler scheduler(1, 16, {});
    constexpr std::size_t kRing = 8;
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t holder = 0;
    const std::uint64_t rounds = check::count(300, 20'000);
    std::atomic<std::uint64_t> passes{0};
    std::vector<std::unique_ptr<Calling>> tasks;
    for (std::size_t i = 0; i < kRing; ++i) {
        tasks.push_back(std::make_unique<Calling>([&, i](Nanos) {
            for (std::uint64_t round = 0; round < rounds; ++round) {
                Scheduler::Blocked blocked;
                std::unique_lock lock(mutex);
                while (holder != i) changed.wait(lock);
                holder = (holder + 1) % kRing;
                passes.fetch_add(1);
                changed.notify_all();
            }
            return false;
        }));
        scheduler.notify(*tasks.back());
    }
    CHECK(scheduler.wait_idle(now_ns() + check::patience(30 * kSecond)));
    CHECK_EQUAL(passes.load(), kRing * rounds);
    CHECK(scheduler.stop(kNever));
}

TEST("threads that are not the scheduler's may wait without being counted") {
    Scheduler scheduler(1, 1, {});
    {
        Scheduler::Blocked blocked;
        Counter task(scheduler);
        task.add(10);
        CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
        CHECK_EQUAL(task.plain, 10);
        CHECK_EQUAL(scheduler.thread_count(), 1);
        CHECK(scheduler.forget(task, kNever));
    }
    CHECK(scheduler.stop(kNever));
}

TEST("stop waits for the slices that run, and starts no others") {
    std::atomic<int> ended{0};
    Scheduler scheduler(2, 4, {[&] { ended.fetch_add(1); }});
    std::atomic<bool> began{false}, finished{false};
    Calling running([&](Nanos) {
        began.store(true);
        spin_for(50 * kMillisecond);
        finished.store(true);
        return true;  // more to do, which nobody does any more
    });
    Counter later(scheduler);
    scheduler.notify(running);
    CHECK(check::soon([&] { return began.load(); }));
    CHECK(scheduler.stop(now_ns() + check::patience(10 * kSecond)));
    CHECK(finished.load());
    CHECK_EQUAL(ended.load(), scheduler.thread_count());  // every thread said good-bye
    later.add();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK_EQUAL(later.plain, 0);
    CHECK(scheduler.stop(kNever));  // a second time does nothing
}

TEST("stop gives up on a slice that does not end, and says so") {
    // The thread is left to itself and uses what it needs for as long as it needs it, so everything
    // it touches is kept for ever, as the node's owner keeps a node.
    struct Kept {
        Gate gate;
        std::atomic<bool> began{false}, over{false};
        Scheduler scheduler{2, 4, {}};
        Calling stuck{[this](Nanos) {
            began.store(true);
            gate.wait();
            over.store(true);
            return false;
        }};
    };
    auto* kept = new Kept;
    static std::atomic<Kept*> reachable;  // and found by the leak checker
    reachable.store(kept);
    kept->scheduler.notify(kept->stuck);
    CHECK(check::soon([&] { return kept->began.load(); }));
    const Nanos asked = now_ns();
    CHECK(!kept->scheduler.stop(now_ns() + 20 * kMillisecond));
    CHECK(now_ns() - asked < check::patience(15 * kSecond));
    kept->scheduler.leave();
    kept->gate.open();
    CHECK(check::soon([&] { return kept->over.load(); }));
}

TEST("stop may be asked again until the last slice has ended") {
    Scheduler scheduler(2, 4, {});
    Gate gate;
    std::atomic<bool> began{false};
    Calling slow([&](Nanos) {
        began.store(true);
        gate.wait();
        return false;
    });
    scheduler.notify(slow);
    CHECK(check::soon([&] { return began.load(); }));
    for (int i = 0; i < 3; ++i) CHECK(!scheduler.stop(now_ns() + kMillisecond));
    gate.open();
    CHECK(scheduler.stop(now_ns() + check::patience(10 * kSecond)));
}

TEST("a slice that throws ends alone") {
    Scheduler scheduler(1, 1, {});
    std::atomic<int> calls{0};
    Calling fails([&](Nanos) -> bool {
        calls.fetch_add(1);
        throw std::bad_alloc();
    });
    Counter other(scheduler);
    scheduler.notify(fails);
    other.add(10);
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK_EQUAL(calls.load(), 1);
    CHECK_EQUAL(other.plain, 10);
    scheduler.notify(fails);
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK_EQUAL(calls.load(), 2);
    CHECK(scheduler.stop(kNever));
}

TEST("stop while everybody notifies ends, and nothing runs afterwards") {
    for (std::uint64_t round = 0; round < check::count(60, 2'000); ++round) {
        Scheduler scheduler(2, 4, {});
        std::atomic<bool> stopped{false}, ends{false};
        Calling task([&](Nanos) {
            CHECK(!stopped.load());
            return false;
        });
        std::vector<std::thread> notifiers;
        for (int n = 0; n < 2; ++n) {
            notifiers.emplace_back([&] {
                while (!ends.load()) scheduler.notify(task);
            });
        }
        std::this_thread::sleep_for(std::chrono::microseconds(round % 7 * 100));
        CHECK(scheduler.stop(kNever));
        stopped.store(true);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        ends.store(true);
        for (std::thread& notifier : notifiers) notifier.join();
    }
}

TEST("a forgotten task does not run again, even when it was ready") {
    Scheduler scheduler(1, 1, {});
    Gate gate;
    std::atomic<bool> began{false};
    Calling holder([&](Nanos) {
        began.store(true);
        gate.wait();
        return false;
    });
    Counter forgotten(scheduler);
    scheduler.notify(holder);
    CHECK(check::soon([&] { return began.load(); }));
    forgotten.add(5);  // ready, behind the holder
    CHECK(scheduler.forget(forgotten, kNever));
    gate.open();
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK_EQUAL(forgotten.plain, 0);
    CHECK(scheduler.stop(kNever));
}

TEST("forget waits for a running slice, unless it is its own") {
    Scheduler scheduler(2, 4, {});
    std::atomic<bool> began{false}, finished{false};
    Calling other([&](Nanos) {
        began.store(true);
        spin_for(30 * kMillisecond);
        finished.store(true);
        return true;
    });
    scheduler.notify(other);
    CHECK(check::soon([&] { return began.load(); }));
    CHECK(!scheduler.forget(other, now_ns()));  // not in no time
    CHECK(scheduler.forget(other, now_ns() + check::patience(10 * kSecond)));
    CHECK(finished.load());

    std::atomic<bool> returned{false};
    std::unique_ptr<Calling> self;
    self = std::make_unique<Calling>([&](Nanos) {
        CHECK(scheduler.forget(*self, kNever));
        returned.store(true);
        return false;
    });
    scheduler.notify(*self);
    CHECK(check::soon([&] { return returned.load(); }));
    CHECK(scheduler.wait_idle(now_ns() + check::patience(10 * kSecond)));
    CHECK(scheduler.stop(kNever));
}

TEST("tasks that come and go under load are never touched after they were forgotten") {
    Scheduler scheduler(2, 8, {});
    Counter steady(scheduler);
    steady.step = [] { spin_for(2 * kMicrosecond); };
    std::atomic<bool> ends{false};
    std::thread load([&] {
        while (!ends.load()) {
            steady.add(20);
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    });
    const std::uint64_t rounds = check::count(3'000, 100'000);
    auto random = check::random(42);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        auto task = std::make_unique<Counter>(scheduler);
        task->add(1 + check::below(random, 30));
        if (round % 3 == 0) std::this_thread::yield();
        CHECK(scheduler.forget(*task, kNever));
        const std::uint64_t ran = task->plain;  // nobody writes it any more
        CHECK(ran <= 30);
        task.reset();  // the sanitizers see whoever comes too late
    }
    ends.store(true);
    load.join();
    CHECK(scheduler.wait_idle(now_ns() + check::patience(20 * kSecond)));
    CHECK(scheduler.stop(kNever));
}

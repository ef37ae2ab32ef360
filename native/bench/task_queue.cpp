// What the mutex of a task queue costs: ours beside a bounded ring without a lock, which does less: it
// knows neither marks nor drop policies, and counts nothing.
//
// A run goes in and comes out again, as from the selector to a scheduler thread: on one thread, which is
// the price of the instructions, and from one thread to another that works for a while on each run. The two
// alternate; medians.
//
//   cmake --build build/native --target bench_task_queue && build/native/bench_task_queue
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "scheduler/task_queue.hpp"

using namespace antiphon;

namespace {

constexpr std::size_t kCapacity = 4096;

Run make_run() {
    Run run;
    run.shape = Run::Shape::frames;
    run.count = run.last = 1;
    run.bytes = 128;
    return run;
}

class Locked {
   public:
    Locked() : queue_(WhenFull::block, kCapacity, 1 << 30, [](Run&) {}) { queue_.begin(slice_); }
    ~Locked() { queue_.end(slice_); }
    // The senders' credit bounds it; here, a look.
    bool push(Run run) {
        if (queue_.pending() >= kCapacity) return false;
        queue_.push(std::move(run));
        return true;
    }
    bool pop(Run& run) {
        // As a slice does: an empty queue is seen without the lock.
        return !queue_.empty() && queue_.pop(run, slice_);
    }
    void done() { queue_.done(slice_); }

   private:
    TaskQueue queue_;
    TaskQueue::Slice slice_;
};

// Dmitry Vyukov's bounded queue.
class Free {
   public:
    Free() : cells_(kCapacity) {
        for (std::size_t i = 0; i < kCapacity; ++i) cells_[i].number.store(i, std::memory_order_relaxed);
    }
    bool push(Run run) {
        std::size_t at = tail_.load(std::memory_order_relaxed);
        for (;;) {
            Cell& cell = cells_[at % kCapacity];
            const std::size_t number = cell.number.load(std::memory_order_acquire);
            if (number == at && tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
                cell.run = std::move(run);
                cell.number.store(at + 1, std::memory_order_release);
                return true;
            }
            if (number < at) return false;
            if (number > at) at = tail_.load(std::memory_order_relaxed);
        }
    }
    bool pop(Run& run) {
        std::size_t at = head_.load(std::memory_order_relaxed);
        for (;;) {
            Cell& cell = cells_[at % kCapacity];
            const std::size_t number = cell.number.load(std::memory_order_acquire);
            if (number == at + 1 && head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
                run = std::move(cell.run);
                cell.number.store(at + kCapacity, std::memory_order_release);
                return true;
            }
            if (number <= at) return false;
            if (number > at + 1) at = head_.load(std::memory_order_relaxed);
        }
    }
    void done() {}

   private:
    struct Cell {
        std::atomic<std::size_t> number;
        Run run;
    };
    std::vector<Cell> cells_;
    alignas(64) std::atomic<std::size_t> head_{0};
    alignas(64) std::atomic<std::size_t> tail_{0};
};

void work_for(Nanos length) {
    if (length == 0) return;
    for (const Nanos until = now_ns() + length; now_ns() < until;) {
    }
}

// Nanoseconds per run, in and out on one thread.
template <typename Queue>
double alone() {
    constexpr int kRuns = 2'000'000;
    Queue queue;
    Run run;
    const Nanos began = now_ns();
    for (int i = 0; i < kRuns; ++i) {
        queue.push(make_run());
        if (queue.pop(run)) queue.done();
    }
    return static_cast<double>(now_ns() - began) / kRuns;
}

// Nanoseconds per run, from one thread to another.
template <typename Queue>
double across(Nanos work) {
    const int runs = work == 0 ? 1'000'000 : static_cast<int>(300 * kMillisecond / work);
    Queue queue;
    std::atomic<bool> go{false};
    std::thread giver([&] {
        while (!go.load()) std::this_thread::yield();
        for (int i = 0; i < runs; ++i) {
            while (!queue.push(make_run())) std::this_thread::yield();
        }
    });
    const Nanos began = now_ns();
    go.store(true);
    Run run;
    for (int got = 0; got < runs;) {
        if (!queue.pop(run)) {
            std::this_thread::yield();
            continue;
        }
        ++got;
        work_for(work);
        queue.done();
    }
    const Nanos ended = now_ns();
    giver.join();
    return static_cast<double>(ended - began) / runs;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

template <typename Mutex, typename None>
void compare(const char* what, Mutex mutex, None none) {
    std::vector<double> locked, free;
    for (int i = 0; i < 7; ++i) {
        locked.push_back(mutex());
        free.push_back(none());
    }
    std::printf("%-34s %10.0f %10.0f %7.2f\n", what, median(locked), median(free), median(locked) / median(free));
}

}  // namespace

int main() {
    std::printf("%-34s %10s %10s %7s\n", "ns per run", "mutex", "no lock", "ratio");
    compare("one thread", alone<Locked>, alone<Free>);
    compare("two threads, no work", [] { return across<Locked>(0); }, [] { return across<Free>(0); });
    compare("two threads, 1 us of work", [] { return across<Locked>(kMicrosecond); },
            [] { return across<Free>(kMicrosecond); });
    compare("two threads, 5 us of work", [] { return across<Locked>(5 * kMicrosecond); },
            [] { return across<Free>(5 * kMicrosecond); });
    return 0;
}

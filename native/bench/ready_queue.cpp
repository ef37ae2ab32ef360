// What one turn of the ready queue costs: ours, a mutex over buckets and a bitmap, beside a queue without
// a lock after Tempo: a ring per bucket, atomic counters per bucket and per group of buckets.
//
// A turn is what a scheduler thread does between two slices: take the task with the most credits, charge
// it, put it back. Between turns a thread works for a while, as a slice does. The two alternate; medians.
//
//   cmake --build build/native --target bench_ready_queue && build/native/bench_ready_queue
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "scheduler/ready_queue.hpp"
#include "scheduler/scheduler.hpp"

using namespace antiphon;

namespace {

constexpr int kBuckets = 100;
constexpr Nanos kPeriod = 10 * kMillisecond;
constexpr Nanos kStep = kPeriod / kBuckets;

struct Idle : Task {
    bool run_slice(Nanos) override { return false; }
};

// --- with a lock -------------------------------------------------------------------------------------

class Locked {
   public:
    explicit Locked(int tasks) : queue_(kPeriod, kBuckets, false), tasks_(static_cast<std::size_t>(tasks)) {
        for (auto& task : tasks_) {
            queue_.set_share(task, 1.0 / tasks);
            queue_.push(task);
        }
    }
    bool turn(Nanos used) {
        Task* task;
        {
            std::lock_guard lock(mutex_);
            task = queue_.pop();
        }
        if (task == nullptr) return false;
        std::lock_guard lock(mutex_);
        queue_.charge(*task, used);
        queue_.push(*task);
        return true;
    }

   private:
    std::mutex mutex_;
    ReadyQueue queue_;
    std::vector<Idle> tasks_;
};

// --- without -----------------------------------------------------------------------------------------

struct Entry {
    std::atomic<Nanos> credits{0};
    std::uint64_t round = 0;  // by whoever has it
};

// Bounded, for many producers and consumers: a cell's number says whose turn it is.
class Ring {
   public:
    explicit Ring(std::size_t least) : cells_(std::bit_ceil(least)) {
        for (std::size_t i = 0; i < cells_.size(); ++i) cells_[i].number.store(i, std::memory_order_relaxed);
    }
    void push(Entry* entry) {
        std::size_t at = tail_.load(std::memory_order_relaxed);
        for (;;) {
            Cell& cell = cells_[at & (cells_.size() - 1)];
            const std::size_t number = cell.number.load(std::memory_order_acquire);
            if (number == at) {
                if (!tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
                cell.entry = entry;
                cell.number.store(at + 1, std::memory_order_release);
                return;
            }
            at = tail_.load(std::memory_order_relaxed);
        }
    }
    Entry* pop() {
        std::size_t at = head_.load(std::memory_order_relaxed);
        for (;;) {
            Cell& cell = cells_[at & (cells_.size() - 1)];
            const std::size_t number = cell.number.load(std::memory_order_acquire);
            if (number == at + 1) {
                if (!head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
                Entry* entry = cell.entry;
                cell.number.store(at + cells_.size(), std::memory_order_release);
                return entry;
            }
            if (number <= at) return nullptr;
            at = head_.load(std::memory_order_relaxed);
        }
    }

   private:
    struct Cell {
        std::atomic<std::size_t> number;
        Entry* entry = nullptr;
    };
    std::vector<Cell> cells_;
    alignas(64) std::atomic<std::size_t> head_{0};
    alignas(64) std::atomic<std::size_t> tail_{0};
};

class Free {
   public:
    explicit Free(int tasks)
        : allotment_(kPeriod / tasks), tasks_(static_cast<std::size_t>(tasks)), buckets_(kBuckets + 1), groups_(kGroups) {
        for (auto& bucket : buckets_) bucket = std::make_unique<Bucket>(static_cast<std::size_t>(tasks));
        for (auto& task : tasks_) {
            task.credits = allotment_;
            put(task);
        }
    }
    bool turn(Nanos used) {
        Entry* entry = take();
        if (entry == nullptr) return false;
        renew(*entry);
        entry->credits.fetch_sub(used, std::memory_order_relaxed);
        put(*entry);
        return true;
    }

   private:
    static constexpr std::size_t kGroup = 10, kGroups = kBuckets / kGroup + 1;
    struct Bucket {
        explicit Bucket(std::size_t tasks) : ring(tasks) {}
        std::atomic<int> count{0};
        Ring ring;
    };

    void renew(Entry& entry) {
        const std::uint64_t round = round_.load(std::memory_order_acquire);
        if (entry.round == round) return;
        entry.round = round;
        entry.credits.store(allotment_, std::memory_order_relaxed);
    }
    void put(Entry& entry) {
        renew(entry);
        const Nanos credits = entry.credits.load(std::memory_order_relaxed);
        const std::size_t at =
            credits <= 0 ? 0 : std::min<std::size_t>(kBuckets, static_cast<std::size_t>(1 + (credits - 1) / kStep));
        buckets_[at]->ring.push(&entry);
        buckets_[at]->count.fetch_add(1, std::memory_order_release);
        groups_[at / kGroup].fetch_add(1, std::memory_order_release);
    }
    Entry* take() {
        for (std::size_t group = kGroups; group-- > 0;) {
            if (groups_[group].load(std::memory_order_acquire) <= 0) continue;
            const std::size_t end = std::min<std::size_t>((group + 1) * kGroup, kBuckets + 1);
            for (std::size_t at = end; at-- > group * kGroup;) {
                Bucket& bucket = *buckets_[at];
                if (bucket.count.load(std::memory_order_acquire) <= 0) continue;
                // Nobody who has work has credits left: a new period, by whoever notices.
                if (at == 0) round_.fetch_add(1, std::memory_order_acq_rel);
                if (Entry* entry = bucket.ring.pop()) {
                    bucket.count.fetch_sub(1, std::memory_order_relaxed);
                    groups_[group].fetch_sub(1, std::memory_order_relaxed);
                    return entry;
                }
            }
        }
        return nullptr;
    }

    const Nanos allotment_;
    std::vector<Entry> tasks_;
    std::vector<std::unique_ptr<Bucket>> buckets_;
    std::vector<std::atomic<int>> groups_;
    std::atomic<std::uint64_t> round_{0};
};

// --- measuring ---------------------------------------------------------------------------------------

void work_for(Nanos length) {
    if (length == 0) return;
    for (const Nanos until = now_ns() + length; now_ns() < until;) {
    }
}

// Turns per second of all threads together.
template <typename Queue>
double measure(int threads, int tasks, Nanos slice, Nanos length) {
    Queue queue(tasks);
    std::atomic<bool> go{false}, stop{false};
    std::atomic<std::uint64_t> turns{0};
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) {
        all.emplace_back([&] {
            std::uint64_t mine = 0;
            while (!go) std::this_thread::yield();
            while (!stop.load(std::memory_order_relaxed)) {
                if (queue.turn(std::max<Nanos>(slice, kMicrosecond))) ++mine;
                work_for(slice);
            }
            turns += mine;
        });
    }
    const Nanos began = now_ns();
    go = true;
    while (now_ns() - began < length) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stop = true;
    const Nanos ended = now_ns();
    for (auto& thread : all) thread.join();
    return static_cast<double>(turns.load()) * 1e9 / static_cast<double>(ended - began);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main() {
    constexpr int kRepeats = 5;
    constexpr Nanos kLength = 200 * kMillisecond;
    std::printf("%8s %6s %9s %14s %14s %7s\n", "threads", "tasks", "slice us", "mutex turns/s", "free turns/s", "ratio");
    for (const int threads : {1, 2, 4}) {
        for (const int tasks : {4, 50, 1000}) {
            for (const Nanos slice : {Nanos{0}, 5 * kMicrosecond, 50 * kMicrosecond}) {
                std::vector<double> locked, free;
                for (int i = 0; i < kRepeats; ++i) {
                    locked.push_back(measure<Locked>(threads, tasks, slice, kLength));
                    free.push_back(measure<Free>(threads, tasks, slice, kLength));
                }
                std::printf("%8d %6d %9.0f %14.0f %14.0f %7.2f\n", threads, tasks,
                            static_cast<double>(slice) / kMicrosecond, median(locked), median(free),
                            median(locked) / median(free));
            }
        }
    }
    return 0;
}

// What a task does with its time, measured per slice: what a model of its delay needs.
//
// Written by the thread that runs the task, one at a time; read by anybody, so every number is an
// atomic of its own, and two of them may be a slice apart.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace antiphon {

struct SliceFacts {
    Nanos waited;  // from ready to running
    bool resumed;  // it was ready because the slice before had ended too early
    Nanos lasted, used;  // by the clock; of a processor, where that is measured
    std::uint64_t events;
    bool full;  // its queue had no room when the slice began
};

class Meter {
   public:
    void slice(const SliceFacts& facts) {
        const auto waited = static_cast<double>(facts.waited), lasted = static_cast<double>(facts.lasted);
        add(slices, 1);
        if (facts.resumed) {
            add(resumed_slices, 1);
            add(resumed_sum, waited);
            add(resumed_squares, waited * waited);
        } else {
            add(wait_sum, waited);
            add(wait_squares, waited * waited);
        }
        add(lasted_sum, lasted);
        add(used_sum, static_cast<double>(facts.used));
        if (facts.full) add(full_slices, 1);
        if (facts.events == 0) return;
        add(events, facts.events);
        add(busy_slices, 1);
        add(service_sum, lasted);
        // The mean of n events varies n times less than one of them.
        add(service_squares, lasted * lasted / static_cast<double>(facts.events));
    }
    void overran(Nanos by) {
        add(overruns, 1);
        if (by > longest_overrun.load(std::memory_order_relaxed)) {
            longest_overrun.store(by, std::memory_order_relaxed);
        }
    }

    std::atomic<std::uint64_t> slices{0}, busy_slices{0}, events{0}, full_slices{0}, overruns{0}, resumed_slices{0};
    std::atomic<double> wait_sum{0}, wait_squares{0}, resumed_sum{0}, resumed_squares{0}, lasted_sum{0}, used_sum{0}, service_sum{0}, service_squares{0};
    std::atomic<Nanos> longest_overrun{0};

   private:
    template <typename T>
    static void add(std::atomic<T>& to, T amount) {
        to.store(to.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
    }
    static void add(std::atomic<std::uint64_t>& to, int amount) { add(to, static_cast<std::uint64_t>(amount)); }
};

}  // namespace antiphon

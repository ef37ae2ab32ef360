// Durations, counted in classes whose width is a thirty-second of their value; the longest exactly.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "base/clock.hpp"

namespace antiphon {

class Histogram {
   public:
    static constexpr int kSteps = 32, kOctaves = 38;  // up to two hours; what is longer counts as that
    static constexpr std::size_t kClasses = static_cast<std::size_t>(kSteps) * (kOctaves + 1);

    // One thread at a time; others may read meanwhile.
    void add(Nanos value, std::uint64_t times = 1) {
        if (times == 0) return;
        const auto v = static_cast<std::uint64_t>(std::max<Nanos>(0, value));
        auto& count = counts_[index(v)];
        count.store(count.load(std::memory_order_relaxed) + times, std::memory_order_relaxed);
        if (value > longest_.load(std::memory_order_relaxed)) longest_.store(value, std::memory_order_relaxed);
    }

    std::uint64_t count(std::size_t at) const { return counts_[at].load(std::memory_order_relaxed); }
    Nanos longest() const { return longest_.load(std::memory_order_relaxed); }

    static std::size_t index(std::uint64_t v) {
        if (v < kSteps) return static_cast<std::size_t>(v);
        const int octave = std::bit_width(v) - 6;  // its values have the top bit and five more
        const auto at = static_cast<std::size_t>(octave) * kSteps + static_cast<std::size_t>(v >> octave);
        return std::min(at, kClasses - 1);
    }
    // The largest value of a class.
    static std::uint64_t upper(std::size_t at) {
        if (at < 2 * kSteps) return at;
        const auto octave = at / kSteps - 1;
        return ((at - octave * kSteps + 1) << octave) - 1;
    }

   private:
    std::array<std::atomic<std::uint64_t>, kClasses> counts_{};
    std::atomic<Nanos> longest_{0};
};

}  // namespace antiphon

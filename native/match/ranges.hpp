// Intervals of one property, and which of them hold a number.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "match/conditions.hpp"
#include "match/ordered.hpp"

namespace antiphon::match {

// Those with one end lie in the order of that end: what holds a number is one stretch of it. Those with
// two are kept by the power of two that their length has, each power in the order of the lower ends: what
// holds a number begins at most that length before it, and of those that do about half hold it. An interval
// tree would promise as much, and every change would walk and turn it.
class Ranges {
   public:
    void insert(const Interval& interval, std::uint32_t slot) { change<true>(interval, slot); }
    void erase(const Interval& interval, std::uint32_t slot) { change<false>(interval, slot); }
    bool empty() const { return size_ == 0; }

    // The slots of all that hold the value.
    template <typename Visit>
    void each(const Edge& value, Visit&& visit) const {
        const End here = at(value, UINT32_MAX);
        begun_.each(kFirst, [&](const End& low) {
            if (here < low) return false;
            visit(low.slot);
            return true;
        });
        ended_.each(at(value, 0), [&](const End& high) {
            visit(high.slot);
            return true;
        });
        for (const auto& [power, lengths] : lengths_) {
            lengths.each({reach_back(value, power), {}}, [&](const Length& length) {
                if (here < length.low) return false;
                if (value <= length.high) visit(length.low.slot);
                return true;
            });
        }
    }

   private:
    // An edge with its slot, in 16 bytes.
    struct End {
        double nearest;
        std::int16_t fine;
        std::uint32_t slot;

        bool operator<(const End& other) const {
            if (nearest != other.nearest) return nearest < other.nearest;
            return fine != other.fine ? fine < other.fine : slot < other.slot;
        }
    };
    struct Length {
        End low;
        Edge high;
        bool operator<(const Length& other) const { return low < other.low; }
    };
    static constexpr double kInfinite = std::numeric_limits<double>::infinity();
    static constexpr End kFirst{-kInfinite, INT16_MIN, 0};
    // Shorter and longer ones are taken for these: there are not more than a hundred powers.
    static constexpr int kShortest = -32, kLongest = 64;

    static End at(const Edge& edge, std::uint32_t slot) { return {edge.nearest, edge.fine, slot}; }

    static int power_of(const Interval& interval) {
        const double length = interval.high.nearest - interval.low.nearest;
        if (!(length > 0)) return kShortest;  // of one number, or of none
        return std::clamp(std::ilogb(length), kShortest, kLongest);
    }

    // Before every interval of that length which holds the value.
    static End reach_back(const Edge& value, int power) {
        if (power == kLongest) return kFirst;
        // Rounded to one side at the most: one step further makes up for it.
        return {std::nextafter(value.nearest - std::ldexp(1.0, power + 1), -kInfinite), INT16_MIN, 0};
    }

    template <bool adds, typename Entry>
    static void change(Ordered<Entry>& in, const Entry& entry) {
        if constexpr (adds) {
            in.insert(entry);
        } else {
            in.erase(entry);
        }
    }

    template <bool adds>
    void change(const Interval& interval, std::uint32_t slot) {
        adds ? ++size_ : --size_;
        if (!interval.has_high) return change<adds>(begun_, at(interval.low, slot));
        if (!interval.has_low) return change<adds>(ended_, at(interval.high, slot));
        const int power = power_of(interval);
        auto found = std::lower_bound(lengths_.begin(), lengths_.end(), power,
                                      [](const auto& one, int wanted) { return one.first < wanted; });
        if (found == lengths_.end() || found->first != power) found = lengths_.insert(found, {power, {}});
        change<adds>(found->second, Length{at(interval.low, slot), interval.high});
        if (found->second.empty()) lengths_.erase(found);
    }

    Ordered<End> begun_;  // v > low, v >= low
    Ordered<End> ended_;  // v < high, v <= high
    std::vector<std::pair<int, Ordered<Length>>> lengths_;
    std::size_t size_ = 0;
};

}  // namespace antiphon::match

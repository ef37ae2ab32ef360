// Which conditions of a filter an index can find by the value of one property.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "match/code.hpp"

namespace antiphon::match {

// A place on the line of numbers: a number, or right before or behind one. So an open end is a place too.
struct Edge {
    static Edge of(const Number& number, int beside = 0) {
        return {number.nearest, static_cast<std::int16_t>(number.rest * 2 + beside)};
    }

    double nearest;
    std::int16_t fine;

    bool operator<(const Edge& other) const {
        return nearest < other.nearest || (nearest == other.nearest && fine < other.fine);
    }
    bool operator<=(const Edge& other) const { return !(other < *this); }
};

struct Interval {
    Edge low{-std::numeric_limits<double>::infinity(), INT16_MIN};
    Edge high{std::numeric_limits<double>::infinity(), INT16_MAX};
    bool has_low = false, has_high = false;

    void intersect(const Interval& other) {
        if (low < other.low) low = other.low;
        if (other.high < high) high = other.high;
        has_low |= other.has_low;
        has_high |= other.has_high;
    }
    bool holds(const Edge& value) const { return low <= value && value <= high; }
};

// The condition is true exactly when the property has one of the values, or is in the interval.
struct Simple {
    enum class Kind : std::uint8_t { other, equal, range };

    Kind kind = Kind::other;
    std::uint32_t name = 0;     // in Code::names
    std::vector<Value> values;  // those of IN, or one
    Interval interval;
};

Simple simplify(const Code& code, Span condition);

}  // namespace antiphon::match

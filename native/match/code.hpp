// What a filter is read into: steps for a small stack of values, operands before operators.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "match/pattern.hpp"
#include "match/value.hpp"

namespace antiphon::match {

enum class Op : std::uint8_t {
    property,  // push the value of names[at]
    constant,  // push constants[at]
    add, subtract, multiply, divide,
    minus, plus,
    equal, unequal, less, less_equal, greater, greater_equal,
    between,  // value, low, high
    in,       // a value, of lists[at]
    like,     // a value, by patterns[at]
    is_null,
    not_,
    and_,      // of two conditions; the second one begins at step `at`
    or_,
    skip_and,  // the condition before it is false: go on at step `at`, behind the and_
    skip_or,   // it is true
};

struct Step {
    Op op;
    bool negated = false;  // NOT BETWEEN, NOT IN, NOT LIKE, IS NOT NULL
    std::uint32_t at = 0;
};

// Steps that leave one value.
struct Span {
    std::uint32_t begin, end;
};

struct Code {
    std::unique_ptr<char[]> texts;  // what names and constants are made of
    std::vector<std::string_view> names;
    std::vector<Value> constants;
    std::vector<std::vector<Value>> lists;  // sorted, of one type each
    std::vector<Pattern> patterns;
    std::vector<Step> steps;
    std::vector<Span> conditions;  // joined by AND at the top: all have to be true
};

}  // namespace antiphon::match

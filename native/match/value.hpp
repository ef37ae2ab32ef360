// Values of properties, and of expressions over them: compared exactly, NULL for what cannot be said.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace antiphon::match {

enum class Truth : std::uint8_t { no, yes, unknown };

// A text is not owned: it lies in an event's properties, or in a filter.
struct Value {
    enum class Kind : std::uint8_t { null, boolean, integer, real, text };

    Value() : integer(0) {}
    static Value of(bool value);
    static Value of(std::int64_t value);
    static Value of(double value);  // NaN is a value that is not there: NULL
    static Value of(std::string_view value);

    bool is_null() const { return kind == Kind::null; }
    bool is_text() const { return kind == Kind::text; }
    bool is_number() const { return kind == Kind::integer || kind == Kind::real; }
    std::string_view view() const { return {text, size}; }

    Kind kind = Kind::null;
    std::uint32_t size = 0;  // of a text; properties have fewer than 4 GiB
    union {
        bool boolean;
        std::int64_t integer;
        double real;
        const char* text;
    };
};
static_assert(sizeof(Value) == 16);

// A number as the nearest double and the rest: 64-bit integers and doubles in one exact order. Rounding
// keeps the order, so of two numbers with the same nearest double the rests decide.
struct Number {
    static Number of(const Value& number);

    double nearest;
    std::int16_t rest;  // at most 512 away: doubles next to 2^63 are 1024 apart

    bool operator==(const Number& other) const { return nearest == other.nearest && rest == other.rest; }
    bool operator<(const Number& other) const {
        return nearest < other.nearest || (nearest == other.nearest && rest < other.rest);
    }
};

// Of two numbers, neither of them NaN: negative, 0 or positive.
int compare_numbers(const Value& left, const Value& right);

// Unlike types, and NULL with anything, are unknown. Only numbers have an order.
Truth equal(const Value& left, const Value& right);
enum class Order : std::uint8_t { less, less_equal, greater, greater_equal };
Truth ordered(const Value& left, Order order, const Value& right);

inline Truth opposite(Truth truth) {
    return truth == Truth::unknown ? truth : truth == Truth::yes ? Truth::no : Truth::yes;
}
inline Value to_value(Truth truth) { return truth == Truth::unknown ? Value{} : Value::of(truth == Truth::yes); }
// Of a condition's value: a property that is no boolean is neither true nor false.
inline Truth to_truth(const Value& value) {
    if (value.kind != Value::Kind::boolean) return Truth::unknown;
    return value.boolean ? Truth::yes : Truth::no;
}

// Two integers give an integer, and / cuts towards zero; otherwise it is a double. NULL: an operand is no
// number, the divisor is 0, an integer does not fit in 64 bits, or the result is NaN.
Value calculate(char sign, const Value& left, const Value& right);
Value negate(const Value& value);

}  // namespace antiphon::match

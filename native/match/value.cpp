#include "match/value.hpp"

#include <cmath>

namespace antiphon::match {

Value Value::of(bool value) {
    Value made;
    made.kind = Kind::boolean;
    made.boolean = value;
    return made;
}

Value Value::of(std::int64_t value) {
    Value made;
    made.kind = Kind::integer;
    made.integer = value;
    return made;
}

Value Value::of(double value) {
    Value made;
    if (std::isnan(value)) return made;
    made.kind = Kind::real;
    made.real = value;
    return made;
}

Value Value::of(std::string_view value) {
    Value made;
    made.kind = Kind::text;
    made.size = static_cast<std::uint32_t>(value.size());
    made.text = value.data();
    return made;
}

Number Number::of(const Value& number) {
    if (number.kind == Value::Kind::real) return {number.real + 0.0, 0};  // -0.0 becomes 0.0
    const double nearest = static_cast<double>(number.integer);
    // 2^63 itself is one of them, and fits in no 64 bits.
    const __int128 rest = static_cast<__int128>(number.integer) - static_cast<__int128>(nearest);
    return {nearest, static_cast<std::int16_t>(rest)};
}

int compare_numbers(const Value& left, const Value& right) {
    if (left.kind == Value::Kind::integer && right.kind == Value::Kind::integer) {
        return left.integer < right.integer ? -1 : left.integer > right.integer;
    }
    const Number a = Number::of(left), b = Number::of(right);
    return a < b ? -1 : b < a;
}

Truth equal(const Value& left, const Value& right) {
    bool same;
    if (left.is_number() && right.is_number()) {
        same = compare_numbers(left, right) == 0;
    } else if (left.kind != right.kind || left.is_null()) {
        return Truth::unknown;
    } else if (left.is_text()) {
        same = left.view() == right.view();
    } else {
        same = left.boolean == right.boolean;
    }
    return same ? Truth::yes : Truth::no;
}

Truth ordered(const Value& left, Order order, const Value& right) {
    if (!left.is_number() || !right.is_number()) return Truth::unknown;
    const int compared = compare_numbers(left, right);
    bool holds = false;
    switch (order) {
        case Order::less: holds = compared < 0; break;
        case Order::less_equal: holds = compared <= 0; break;
        case Order::greater: holds = compared > 0; break;
        case Order::greater_equal: holds = compared >= 0; break;
    }
    return holds ? Truth::yes : Truth::no;
}

namespace {

Value calculate_integers(char sign, std::int64_t left, std::int64_t right) {
    std::int64_t result = 0;
    bool overflows = false;
    switch (sign) {
        case '+': overflows = __builtin_add_overflow(left, right, &result); break;
        case '-': overflows = __builtin_sub_overflow(left, right, &result); break;
        case '*': overflows = __builtin_mul_overflow(left, right, &result); break;
        default:
            if (right == 0 || (right == -1 && left == INT64_MIN)) return {};
            result = left / right;
    }
    return overflows ? Value{} : Value::of(result);
}

double as_double(const Value& number) {
    return number.kind == Value::Kind::integer ? static_cast<double>(number.integer) : number.real;
}

}  // namespace

Value calculate(char sign, const Value& left, const Value& right) {
    if (!left.is_number() || !right.is_number()) return {};
    if (left.kind == Value::Kind::integer && right.kind == Value::Kind::integer) {
        return calculate_integers(sign, left.integer, right.integer);
    }
    const double a = as_double(left), b = as_double(right);
    switch (sign) {
        case '+': return Value::of(a + b);
        case '-': return Value::of(a - b);
        case '*': return Value::of(a * b);
        default: return b == 0 ? Value{} : Value::of(a / b);
    }
}

Value negate(const Value& value) {
    if (value.kind == Value::Kind::real) return Value::of(-value.real);
    if (value.kind != Value::Kind::integer || value.integer == INT64_MIN) return {};
    return Value::of(-value.integer);
}

}  // namespace antiphon::match

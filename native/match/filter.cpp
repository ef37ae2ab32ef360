#include "match/filter.hpp"

#include <algorithm>

namespace antiphon::match {

namespace {

Truth both(Truth left, Truth right) {
    if (left == Truth::no || right == Truth::no) return Truth::no;
    return left == Truth::yes ? right : Truth::unknown;
}

Truth either(Truth left, Truth right) {
    if (left == Truth::yes || right == Truth::yes) return Truth::yes;
    return left == Truth::no ? right : Truth::unknown;
}

Truth between(const Value& value, const Value& low, const Value& high) {
    return both(ordered(value, Order::greater_equal, low), ordered(value, Order::less_equal, high));
}

// The list has one type: another one is unlike all of it.
Truth among(const Value& value, const std::vector<Value>& list) {
    if (list.front().is_text() ? !value.is_text() : !value.is_number()) return Truth::unknown;
    const auto before = [](const Value& left, const Value& right) {
        return left.is_text() ? left.view() < right.view() : compare_numbers(left, right) < 0;
    };
    return std::binary_search(list.begin(), list.end(), value, before) ? Truth::yes : Truth::no;
}

Truth compare(Op op, const Value& left, const Value& right) {
    switch (op) {
        case Op::equal: return equal(left, right);
        case Op::unequal: return opposite(equal(left, right));
        case Op::less: return ordered(left, Order::less, right);
        case Op::less_equal: return ordered(left, Order::less_equal, right);
        case Op::greater: return ordered(left, Order::greater, right);
        default: return ordered(left, Order::greater_equal, right);
    }
}

}  // namespace

bool Filter::matches(const Properties& properties) const {
    for (const Span& condition : code_.conditions) {
        if (to_truth(run(condition, properties)) != Truth::yes) return false;
    }
    return true;
}

// The reader has seen to it that no more than kDeepest values are needed.
Value Filter::run(Span span, const Properties& properties) const {
    union Stack {  // most filters need three of them
        Stack() {}
        Value values[kDeepest + 1];
    } stack;
    Value* top = stack.values;  // below the first one
    const auto say = [&](Truth truth, bool negated = false) { *top = to_value(negated ? opposite(truth) : truth); };
    for (std::uint32_t at = span.begin; at < span.end; ++at) {
        const Step& step = code_.steps[at];
        switch (step.op) {
            case Op::property: *++top = properties.find(code_.names[step.at]); break;
            case Op::constant: *++top = code_.constants[step.at]; break;
            case Op::add: --top, *top = calculate('+', top[0], top[1]); break;
            case Op::subtract: --top, *top = calculate('-', top[0], top[1]); break;
            case Op::multiply: --top, *top = calculate('*', top[0], top[1]); break;
            case Op::divide: --top, *top = calculate('/', top[0], top[1]); break;
            case Op::minus: *top = negate(*top); break;
            case Op::plus:
                if (!top->is_number()) *top = {};
                break;
            case Op::equal:
            case Op::unequal:
            case Op::less:
            case Op::less_equal:
            case Op::greater:
            case Op::greater_equal: --top, say(compare(step.op, top[0], top[1])); break;
            case Op::between: top -= 2, say(between(top[0], top[1], top[2]), step.negated); break;
            case Op::in: say(among(*top, code_.lists[step.at]), step.negated); break;
            case Op::like: {
                Truth truth = Truth::unknown;
                if (top->is_text()) truth = code_.patterns[step.at].matches(top->view()) ? Truth::yes : Truth::no;
                say(truth, step.negated);
                break;
            }
            case Op::is_null: *top = Value::of(top->is_null() != step.negated); break;
            case Op::not_: say(opposite(to_truth(*top))); break;
            case Op::and_: --top, say(both(to_truth(top[0]), to_truth(top[1]))); break;
            case Op::or_: --top, say(either(to_truth(top[0]), to_truth(top[1]))); break;
            case Op::skip_and:
                if (to_truth(*top) == Truth::no) at = step.at - 1;
                break;
            case Op::skip_or:
                if (to_truth(*top) == Truth::yes) at = step.at - 1;
                break;
        }
    }
    return *top;
}

}  // namespace antiphon::match

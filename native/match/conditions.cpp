#include "match/conditions.hpp"

#include <utility>

namespace antiphon::match {

namespace {

// As it is with its sides exchanged.
Op mirrored(Op op) {
    switch (op) {
        case Op::less: return Op::greater;
        case Op::less_equal: return Op::greater_equal;
        case Op::greater: return Op::less;
        case Op::greater_equal: return Op::less_equal;
        default: return op;
    }
}

Interval from(const Value& number, bool open) {
    Interval interval;
    interval.low = Edge::of(Number::of(number), open ? 1 : 0);
    interval.has_low = true;
    return interval;
}

Interval up_to(const Value& number, bool open) {
    Interval interval;
    interval.high = Edge::of(Number::of(number), open ? -1 : 0);
    interval.has_high = true;
    return interval;
}

Simple equal_to(std::uint32_t name, std::vector<Value> values) {
    return {Simple::Kind::equal, name, std::move(values), {}};
}

Simple within(std::uint32_t name, const Interval& interval) { return {Simple::Kind::range, name, {}, interval}; }

Simple compared(std::uint32_t name, Op op, const Value& value) {
    if (value.is_null()) return {};  // never true: as good as any other that is not looked up
    if (op == Op::equal) return equal_to(name, {value});
    if (!value.is_number()) return {};
    switch (op) {
        case Op::less: return within(name, up_to(value, true));
        case Op::less_equal: return within(name, up_to(value, false));
        case Op::greater: return within(name, from(value, true));
        case Op::greater_equal: return within(name, from(value, false));
        default: return {};
    }
}

}  // namespace

Simple simplify(const Code& code, Span condition) {
    const Step* steps = code.steps.data() + condition.begin;
    const std::uint32_t size = condition.end - condition.begin;
    const auto property = [&](std::uint32_t i) { return steps[i].op == Op::property; };
    const auto constant = [&](std::uint32_t i) { return steps[i].op == Op::constant; };
    const auto value = [&](std::uint32_t i) { return code.constants[steps[i].at]; };
    // `on`, `NOT on`
    if (size == 1 && property(0)) return equal_to(steps[0].at, {Value::of(true)});
    if (size == 2 && property(0) && steps[1].op == Op::not_) return equal_to(steps[0].at, {Value::of(false)});
    if (size == 2 && property(0) && steps[1].op == Op::in && !steps[1].negated) {
        return equal_to(steps[0].at, code.lists[steps[1].at]);
    }
    if (size == 3 && property(0) && constant(1)) return compared(steps[0].at, steps[2].op, value(1));
    if (size == 3 && constant(0) && property(1)) return compared(steps[1].at, mirrored(steps[2].op), value(0));
    if (size == 4 && property(0) && constant(1) && constant(2) && steps[3].op == Op::between && !steps[3].negated &&
        value(1).is_number() && value(2).is_number()) {
        Interval interval = from(value(1), false);
        interval.intersect(up_to(value(2), false));
        return within(steps[0].at, interval);
    }
    return {};
}

}  // namespace antiphon::match

#include "match/literals.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace antiphon::match {

namespace {

// Of a number that is too large or too small for a double: whether it is too large.
bool is_large(std::string_view digits) {
    const std::size_t e = std::min(digits.find_first_of("eE"), digits.size());
    const std::string_view mantissa = digits.substr(0, e);
    const auto point = static_cast<long>(std::min(mantissa.find('.'), mantissa.size()));
    const auto first = static_cast<long>(mantissa.find_first_not_of("0."));  // the digit that says how large
    long exponent = 0;
    if (e != digits.size()) {
        const std::size_t from = digits[e + 1] == '+' ? e + 2 : e + 1;
        const char* end = digits.data() + digits.size();
        const bool fits = std::from_chars(digits.data() + from, end, exponent).ec == std::errc{};
        // A mantissa has fewer digits than a filter has characters: such an exponent has the last word.
        if (!fits) exponent = digits[from] == '-' ? -100'000 : 100'000;
        exponent = std::clamp(exponent, -100'000L, 100'000L);
    }
    return point - first + exponent > 0;
}

}  // namespace

const char* read_number(std::string_view digits, bool minus, Value& value) {
    const char *begin = digits.data(), *end = begin + digits.size();
    if (digits.find_first_of(".eE") == std::string_view::npos) {
        std::uint64_t whole = 0;
        const bool fits = std::from_chars(begin, end, whole).ec == std::errc{};
        const std::uint64_t most = static_cast<std::uint64_t>(INT64_MAX) + (minus ? 1 : 0);
        if (!fits || whole > most) return "this does not fit in 64 bits; add .0 for a float";
        // In unsigned numbers, where the smallest integer has an opposite.
        value = Value::of(static_cast<std::int64_t>(minus ? 0 - whole : whole));
        return nullptr;
    }
    double real = 0;
    if (std::from_chars(begin, end, real).ec == std::errc::result_out_of_range) {
        if (is_large(digits)) return "this is larger than every float";
        real = 0;
    }
    value = Value::of(minus ? -real : real);
    return nullptr;
}

char* unquote(std::string_view quoted, char* into) {
    for (std::size_t at = 1; at + 1 < quoted.size(); ++at) {
        *into++ = quoted[at];
        if (quoted[at] == '\'') ++at;
    }
    return into;
}

}  // namespace antiphon::match

#include "log/names.hpp"

#include <cstdio>

#include "frames/sha256.hpp"

namespace antiphon::log {

namespace {

constexpr std::size_t kDigits = 20;           // of the largest sequence
constexpr std::size_t kLongestName = 120;     // file systems take 255, but paths add up
constexpr std::size_t kKept = 60;             // of a name that is too long, for people
constexpr std::string_view kSegment = ".log", kIndex = ".idx";

bool plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

std::string hexadecimal(std::string_view bytes) {
    std::string text;
    for (const char c : bytes) {
        char two[3];
        std::snprintf(two, sizeof two, "%02X", static_cast<unsigned char>(c));
        text += two;
    }
    return text;
}

std::string numbered(std::uint64_t base, std::string_view end) {
    std::string digits = std::to_string(base);
    return std::string(kDigits - digits.size(), '0') + digits + std::string(end);
}

std::optional<std::uint64_t> number(std::string_view name, std::string_view end) {
    if (name.size() != kDigits + end.size() || !name.ends_with(end)) return std::nullopt;
    std::uint64_t value = 0;
    for (const char c : name.substr(0, kDigits)) {
        if (c < '0' || c > '9') return std::nullopt;
        const auto digit = static_cast<std::uint64_t>(c - '0');
        if (value > (UINT64_MAX - digit) / 10) return std::nullopt;
        value = value * 10 + digit;
    }
    return value;
}

}  // namespace

std::string directory_of(std::string_view topic) {
    std::string name;
    for (std::size_t i = 0; i < topic.size(); ++i) {
        // A dot is plain inside a name; at its beginning it would hide the directory, or be `..`.
        if (plain(topic[i]) || (topic[i] == '.' && i > 0)) {
            name += topic[i];
        } else {
            name += '%' + hexadecimal(topic.substr(i, 1));
        }
    }
    if (name.size() <= kLongestName) return name;
    // No other name has a tilde: it is escaped everywhere else.
    return name.substr(0, kKept) + '~' + hexadecimal(sha256(topic).substr(0, 20));
}

std::string segment_name(std::uint64_t base) { return numbered(base, kSegment); }
std::string index_name(std::uint64_t base) { return numbered(base, kIndex); }
std::optional<std::uint64_t> segment_base(std::string_view name) { return number(name, kSegment); }
std::optional<std::uint64_t> index_base(std::string_view name) { return number(name, kIndex); }

}  // namespace antiphon::log

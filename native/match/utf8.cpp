#include "match/utf8.hpp"

#include <cstdint>

namespace antiphon::match {

std::size_t find_malformed(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const auto first = static_cast<unsigned char>(text[at]);
        if (first < 0x80) {
            ++at;
            continue;
        }
        const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
        if (first < 0xC2 || first > 0xF4 || length > text.size() - at) return at;
        std::uint32_t code = first & (0xFF >> (length + 1));
        for (std::size_t i = 1; i < length; ++i) {
            if (!continues(text[at + i])) return at;
            code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3F);
        }
        constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
        if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return at;
        at += length;
    }
    return at;
}

}  // namespace antiphon::match

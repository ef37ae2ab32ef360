// Characters of UTF-8. Where bytes are none, a character is a byte and the continuations behind it, so that
// every text has the same characters from both ends.
#pragma once

#include <cstddef>
#include <string_view>

namespace antiphon::match {

inline bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Where the character that begins at `at` ends.
inline std::size_t next_character(std::string_view text, std::size_t at) {
    do {
        ++at;
    } while (at < text.size() && continues(text[at]));
    return at;
}

// Where the character that ends at `at` begins.
inline std::size_t previous_character(std::string_view text, std::size_t at) {
    do {
        --at;
    } while (at != 0 && continues(text[at]));
    return at;
}

inline std::size_t count_characters(std::string_view text) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < text.size(); at = next_character(text, at)) ++count;
    return count;
}

// Where the first byte is that belongs to no character; the size if there is none. Surrogates, overlong
// forms and what lies above 0x10FFFF are none.
std::size_t find_malformed(std::string_view text);

}  // namespace antiphon::match

// A pattern of LIKE: % is any number of characters, _ is one. In time linear in the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace antiphon::match {

class Pattern {
   public:
    // Why there is none; empty: it was read. `escape` is a character, or empty.
    static std::string read(std::string_view text, std::string_view escape, Pattern& into);
    bool matches(std::string_view text) const;

   private:
    // What stands between two %.
    struct Part {
        std::string text;            // kOne for every _
        std::uint32_t characters = 0;
        bool has_one = false;
        // With a _, and a % on both sides: the places of each character in it, as a set of bits, and of
        // those that any character fits. Sorted by the character.
        std::vector<std::pair<std::string, std::uint64_t>> places;
        std::uint64_t anywhere = 0;
    };
    static std::string prepare(Part& part);
    static bool begins(std::string_view text, std::size_t at, const Part& part, std::size_t& end);
    static std::size_t find(std::string_view text, std::size_t from, const Part& part);

    std::vector<Part> parts_;  // one: the whole text
};

}  // namespace antiphon::match

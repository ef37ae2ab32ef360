#include "match/pattern.hpp"

#include <algorithm>
#include <cstring>

#include "match/utf8.hpp"

namespace antiphon::match {

namespace {

constexpr char kOne = '\xFF';  // no byte of UTF-8
constexpr std::size_t kNowhere = std::string_view::npos;
// One machine word says where in a part with _ we are, for all places at once. Longer ones could be
// searched for only in time that grows with both lengths.
constexpr std::uint32_t kLongestPart = 64;

}  // namespace

std::string Pattern::read(std::string_view text, std::string_view escape, Pattern& into) {
    into.parts_.assign(1, {});
    for (std::size_t at = 0; at < text.size();) {
        std::size_t end = next_character(text, at);
        std::string_view character = text.substr(at, end - at);
        const bool escaped = !escape.empty() && character == escape;
        if (escaped) {
            at = end;
            end = at < text.size() ? next_character(text, at) : at;
            character = text.substr(at, end - at);
            if (character != "%" && character != "_" && character != escape) {
                return "in this pattern the ESCAPE character stands before something else than %, _ or itself";
            }
        }
        at = end;
        if (!escaped && character == "%") {
            into.parts_.emplace_back();
            continue;
        }
        Part& part = into.parts_.back();
        ++part.characters;
        if (!escaped && character == "_") {
            part.has_one = true;
            part.text += kOne;
        } else {
            part.text += character;
        }
    }
    for (std::size_t i = 1; i + 1 < into.parts_.size(); ++i) {
        std::string why = prepare(into.parts_[i]);
        if (!why.empty()) return why;
    }
    return {};
}

std::string Pattern::prepare(Part& part) {
    if (!part.has_one) return {};
    if (part.characters > kLongestPart) {
        return "in this pattern a part between two % has a _ and more than 64 characters";
    }
    std::uint64_t bit = 1;
    for (std::size_t at = 0; at < part.text.size(); bit <<= 1) {
        const std::size_t end = next_character(part.text, at);
        const std::string character = part.text.substr(at, end - at);
        at = end;
        if (character[0] == kOne) {
            part.anywhere |= bit;
            continue;
        }
        const std::pair<std::string, std::uint64_t> wanted{character, 0};
        const auto found = std::lower_bound(part.places.begin(), part.places.end(), wanted);
        if (found != part.places.end() && found->first == character) {
            found->second |= bit;
        } else {
            part.places.insert(found, {character, bit});
        }
    }
    return {};
}

// Whether the part is what stands at `at`, and where it ends there.
bool Pattern::begins(std::string_view text, std::size_t at, const Part& part, std::size_t& end) {
    if (!part.has_one) {
        if (text.substr(at, part.text.size()) != part.text) return false;
        end = at + part.text.size();
        return true;
    }
    for (std::size_t i = 0; i < part.text.size();) {
        if (at == text.size()) return false;
        if (part.text[i] == kOne) {
            at = next_character(text, at);
            ++i;
        } else if (text[at] == part.text[i]) {
            ++at, ++i;
        } else {
            return false;
        }
    }
    end = at;
    return true;
}

// Where the part ends at its first place from `from` on.
std::size_t Pattern::find(std::string_view text, std::size_t from, const Part& part) {
    if (!part.has_one) {
        // Not string_view::find, whose time grows with both lengths.
        const void* found = memmem(text.data() + from, text.size() - from, part.text.data(), part.text.size());
        if (found == nullptr) return kNowhere;
        return static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) + part.text.size();
    }
    const std::uint64_t last = std::uint64_t{1} << (part.characters - 1);
    std::uint64_t reached = 0;  // bit i: the part up to its character i ends here
    while (from < text.size()) {
        const std::size_t end = next_character(text, from);
        const std::string_view character = text.substr(from, end - from);
        std::uint64_t fits = part.anywhere;
        const auto before = [](const auto& place, std::string_view wanted) { return place.first < wanted; };
        const auto found = std::lower_bound(part.places.begin(), part.places.end(), character, before);
        if (found != part.places.end() && found->first == character) fits |= found->second;
        reached = (reached << 1 | 1) & fits;
        from = end;
        if (reached & last) return from;
    }
    return kNowhere;
}

bool Pattern::matches(std::string_view text) const {
    std::size_t at = 0;
    if (!begins(text, 0, parts_.front(), at)) return false;
    if (parts_.size() == 1) return at == text.size();
    // The first place of each part leaves the most room for those behind it.
    for (std::size_t i = 1; i + 1 < parts_.size(); ++i) {
        at = find(text, at, parts_[i]);
        if (at == kNowhere) return false;
    }
    const Part& last = parts_.back();
    std::size_t from = text.size();
    for (std::uint32_t i = 0; i < last.characters; ++i) {
        if (from <= at) return false;
        from = previous_character(text, from);
    }
    std::size_t end = 0;
    return from >= at && begins(text, from, last, end) && end == text.size();
}

}  // namespace antiphon::match

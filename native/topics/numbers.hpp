// Numbers of events that begin anew behind 2^32 - 1: a subscription that lasts sees that happen.
#pragma once

#include <algorithm>
#include <cstdint>

namespace antiphon {

// Which of two numbers comes first. They are less than 2^31 apart.
inline bool number_before(std::uint32_t one, std::uint32_t other) { return static_cast<std::int32_t>(one - other) < 0; }

// Of a list in the order of their numbers, with gaps: the first that has that number or a later one.
template <typename List>
auto first_from(List& list, std::uint32_t number) {
    return std::lower_bound(list.begin(), list.end(), number,
                            [](const auto& one, std::uint32_t from) { return number_before(one.number, from); });
}

}  // namespace antiphon

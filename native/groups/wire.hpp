// What members of a group send each other natively: the head of a batch of messages, and acknowledgements.
#pragma once

#include <cstdint>

namespace antiphon::groups {

enum class LaneKind : std::uint32_t { all = 0, one = 1 };  // to all members, to this one alone
inline constexpr std::uint32_t kLanes = 2;

// Members are named by a number that they draw whenever they join.
struct BatchHead {
    std::uint64_t from, to;
    std::uint64_t first;  // number of the first message
    std::uint64_t base;   // the first that was ever for the receiver
    std::uint32_t lane;
    std::uint32_t acknowledge_every;  // so many bytes
};
static_assert(sizeof(BatchHead) == 40);

struct Acknowledgement {
    std::uint64_t from, to;
    std::uint64_t upto;  // all before this number was handled
    std::uint32_t lane;
    std::uint32_t resume;  // not 0: what came last does not follow on that
};
static_assert(sizeof(Acknowledgement) == 32);

}  // namespace antiphon::groups

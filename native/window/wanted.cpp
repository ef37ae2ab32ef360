#include "window/wanted.hpp"

#include <algorithm>

namespace antiphon::window {

void Wanted::add(Range range, std::uint64_t asker) {
    auto at = ranges_.upper_bound(range.first);
    if (at != ranges_.begin() && std::prev(at)->second.end > range.first) --at;
    std::uint64_t next = range.first;
    while (next < range.end && ranges_.size() + 2 < kMost) {
        if (at == ranges_.end() || at->first >= range.end) {
            ranges_.emplace_hint(at, next, Want{range.end, asker});
            return;
        }
        if (at->first > next) {
            ranges_.emplace_hint(at, next, Want{at->first, asker});
            next = at->first;
            continue;
        }
        // It overlaps: split off what is before, and what is behind.
        const std::uint64_t end = std::min(at->second.end, range.end);
        if (at->second.asker == asker || at->second.asker == kSeveral) {
            next = end;
            ++at;
            continue;
        }
        const Want all = at->second;
        if (at->first < next) {
            at->second.end = next;
            at = ranges_.emplace_hint(std::next(at), next, Want{end, kSeveral});
        } else {
            at->second = {end, kSeveral};
        }
        if (end < all.end) at = ranges_.emplace_hint(std::next(at), end, all);
        else ++at;
        next = end;
    }
}

bool Wanted::front(Range& range, std::uint64_t& asker) const {
    if (ranges_.empty()) return false;
    range = {ranges_.begin()->first, ranges_.begin()->second.end};
    asker = ranges_.begin()->second.asker;
    return true;
}

void Wanted::drop_before(std::uint64_t number) {
    while (!ranges_.empty() && ranges_.begin()->first < number) {
        const Want want = ranges_.begin()->second;
        ranges_.erase(ranges_.begin());
        if (want.end > number) {
            ranges_.emplace(number, want);
            return;
        }
    }
}

void Wanted::forget(std::uint64_t asker) {
    std::erase_if(ranges_, [&](const auto& one) { return one.second.asker == asker; });
}

}  // namespace antiphon::window

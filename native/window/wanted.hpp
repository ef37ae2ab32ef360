// Which messages members have asked for again: ranges without overlap, and who wants each.
//
// No clock, no socket and no thread in here, and no lock: whoever uses it has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace antiphon::window {

struct Range {
    std::uint64_t first, end;
};

class Wanted {
   public:
    static constexpr std::uint64_t kSeveral = 0;

    // Beyond a bound of ranges nothing is noted: it will be asked for again.
    void add(Range range, std::uint64_t asker);
    // The first range and who wants it, without taking it; false when nothing is wanted.
    bool front(Range& range, std::uint64_t& asker) const;
    // What is before this number is not wanted any more.
    void drop_before(std::uint64_t number);
    // A member is gone: what it alone wanted is not wanted any more.
    void forget(std::uint64_t asker);
    bool empty() const { return ranges_.empty(); }
    std::size_t size() const { return ranges_.size(); }

   private:
    static constexpr std::size_t kMost = 4096;
    struct Want {
        std::uint64_t end, asker;
    };
    std::map<std::uint64_t, Want> ranges_;  // by their first number
};

}  // namespace antiphon::window

// What topics count with: numbers that begin anew.
//
// Forbidden: an acknowledgement that finds nothing, or somebody else's event, because numbers have wrapped.
#include <cstdint>
#include <deque>

#include "check.hpp"
#include "topics/numbers.hpp"

using namespace antiphon;

namespace {

struct Out {
    std::uint32_t number;
};

// As Delivery::acknowledge goes through them.
std::vector<std::uint32_t> meant(std::deque<Out>& list, std::uint32_t first, std::uint32_t last) {
    std::vector<std::uint32_t> all;
    for (auto at = first_from(list, first); at != list.end() && !number_before(last, at->number); ++at) {
        all.push_back(at->number);
    }
    return all;
}

}  // namespace

TEST("numbers keep their order where they begin anew") {
    CHECK(number_before(1, 2));
    CHECK(!number_before(2, 2));
    CHECK(number_before(UINT32_MAX, 0));
    CHECK(!number_before(0, UINT32_MAX));
    CHECK(number_before(UINT32_MAX - 5, 70000));
}

TEST("a range of numbers means the same events wherever they begin anew") {
    constexpr std::uint32_t kCount = 20;
    for (std::uint32_t begin : {1u, 0u, UINT32_MAX, UINT32_MAX - 7, UINT32_MAX - kCount, 0x7ffffff5u}) {
        std::deque<Out> list;
        for (std::uint32_t i = 0; i < kCount; ++i) list.push_back({begin + i});
        for (std::uint32_t first = 0; first < kCount; ++first) {
            for (std::uint32_t last = first; last < kCount; ++last) {
                const auto found = meant(list, begin + first, begin + last);
                CHECK_EQUAL(found.size(), std::size_t{last - first + 1});
                CHECK_EQUAL(found.front(), begin + first);
                CHECK_EQUAL(found.back(), begin + last);
            }
        }
        // Some that are gone already, and some that were never sent.
        CHECK_EQUAL(meant(list, begin - 5, begin + 1).size(), std::size_t{2});
        CHECK_EQUAL(meant(list, begin - 5, begin - 1).size(), std::size_t{0});
        CHECK_EQUAL(meant(list, begin + kCount - 1, begin + kCount + 9).size(), std::size_t{1});
        CHECK_EQUAL(meant(list, begin + kCount, begin + kCount + 9).size(), std::size_t{0});
    }
}

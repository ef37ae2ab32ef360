// The short wait before a long one: bounded, and left out where it does not help.
//
// Pauses and looks are counted, not timed: on a busy machine a wait may end sooner than it had to, never later.
#include "base/patience.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace antiphon;

namespace {

constexpr Nanos kShort = 20 * kMicrosecond;
constexpr int kCalls = 10'000;

// One call, and what it did.
struct Waited {
    bool done = false;
    int looks = 0, pauses = 0;
};

// `at`: at which look it is done; 0 is never.
Waited wait(Patience& patience, int at, Nanos longest = kShort) {
    Waited waited;
    waited.done = patience.wait([&] { return ++waited.looks == at; }, [&] { ++waited.pauses; }, longest);
    return waited;
}

// For so long, by the clock.
void take(Nanos time) {
    for (const Nanos until = now_ns() + time; now_ns() < until;) {
    }
}

}  // namespace

TEST("what is there already is seen at the first look, every time, without a pause") {
    Patience patience;
    for (int i = 0; i < kCalls; ++i) {
        const Waited waited = wait(patience, 1);
        CHECK(waited.done);
        CHECK_EQUAL(waited.looks, 1);
        CHECK_EQUAL(waited.pauses, 0);
    }
}

TEST("where waiting does not help it is soon left out, but for a try now and then") {
    Patience patience;
    int waits = 0, in_a_row = 0, longest_row = 0;
    for (int i = 0; i < kCalls; ++i) {
        const Waited waited = wait(patience, 0);
        CHECK(!waited.done);
        CHECK(waited.looks >= 1);  // whoever calls has looked once more before it sleeps
        if (waited.pauses != 0) {
            ++waits;
            in_a_row = 0;
        } else {
            CHECK_EQUAL(waited.looks, 1);
            longest_row = std::max(longest_row, ++in_a_row);
        }
        if (i == 9) CHECK(waits < 10);  // it has learned it
    }
    CHECK(waits <= 10 + kCalls / 50);
    // Tried again, or it would never learn that things have changed.
    CHECK(waits >= kCalls / 200);
    CHECK(longest_row <= 200);
}

TEST("one success at a try now and then, and it waits every time again") {
    Patience patience;
    for (int round = 0; round < 20; ++round) {
        while (wait(patience, 0).pauses != 0) {
        }
        // It helps again: the next try finds that out, whenever it is.
        for (int i = 0; i < 200; ++i) CHECK(wait(patience, 1).done);
        for (int i = 0; i < 3; ++i) CHECK(wait(patience, 0).pauses != 0);
    }
}

TEST("a miss now and then does not end it") {
    Patience patience;
    for (int i = 0; i < kCalls; ++i) {
        CHECK(wait(patience, 0).pauses != 0);
        for (int success = 0; success < 2; ++success) CHECK(wait(patience, 1).done);
    }
}

TEST("a wait lasts no longer than it may") {
    // Each look takes a microsecond at the least, so there is no room for more of them than this.
    for (const Nanos longest : {kMicrosecond, 10 * kMicrosecond, 200 * kMicrosecond}) {
        Patience patience;
        int looks = 0;
        const bool done = patience.wait(
            [&] {
                take(kMicrosecond);
                ++looks;
                return false;
            },
            [] {}, longest);
        CHECK(!done);
        CHECK(looks <= longest / kMicrosecond + 2);
    }
    Patience patience;
    int looks = 0;
    CHECK(!patience.wait([&] {
        take(kMicrosecond);
        ++looks;
        return false;
    }));
    CHECK(looks <= Patience::kLongest / kMicrosecond + 2);
}

TEST("it ends when somebody else has had the core, for that one wants it") {
    Patience patience;
    int pauses = 0;
    const bool done = patience.wait([] { return false; },
                                    [&] {
                                        ++pauses;
                                        take(kMillisecond);
                                    },
                                    3600 * kSecond);
    CHECK(!done);
    CHECK_EQUAL(pauses, 1);
}

TEST("what would have come without waiting says nothing about waiting") {
    using Look = Patience::Look;
    Patience patience;
    const auto look = [&](int at, Look seen) {
        int looks = 0, pauses = 0;
        patience.look([&] { return ++looks == at ? seen : Look::again; }, [&] { ++pauses; }, kShort);
        return pauses;
    };
    const auto waits = [&] {
        int waited = 0;
        for (int i = 0; i < 1000; ++i) {
            waited += look(0, Look::again) != 0;
            CHECK_EQUAL(look(1, Look::over), 0);
        }
        return waited;
    };
    CHECK(waits() < 100);  // a success every second time, and it is left out all the same
    // One that helped counts, as soon as it is tried again.
    for (int i = 0; i < 200; ++i) look(2, Look::helped);
    for (int i = 0; i < 3; ++i) CHECK(look(0, Look::again) != 0);
}

TEST("what came during the last pause is seen") {
    Patience patience;
    bool came = false;
    CHECK(patience.wait([&] { return came; },
                        [&] {
                            take(kMillisecond);
                            came = true;
                        },
                        3600 * kSecond));
}

TEST("several threads may share one") {
    Patience patience;
    std::atomic<int> waits{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < kCalls; ++i) {
                const Waited waited = wait(patience, 0, kMicrosecond);
                if (waited.done) wrong.fetch_add(1);
                if (waited.pauses != 0) waits.fetch_add(1);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(wrong.load(), 0);
    // A point is lost or won when two count at once; it is still mostly left out.
    CHECK(waits.load() < 4 * kCalls / 4);
}

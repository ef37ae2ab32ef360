// Deadlines that come again, and alarms: one deadline each, which may be moved.
//
// Forbidden: an alarm that rings after it was taken back, before its time, twice, or for a time that it was
// moved away from; one that does not ring at all.
#include "scheduler/timers.hpp"

#include <atomic>
#include <memory>
#include <vector>

#include "check.hpp"

using namespace antiphon;

namespace {

struct Bell : Alarm {
    void tick(Nanos intended, std::uint64_t, std::uint64_t) override {
        last.store(intended);
        if (now_ns() < intended) early.store(true);
        rings.fetch_add(1);
    }
    std::atomic<Nanos> last{0};
    std::atomic<int> rings{0};
    std::atomic<bool> early{false};
};

struct Beat : Ticker {
    void tick(Nanos, std::uint64_t, std::uint64_t skipped) override { beats.fetch_add(1 + static_cast<int>(skipped)); }
    std::atomic<int> beats{0};
};

void await(const std::atomic<int>& count, int reached) {
    while (count.load() < reached) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

TEST("an alarm rings once, and not before its time") {
    Timers timers;
    Bell bell;
    const Nanos at = now_ns() + 20 * kMillisecond;
    CHECK(timers.set(bell, at));
    await(bell.rings, 1);
    CHECK_EQUAL(bell.last.load(), at);
    CHECK(!bell.early.load());
    Beat beat;  // some time passes
    CHECK(timers.add(beat, now_ns() + kMillisecond, kMillisecond));
    await(beat.beats, 20);
    CHECK_EQUAL(bell.rings.load(), 1);
    // A time that has passed is as good as now.
    CHECK(timers.set(bell, 1));
    await(bell.rings, 2);
    timers.remove(beat);
}

TEST("an alarm that is moved rings for the last time that was said") {
    Timers timers;
    Bell earlier, later, never;
    const Nanos now = now_ns();
    CHECK(timers.set(earlier, now + 3600 * kSecond));
    CHECK(timers.set(later, now + 30 * kMillisecond));
    CHECK(timers.set(never, now + 20 * kMillisecond));
    CHECK(timers.set(earlier, now + 10 * kMillisecond));
    CHECK(timers.set(later, now + 60 * kMillisecond));
    CHECK(timers.set(never, kNever));
    await(earlier.rings, 1);
    CHECK_EQUAL(earlier.last.load(), now + 10 * kMillisecond);
    await(later.rings, 1);
    CHECK_EQUAL(later.last.load(), now + 60 * kMillisecond);
    CHECK(!later.early.load());
    CHECK_EQUAL(earlier.rings.load(), 1);
    CHECK_EQUAL(never.rings.load(), 0);
}

TEST("alarms are moved and taken back by many threads while they ring") {
    Timers timers;
    constexpr int kThreads = 4;
    const int rounds = check::full() ? 20000 : 1000;
    std::vector<std::thread> threads;
    std::atomic<int> after{0};
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < rounds; ++i) {
                auto bell = std::make_unique<Bell>();
                timers.set(*bell, now_ns() + (i % 7) * 10'000);
                if (i % 3 == 0) timers.set(*bell, now_ns() + (t + 1) * 20'000);
                if (i % 5 == 0) std::this_thread::yield();
                timers.set(*bell, kNever);
                const int rings = bell->rings.load();  // it may have rung, and does not any more
                if (bell->early.load()) after.fetch_add(1);
                std::this_thread::yield();
                if (bell->rings.load() != rings) after.fetch_add(1);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(after.load(), 0);
}

TEST("when the timers have stopped nothing is set, and what was is forgotten") {
    Timers timers;
    Bell bell;
    CHECK(timers.set(bell, now_ns() + 3600 * kSecond));
    timers.stop();
    CHECK(!timers.set(bell, now_ns()));
    CHECK(!timers.set(bell, kNever));
    CHECK_EQUAL(bell.rings.load(), 0);
}

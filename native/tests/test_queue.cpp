// The queue of one registration: bounds, drop policies, marks, waiting.
//
// Forbidden: a run that is neither handed out nor finished; a count that is off by one; a mark that
// is reached while a message before it is still being handled; a waiter that sleeps on.
#include "scheduler/task_queue.hpp"

#include <algorithm>
#include <map>

#include "check.hpp"

using namespace antiphon;

namespace {

Run make_run(std::uint32_t count, std::uint32_t bytes = 0, std::uint64_t tag = 0) {
    Run run;
    run.shape = Run::Shape::frames;
    run.count = run.last = count;
    run.bytes = bytes;
    run.arrived = static_cast<Nanos>(tag);  // free for the test to use
    return run;
}

Run make_mark(std::atomic<int>& reached) {
    Run run;
    run.barrier = std::make_shared<Barrier>([&reached] { reached.fetch_add(1); });
    return run;
}

// A queue whose finished runs are counted.
struct Box {
    explicit Box(WhenFull when_full, std::uint64_t capacity = 10, std::uint64_t window = 1000)
        : queue(when_full, capacity, window, [this](Run& run) {
              finished.fetch_add(run.count);
              tags_mutex.lock();
              if (run.shape != Run::Shape::mark) tags.push_back(static_cast<std::uint64_t>(run.arrived));
              tags_mutex.unlock();
              run.barrier.reset();
          }) {}

    // Takes everything that is there; the tags of the runs, in order.
    std::vector<std::uint64_t> drain() {
        TaskQueue::Slice slice;
        queue.begin(slice);
        std::vector<std::uint64_t> out;
        Run run;
        while (queue.pop(run, slice)) {
            out.push_back(static_cast<std::uint64_t>(run.arrived));
            queue.done(slice);
        }
        queue.end(slice);
        return out;
    }

    std::atomic<std::uint64_t> finished{0};
    std::mutex tags_mutex;
    std::vector<std::uint64_t> tags;
    TaskQueue queue;
};

using Tags = std::vector<std::uint64_t>;

}  // namespace

// --- bounds ----------------------------------------------------------------------------------------

TEST("a blocking queue takes everything: its bound is the window that its senders have") {
    Box box(WhenFull::block, 4, 100);
    for (std::uint64_t i = 0; i < 100; ++i) box.queue.push(make_run(3, 50, i));
    CHECK_EQUAL(box.queue.pending(), 300);
    CHECK_EQUAL(box.queue.pending_bytes(), 5000);
    CHECK_EQUAL(box.queue.dropped(), 0);
    CHECK_EQUAL(box.finished.load(), 0);
    CHECK_EQUAL(box.drain().size(), 100);
    CHECK_EQUAL(box.queue.pending(), 0);
    CHECK_EQUAL(box.queue.pending_bytes(), 0);
    CHECK(box.queue.empty());
}

TEST("drop_newest keeps what came first") {
    Box box(WhenFull::drop_newest, 10);
    for (std::uint64_t i = 0; i < 8; ++i) box.queue.push(make_run(2, 1, i));
    CHECK_EQUAL(box.queue.pending(), 10);
    CHECK_EQUAL(box.queue.dropped(), 6);
    CHECK_EQUAL(box.finished.load(), 6);  // whoever sent them gets its credit back
    CHECK(box.tags == Tags({5, 6, 7}));
    CHECK(box.drain() == Tags({0, 1, 2, 3, 4}));
    box.queue.push(make_run(1, 1, 9));
    CHECK(box.drain() == Tags({9}));
    CHECK_EQUAL(box.queue.dropped(), 6);
}

TEST("drop_oldest keeps what came last") {
    Box box(WhenFull::drop_oldest, 10);
    for (std::uint64_t i = 0; i < 8; ++i) box.queue.push(make_run(2, 1, i));
    CHECK_EQUAL(box.queue.pending(), 10);
    CHECK_EQUAL(box.queue.dropped(), 6);
    CHECK_EQUAL(box.finished.load(), 6);
    CHECK(box.tags == Tags({0, 1, 2}));
    CHECK(box.drain() == Tags({3, 4, 5, 6, 7}));
}

TEST("a dropping queue holds to its bytes as well as to its messages") {
    for (const WhenFull when_full : {WhenFull::drop_newest, WhenFull::drop_oldest}) {
        Box box(when_full, 1000, 1000);
        for (std::uint64_t i = 0; i < 12; ++i) {
            box.queue.push(make_run(1, 300, i));
            CHECK(box.queue.pending_bytes() <= 1000);
        }
        CHECK_EQUAL(box.queue.pending(), 3);
        CHECK_EQUAL(box.queue.dropped(), 9);
    }
}

TEST("a run above the capacity is cut to it, at the end that the policy says") {
    for (const WhenFull when_full : {WhenFull::drop_newest, WhenFull::drop_oldest}) {
        Box box(when_full, 10, 1000);
        box.queue.push(make_run(25, 100, 1));
        CHECK_EQUAL(box.queue.pending(), 10);
        CHECK_EQUAL(box.queue.dropped(), 15);
        TaskQueue::Slice slice;
        box.queue.begin(slice);
        Run run;
        CHECK(box.queue.pop(run, slice));
        CHECK_EQUAL(run.size(), 10);
        CHECK_EQUAL(run.first, when_full == WhenFull::drop_newest ? 0 : 15);
        CHECK_EQUAL(box.queue.pending(), 0);
        box.queue.end(slice);
    }
}

TEST("an empty queue takes even a message above its bytes") {
    for (const WhenFull when_full : {WhenFull::drop_newest, WhenFull::drop_oldest}) {
        Box box(when_full, 10, 1000);
        box.queue.push(make_run(1, 5000, 1));
        CHECK_EQUAL(box.queue.pending(), 1);
        CHECK_EQUAL(box.queue.dropped(), 0);
        box.queue.push(make_run(1, 1, 2));
        CHECK_EQUAL(box.queue.dropped(), 1);
        CHECK(box.drain() == Tags({when_full == WhenFull::drop_newest ? 1u : 2u}));
    }
}

TEST("random pushes and pops of every policy agree with a queue of single messages") {
    auto random = check::random(1);
    constexpr std::size_t kCapacity = 20;
    for (const WhenFull when_full : {WhenFull::drop_newest, WhenFull::drop_oldest, WhenFull::block}) {
        Box box(when_full, kCapacity, 1 << 30);
        TaskQueue::Slice slice;
        box.queue.begin(slice);
        std::deque<std::pair<std::uint64_t, std::uint32_t>> model;  // run and place in it
        std::uint64_t dropped = 0;
        const std::uint64_t steps = check::count(100'000, 3'000'000);
        for (std::uint64_t step = 1; step <= steps; ++step) {
            if (check::below(random, 2) == 0) {
                const auto size = static_cast<std::uint32_t>(1 + check::below(random, check::below(random, 9) == 0 ? 50 : 8));
                for (std::uint32_t i = 0; i < size; ++i) {
                    if (when_full == WhenFull::drop_newest && model.size() == kCapacity) {
                        ++dropped;
                        continue;
                    }
                    model.emplace_back(step, i);
                    if (when_full == WhenFull::drop_oldest && model.size() > kCapacity) {
                        model.pop_front();
                        ++dropped;
                    }
                }
                box.queue.push(make_run(size, 10, step));
            } else {
                Run run;
                CHECK_EQUAL(box.queue.pop(run, slice), !model.empty());
                for (std::uint32_t i = run.first; i < run.last; ++i) {
                    CHECK(!model.empty());
                    CHECK_EQUAL(run.arrived, model.front().first);
                    CHECK_EQUAL(i, model.front().second);
                    model.pop_front();
                }
                box.queue.done(slice);
            }
            CHECK_EQUAL(box.queue.pending(), model.size());
            CHECK_EQUAL(box.queue.dropped(), dropped);
            CHECK_EQUAL(box.queue.empty(), model.empty());
        }
        box.queue.end(slice);
    }
}

TEST("random runs of many sizes account for every message and byte") {
    auto random = check::random(2);
    for (const WhenFull when_full : {WhenFull::drop_newest, WhenFull::drop_oldest}) {
        Box box(when_full, 20, 2000);
        TaskQueue::Slice slice;
        box.queue.begin(slice);
        std::uint64_t pushed = 0, taken = 0;
        Nanos last = 0;
        const std::uint64_t steps = check::count(100'000, 3'000'000);
        for (std::uint64_t step = 1; step <= steps; ++step) {
            if (check::below(random, 2) == 0) {
                const auto size = static_cast<std::uint32_t>(1 + check::below(random, 8));
                pushed += size;
                box.queue.push(make_run(size, static_cast<std::uint32_t>(check::below(random, 900)), step));
            } else {
                Run run;
                if (!box.queue.pop(run, slice)) continue;
                CHECK(run.size() != 0);
                CHECK(run.arrived > last);
                last = run.arrived;
                taken += run.size();
                box.queue.done(slice);
            }
            CHECK(box.queue.pending() <= 20);
            CHECK(box.queue.pending_bytes() <= 2000);
            CHECK_EQUAL(pushed, taken + box.queue.pending() + box.queue.dropped());
        }
        box.queue.end(slice);
    }
}

TEST("the oldest run tells its age") {
    Box box(WhenFull::block);
    CHECK_EQUAL(box.queue.oldest(), 0);
    box.queue.push(make_run(1, 1, 11));
    box.queue.push(make_run(1, 1, 12));
    CHECK_EQUAL(box.queue.oldest(), 11);
}

// --- readiness ---------------------------------------------------------------------------------------

TEST("readiness is told when the queue was empty, and only then") {
    Box box(WhenFull::drop_oldest, 2);
    int calls = 0;
    box.queue.set_on_ready([&] { ++calls; });
    box.queue.push(make_run(1));
    box.queue.push(make_run(1));
    CHECK_EQUAL(calls, 1);
    box.queue.push(make_run(1));  // pushes one out; the queue was never empty for its reader
    box.drain();
    box.queue.push(make_run(1));
    CHECK_EQUAL(calls, 2);
    box.drain();
    std::atomic<int> reached{0};
    box.queue.push(make_mark(reached));  // nothing is before it: nobody need be woken
    CHECK_EQUAL(calls, 2);
    CHECK_EQUAL(reached.load(), 1);
}

// --- marks -------------------------------------------------------------------------------------------

TEST("a mark is reached when the run before it is done, and not when it is taken") {
    Box box(WhenFull::block);
    std::atomic<int> reached{0};
    box.queue.push(make_run(1, 1, 1));
    box.queue.push(make_mark(reached));
    box.queue.push(make_run(1, 1, 2));
    TaskQueue::Slice slice;
    box.queue.begin(slice);
    Run run;
    CHECK(box.queue.pop(run, slice));
    CHECK_EQUAL(reached.load(), 0);
    box.queue.done(slice);
    CHECK_EQUAL(reached.load(), 1);
    CHECK(box.queue.pop(run, slice));
    CHECK_EQUAL(run.arrived, 2);
    box.queue.done(slice);
    box.queue.end(slice);
}

TEST("marks behind the last run are reached without anybody asking for more") {
    for (const bool before : {true, false}) {
        Box box(WhenFull::block);
        std::atomic<int> reached{0};
        TaskQueue::Slice slice;
        box.queue.begin(slice);
        box.queue.push(make_run(1));
        if (before) box.queue.push(make_mark(reached));
        Run run;
        CHECK(box.queue.pop(run, slice));
        box.queue.push(make_mark(reached));
        if (!before) box.queue.push(make_mark(reached));
        CHECK_EQUAL(reached.load(), 0);
        box.queue.done(slice);
        CHECK_EQUAL(reached.load(), 2);
        CHECK(box.queue.empty());
        box.queue.end(slice);
    }
}

TEST("a mark waits for every slice that is at work on something before it") {
    Box box(WhenFull::block);
    std::atomic<int> reached{0};
    TaskQueue::Slice first, second, third, idle;
    for (TaskQueue::Slice* slice : {&first, &second, &third, &idle}) box.queue.begin(*slice);
    box.queue.push(make_run(1, 1, 1));
    box.queue.push(make_run(1, 1, 2));
    box.queue.push(make_mark(reached));
    box.queue.push(make_run(1, 1, 3));
    Run a, b, c;
    CHECK(box.queue.pop(a, first));
    CHECK(box.queue.pop(b, second));
    CHECK(box.queue.pop(c, third));  // passes the mark; the first two are still before it
    CHECK_EQUAL(c.arrived, 3);
    CHECK_EQUAL(reached.load(), 0);
    box.queue.done(first);
    box.queue.done(third);
    CHECK_EQUAL(reached.load(), 0);
    box.queue.end(second);  // it gives up, which is as good
    CHECK_EQUAL(reached.load(), 1);
    for (TaskQueue::Slice* slice : {&first, &third, &idle}) box.queue.end(*slice);
    CHECK_EQUAL(reached.load(), 1);
}

TEST("a mark that is pushed out waits for the slice that is at work before it") {
    Box box(WhenFull::drop_oldest, 2);
    std::atomic<int> reached{0};
    TaskQueue::Slice slice;
    box.queue.begin(slice);
    box.queue.push(make_run(1, 1, 1));
    box.queue.push(make_run(1, 1, 2));
    box.queue.push(make_mark(reached));
    Run run;
    CHECK(box.queue.pop(run, slice));
    box.queue.push(make_run(2, 1, 3));  // pushes the second run out; the mark is the next to be
    box.queue.push(make_run(2, 1, 4));
    CHECK_EQUAL(box.queue.dropped(), 3);
    CHECK_EQUAL(reached.load(), 0);
    box.queue.done(slice);
    CHECK_EQUAL(reached.load(), 1);
    box.queue.end(slice);
}

TEST("closing and clearing a queue reaches its marks and finishes its runs") {
    Box box(WhenFull::block);
    std::atomic<int> reached{0};
    box.queue.push(make_run(2, 7, 1));
    box.queue.push(make_mark(reached));
    box.queue.push(make_run(3, 7, 2));
    box.queue.close();
    CHECK(box.queue.closed());
    CHECK_EQUAL(box.finished.load(), 0);  // what is there may still be taken
    box.queue.clear();
    CHECK_EQUAL(reached.load(), 1);
    CHECK_EQUAL(box.finished.load(), 5);
    CHECK_EQUAL(box.queue.pending(), 0);
    CHECK_EQUAL(box.queue.pending_bytes(), 0);
    box.queue.push(make_run(4));
    CHECK_EQUAL(box.finished.load(), 9);
    box.queue.push(make_mark(reached));
    CHECK_EQUAL(reached.load(), 2);
    CHECK(box.queue.empty());
}

TEST("a queue that is destroyed finishes what it held") {
    std::atomic<std::uint64_t> finished{0};
    {
        TaskQueue queue(WhenFull::block, 10, 10, [&](Run& run) { finished.fetch_add(run.count); });
        queue.push(make_run(3));
    }
    CHECK_EQUAL(finished.load(), 3);
}

// --- waiting -----------------------------------------------------------------------------------------

TEST("a waiter wakes for a run, for its deadline, and for close") {
    Box box(WhenFull::block);
    CHECK(!box.queue.wait(now_ns() + 5 * kMillisecond));
    std::atomic<int> woken{0};
    std::thread waiter([&] {
        CHECK(box.queue.wait(kNever));
        woken.fetch_add(1);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK_EQUAL(woken.load(), 0);
    box.queue.push(make_run(1));
    waiter.join();
    CHECK_EQUAL(woken.load(), 1);
    CHECK(box.queue.wait(0));
    box.drain();

    std::vector<std::thread> many;
    for (int i = 0; i < 6; ++i) {
        many.emplace_back([&] {
            CHECK(!box.queue.wait(kNever));
            woken.fetch_add(1);
        });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    box.queue.close();
    for (std::thread& thread : many) thread.join();
    CHECK_EQUAL(woken.load(), 7);
    CHECK(!box.queue.wait(kNever));
}

TEST("a waiter that has counted the nudges wakes for the next one, and for a run that holds more than one") {
    Box box(WhenFull::block);
    std::uint64_t before = box.queue.nudges();
    box.queue.nudge();
    CHECK(!box.queue.wait(kNever, &before));  // at once: it came before the wait
    before = box.queue.nudges();
    CHECK(!box.queue.wait(now_ns() + 5 * kMillisecond, &before));
    std::atomic<int> woken{0};
    std::thread waiter([&] {
        CHECK(!box.queue.wait(kNever, &before));
        woken.fetch_add(1);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK_EQUAL(woken.load(), 0);
    box.queue.nudge();
    waiter.join();

    // Whoever looked before a run was popped, and waits only now, knows that there may be more in it.
    TaskQueue::Slice slice;
    box.queue.begin(slice);
    for (const std::uint32_t count : {1u, 5u}) {
        before = box.queue.nudges();
        box.queue.push(make_run(count));
        Run run;
        CHECK(box.queue.pop(run, slice));
        CHECK(!box.queue.wait(now_ns() + 5 * kMillisecond, &before));
        CHECK_EQUAL(box.queue.nudges() != before, count > 1);
        box.queue.finish(run);
        box.queue.done(slice);
    }
    box.queue.end(slice);
}

TEST("waiting consumers miss no run, whoever pushes") {
    Box box(WhenFull::block, 1 << 20, 1 << 30);
    const std::uint64_t each = check::count(30'000, 1'000'000);
    constexpr std::uint64_t kPushers = 3, kTakers = 3;
    std::atomic<std::uint64_t> taken{0};
    std::vector<std::thread> takers, pushers;
    for (std::uint64_t t = 0; t < kTakers; ++t) {
        takers.emplace_back([&] {
            TaskQueue::Slice slice;
            box.queue.begin(slice);
            Run run;
            while (box.queue.wait(kNever)) {
                while (box.queue.pop(run, slice)) {
                    taken.fetch_add(run.count);
                    box.queue.done(slice);
                }
            }
            box.queue.end(slice);
        });
    }
    for (std::uint64_t p = 0; p < kPushers; ++p) {
        pushers.emplace_back([&] {
            for (std::uint64_t i = 0; i < each; ++i) {
                box.queue.push(make_run(1));
                if (i % 1000 == 0) std::this_thread::yield();
            }
        });
    }
    for (std::thread& thread : pushers) thread.join();
    CHECK(check::soon([&] { return taken.load() == kPushers * each; }));
    box.queue.close();
    for (std::thread& thread : takers) thread.join();
    CHECK_EQUAL(taken.load(), kPushers * each);
}

// --- several at once -----------------------------------------------------------------------------------

TEST("pushers and a taker of every policy account for every message, in each pusher's order") {
    for (const WhenFull when_full : {WhenFull::block, WhenFull::drop_oldest, WhenFull::drop_newest}) {
        const std::uint64_t each = check::count(40'000, 2'000'000);
        constexpr std::uint64_t kPushers = 4;
        Box box(when_full, 64, 1 << 20);
        std::atomic<bool> pushing{true};
        std::vector<std::thread> pushers;
        for (std::uint64_t p = 0; p < kPushers; ++p) {
            pushers.emplace_back([&, p] {
                for (std::uint64_t i = 0; i < each; ++i) box.queue.push(make_run(1, 10, p << 32 | i));
            });
        }
        std::uint64_t taken = 0;
        std::thread taker([&] {
            std::map<std::uint64_t, std::int64_t> last;
            TaskQueue::Slice slice;
            box.queue.begin(slice);
            Run run;
            for (;;) {
                const bool more = pushing.load();
                if (!box.queue.pop(run, slice)) {
                    if (!more) break;
                    box.queue.wait(now_ns() + kMillisecond);
                    continue;
                }
                ++taken;
                const std::uint64_t pusher = static_cast<std::uint64_t>(run.arrived) >> 32;
                const auto at = static_cast<std::int64_t>(run.arrived & 0xffffffff);
                const auto before = last.try_emplace(pusher, -1).first;
                CHECK(at > before->second);
                if (when_full == WhenFull::block) CHECK_EQUAL(at, before->second + 1);
                before->second = at;
                box.queue.done(slice);
            }
            box.queue.end(slice);
        });
        for (std::thread& thread : pushers) thread.join();
        pushing.store(false);
        taker.join();
        CHECK_EQUAL(taken + box.queue.dropped(), kPushers * each);
        CHECK_EQUAL(box.finished.load(), box.queue.dropped());
        if (when_full == WhenFull::block) CHECK_EQUAL(taken, kPushers * each);
        CHECK_EQUAL(box.queue.pending(), 0);
    }
}

TEST("marks among several takers are reached behind everything that was pushed before them") {
    // Each run, when finished, raises `handled`. A mark that is pushed after n runs may be reached
    // only when those n are finished.
    Box box(WhenFull::block, 1 << 20, 1 << 30);
    const std::uint64_t rounds = check::count(20'000, 500'000);
    constexpr int kTakers = 3;
    std::vector<std::atomic<bool>> finished(rounds);
    std::atomic<std::uint64_t> prefix{0}, marks{0};
    std::atomic<bool> ends{false};
    std::vector<std::thread> takers;
    for (int t = 0; t < kTakers; ++t) {
        takers.emplace_back([&] {
            Run run;
            while (!ends.load() || !box.queue.empty()) {
                TaskQueue::Slice slice;  // sometimes one takes part for a while, and leaves
                box.queue.begin(slice);
                for (int i = 0; i < 50 && box.queue.pop(run, slice); ++i) {
                    if (run.arrived % 5 == 0) std::this_thread::yield();
                    finished[static_cast<std::size_t>(run.arrived)].store(true);
                    box.queue.done(slice);
                }
                box.queue.end(slice);
                if (box.queue.empty()) std::this_thread::yield();
            }
        });
    }
    for (std::uint64_t i = 0; i < rounds; ++i) {
        box.queue.push(make_run(1, 1, i));
        if (i % 10 != 9) continue;
        Run mark;
        mark.barrier = std::make_shared<Barrier>([&, pushed = i + 1] {
            // Marks are reached by any thread, and not always in order.
            std::uint64_t from = prefix.load();
            for (std::uint64_t at = std::min(from, pushed); at < pushed; ++at) CHECK(finished[at].load());
            while (from < pushed && !prefix.compare_exchange_weak(from, pushed)) {
            }
            marks.fetch_add(1);
        });
        box.queue.push(std::move(mark));
        if (i % 1000 == 999) CHECK(check::soon([&] { return box.queue.pending() < 200; }));
    }
    ends.store(true);
    for (std::thread& thread : takers) thread.join();
    CHECK_EQUAL(marks.load(), rounds / 10);
}

TEST("several slices share a long run, and its messages, credit and bytes add up") {
    auto random = check::random(8);
    for (std::uint64_t round = 0; round < check::count(300, 10'000); ++round) {
        // Frames that lie in a buffer, as they were received; each is one byte that numbers it.
        const auto count = static_cast<std::uint32_t>(1 + check::below(random, 120));
        const bool packed = check::below(random, 2) == 0;
        std::string bytes;
        if (packed) {
            const Header header{4 + 5 * count, 100, kPacked, 1};
            bytes.append(reinterpret_cast<const char*>(&header), kHeaderBytes);
            bytes.append(reinterpret_cast<const char*>(&count), 4);
            for (std::uint32_t i = 0; i < count; ++i) bytes.append("\1\0\0\0", 4);
            for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i));
        } else {
            for (std::uint32_t i = 0; i < count; ++i) {
                const Header header{1, 100, 0, 1};
                bytes.append(reinterpret_cast<const char*>(&header), kHeaderBytes);
                bytes.push_back(static_cast<char>(i));
            }
        }
        Buffer* buffer = Buffer::standalone(bytes.size());
        std::memcpy(buffer->data(), bytes.data(), bytes.size());
        Run whole = make_run(count, static_cast<std::uint32_t>(bytes.size()));
        if (packed) whole.shape = Run::Shape::packed;
        whole.buffer = buffer;
        whole.charge = static_cast<std::uint32_t>(bytes.size() + check::below(random, 10'000));
        const std::uint32_t charge = whole.charge;
        const std::uint64_t capacity = 1 + check::below(random, 200);
        const WhenFull when_full = check::below(random, 2) == 0 ? WhenFull::block : WhenFull::drop_oldest;

        std::uint64_t counted = 0, charged = 0, given = 0;
        TaskQueue queue(when_full, capacity, 1 << 20, [&](Run& run) {
            counted += run.count;
            charged += run.charge;
            if (run.buffer) run.buffer->release();
            run.buffer = nullptr;
        });
        std::vector<TaskQueue::Slice> slices(1 + check::below(random, 4));
        for (TaskQueue::Slice& slice : slices) queue.begin(slice);
        std::atomic<int> reached{0};
        queue.push(std::move(whole));
        queue.push(make_mark(reached));
        std::uint32_t next = when_full == WhenFull::drop_oldest && count > capacity ? count - static_cast<std::uint32_t>(capacity) : 0;
        const std::uint32_t wanted = count - next;
        std::vector<Run> taken(slices.size());
        std::vector<bool> busy(slices.size(), false);
        while (given < wanted || std::find(busy.begin(), busy.end(), true) != busy.end()) {
            const std::size_t s = check::below(random, slices.size());
            if (busy[s]) {
                CHECK_EQUAL(reached.load(), 0);
                queue.finish(taken[s]);
                queue.done(slices[s]);
                busy[s] = false;
            } else if (queue.pop(taken[s], slices[s])) {
                busy[s] = true;
                RunCursor cursor(taken[s]);
                std::uint32_t here = taken[s].first;
                CHECK_EQUAL(here, next);
                for (std::uint32_t left = taken[s].size(); left != 0; --left, ++here, ++given) {
                    const char* data;
                    std::size_t size;
                    cursor.next(data, size);
                    CHECK_EQUAL(size, 1);
                    CHECK_EQUAL(static_cast<std::uint8_t>(*data), here);
                }
                next = here;
            }
        }
        CHECK_EQUAL(reached.load(), 1);
        CHECK_EQUAL(given, wanted);
        CHECK_EQUAL(counted, count);
        CHECK_EQUAL(charged, charge);
        CHECK_EQUAL(queue.pending(), 0);
        CHECK_EQUAL(queue.pending_bytes(), 0);
        for (TaskQueue::Slice& slice : slices) queue.end(slice);
    }
}

// --- counts that belong to a session ---------------------------------------------------------------------

TEST("a session's count holds to its bound, and an old session changes nothing") {
    SessionCount count;
    count.reset(1);
    CHECK(count.add(1, 60, 100));
    CHECK(!count.add(1, 41, 100));
    CHECK(count.add(1, 40, 100));
    CHECK_EQUAL(count.count(1), 100);
    CHECK(!count.add(2, 1, 100));
    CHECK_EQUAL(count.subtract(1, 30), 70);
    count.reset(2);
    CHECK_EQUAL(count.count(1), 0);
    CHECK_EQUAL(count.count(2), 0);
    count.subtract(1, 50);
    CHECK(!count.add(1, 1, 100));
    CHECK_EQUAL(count.count(2), 0);
    CHECK(count.add(2, 5, 100));
    CHECK_EQUAL(count.subtract(2, 1000), 0);
}

TEST("threads that charge and credit never pass the bound, across sessions") {
    SessionCount count;
    std::atomic<std::uint32_t> session{1};
    count.reset(1);
    constexpr std::uint32_t kMost = 1000;
    std::atomic<bool> ends{false};
    std::atomic<std::uint64_t> granted{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            auto random = check::random(200 + t);
            while (!ends.load(std::memory_order_relaxed)) {
                const std::uint32_t mine = session.load();
                const auto amount = static_cast<std::uint32_t>(1 + check::below(random, 400));
                if (!count.add(mine, amount, kMost)) continue;
                granted.fetch_add(1, std::memory_order_relaxed);
                CHECK(count.count(mine) <= kMost);
                count.subtract(mine, amount);
            }
        });
    }
    const std::uint64_t sessions = check::count(2'000, 50'000);
    for (std::uint64_t i = 2; i < sessions; ++i) {
        session.store(static_cast<std::uint32_t>(i));
        count.reset(static_cast<std::uint32_t>(i));
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    ends.store(true);
    for (std::thread& thread : threads) thread.join();
    CHECK(granted.load() != 0);
    CHECK_EQUAL(count.count(static_cast<std::uint32_t>(sessions - 1)), 0);
}

// The selector alone: turns, calls, timers and watchers, without a node.
//
// Forbidden: work that was left and is not found; two at a time with the turn; a timer before its time, out of
// order, or after it was taken back; an event for a watcher that has gone; a system call for each wake of a loop
// that is awake.
#include "selector/selector.hpp"

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace antiphon;

namespace {

// A selector that runs, and what it was told of failures.
class Loop {
   public:
    explicit Loop(std::function<bool()> bulk = [] { return false; }) {
        selector.start(std::move(bulk), [this](const char* what) {
            std::lock_guard lock(mutex_);
            failures_.emplace_back(what);
        });
    }
    ~Loop() { selector.stop(); }
    // On the selector's thread, and until it was.
    void run(std::function<void()> call) {
        std::atomic<bool> done{false};
        selector.post([&] {
            call();
            done.store(true);
        });
        CHECK(check::soon([&] { return done.load(); }));
    }
    std::vector<std::string> failures() {
        std::lock_guard lock(mutex_);
        return failures_;
    }
    Selector selector;

   private:
    std::mutex mutex_;
    std::vector<std::string> failures_;
};

struct Eye : Watcher {
    explicit Eye(std::function<void(std::uint32_t)> see = {}) : see_(std::move(see)) {}
    void ready(std::uint32_t events) override {
        last.store(events);
        seen.fetch_add(1);
        if (see_) see_(events);
    }
    std::atomic<int> seen{0};
    std::atomic<std::uint32_t> last{0};

   private:
    const std::function<void(std::uint32_t)> see_;
};

// A descriptor that can be read, until somebody does.
struct Full {
    Full() : fd(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)) { CHECK(fd >= 0); }
    ~Full() { shut(); }
    Full(const Full&) = delete;
    void drain() {
        std::uint64_t count;
        [[maybe_unused]] ssize_t ignored = read(fd, &count, sizeof count);
    }
    void fill() {
        const std::uint64_t one = 1;
        CHECK(write(fd, &one, sizeof one) == sizeof one);
    }
    void shut() {
        if (fd >= 0) close(fd);
        fd = -1;
    }
    int fd;
};

std::vector<int> eventfds() {
    std::vector<int> found;
    DIR* folder = opendir("/proc/self/fd");
    CHECK(folder != nullptr);
    while (const dirent* entry = readdir(folder)) {
        char target[64] = "";
        const ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        if (length > 0 && std::string(target, static_cast<std::size_t>(length)) == "anon_inode:[eventfd]") {
            found.push_back(std::atoi(entry->d_name));
        }
    }
    closedir(folder);
    return found;
}

// What was written to it and is not read.
std::uint64_t eventfd_count(int fd) {
    std::FILE* file = std::fopen(("/proc/self/fdinfo/" + std::to_string(fd)).c_str(), "r");
    CHECK(file != nullptr);
    char line[128];
    unsigned long long count = ~0ull;
    while (std::fgets(line, sizeof line, file)) {
        if (std::sscanf(line, "eventfd-count: %llx", &count) == 1) break;
    }
    std::fclose(file);
    CHECK(count != ~0ull);
    return count;
}

// For what must not happen: it has had this long.
void a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

}  // namespace

// --- calls -----------------------------------------------------------------------------------------------

TEST("posted calls are made on the selector's thread, with the turn, in their order") {
    Loop loop;
    std::vector<int> order;
    std::atomic<int> made{0}, wrong{0};
    for (int i = 0; i < 1000; ++i) {
        loop.selector.post([&, i] {
            if (!loop.selector.on_this_thread() || !loop.selector.has_turn()) wrong.fetch_add(1);
            order.push_back(i);
            made.fetch_add(1);
        });
    }
    CHECK(check::soon([&] { return made.load() == 1000; }));
    CHECK_EQUAL(wrong.load(), 0);
    for (int i = 0; i < 1000; ++i) CHECK_EQUAL(order[static_cast<std::size_t>(i)], i);
    CHECK(!loop.selector.on_this_thread());
    CHECK(!loop.selector.has_turn());
}

TEST("a call that posts another one is not waited for") {
    Loop loop;
    std::atomic<int> made{0};
    std::function<void()> again = [&] {
        if (made.fetch_add(1) < 999) loop.selector.post(again);
    };
    loop.selector.post(again);
    CHECK(check::soon([&] { return made.load() == 1000; }));
}

TEST("what a call, a timer, a watcher or the bulk throws is told, and the loop goes on") {
    std::atomic<bool> bulk_fails{false};
    Loop loop([&]() -> bool {
        if (bulk_fails.exchange(false)) throw std::runtime_error("bulk");
        return false;
    });
    Full full;
    Eye eye([&](std::uint32_t) {
        full.drain();
        throw std::runtime_error("watcher");
    });
    std::atomic<bool> next{false};
    loop.selector.post([] { throw std::runtime_error("call"); });
    loop.run([&] {
        loop.selector.at(1, [] { throw std::runtime_error("timer"); });
        loop.selector.at(2, [&] { next.store(true); });
        loop.selector.watch(full.fd, EPOLLIN, &eye);
    });
    CHECK(check::soon([&] { return eye.seen.load() == 1 && next.load(); }));
    bulk_fails.store(true);
    loop.run([] {});
    CHECK(check::soon([&] { return loop.failures().size() == 4; }));
    const auto told = loop.failures();
    CHECK((told == std::vector<std::string>{"call", "timer", "watcher", "bulk"}));
    loop.run([&] { loop.selector.unwatch(full.fd, &eye); });
}

TEST("the bulk is called again and again for as long as there is more") {
    std::atomic<int> left{0}, calls{0};
    Loop loop([&] {
        calls.fetch_add(1);
        return left.load() > 0 && left.fetch_sub(1) > 1;
    });
    loop.run([] {});
    const int before = calls.load();
    left.store(1000);
    loop.selector.wake();
    // Nobody wakes it another time.
    CHECK(check::soon([&] { return left.load() <= 0; }));
    CHECK(calls.load() - before >= 1000);
}

TEST("a selector may be stopped from its own thread: its turn is the last") {
    std::atomic<int> made{0};
    {
        Selector selector;
        selector.start([] { return false; }, [](const char*) {});
        selector.post([&] {
            selector.stop();
            made.fetch_add(1);
        });
        CHECK(check::soon([&] { return made.load() == 1; }));
        selector.stop();  // joins
        selector.post([&] { made.fetch_add(1); });
        a_moment();
    }
    CHECK_EQUAL(made.load(), 1);
}

// --- waking ----------------------------------------------------------------------------------------------

TEST("a loop that is awake is woken without a system call") {
    const auto others = eventfds();
    Loop loop;
    int wake = -1;
    for (const int fd : eventfds()) {
        if (std::find(others.begin(), others.end(), fd) == others.end()) wake = fd;
    }
    CHECK(wake >= 0);
    std::uint64_t written = 0;
    loop.run([&] {
        for (int i = 0; i < 1000; ++i) loop.selector.wake();
        written = eventfd_count(wake);
    });
    // One at the most: when it was about to sleep.
    CHECK(written <= 1);
}

TEST("a loop that has nothing to do takes no turns") {
    Loop loop;
    Full full;
    loop.run([] {});
    // It may have been about to sleep just now; with turns that come by themselves there is no such moment.
    CHECK(check::soon([&] {
        const std::uint64_t before = loop.selector.turns();
        a_moment();
        return loop.selector.turns() == before;
    }));
    const std::uint64_t before = loop.selector.turns();
    loop.run([] {});
    CHECK(loop.selector.turns() > before);
}

TEST("work that is left when the loop has looked and does not sleep yet is found") {
    std::atomic<int> left{0}, found{0}, called{0};
    std::atomic<bool> hold{false}, held{false};
    Loop loop([&] {
        found.store(left.load());
        if (hold.exchange(false)) {
            held.store(true);
            while (held.load()) std::this_thread::yield();
        }
        return false;
    });
    // Left for the bulk, then for the posted calls, while the loop is in its bulk: it has looked for both before.
    for (int round = 1; round <= 20; ++round) {
        hold.store(true);
        while (!held.load()) loop.selector.wake();
        left.store(round);
        loop.selector.wake();
        if (round % 2 == 0) loop.selector.post([&] { called.fetch_add(1); });
        held.store(false);
        CHECK(check::soon([&] { return found.load() == round && called.load() == round / 2; }));
    }
}

TEST("work that is left before a wake is always found") {
    std::atomic<std::uint64_t> left{0}, found{0};
    Loop loop([&] {
        found.store(left.load());
        return false;
    });
    const std::uint64_t rounds = check::count(20'000, 1'000'000);
    auto random = check::random(1);
    for (std::uint64_t round = 1; round <= rounds; ++round) {
        left.store(round);
        loop.selector.wake();
        // Now and then a moment later, so that it is met on its way to sleep and asleep.
        for (std::uint64_t i = check::below(random, 200); i != 0; --i) found.load();
        for (const Nanos until = now_ns() + check::patience(20 * kSecond); found.load() != round;) {
            CHECK(now_ns() < until);
            std::this_thread::yield();
        }
    }
}

// --- the turn --------------------------------------------------------------------------------------------

TEST("whoever has the turn is alone, and the loop goes on when it is given back") {
    Loop loop;
    std::atomic<int> made{0};
    {
        Selector::Turn turn(loop.selector);
        CHECK(loop.selector.has_turn());
        CHECK(!loop.selector.on_this_thread());
        std::thread([&] {
            CHECK(!loop.selector.has_turn());
            Selector::Turn another(loop.selector, std::try_to_lock);
            CHECK(!another);
        }).join();
        loop.selector.post([&] { made.fetch_add(1); });
        a_moment();
        CHECK_EQUAL(made.load(), 0);
    }
    CHECK(!loop.selector.has_turn());
    CHECK(check::soon([&] { return made.load() == 1; }));
    CHECK(check::soon([&] { return static_cast<bool>(Selector::Turn(loop.selector, std::try_to_lock)); }));
}

TEST("of many that take the turn beside a busy loop none is in it with another, and none starves") {
    std::atomic<bool> over{false};
    int inside = 0;  // not atomic: the turn guards it
    std::uint64_t loops = 0;
    std::atomic<int> met{0};
    const auto enter = [&] {
        if (++inside != 1) met.fetch_add(1);
        if (inside-- != 1) met.fetch_add(1);
    };
    Loop loop([&] {
        enter();
        ++loops;
        return !over.load();
    });
    loop.run([] {});  // it has begun
    const std::uint64_t rounds = check::count(2'000, 50'000);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            for (std::uint64_t round = 0; round < rounds; ++round) {
                Selector::Turn turn(loop.selector);
                enter();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    over.store(true);
    loop.run([&] { CHECK(loops > 0); });
    CHECK_EQUAL(met.load(), 0);
}

TEST("a timer that is set with the turn by another thread wakes a loop that would sleep longer") {
    Loop loop;
    std::atomic<int> rung{0};
    const auto set = [&](Nanos from_now) {
        Selector::Turn turn(loop.selector);
        loop.selector.at(loop.selector.now() + from_now, [&] { rung.fetch_add(1); });
    };
    loop.run([] {});
    a_moment();  // it sleeps, without an end
    set(kMillisecond);
    CHECK(check::soon([&] { return rung.load() == 1; }));
    set(3600 * kSecond);
    a_moment();  // it sleeps for an hour
    set(kMillisecond);
    CHECK(check::soon([&] { return rung.load() == 2; }));
    a_moment();
    CHECK_EQUAL(rung.load(), 2);
}

// --- timers ----------------------------------------------------------------------------------------------

TEST("timers ring in the order of their times, those of one time as they were set, and never early") {
    Loop loop;
    std::vector<std::pair<Nanos, int>> rung;
    std::atomic<int> count{0}, early{0};
    constexpr int kTimers = 300;
    loop.run([&] {
        auto random = check::random(2);
        const Nanos now = loop.selector.now();
        for (int i = 0; i < kTimers; ++i) {
            const Nanos when = now + static_cast<Nanos>(check::below(random, 40)) * kMillisecond / 2;
            loop.selector.at(when, [&, when, i] {
                if (now_ns() < when || loop.selector.now() < when) early.fetch_add(1);
                rung.emplace_back(when, i);
                count.fetch_add(1);
            });
        }
    });
    CHECK(check::soon([&] { return count.load() == kTimers; }));
    CHECK_EQUAL(early.load(), 0);
    CHECK(std::is_sorted(rung.begin(), rung.end()));
}

TEST("a timer that was taken back does not ring, even if its time has come") {
    Loop loop;
    std::vector<int> rung;
    std::atomic<bool> last{false};
    loop.run([&] {
        Selector& selector = loop.selector;
        const Nanos now = selector.now();
        const std::uint64_t before = selector.at(now, [&] { rung.push_back(0); });
        selector.cancel(before);
        // One takes back the one before, which is too late, itself, and the two that are next.
        const auto next = std::make_shared<std::vector<std::uint64_t>>();
        next->push_back(selector.at(now, [&] { rung.push_back(1); }));
        next->push_back(selector.at(now + 1, [&, next] {
            rung.push_back(2);
            for (const std::uint64_t id : *next) selector.cancel(id);
        }));
        next->push_back(selector.at(now + 1, [&] { rung.push_back(3); }));
        next->push_back(selector.at(now + 2, [&] { rung.push_back(4); }));
        selector.at(now + 3, [&] { rung.push_back(5); });
        selector.cancel(12345678);  // none has that number
        selector.at(now + kMillisecond, [&] { last.store(true); });
    });
    CHECK(check::soon([&] { return last.load(); }));
    CHECK((rung == std::vector<int>{1, 2, 5}));
}

TEST("a timer may set the next one for now, and that one rings at once") {
    Loop loop;
    std::atomic<int> rung{0};
    std::function<void()> ring = [&] {
        if (rung.fetch_add(1) < 999) loop.selector.at(loop.selector.now(), ring);
    };
    loop.run([&] { loop.selector.at(loop.selector.now(), ring); });
    CHECK(check::soon([&] { return rung.load() == 1000; }));
    loop.run([] {});
    CHECK_EQUAL(rung.load(), 1000);
}

TEST("a timer that a watcher sets rings without anything else") {
    Loop loop;
    Full full;
    std::atomic<int> rung{0};
    Eye eye([&](std::uint32_t) {
        full.drain();
        loop.selector.at(loop.selector.now() + kMillisecond, [&] { rung.fetch_add(1); });
    });
    loop.run([&] { loop.selector.watch(full.fd, EPOLLIN, &eye); });
    CHECK(check::soon([&] { return rung.load() == 1; }));
    loop.run([&] { loop.selector.unwatch(full.fd, &eye); });
}

// --- watchers --------------------------------------------------------------------------------------------

TEST("a watcher is told what its descriptor is ready for, again until that is done, with the turn") {
    Loop loop;
    Full full;
    std::atomic<int> wrong{0};
    Eye eye([&](std::uint32_t) {
        if (!loop.selector.on_this_thread() || !loop.selector.has_turn()) wrong.fetch_add(1);
        if (eye.seen.load() == 3) full.drain();
    });
    loop.run([&] { loop.selector.watch(full.fd, EPOLLIN, &eye); });
    CHECK(check::soon([&] { return eye.seen.load() == 3; }));
    CHECK_EQUAL(eye.last.load(), static_cast<std::uint32_t>(EPOLLIN));
    loop.run([] {});
    a_moment();
    CHECK_EQUAL(eye.seen.load(), 3);
    // Now for another thing, which it always is.
    Eye writer([&](std::uint32_t) { loop.selector.change(full.fd, EPOLLIN, &writer); });
    loop.run([&] { loop.selector.change(full.fd, EPOLLIN | EPOLLOUT, &writer); });
    CHECK(check::soon([&] { return writer.seen.load() == 1; }));
    CHECK_EQUAL(writer.last.load(), static_cast<std::uint32_t>(EPOLLOUT));
    loop.run([] {});
    a_moment();
    CHECK_EQUAL(writer.seen.load(), 1);
    CHECK_EQUAL(wrong.load(), 0);
    loop.run([&] { loop.selector.unwatch(full.fd, &writer); });
}

TEST("of a descriptor that is paused nothing is told, not even that it has ended, until it is changed") {
    Loop loop;
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    Eye eye([&](std::uint32_t) { loop.selector.pause(ends[0]); });
    loop.run([&] { loop.selector.watch(ends[0], EPOLLIN, &eye); });
    CHECK(write(ends[1], "x", 1) == 1);
    CHECK(check::soon([&] { return eye.seen.load() == 1; }));
    close(ends[1]);
    loop.run([] {});
    a_moment();
    CHECK_EQUAL(eye.seen.load(), 1);
    loop.run([&] { loop.selector.change(ends[0], EPOLLIN, &eye); });
    CHECK(check::soon([&] { return eye.seen.load() == 2; }));
    CHECK((eye.last.load() & EPOLLHUP) != 0);
    // Pausing twice, or what has gone, is nothing.
    loop.run([&] {
        loop.selector.pause(ends[0]);
        loop.selector.unwatch(ends[0], &eye);
        close(ends[0]);
        loop.selector.pause(ends[0]);
    });
    CHECK(loop.failures().empty());
}

TEST("a descriptor that cannot be watched is an error") {
    Loop loop;
    Eye eye;
    loop.selector.post([&] { loop.selector.watch(-1, EPOLLIN, &eye); });
    CHECK(check::soon([&] { return loop.failures().size() == 1; }));
    CHECK(loop.failures()[0].find("cannot watch a descriptor") == 0);
}

TEST("of several that are ready in one turn those that the first one ends are told nothing") {
    Loop loop;
    constexpr std::size_t kEyes = 5;
    Full full[kEyes];
    std::atomic<bool> told_nothing{false};
    std::unique_ptr<Eye> eyes[kEyes];
    std::atomic<int> seen{0};
    for (std::size_t i = 0; i < kEyes; ++i) {
        eyes[i] = std::make_unique<Eye>([&](std::uint32_t) {
            seen.fetch_add(1);
            // Itself as well: all of them are gone, their memory too, and their numbers are given anew.
            for (std::size_t j = 0; j < kEyes; ++j) {
                loop.selector.unwatch(full[j].fd, eyes[j].get());
                full[j].shut();
            }
            loop.selector.post([&] {
                for (auto& eye : eyes) eye.reset();
                told_nothing.store(true);
            });
        });
    }
    // Ready before they are watched, so that one wait finds them all.
    loop.run([&] {
        for (std::size_t i = 0; i < kEyes; ++i) loop.selector.watch(full[i].fd, EPOLLIN, eyes[i].get());
    });
    CHECK(check::soon([&] { return told_nothing.load(); }));
    loop.run([] {});
    CHECK_EQUAL(seen.load(), 1);
}

TEST("a watcher that goes and comes again in one turn is told of what it watches now") {
    Loop loop;
    Full first, second, other;
    Eye eye([&](std::uint32_t) { second.drain(); });
    Eye swaps([&](std::uint32_t) {
        other.drain();
        loop.selector.unwatch(first.fd, &eye);
        first.drain();
        loop.selector.watch(second.fd, EPOLLIN, &eye);
    });
    loop.run([&] {
        loop.selector.watch(other.fd, EPOLLIN, &swaps);  // the first to be told
        loop.selector.watch(first.fd, EPOLLIN, &eye);
    });
    CHECK(check::soon([&] { return eye.seen.load() != 0 && swaps.seen.load() == 1; }));
    loop.run([] {});  // it has drained that
    const int before = eye.seen.load();
    second.fill();
    CHECK(check::soon([&] { return eye.seen.load() > before; }));
    loop.run([&] {
        loop.selector.unwatch(second.fd, &eye);
        loop.selector.unwatch(other.fd, &swaps);
    });
}

TEST("a watcher that another thread has ended with the turn is never told anything again") {
    Loop loop;
    const std::uint64_t rounds = check::count(3'000, 200'000);
    auto random = check::random(3);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        Full full;
        full.drain();
        bool gone = false;  // not atomic: the turn guards it
        std::atomic<int> late{0};
        auto eye = std::make_unique<Eye>([&](std::uint32_t) {
            if (gone) late.fetch_add(1);
            full.drain();
        });
        {
            Selector::Turn turn(loop.selector);
            loop.selector.watch(full.fd, EPOLLIN, eye.get());
        }
        full.fill();  // the loop wakes now, and waits for the turn if we have it
        if (round % 8 == 0) {
            CHECK(check::soon([&] { return eye->seen.load() != 0; }));
        } else {
            for (std::uint64_t i = check::below(random, 3000); i != 0; --i) eye->seen.load();
        }
        {
            Selector::Turn turn(loop.selector);
            loop.selector.unwatch(full.fd, eye.get());
            gone = true;
            full.shut();
        }
        // Whatever the loop had in hand when it was ended is through.
        if (round % 16 == 0) loop.run([] {});
        const std::uint64_t turns = loop.selector.turns();
        loop.selector.post([] {});
        CHECK(check::soon([&] { return loop.selector.turns() > turns; }));
        CHECK_EQUAL(late.load(), 0);
    }
}

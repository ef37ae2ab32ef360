// The interest queue: what the selector does for a connection, in which order, and that nothing is lost.
#include "selector/interests.hpp"

#include "check.hpp"

using namespace antiphon;

namespace {

struct Connection {
    std::atomic<std::uint8_t> interests{0};
};

std::vector<Interest> applied(std::uint8_t interests) {
    std::vector<Interest> order;
    in_order(interests, [&](Interest one) { order.push_back(one); });
    return order;
}

}  // namespace

TEST("the six interests are applied in their order, however they are combined") {
    const std::vector<Interest> six = {kConnect, kReadBack, kRead, kWriteBack, kWrite, kClose};
    CHECK(applied(kClose | kWrite | kWriteBack | kRead | kReadBack | kConnect) == six);
    for (int some = 0; some < 64; ++some) {
        std::uint8_t interests = 0;
        std::vector<Interest> expected;
        for (int i = 0; i < 6; ++i) {
            if ((some >> i & 1) == 0) continue;
            interests |= six[static_cast<std::size_t>(i)];
            expected.push_back(six[static_cast<std::size_t>(i)]);
        }
        CHECK(applied(interests) == expected);
    }
}

TEST("interests of one connection are combined, and connections come in the order of their first") {
    InterestQueue<Connection> queue;
    Connection one, two;
    CHECK(queue.add(two, kWrite));  // the selector has to be woken for the first only
    CHECK(!queue.add(one, kRead));
    CHECK(!queue.add(two, kConnect));
    CHECK(!queue.add(two, kWrite));
    std::vector<std::pair<Connection*, int>> seen;
    const auto take = [&] {
        return queue.take([&](Connection& connection, std::uint8_t interests) {
            seen.emplace_back(&connection, interests);
        });
    };
    CHECK(take());
    CHECK((seen == std::vector<std::pair<Connection*, int>>{{&two, kConnect | kWrite}, {&one, kRead}}));
    CHECK(!take());
    CHECK(queue.add(one, kRead));
}

TEST("an interest that comes while the others are applied is kept for the next round") {
    InterestQueue<Connection> queue;
    Connection one;
    queue.add(one, kRead);
    int rounds = 0;
    const auto again = [&](Connection& connection, std::uint8_t interests) {
        CHECK_EQUAL(static_cast<int>(interests), rounds == 0 ? kRead : kRead | kWrite);
        if (rounds++ == 0) {
            CHECK(queue.add(connection, kWrite));
            CHECK(!queue.add(connection, kRead));
        }
    };
    CHECK(queue.take(again));
    CHECK_EQUAL(rounds, 1);
    CHECK(queue.take(again));
    CHECK_EQUAL(rounds, 2);
    CHECK(!queue.take(again));
}

TEST("of interests that several threads add while the selector takes them none is lost") {
    constexpr int kThreads = 4, kConnections = 3;
    const std::uint64_t rounds = check::count(20'000, 1'000'000);
    InterestQueue<Connection> queue;
    Connection connections[kConnections];
    // For each thread an interest of its own: it goes on when that was applied.
    std::atomic<std::uint64_t> seen[kThreads] = {};
    std::atomic<bool> over{false};
    std::thread selector([&] {
        while (!over.load()) {
            queue.take([&](Connection&, std::uint8_t interests) {
                in_order(interests, [&](Interest one) {
                    for (int i = 0; i < kThreads; ++i) {
                        if (one == 1 << i) seen[i].fetch_add(1);
                    }
                });
            });
            std::this_thread::yield();
        }
    });
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            auto random = check::random(static_cast<std::uint64_t>(i));
            for (std::uint64_t round = 0; round < rounds; ++round) {
                queue.add(connections[check::below(random, kConnections)], static_cast<std::uint8_t>(1 << i));
                while (seen[i].load() <= round) std::this_thread::yield();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    over.store(true);
    selector.join();
    for (const auto& count : seen) CHECK_EQUAL(count.load(), rounds);
}

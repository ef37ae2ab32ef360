// Tasks that send and wait without a thread: parked at a peer, and run again when something has changed.
#include <cstring>

#include "node/pump.hpp"
#include "nodes.hpp"

using namespace antiphon;
using namespace antiphon::tests;

namespace {

struct Numbered {
    std::uint32_t pump, number;
};

// Sends numbers from 0 on, one message each, and never waits.
class Counting : public Pump {
   public:
    Counting(std::shared_ptr<Node> node, Peer& peer, std::uint32_t own, std::uint32_t end)
        : Pump(std::move(node)), peer_(peer), own_(own), end_(end) {}
    ~Counting() override { retire(); }

    bool run_slice(Nanos until) override {
        for (bool parked = false; next_.load() < end_;) {
            const Numbered message{own_, next_.load()};
            const Attempt tried =
                node_->try_message(peer_, kKind, {reinterpret_cast<const char*>(&message), sizeof message});
            if (tried.status == Status::sent) {
                next_.fetch_add(1);
                parked = false;
                if (now_ns() >= until) return true;
            } else if (tried.status == Status::closed) {
                return false;
            } else if (tried.status != Status::again) {
                wait_for(peer_, tried);
                if (std::exchange(parked, true)) return false;
                parked_.fetch_add(1);
            }
        }
        return false;
    }
    std::uint32_t next() const { return next_.load(); }
    std::uint32_t parked() const { return parked_.load(); }

   private:
    Peer& peer_;
    const std::uint32_t own_, end_;
    std::atomic<std::uint32_t> next_{0}, parked_{0};
};

struct Pair {
    explicit Pair(const std::string& scheme) : a(make_node(options(1, scheme))), b(make_node(options(2, scheme))) {
        introduce(*a, *b);
    }
    ~Pair() {
        a->close(0);
        b->close(0);
    }
    std::shared_ptr<Node> a, b;
};

// Until so many have come, however long that takes on this machine; not when none comes for a long time.
void await(const std::atomic<std::uint64_t>& came, std::uint64_t enough) {
    std::uint64_t before = 0;
    Nanos until = 0;
    for (std::uint64_t now = 0; (now = came.load()) < enough; std::this_thread::yield()) {
        if (now != before || until == 0) until = now_ns() + check::patience(20 * kSecond);
        if (now_ns() >= until) return;
        before = now;
    }
}

}  // namespace

TEST("tasks that are parked for want of credit go on, and lose nothing") {
    constexpr std::uint32_t kPumps = 6;
    const auto end = static_cast<std::uint32_t>(check::count(3000, 100000));
    for (const char* scheme : {"tcp", "unix", "inproc"}) {
        Pair pair(scheme);
        std::atomic<std::uint64_t> came{0};
        std::uint32_t expected[kPumps] = {};
        Handler handler(
            *pair.b, kKind,
            [&](std::uint16_t, const char* data, std::size_t size) {
                Numbered message;
                CHECK_EQUAL(size, sizeof message);
                std::memcpy(&message, data, sizeof message);
                CHECK_EQUAL(message.number, expected[message.pump]++);
                came.fetch_add(1);
            },
            8);  // so that there is hardly ever room
        std::vector<std::shared_ptr<Counting>> pumps;
        for (std::uint32_t i = 0; i < kPumps; ++i) {
            pumps.push_back(std::make_shared<Counting>(pair.a, *pair.a->find_peer(2), i, end));
            pumps.back()->nudge();
        }
        await(came, std::uint64_t{kPumps} * end);
        CHECK_EQUAL(came.load(), std::uint64_t{kPumps} * end);
        std::uint32_t parked = 0;
        for (const auto& pump : pumps) parked += pump->parked();
        CHECK(parked != 0);
    }
}

TEST("tasks come and go while others wake them") {
    Pair pair("unix");
    std::atomic<std::uint64_t> came{0};
    Handler handler(*pair.b, kKind, [&](std::uint16_t, const char*, std::size_t) { came.fetch_add(1); }, 8);
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
            auto random = check::random(i);
            while (!over.load()) {
                const auto pump = std::make_shared<Counting>(pair.a, *pair.a->find_peer(2), i, UINT32_MAX);
                pump->nudge();
                const std::uint64_t until = came.load() + check::below(random, 200);
                while (came.load() < until && !over.load()) std::this_thread::yield();
            }
        });
    }
    const std::uint64_t enough = check::count(20000, 1000000);
    await(came, enough);
    over.store(true);
    for (std::thread& thread : threads) thread.join();
    CHECK(came.load() >= enough);
}

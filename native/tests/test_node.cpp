// Whole nodes in one process: messages between them, whatever happens to their connections.
//
// Forbidden: a message lost, doubled, changed or moved past another of its sender while a connection
// stands; the same, apart from losses, when it falls; a call that never returns; more under way than
// was granted.
#include "nodes.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>

using namespace antiphon;
using namespace antiphon::tests;

namespace {

const std::vector<std::string> kSchemes{"tcp", "unix", "inproc"};

void join(std::vector<std::thread>& threads) {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
}

// Everything that an outcome may be when a peer goes away in the middle.
bool is_loss(const Outcome& outcome) {
    return outcome.code == Code::unreachable || outcome.code == Code::timeout;
}

// One thread's messages, singly or in packed frames, of random sizes.
void produce(Node& node, std::uint16_t to, std::uint32_t thread, std::uint64_t messages, std::size_t largest) {
    auto random = check::random(thread);
    std::uint64_t sequence = 0;
    while (sequence < messages) {
        const auto batch = std::min<std::uint64_t>(messages - sequence, 1 + check::below(random, 40));
        if (check::below(random, 2) == 0) {
            for (std::uint64_t i = 0; i < batch; ++i, ++sequence) {
                CHECK_OK(send(node, to, kKind, stamped(thread, sequence, check::below(random, largest + 1))));
            }
            continue;
        }
        std::vector<std::string> texts;
        std::vector<Message> spans;
        for (std::uint64_t i = 0; i < batch; ++i, ++sequence) {
            texts.push_back(stamped(thread, sequence, check::below(random, largest + 1)));
        }
        for (const std::string& text : texts) spans.push_back({text.data(), text.size()});
        std::size_t sent;
        CHECK_OK(send_many(node, to, kKind, spans, sent));
        CHECK_EQUAL(sent, batch);
    }
}

// What a node still holds when everything was handled: at most the buffer that each channel reads into.
void check_at_rest(Node& node) {
    CHECK(check::soon([&] { return node.counters().large_in_use == 0; }));
    const std::size_t largest = node.options().buffer_pool.back().first;
    CHECK(check::soon([&] { return node.counters().buffers_out <= largest * node.statistics().size(); }));
    CHECK_EQUAL(node.counters().protocol_errors, 0);
}

// As many writes as it takes to forget what was before, each with so many frames and so long after the last.
Traffic after(Traffic traffic, Nanos& now, int frames, Nanos gap) {
    for (int i = 0; i < 100; ++i) traffic.wrote(frames, now += gap);
    return traffic;
}

}  // namespace

TEST("traffic is dense by the frames per second, however they are gathered") {
    Nanos now = kSecond;
    const Traffic fresh;
    CHECK(!fresh.dense());
    for (const int frames : {1, 4, 64}) {
        CHECK(after(fresh, now, frames, frames * 10 * kMicrosecond).dense());
        // Writes that are put off hold more frames, and are no denser for it.
        CHECK(!after(fresh, now, frames, frames * 100 * kMicrosecond).dense());
    }
    // A burst is over when it is over, and a pause of hours is no longer than one of milliseconds.
    Traffic traffic = after(fresh, now, 64, 10 * kMicrosecond);
    CHECK(!after(traffic, now, 1, 100 * kMicrosecond).dense());
    traffic.wrote(1, now += 3600 * kSecond);
    CHECK(after(traffic, now, 1, 10 * kMicrosecond).dense());
}

// --- messages ----------------------------------------------------------------------------------------

TEST("several threads' messages arrive once, whole and in order, over every transport") {
    for (const std::string scheme : {"tcp", "tcp6", "unix", "inproc"}) {
        Ledger ledger;
        auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
        Handler handler(*b, kKind, ledger.on_message());
        a->add_peer(2, b->address());
        const std::uint64_t each = check::count(8'000, 1'000'000);
        std::vector<std::thread> producers;
        for (std::uint32_t t = 0; t < 4; ++t) producers.emplace_back([&, t] { produce(*a, 2, t, each, 300); });
        join(producers);
        CHECK_OK(flush(*a));
        CHECK_EQUAL(ledger.total(), 4 * each);
        const PeerStatistics out = about(*a, 2).value(), in = about(*b, 1).value();
        CHECK_EQUAL(out.messages_out, 4 * each);
        CHECK_EQUAL(in.messages_in, 4 * each);
        CHECK_EQUAL(out.bytes_out, in.bytes_in);
        CHECK_EQUAL(out.connects, 1);
        check_at_rest(*b);
        CHECK(a->close(kSecond));
        CHECK(b->close(kSecond));
    }
}

TEST("three nodes that all send to all lose nothing") {
    for (const std::string& scheme : kSchemes) {
        std::vector<std::unique_ptr<Node>> nodes;
        std::vector<std::unique_ptr<Ledger>> ledgers;
        std::vector<std::unique_ptr<Handler>> handlers;
        for (std::uint16_t id = 1; id <= 3; ++id) {
            nodes.push_back(make_node(options(id, scheme)));
            ledgers.push_back(std::make_unique<Ledger>());
            handlers.push_back(std::make_unique<Handler>(*nodes.back(), kKind, ledgers.back()->on_message()));
        }
        for (auto& a : nodes) {
            for (auto& b : nodes) a->add_peer(b->id(), b->address());
        }
        const std::uint64_t each = check::count(10'000, 500'000);
        std::vector<std::thread> producers;
        for (auto& from : nodes) {
            for (auto& to : nodes) {
                producers.emplace_back([&, t = static_cast<std::uint32_t>(producers.size())] {
                    produce(*from, to->id(), t, each, 200);  // to itself, too
                });
            }
        }
        join(producers);
        for (auto& node : nodes) CHECK_OK(flush(*node));
        for (const auto& ledger : ledgers) CHECK_EQUAL(ledger->total(), 3 * each);
        for (auto& node : nodes) check_at_rest(*node);
        for (auto& node : nodes) CHECK(node->close(kSecond));
    }
}

TEST("messages of every size around the limits of frame, window and ring arrive whole") {
    NodeOptions small = options(1), other = options(2);
    for (NodeOptions* o : {&small, &other}) {
        o->ring_bytes = 64 << 10;
        o->flow_window_bytes = 64 << 10;
        o->receive_bytes = 1 << 20;
        o->max_message_bytes = 8 << 20;
        o->large_message_bytes = 8 << 20;
    }
    auto a = make_node(small), b = make_node(other);
    Ledger ledger;
    Handler handler(*b, kKind, ledger.on_message(), 1000);
    a->add_peer(2, b->address());
    std::vector<std::size_t> sizes;
    for (const std::size_t around : {std::size_t{16} << 10, std::size_t{64} << 10, std::size_t{128} << 10}) {
        for (int off : {-21, -13, -12, -11, -1, 0, 1, 12}) sizes.push_back(static_cast<std::size_t>(static_cast<int>(around) + off));
    }
    sizes.push_back(5'000'000);
    sizes.push_back(8 << 20);
    std::uint64_t sequence = 0;
    for (const std::size_t size : sizes) {
        CHECK_OK(send(*a, 2, kKind, stamped(0, sequence++, size)));
        CHECK_OK(send(*a, 2, kKind, stamped(0, sequence++, 20)));  // behind the large one
    }
    CHECK_EQUAL(static_cast<int>(send(*a, 2, kKind, stamped(0, sequence, (8 << 20) + 1)).code), static_cast<int>(Code::too_large));
    CHECK_OK(flush(*a));
    CHECK_EQUAL(ledger.total(), sequence);
    CHECK(about(*a, 2)->large_out > 10);
    check_at_rest(*b);
}

TEST("large and small messages of several threads share a connection") {
    NodeOptions small = options(1), other = options(2);
    for (NodeOptions* o : {&small, &other}) {
        o->ring_bytes = 256 << 10;
        o->flow_window_bytes = 256 << 10;
        o->large_message_bytes = 4 << 20;  // less than the threads want at once: some wait
        o->max_message_bytes = 3 << 20;
    }
    auto a = make_node(small), b = make_node(other);
    Ledger ledger;
    Handler handler(*b, kKind, ledger.on_message());
    a->add_peer(2, b->address());
    const std::uint64_t each = check::count(60, 2'000);
    std::vector<std::thread> producers;
    for (std::uint32_t t = 0; t < 4; ++t) {
        producers.emplace_back([&, t] {
            auto random = check::random(t);
            for (std::uint64_t i = 0; i < each; ++i) {
                const bool large = check::below(random, 3) == 0;
                const std::size_t size = large ? check::below(random, 3 << 20) : check::below(random, 1000);
                CHECK_OK(send(*a, 2, kKind, stamped(t, i, size)));
            }
        });
    }
    join(producers);
    CHECK_OK(flush(*a));
    CHECK_EQUAL(ledger.total(), 4 * each);
    check_at_rest(*b);
}

TEST("a kind without a handler is skipped and counted, and its neighbours arrive") {
    Ledger ledger;
    auto a = make_node(options(1)), b = make_node(options(2));
    Handler handler(*b, kKind, ledger.on_message());
    a->add_peer(2, b->address());
    for (std::uint64_t i = 0; i < 3000; ++i) {
        CHECK_OK(send(*a, 2, kKind + 1, std::string(500, 'x')));
        CHECK_OK(send(*a, 2, kKind, stamped(0, i, 40)));
    }
    CHECK_OK(send(*a, 2, kKind + 1, std::string(3 << 20, 'x')));
    CHECK_OK(flush(*a));
    CHECK_EQUAL(ledger.total(), 3000);
    CHECK_EQUAL(b->counters().unknown_kind, 3001);
    check_at_rest(*b);
}

TEST("drop policies lose at the receiver, count it, and never make the sender wait") {
    for (const WhenFull when_full : {WhenFull::drop_newest, WhenFull::drop_oldest}) {
        auto a = make_node(options(1)), b = make_node(options(2));
        std::atomic<bool> slow{true};
        Ledger ledger(Ledger::Gaps::allowed);
        Handler handler(
            *b, kKind,
            [&](std::uint16_t source, const char* data, std::size_t size) {
                if (slow.load()) std::this_thread::sleep_for(std::chrono::microseconds(300));
                ledger.take(source, data, size);
            },
            64, when_full);
        a->add_peer(2, b->address());
        const std::uint64_t messages = check::count(100'000, 1'000'000);
        produce(*a, 2, 0, messages, 100);
        slow.store(false);
        CHECK_OK(flush(*a));
        CHECK(handler.queue().dropped() != 0);
        CHECK_EQUAL(ledger.total() + handler.queue().dropped(), messages);
        check_at_rest(*b);
    }
}

TEST("a pool of few buffers slows a receiver down and loses nothing") {
    // One buffer for one sender, and fewer than senders for several.
    const std::vector<std::pair<std::uint16_t, decltype(NodeOptions::buffer_pool)>> courses{
        {1, {{4096, 1}}}, {1, {{4096, 2}, {16384, 1}}}, {4, {{4096, 3}, {16384, 2}}}, {6, {{16384, 3}}}};
    for (const auto& [count, pool] : courses) {
        NodeOptions tight = options(9);
        tight.buffer_pool = pool;
        auto hub = make_node(tight);
        Ledger ledger;
        Handler handler(*hub, kKind, [&](std::uint16_t source, const char* data, std::size_t size) {
            if (ledger.total() % 500 == 0) std::this_thread::sleep_for(std::chrono::microseconds(500));
            ledger.take(source, data, size);
        });
        const std::uint64_t each = check::count(10'000, 300'000);
        std::vector<std::unique_ptr<Node>> senders;
        for (std::uint16_t id = 1; id <= count; ++id) {
            senders.push_back(make_node(options(id)));
            senders.back()->add_peer(9, hub->address());
        }
        std::vector<std::thread> producers;
        for (auto& sender : senders) {
            producers.emplace_back([&] { produce(*sender, 9, sender->id(), each, 700); });
        }
        join(producers);
        for (auto& sender : senders) CHECK_OK(flush(*sender));
        CHECK_EQUAL(ledger.total(), count * each);
        check_at_rest(*hub);
    }
}

TEST("channels that are quiet hold no receive buffer") {
    // They let go with the next sign of life, at the latest.
    NodeOptions left = options(1), right = options(2);
    left.heartbeat = right.heartbeat = check::patience(100 * kMillisecond);
    auto a = make_node(left), b = make_node(right);
    Ledger ledger;
    Handler handler(*b, kKind, ledger.on_message());
    a->add_peer(2, b->address());
    for (std::uint64_t i = 0; i < 5000; ++i) CHECK_OK(send(*a, 2, kKind, stamped(0, i, 300)));
    CHECK_OK(flush(*a));
    CHECK(check::soon([&] { return b->counters().buffers_out == 0; }, 5 * kSecond));
    CHECK_EQUAL(b->counters().pinned, 0);
    CHECK_EQUAL(about(*a, 2)->losses, 0);
}

// --- flush -------------------------------------------------------------------------------------------

TEST("flush returns when everything before it is handled, and not before") {
    auto a = make_node(options(1)), b = make_node(options(2));
    std::atomic<std::uint64_t> handled{0};
    auto slowly = [&](std::uint16_t, const char*, std::size_t) {
        if (handled.fetch_add(1) % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    };
    Handler first(*b, kKind, slowly), second(*b, kKind + 1, slowly), third(*b, kKind + 2, slowly, 16);
    a->add_peer(2, b->address());
    auto random = check::random(5);
    std::uint64_t sent = 0;
    for (std::uint64_t round = 0; round < check::count(300, 10'000); ++round) {
        for (std::uint64_t i = check::below(random, 40); i != 0; --i, ++sent) {
            const auto kind = static_cast<std::uint16_t>(kKind + check::below(random, 3));
            CHECK_OK(send(*a, 2, kind, std::string(check::below(random, 3000), 'x')));
        }
        CHECK_OK(flush(*a));
        CHECK_EQUAL(handled.load(), sent);
    }
}

TEST("several threads that send and flush each find their own messages handled") {
    auto a = make_node(options(1)), b = make_node(options(2));
    Ledger ledger;
    Handler handler(*b, kKind, ledger.on_message());
    a->add_peer(2, b->address());
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            std::uint64_t sequence = 0;
            for (std::uint64_t round = 0; round < check::count(300, 10'000); ++round) {
                for (int i = 0; i < 5; ++i) CHECK_OK(send(*a, 2, kKind, stamped(t, sequence++, 50)));
                CHECK_OK(flush(*a, 2));
                CHECK_EQUAL(ledger.next(1, t), sequence);
            }
        });
    }
    join(threads);
}

TEST("flush returns although the inbox is not asked again after the last message") {
    auto a = make_node(options(1)), b = make_node(options(2));
    Pull inbox(*b, kKind);
    a->add_peer(2, b->address());
    // The reader takes exactly what was sent, then goes and does something else.
    std::atomic<std::uint64_t> wanted{0}, taken{0};
    std::atomic<bool> ends{false};
    std::thread reader([&] {
        while (!ends.load()) {
            if (taken.load() == wanted.load()) {
                std::this_thread::yield();
                continue;
            }
            CHECK(inbox.take(check::patience(20 * kSecond)).has_value());
            taken.fetch_add(1);
        }
    });
    for (std::uint64_t round = 0; round < check::count(4'000, 200'000); ++round) {
        wanted.fetch_add(1);
        CHECK_OK(send(*a, 2, kKind, "x"));
        CHECK_OK(flush(*a, 2, 5 * kSecond));
    }
    ends.store(true);
    reader.join();
}

TEST("flush covers messages that were sent before their kind was announced") {
    // The handler is registered while messages of its kind are on their way: those that find it there
    // are handled by it, and count for a flush like any others.
    for (std::uint64_t round = 0; round < check::count(100, 3'000); ++round) {
        auto a = make_node(options(1, "inproc")), b = make_node(options(2, "inproc"));
        a->add_peer(2, b->address());
        CHECK_OK(send(*a, 2, kKind + 1, "opens the connection"));
        std::atomic<std::uint64_t> handled{0}, sent{0};
        std::thread producer([&] {
            for (int i = 0; i < 400; ++i) {
                CHECK_OK(send(*a, 2, kKind, std::string(200, 'x')));
                sent.fetch_add(1);
            }
        });
        while (sent.load() < round % 50) std::this_thread::yield();
        Handler handler(*b, kKind, [&](std::uint16_t, const char*, std::size_t) {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
            handled.fetch_add(1);
        });
        producer.join();
        CHECK_OK(flush(*a));
        CHECK_EQUAL(handled.load() + b->counters().unknown_kind, 401);
    }
}

// --- credit ------------------------------------------------------------------------------------------

TEST("no more is under way than the window, and no more waits than the capacity") {
    for (const std::uint64_t capacity : {1ull, 7ull, 100ull, 4096ull, 1000000ull}) {
        NodeOptions receiving = options(2);
        receiving.flow_window_bytes = 128 << 10;
        receiving.receive_bytes = 1 << 20;
        auto a = make_node(options(1)), b = make_node(receiving);
        Ledger ledger;
        std::atomic<std::uint64_t> most_pending{0}, most_bytes{0};
        Handler* self = nullptr;
        Handler handler(
            *b, kKind,
            [&](std::uint16_t source, const char* data, std::size_t size) {
                most_pending.store(std::max(most_pending.load(), self->queue().pending()));
                most_bytes.store(std::max(most_bytes.load(), self->queue().pending_bytes()));
                ledger.take(source, data, size);
            },
            capacity);
        self = &handler;
        a->add_peer(2, b->address());
        std::atomic<bool> ends{false};
        std::uint64_t looked = 0, most_in_flight = 0;
        std::thread watcher([&] {
            while (!ends.load()) {
                const auto statistics = about(*a, 2);
                if (!statistics) continue;
                for (const FlowStatistics& flow : statistics->flows_out) {
                    if (flow.kind != kKind) continue;
                    ++looked;
                    most_in_flight = std::max<std::uint64_t>(most_in_flight, flow.in_flight);
                    if (flow.window != 0) CHECK(flow.in_flight <= flow.window);
                    CHECK(flow.window <= 128 << 10);
                }
                CHECK(statistics->ring_used <= statistics->ring_bytes);
                CHECK(b->counters().granted <= 1 << 20);
                std::this_thread::sleep_for(std::chrono::microseconds(300));
            }
        });
        const std::uint64_t each = capacity < 100 ? check::count(2'000, 50'000) : check::count(20'000, 500'000);
        std::vector<std::thread> producers;
        for (std::uint32_t t = 0; t < 3; ++t) producers.emplace_back([&, t] { produce(*a, 2, t, each, 400); });
        join(producers);
        CHECK_OK(flush(*a));
        ends.store(true);
        watcher.join();
        CHECK_EQUAL(ledger.total(), 3 * each);
        CHECK(looked != 0);
        CHECK(most_pending.load() <= capacity);
        CHECK(most_bytes.load() <= 128 << 10);
    }
}

TEST("a sender of a stalled handler is stopped by its window, its neighbour on the same node is not") {
    auto a = make_node(options(1)), b = make_node(options(2));
    Pull stalled(*b, kKind, 100);
    Ledger ledger;
    Handler busy(*b, kKind + 1, ledger.on_message());
    a->add_peer(2, b->address());
    CHECK_OK(send(*a, 2, kKind, std::string(50, 'x')));  // opens the connection
    std::uint64_t went = 1;
    for (;; ++went) {
        const Outcome outcome = send(*a, 2, kKind, std::string(50, 'x'), 50 * kMillisecond);
        if (outcome.ok()) continue;
        CHECK_EQUAL(static_cast<int>(outcome.code), static_cast<int>(Code::timeout));
        break;
    }
    // The window is divided by the capacity and rounded, so it may be a little less, never more.
    CHECK(went <= 100 && went >= 98);
    const std::uint64_t messages = check::count(50'000, 1'000'000);
    for (std::uint64_t i = 0; i < messages; ++i) CHECK_OK(send(*a, 2, kKind + 1, stamped(0, i, 64)));
    CHECK(check::soon([&] { return ledger.total() == messages; }));
    // And once the inbox is read, it goes on where it stopped.
    for (std::uint64_t i = 0; i < went; ++i) CHECK(stalled.take(check::patience(5 * kSecond)).has_value());
    CHECK_OK(send(*a, 2, kKind, "x"));
    CHECK(stalled.take(check::patience(5 * kSecond)).has_value());
    CHECK_OK(flush(*a));
}

TEST("a first message larger than the sender's share of the window goes, too") {
    // Six senders divide the window; before it knows its share, each has a message that the whole
    // window would take as one frame, and its share does not.
    NodeOptions receiving = options(9);
    receiving.flow_window_bytes = 256 << 10;
    receiving.receive_bytes = 256 << 10;
    auto hub = make_node(receiving);
    Ledger ledger;
    Handler handler(*hub, kKind, ledger.on_message());
    std::vector<std::unique_ptr<Node>> senders;
    std::vector<std::thread> producers;
    for (std::uint16_t id = 1; id <= 6; ++id) {
        senders.push_back(make_node(options(id)));
        senders.back()->add_peer(9, hub->address());
    }
    for (auto& sender : senders) {
        producers.emplace_back([&] {
            for (std::uint64_t i = 0; i < 20; ++i) {
                CHECK_OK(send(*sender, 9, kKind, stamped(0, i, 60'000), check::patience(5 * kSecond)));
            }
        });
    }
    join(producers);
    for (auto& sender : senders) CHECK_OK(flush(*sender));
    CHECK_EQUAL(ledger.total(), 6 * 20);
}

TEST("a first batch of more messages than the handler's capacity goes in parts") {
    NodeOptions receiving = options(2);
    auto a = make_node(options(1)), b = make_node(receiving);
    Ledger ledger;
    Handler handler(*b, kKind, ledger.on_message(), 100);
    a->add_peer(2, b->address());
    std::vector<std::string> texts;
    std::vector<Message> spans;
    for (std::uint64_t i = 0; i < 5000; ++i) texts.push_back(stamped(0, i, 32));
    for (const std::string& text : texts) spans.push_back({text.data(), text.size()});
    std::size_t sent;
    CHECK_OK(send_many(*a, 2, kKind, spans, sent, check::patience(10 * kSecond)));
    CHECK_OK(flush(*a));
    CHECK_EQUAL(ledger.total(), 5000);
}

TEST("a sender that waits while others take parts of its window goes on") {
    NodeOptions receiving = options(9);
    receiving.flow_window_bytes = 256 << 10;
    receiving.receive_bytes = 256 << 10;
    for (std::uint64_t round = 0; round < check::count(5, 100); ++round) {
        auto hub = make_node(receiving);
        std::atomic<bool> stalls{true};
        Ledger ledger;
        Handler handler(*hub, kKind, [&](std::uint16_t source, const char* data, std::size_t size) {
            while (stalls.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            ledger.take(source, data, size);
        });
        std::vector<std::unique_ptr<Node>> senders;
        for (std::uint16_t id = 1; id <= 5; ++id) {
            senders.push_back(make_node(options(id)));
            senders.back()->add_peer(9, hub->address());
        }
        // The first fills the whole window with messages of nearly a quarter, and waits.
        std::vector<std::thread> producers;
        std::atomic<std::uint64_t> went{0};
        producers.emplace_back([&] {
            for (std::uint64_t i = 0; i < 12; ++i) {
                CHECK_OK(send(*senders[0], 9, kKind, stamped(0, i, 65'000), check::patience(8 * kSecond)));
                went.fetch_add(1);
            }
        });
        CHECK(check::soon([&] {
            const auto s = about(*senders[0], 9);
            return s && s->credit_waits >= 2 && went.load() >= 3;
        }));
        for (std::size_t s = 1; s < senders.size(); ++s) {
            producers.emplace_back([&, s] {
                for (std::uint64_t i = 0; i < 50; ++i) CHECK_OK(send(*senders[s], 9, kKind, stamped(0, i, 1000), check::patience(8 * kSecond)));
            });
        }
        CHECK(check::soon([&] {
            const auto s = about(*senders[0], 9);
            return s && !s->flows_out.empty() && s->flows_out[0].window < 256 << 10;
        }));
        stalls.store(false);
        join(producers);
        for (auto& sender : senders) CHECK_OK(flush(*sender));
        CHECK_EQUAL(ledger.total(), 12 + 4 * 50);
    }
}

TEST("many handlers with room for one message each are all sent to, though none is done") {
    NodeOptions receiving = options(2);
    receiving.heartbeat = check::patience(30 * kSecond);  // nobody gives a window back
    auto a = make_node(receiving);
    NodeOptions sending = options(1);
    sending.heartbeat = receiving.heartbeat;
    auto b = make_node(sending);
    std::vector<std::unique_ptr<Pull>> inboxes;
    for (std::uint16_t i = 0; i < 60; ++i) {
        inboxes.push_back(std::make_unique<Pull>(*a, static_cast<std::uint16_t>(kKind + i), 1));
    }
    b->add_peer(2, a->address());
    // The largest that goes in one piece, so that each has all of its window in use.
    const std::string whole((1 << 20) - kHeaderBytes, 'x');
    for (std::uint16_t i = 0; i < 60; ++i) {
        CHECK_OK(send(*b, 2, static_cast<std::uint16_t>(kKind + i), whole, check::patience(10 * kSecond)));
    }
    CHECK(a->counters().granted <= receiving.receive_bytes);
    CHECK_EQUAL(about(*b, 2)->large_out, 0);
    for (auto& inbox : inboxes) {
        CHECK(inbox->take(check::patience(10 * kSecond)) == whole);
        CHECK_EQUAL(inbox->queue().pending(), 0);
    }
}

TEST("an idle flow gives its window back, and gets one again with its next message") {
    NodeOptions fast = options(1), other = options(2);
    for (NodeOptions* o : {&fast, &other}) o->heartbeat = check::patience(100 * kMillisecond);
    auto a = make_node(fast), b = make_node(other);
    Ledger ledger;
    Handler handler(*b, kKind, ledger.on_message());
    a->add_peer(2, b->address());
    std::uint64_t sequence = 0;
    for (std::uint64_t round = 0; round < check::count(4, 100); ++round) {
        for (int i = 0; i < 10; ++i) CHECK_OK(send(*a, 2, kKind, stamped(0, sequence++, 64)));
        // On a slow machine it may have been given back before we look.
        CHECK(check::soon([&] {
            if (b->counters().granted != 0) return true;
            CHECK_OK(send(*a, 2, kKind, stamped(0, sequence++, 64)));
            return false;
        }));
        CHECK(check::soon([&] { return b->counters().granted == 0; }));
    }
    CHECK_OK(flush(*a));
    CHECK_EQUAL(ledger.total(), sequence);
    CHECK_EQUAL(about(*a, 2)->connects, 1);
}

// --- connections that end ------------------------------------------------------------------------------

TEST("messages to a peer that is removed and added again under load come in order, or not at all") {
    for (const std::string& scheme : kSchemes) {
        auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
        Ledger ledger(Ledger::Gaps::allowed);
        Handler handler(*b, kKind, ledger.on_message());
        a->add_peer(2, b->address());
        std::atomic<bool> ends{false};
        std::atomic<std::uint64_t> sent{0}, lost{0};
        std::vector<std::thread> producers;
        for (std::uint32_t t = 0; t < 3; ++t) {
            producers.emplace_back([&, t] {
                for (std::uint64_t i = 0; !ends.load(); ++i) {
                    const Outcome outcome = send(*a, 2, kKind, stamped(t, i, 100 + i % 400));
                    if (outcome.ok()) {
                        sent.fetch_add(1);
                    } else {
                        CHECK_SAYS(is_loss(outcome), explain(outcome));
                        lost.fetch_add(1);
                    }
                }
            });
        }
        const std::uint64_t rounds = check::count(40, 1'000);
        for (std::uint64_t round = 0; round < rounds; ++round) {
            const std::uint64_t before = ledger.total();
            CHECK(check::soon([&] { return ledger.total() > before + 100 && about(*a, 2)->sending; }));
            const std::uint64_t losses = about(*a, 2)->losses;
            CHECK(a->remove_peer(2));
            a->add_peer(2, b->address());
            CHECK(check::soon([&] { return about(*a, 2)->losses > losses; }));
        }
        ends.store(true);
        join(producers);
        CHECK_OK(send(*a, 2, kKind, stamped(9, 0, 100)));
        CHECK_OK(flush(*a));
        CHECK_EQUAL(ledger.next(1, 9), 1);
        CHECK(ledger.total() <= sent.load() + 1);
        const PeerStatistics s = about(*a, 2).value();
        CHECK(s.losses >= rounds);
        // What was lost is not more than what the statistics admit.
        CHECK(sent.load() + 1 - ledger.total() <= s.unconfirmed_messages);
        check_at_rest(*b);
        CHECK(a->close(kSecond));
        CHECK(b->close(kSecond));
    }
}

TEST("removing a peer wakes whoever waits for its connection, or finds it again") {
    // Somebody listens there, and never says a word.
    const int silent = socket(AF_UNIX, SOCK_STREAM, 0);
    const std::string address = fresh_address("unix");
    const Endpoint endpoint = Endpoint::unix_path(address.substr(7));
    CHECK_EQUAL(bind(silent, reinterpret_cast<const sockaddr*>(&endpoint.storage), endpoint.length), 0);
    CHECK_EQUAL(listen(silent, 8), 0);
    auto a = make_node(options(1)), b = make_node(options(2));
    Ledger ledger;
    Handler handler(*b, kKind, ledger.on_message());
    for (const bool again : {false, true}) {
        a->add_peer(2, address);
        const Nanos began = now_ns();
        std::thread sender([&] {
            const Outcome outcome = send(*a, 2, kKind, stamped(again, 0, 64));
            // Found again at its new address, or told that it is gone: either is an answer.
            if (!outcome.ok()) CHECK_SAYS(outcome.code == Code::unreachable, explain(outcome));
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        CHECK(a->remove_peer(2));
        if (again) a->add_peer(2, b->address());
        sender.join();
        CHECK(now_ns() - began < check::patience(15 * kSecond));
    }
    close(silent);
    unlink(address.c_str() + 7);
}

// A node of its own making on a bare socket: says who it is, and the rest when it is told to.
class Stranger {
   public:
    Stranger(const std::string& unix_address, std::uint16_t id) : socket_(socket(AF_UNIX, SOCK_STREAM, 0)) {
        const Endpoint endpoint = Endpoint::unix_path(unix_address.substr(7));
        CHECK_EQUAL(connect(socket_, reinterpret_cast<const sockaddr*>(&endpoint.storage), endpoint.length), 0);
        const timeval patience{check::patience(20 * kSecond) / kSecond, 0};
        CHECK_EQUAL(setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
        Hello hello;
        hello.version_min = kVersionMin;
        hello.version_max = kVersionMax;
        hello.id = id;
        hello.incarnation = random_u64();
        hello.nonce = random_bytes(kNonceBytes);
        hello.max_message = 1 << 20;
        hello.max_frame = 1 << 20;
        hello.address = fresh_address("unix");  // where nobody is
        say(Control::hello, hello.encode());
        hear(Control::reply);
    }
    ~Stranger() { ::close(socket_); }
    Stranger(const Stranger&) = delete;

    void say(Control kind, std::string_view payload, std::uint32_t flow = 0) {
        std::string frame;
        append_frame(frame, kind, payload, flow);
        put(frame);
    }
    void put(std::string_view bytes) {
        CHECK_EQUAL(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    // Reads up to the next frame of this kind; what comes before it is passed over. Its flow and payload.
    std::pair<std::uint32_t, std::string> hear(Control kind) {
        for (;;) {
            const std::string bytes = read(kHeaderBytes);
            const Header header = load_header(bytes.data());
            std::string payload = read(header.length);
            if (header.kind == static_cast<std::uint16_t>(kind)) return {header.flow, std::move(payload)};
        }
    }

   private:
    std::string read(std::size_t size) {
        std::string bytes(size, 0);
        if (size != 0) CHECK_EQUAL(recv(socket_, bytes.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
        return bytes;
    }
    const int socket_;
};

TEST("a peer that connects in the moment in which it is removed does not bring back whoever waits for it") {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint16_t entered = 0;
    bool goes_on = false;
    auto a = make_node(options(1, "unix"), false);
    // The selector stands still when it tells of node 8 and of node 3, until it may go on.
    a->set_on_event([&](const Event& event) {
        if (event.type != Event::Type::connected || (event.peer != 8 && event.peer != 3)) return;
        std::unique_lock lock(mutex);
        entered = event.peer;
        changed.notify_all();
        changed.wait(lock, [&] { return goes_on; });
        goes_on = false;
    });
    const auto stands_at = [&](std::uint16_t peer) {
        std::unique_lock lock(mutex);
        CHECK(changed.wait_for(lock, std::chrono::seconds(20), [&] { return entered == peer; }));
    };
    const auto go_on = [&] {
        std::lock_guard lock(mutex);
        goes_on = true;
        changed.notify_all();
    };
    a->start();
    a->add_peer(2, fresh_address("unix"));  // nobody is there
    Outcome outcome;
    std::thread sender([&] { outcome = send(*a, 2, kKind, "x"); });
    Stranger first(a->address(), 8), second(a->address(), 3), removed(a->address(), 2);
    CHECK(check::soon([&] { return a->find_peer(2)->waiters.load() != 0; }));
    first.say(Control::confirm, {});
    stands_at(8);
    // Both are read in one turn of the selector, in this order, and between them node 2 is removed.
    second.say(Control::confirm, {});
    removed.say(Control::confirm, {});
    go_on();
    stands_at(3);
    CHECK(a->remove_peer(2));
    go_on();
    sender.join();
    CHECK_EQUAL(outcome.code, Code::unreachable);
    CHECK_EQUAL(outcome.text, "the peer was removed");
    // And it is not known any more until it connects by itself.
    CHECK(!a->remove_peer(2));
    CHECK(a->close(kSecond));
}

TEST("a large message whose last part comes when its receiver closes is not taken in") {
    NodeOptions narrow = options(1, "unix");
    narrow.flow_window_bytes = 16 << 10;  // and one message is a unit of credit
    narrow.flow_threshold = 0.0001;
    auto a = make_node(narrow);
    std::atomic<bool> stands{false}, ends{false};
    std::atomic<int> handled{0};
    Handler busy(*a, kKind, [&](std::uint16_t, const char*, std::size_t) {
        stands.store(true);
        while (!ends.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    Handler handler(*a, kKind + 1, [&](std::uint16_t, const char*, std::size_t) { handled.fetch_add(1); });
    Stranger sender(a->address(), 2);
    sender.say(Control::confirm, {});
    std::map<std::uint16_t, std::uint32_t> flows;
    while (flows.size() < 2) {
        const auto [flow, payload] = sender.hear(Control::announce);
        flows[ByteReader(payload).get<std::uint16_t>()] = flow;
    }
    for (const auto& [kind, flow] : flows) {
        sender.say(Control::open, {}, flow);
        while (sender.hear(Control::window).first != flow) {
        }
    }
    const auto frame = [](std::uint16_t kind, std::uint16_t flags, std::uint32_t flow, std::string_view payload) {
        const Header header{static_cast<std::uint32_t>(payload.size()), kind, flags, flow};
        return std::string(reinterpret_cast<const char*>(&header), kHeaderBytes).append(payload);
    };
    const auto part = [&](std::uint64_t id, bool last) {
        return frame(kKind + 1, static_cast<std::uint16_t>(kFragment | (last ? kLast : 0)), flows[kKind + 1],
                     ByteWriter().put(id).raw(std::string(1000, 'x')).bytes());
    };
    for (std::uint64_t id = 1; id <= 2; ++id) {
        sender.say(Control::reserve, ByteWriter().put(id).put(std::uint64_t{2000}).put(std::uint16_t{kKind + 1}).bytes(),
                   flows[kKind + 1]);
        sender.hear(Control::reserved);
        sender.put(part(id, false));
    }
    sender.put(part(1, true));
    CHECK_EQUAL(sender.hear(Control::credit).first, flows[kKind + 1]);
    CHECK_EQUAL(handled.load(), 1);
    sender.put(frame(kKind, 0, flows[kKind], "x"));
    CHECK(check::soon([&] { return stands.load(); }));
    std::thread closer([&] { CHECK(a->close(check::patience(10 * kSecond))); });
    CHECK(check::soon([&] { return a->try_message(*a->find_peer(2), kKind, {"x", 1}).status == Status::closed; }));
    sender.put(part(2, true));
    CHECK(check::soon([&] { return a->counters().large_in_use == 0; }));  // and its memory is free
    ends.store(true);
    closer.join();
    CHECK_EQUAL(handled.load(), 1);
    CHECK_EQUAL(about(*a, 2)->messages_in, 2);
}

TEST("sessions that come and go from both ends under load leave a connection that works") {
    for (const std::string& scheme : kSchemes) {
        NodeOptions left = options(1, scheme), right = options(2, scheme);
        for (NodeOptions* o : {&left, &right}) {
            o->flow_window_bytes = 64 << 10;  // small, so that credit goes back and forth all the time
            o->ring_bytes = 64 << 10;
        }
        auto a = make_node(left), b = make_node(right);
        Ledger at_a(Ledger::Gaps::allowed), at_b(Ledger::Gaps::allowed);
        Handler handler_a(*a, kKind, at_a.on_message()), handler_b(*b, kKind, at_b.on_message());
        introduce(*a, *b);
        std::atomic<bool> ends{false};
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                Node& from = t % 2 == 0 ? *a : *b;
                const auto to = static_cast<std::uint16_t>(t % 2 == 0 ? 2 : 1);
                auto random = check::random(t);
                for (std::uint64_t i = 0; !ends.load(); ++i) {
                    const std::size_t size = check::below(random, 100) == 0 ? 100'000 : check::below(random, 500);
                    const Nanos began = now_ns();
                    const Outcome outcome = send(from, to, kKind, stamped(t, i, size));
                    if (!outcome.ok()) CHECK_SAYS(is_loss(outcome), explain(outcome));
                    CHECK_SAYS(now_ns() - began < check::patience(15 * kSecond), explain(outcome));
                }
            });
        }
        auto random = check::random(77);
        const std::uint64_t rounds = check::count(150, 5'000);
        for (std::uint64_t round = 0; round < rounds; ++round) {
            std::this_thread::sleep_for(std::chrono::microseconds(check::below(random, 8000)));
            if (check::below(random, 2) == 0) {
                a->remove_peer(2);
                a->add_peer(2, b->address());
            } else {
                b->remove_peer(1);
                b->add_peer(1, a->address());
            }
        }
        ends.store(true);
        join(threads);
        // Now it is quiet: several windows' worth must go both ways, or credit was lost on the way. No
        // flush before, which would have all credit given back. The last removal may still be under
        // way and take the first attempt with it.
        const auto carries = [&](Node& from, std::uint16_t to, Ledger& ledger, std::uint32_t stream) {
            for (std::uint64_t i = 0; i < 2000; ++i) {
                if (!send(from, to, kKind, stamped(stream, i, 200)).ok()) return false;
            }
            return check::soon([&] { return ledger.next(from.id(), stream) == 2000; }, 2 * kSecond);
        };
        std::uint32_t stream = 10;
        CHECK(check::soon([&] { return carries(*a, 2, at_b, ++stream) && carries(*b, 1, at_a, stream); }));
        CHECK_OK(flush(*a));
        CHECK_OK(flush(*b));
        check_at_rest(*a);
        check_at_rest(*b);
        CHECK(a->close(kSecond));
        CHECK(b->close(kSecond));
    }
}

TEST("a receiver that closes under load ends its senders' calls, and leaves other connections alone") {
    for (const std::string& scheme : kSchemes) {
        NodeOptions impatient = options(1, scheme);
        impatient.connect_timeout = 200 * kMillisecond;
        auto a = make_node(impatient), b = make_node(options(2, scheme)), c = make_node(options(3, scheme));
        Ledger doomed(Ledger::Gaps::allowed), steady;
        Handler handler_b(*b, kKind, doomed.on_message()), handler_c(*c, kKind, steady.on_message());
        a->add_peer(2, b->address());
        a->add_peer(3, c->address());
        std::atomic<bool> closed{false};
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < 2; ++t) {
            threads.emplace_back([&, t] {
                for (std::uint64_t i = 0;; ++i) {
                    const Outcome outcome = send(*a, 2, kKind, stamped(t, i, 300));
                    if (outcome.ok()) continue;
                    CHECK_SAYS(outcome.code == Code::unreachable, explain(outcome));
                    if (closed.load()) break;
                }
            });
        }
        const std::uint64_t each = check::count(20'000, 500'000);
        for (std::uint32_t t = 10; t < 12; ++t) threads.emplace_back([&, t] { produce(*a, 3, t, each, 300); });
        CHECK(check::soon([&] { return doomed.total() > 1000; }));
        handler_b.close();
        CHECK(b->close(0));
        closed.store(true);
        join(threads);
        CHECK_OK(flush(*a, 3));
        CHECK_EQUAL(steady.total(), 2 * each);
        CHECK_EQUAL(about(*a, 3)->losses, 0);
        CHECK(about(*a, 2)->losses >= 1);
    }
}

TEST("a sender that closes delivers what it has accepted") {
    for (const std::string& scheme : kSchemes) {
        for (std::uint64_t round = 0; round < check::count(8, 200); ++round) {
            // Nothing here may wait for the next heartbeat.
            NodeOptions left = options(1, scheme), right = options(2, scheme);
            left.heartbeat = right.heartbeat = 60 * kSecond;
            auto a = make_node(left), b = make_node(right);
            Ledger ledger;
            Handler handler(*b, kKind, ledger.on_message());
            a->add_peer(2, b->address());
            std::atomic<std::uint64_t> sent{0};
            std::vector<std::thread> threads;
            for (std::uint32_t t = 0; t < 3; ++t) {
                threads.emplace_back([&, t] {
                    for (std::uint64_t i = 0;; ++i) {
                        const Outcome outcome = send(*a, 2, kKind, stamped(t, i, 200));
                        if (!outcome.ok()) {
                            CHECK_SAYS(outcome.code == Code::closed, explain(outcome));
                            return;
                        }
                        sent.fetch_add(1);
                    }
                });
            }
            CHECK(check::soon([&] { return ledger.total() > 500; }));
            const Nanos began = now_ns();
            CHECK(a->close(check::patience(30 * kSecond)));
            CHECK(now_ns() - began < check::patience(15 * kSecond));
            join(threads);
            CHECK(check::soon([&] { return ledger.total() >= sent.load(); }, 5 * kSecond));
            CHECK_EQUAL(ledger.total(), sent.load());
        }
    }
}

TEST("nodes that close at once while they flood each other are both gone soon") {
    for (const std::string& scheme : kSchemes) {
        for (std::uint64_t round = 0; round < check::count(6, 200); ++round) {
            auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
            Ledger at_a(Ledger::Gaps::allowed), at_b(Ledger::Gaps::allowed);
            Handler handler_a(*a, kKind, at_a.on_message()), handler_b(*b, kKind, at_b.on_message());
            introduce(*a, *b);
            std::vector<std::thread> threads;
            for (std::uint32_t t = 0; t < 2; ++t) {
                threads.emplace_back([&, t] {
                    Node& from = t == 0 ? *a : *b;
                    for (std::uint64_t i = 0;; ++i) {
                        const Outcome outcome = send(from, static_cast<std::uint16_t>(t == 0 ? 2 : 1), kKind, stamped(t, i, 200));
                        if (outcome.code == Code::closed) return;
                    }
                });
            }
            CHECK(check::soon([&] { return at_a.total() > 100 && at_b.total() > 100; }));
            const Nanos began = now_ns();
            std::thread other([&] { CHECK(b->close(check::patience(2 * kSecond))); });
            CHECK(a->close(check::patience(2 * kSecond)));
            other.join();
            CHECK(now_ns() - began < check::patience(15 * kSecond));
            join(threads);
        }
    }
}

TEST("closing wakes everyone who waits: for a connection, for credit, for the ring, for a flush") {
    NodeOptions waiting = options(1);
    waiting.ring_bytes = 64 << 10;
    auto a = make_node(waiting), b = make_node(options(2));
    Pull stalled(*b, kKind, 10);
    a->add_peer(2, b->address());
    a->add_peer(3, "tcp://127.0.0.1:1");
    std::atomic<int> woken{0};
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        CHECK(!send(*a, 3, kKind, "nobody listens there").ok());
        woken.fetch_add(1);
    });
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (;;) {
                const Outcome outcome = send(*a, 2, kKind, std::string(1000, 'x'));
                if (outcome.ok()) continue;
                CHECK_EQUAL(static_cast<int>(outcome.code), static_cast<int>(Code::closed));
                woken.fetch_add(1);
                return;
            }
        });
    }
    CHECK(check::soon([&] {
        const auto s = about(*a, 2);
        // The first waits may be for the window, with nothing sent that a flush could wait for.
        return s && s->credit_waits >= 3 && s->messages_out > 0;
    }));
    std::atomic<bool> asks{false};
    threads.emplace_back([&] {
        asks.store(true);
        CHECK_EQUAL(static_cast<int>(flush(*a, 2).code), static_cast<int>(Code::closed));
        woken.fetch_add(1);
    });
    CHECK(check::soon([&] { return asks.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until it waits
    CHECK_EQUAL(woken.load(), 0);
    const Nanos began = now_ns();
    CHECK(a->close(0));
    join(threads);
    CHECK(now_ns() - began < check::patience(15 * kSecond));
    CHECK_EQUAL(woken.load(), 5);
    CHECK_EQUAL(static_cast<int>(send(*a, 2, kKind, "x").code), static_cast<int>(Code::closed));
}

// --- connections that begin ------------------------------------------------------------------------------

TEST("both sides connect at once, again and again") {
    for (const std::string& scheme : kSchemes) {
        for (std::uint64_t round = 0; round < check::count(40, 1'000); ++round) {
            auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
            Ledger at_a, at_b;
            Handler handler_a(*a, kKind, at_a.on_message()), handler_b(*b, kKind, at_b.on_message());
            introduce(*a, *b);
            std::vector<std::thread> threads;
            std::atomic<int> ready{0};
            for (int side = 0; side < 2; ++side) {
                threads.emplace_back([&, side] {
                    ready.fetch_add(1);
                    while (ready.load() < 2) {
                    }
                    Node& from = side == 0 ? *a : *b;
                    for (std::uint64_t i = 0; i < 20; ++i) {
                        CHECK_OK(send(from, static_cast<std::uint16_t>(side == 0 ? 2 : 1), kKind, stamped(0, i, 30)));
                    }
                    CHECK_OK(flush(from));
                });
            }
            join(threads);
            CHECK_EQUAL(at_a.total(), 20);
            CHECK_EQUAL(at_b.total(), 20);
            CHECK_EQUAL(about(*a, 2)->connects, 1);
            CHECK_EQUAL(about(*b, 1)->connects, 1);
        }
    }
}

TEST("many nodes that connect to one at once are all served") {
    for (const std::string& scheme : kSchemes) {
        auto hub = make_node(options(1000, scheme));
        Ledger ledger;
        Handler handler(*hub, kKind, ledger.on_message());
        constexpr std::uint16_t kNodes = 40;
        std::vector<std::unique_ptr<Node>> nodes;
        for (std::uint16_t id = 1; id <= kNodes; ++id) {
            nodes.push_back(make_node(options(id, scheme)));
            nodes.back()->add_peer(1000, hub->address());
        }
        std::vector<std::thread> threads;
        for (std::size_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                for (std::size_t i = t; i < nodes.size(); i += 4) {
                    for (std::uint64_t m = 0; m < 50; ++m) CHECK_OK(send(*nodes[i], 1000, kKind, stamped(0, m, 64)));
                }
            });
        }
        join(threads);
        for (auto& node : nodes) CHECK_OK(flush(*node));
        CHECK_EQUAL(ledger.total(), 50 * kNodes);
        // And the way back, on which the hub dials.
        std::vector<std::unique_ptr<Handler>> handlers;
        std::atomic<std::uint64_t> back{0};
        for (auto& node : nodes) {
            handlers.push_back(std::make_unique<Handler>(*node, kKind, [&](std::uint16_t, const char*, std::size_t) { back.fetch_add(1); }));
        }
        for (std::uint16_t id = 1; id <= kNodes; ++id) CHECK_OK(send(*hub, id, kKind, "hello"));
        CHECK(check::soon([&] { return back.load() + [&] {
            std::uint64_t unknown = 0;
            for (auto& node : nodes) unknown += node->counters().unknown_kind;
            return unknown;
        }() == kNodes; }));
    }
}

TEST("a node without a listener is reached on the channel that it opens itself") {
    for (const std::string& scheme : kSchemes) {
        auto a = make_node(options(1, "")), b = make_node(options(2, scheme));
        Ledger at_a, at_b;
        Handler handler_a(*a, kKind, at_a.on_message()), handler_b(*b, kKind, at_b.on_message());
        a->add_peer(2, b->address());
        const std::uint64_t each = check::count(5'000, 200'000);
        CHECK_OK(send(*a, 2, kKind, stamped(0, 0, 64)));
        CHECK(check::soon([&] { return b->find_peer(1) != nullptr; }));
        std::vector<std::thread> threads;
        threads.emplace_back([&] {
            for (std::uint64_t i = 1; i < each; ++i) CHECK_OK(send(*a, 2, kKind, stamped(0, i, 64)));
        });
        threads.emplace_back([&] {
            for (std::uint64_t i = 0; i < each; ++i) CHECK_OK(send(*b, 1, kKind, stamped(0, i, 64)));
        });
        join(threads);
        CHECK_OK(flush(*a));
        CHECK_OK(flush(*b));
        CHECK_EQUAL(at_a.total(), each);
        CHECK_EQUAL(at_b.total(), each);
    }
}

TEST("an address where nobody listens is reported within the time, and a node that comes later is found") {
    NodeOptions impatient = options(1);
    impatient.connect_timeout = 300 * kMillisecond;
    auto a = make_node(impatient);
    const std::string address = fresh_address("unix");
    a->add_peer(2, address);
    const Nanos began = now_ns();
    const Outcome outcome = send(*a, 2, kKind, "x");
    CHECK_SAYS(outcome.code == Code::unreachable, explain(outcome));
    CHECK(now_ns() - began < check::patience(15 * kSecond));
    CHECK_EQUAL(outcome.address, address);
    NodeOptions late = options(2);
    late.listen = address;
    auto b = make_node(late);
    Ledger ledger;
    Handler handler(*b, kKind, ledger.on_message());
    CHECK_OK(send(*a, 2, kKind, stamped(0, 0, 20)));
    CHECK_OK(flush(*a));
    CHECK_EQUAL(ledger.total(), 1);
}

TEST("a restarted node is found again at its address, as another incarnation") {
    for (const std::string& scheme : kSchemes) {
        auto a = make_node(options(1, scheme));
        NodeOptions second = options(2, scheme);
        std::uint64_t before = 0;
        for (std::uint64_t round = 0; round < check::count(15, 300); ++round) {
            auto b = make_node(second);
            second.listen = b->address();  // the same port from now on
            a->add_peer(2, b->address());
            Ledger ledger;
            Handler handler(*b, kKind, ledger.on_message());
            // The first message may still go to the incarnation that is gone.
            CHECK(check::soon([&] { return send(*a, 2, kKind, stamped(0, 0, 20)).ok() && flush(*a, 2, kSecond).ok() && ledger.total() == 1; }));
            const std::uint64_t incarnation = about(*a, 2)->incarnation;
            CHECK(incarnation != before);
            CHECK_EQUAL(incarnation, b->incarnation());
            before = incarnation;
            handler.close();
            CHECK(b->close(0));
        }
    }
}

TEST("a secret is proven by both, or the connection is refused") {
    for (const std::string& scheme : kSchemes) {
        NodeOptions one = options(1, scheme), two = options(2, scheme), three = options(3, scheme), four = options(4, scheme);
        one.secret = two.secret = "one secret";
        three.secret = "another";
        auto a = make_node(one), b = make_node(two), c = make_node(three), d = make_node(four);
        Ledger ledger;
        Handler handler(*b, kKind, ledger.on_message());
        for (auto* node : {a.get(), c.get(), d.get()}) node->add_peer(2, b->address());
        CHECK_OK(send(*a, 2, kKind, stamped(0, 0, 20)));
        CHECK_OK(flush(*a));
        CHECK_EQUAL(static_cast<int>(send(*c, 2, kKind, "x").code), static_cast<int>(Code::authentication));
        CHECK_EQUAL(static_cast<int>(send(*d, 2, kKind, "x").code), static_cast<int>(Code::authentication));
        CHECK_EQUAL(ledger.total(), 1);
    }
}

// --- handlers and registrations --------------------------------------------------------------------------

TEST("handlers that come and go under load get whole messages in order, and are left alone afterwards") {
    auto a = make_node(options(1)), b = make_node(options(2));
    a->add_peer(2, b->address());
    std::atomic<bool> ends{false};
    std::vector<std::thread> producers;
    for (std::uint32_t t = 0; t < 2; ++t) {
        producers.emplace_back([&, t] {
            for (std::uint64_t i = 0; !ends.load(); ++i) CHECK_OK(send(*a, 2, kKind, stamped(t, i, 100)));
        });
    }
    auto random = check::random(3);
    std::uint64_t handled = 0, rounds_with_some = 0;
    const std::uint64_t rounds = check::count(400, 20'000);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        auto ledger = std::make_unique<Ledger>(Ledger::Gaps::allowed);
        auto handler = std::make_unique<Handler>(*b, kKind, ledger->on_message());
        if (round % 4 == 0) {
            // A handler that was registered is called, whenever its first message came.
            CHECK(check::soon([&] { return ledger->total() != 0; }));
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(check::below(random, 1000)));
        }
        handler.reset();
        handled += ledger->total();
        rounds_with_some += ledger->total() != 0;
        ledger.reset();  // the sanitizers see whoever comes too late
    }
    ends.store(true);
    join(producers);
    CHECK_OK(flush(*a));
    CHECK(handled != 0);
    CHECK(rounds_with_some >= rounds / 4);
    check_at_rest(*b);
}

TEST("handlers that flood each other end in time-outs at the worst, never in silence") {
    for (const std::string& scheme : kSchemes) {
        NodeOptions left = options(1, scheme), right = options(2, scheme);
        for (NodeOptions* o : {&left, &right}) {
            o->flow_window_bytes = 16 << 10;
            o->threads = 1;
        }
        auto a = make_node(left), b = make_node(right);
        std::atomic<std::uint64_t> calls{0}, sent{0}, timeouts{0};
        std::atomic<bool> ends{false};
        // Every message makes two: the windows fill, and both handlers wait for each other.
        auto echo = [&](Node& node, std::uint16_t to) {
            return [&, to](std::uint16_t, const char* data, std::size_t size) {
                calls.fetch_add(1);
                for (int i = 0; i < 2 && !ends.load(); ++i) {
                    const Outcome outcome = send(node, to, kKind, {data, size}, 10 * kMillisecond);
                    if (outcome.ok()) {
                        sent.fetch_add(1);
                    } else {
                        CHECK_SAYS(outcome.code == Code::timeout, explain(outcome));
                        timeouts.fetch_add(1);
                    }
                }
            };
        };
        Handler handler_a(*a, kKind, echo(*a, 2), 64), handler_b(*b, kKind, echo(*b, 1), 64);
        introduce(*a, *b);
        // Connected both ways before: to open a connection may take longer than a handler waits here.
        CHECK_OK(send(*a, 2, kKind + 1, "x"));
        CHECK_OK(send(*b, 1, kKind + 1, "x"));
        for (int i = 0; i < 10; ++i) {
            CHECK_OK(send(*a, 2, kKind, std::string(100, 'x')));
            sent.fetch_add(1);
        }
        CHECK(check::soon([&] { return timeouts.load() > 5; }));
        const std::uint64_t before = calls.load();
        CHECK(check::soon([&] { return calls.load() > before + 20; }));
        ends.store(true);
        CHECK(check::soon([&] { return calls.load() == sent.load(); }));
    }
}

TEST("a handler that sends to its own node and waits is helped by a spare") {
    NodeOptions alone = options(1);
    alone.threads = 1;
    auto node = make_node(alone);
    node->add_peer(1, node->address());
    std::atomic<std::uint64_t> first{0}, second{0};
    // The second kind takes one message at a time, so that the first kind's handler has to wait for
    // it on the only thread there is.
    Handler slow(*node, kKind + 1, [&](std::uint16_t, const char*, std::size_t) { second.fetch_add(1); }, 1);
    Handler handler(*node, kKind, [&](std::uint16_t, const char*, std::size_t) {
        for (int i = 0; i < 5; ++i) CHECK_OK(send(*node, 1, kKind + 1, "again"));
        first.fetch_add(1);
    });
    const std::uint64_t messages = check::count(200, 10'000);
    for (std::uint64_t i = 0; i < messages; ++i) CHECK_OK(send(*node, 1, kKind, "go"));
    CHECK(check::soon([&] { return first.load() == messages && second.load() == 5 * messages; }));
    CHECK(node->counters().threads >= 2);
}

// --- looking ---------------------------------------------------------------------------------------------

TEST("statistics can be asked for at any moment of a node's life") {
    auto a = make_node(options(1), false);
    CHECK(a->statistics().empty());
    a->start();
    auto b = make_node(options(2));
    Ledger ledger(Ledger::Gaps::allowed);
    Handler handler(*b, kKind, ledger.on_message());
    a->add_peer(2, b->address());
    std::atomic<bool> ends{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&] {
            std::uint64_t out = 0;
            while (!ends.load()) {
                for (const PeerStatistics& s : a->statistics()) {
                    CHECK(s.messages_out >= out);
                    out = s.messages_out;
                }
                a->counters();
                a->address();
            }
        });
    }
    threads.emplace_back([&] {
        for (std::uint64_t i = 0; send(*a, 2, kKind, stamped(0, i, 64)).code != Code::closed; ++i) {
        }
    });
    CHECK(check::soon([&] { return ledger.total() > 1000; }));
    a->remove_peer(2);
    a->add_peer(2, b->address());
    const std::uint64_t before = ledger.total();
    CHECK(check::soon([&] { return ledger.total() > before; }));
    CHECK(a->close(kSecond));
    ends.store(true);
    join(threads);
    CHECK(!a->statistics().empty());
}

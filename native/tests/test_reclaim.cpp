// What a node gives back: registrations that were removed, flows that nobody uses, pages of rings.
//
// Forbidden: a use of something that has gone (the sanitizers look), anything that grows with what has come and gone,
// a connection that ends because somebody sent to what is no more.
#include <fstream>
#include <thread>

#include "nodes.hpp"

using namespace antiphon;
using namespace antiphon::tests;

namespace {

NodeOptions brisk(std::uint16_t id) {
    NodeOptions made = options(id);
    made.heartbeat = check::patience(100 * kMillisecond);
    made.rest = 0;
    return made;
}

// A subscription, as far as a node knows of such: its flow is told by others.
class Told : public Task {
   public:
    explicit Told(Node& node) : node_(node) {
        registration_ = node.add_flow(kGroupKind, 64, 0, [this](const auto& made) {
            registration_ = made;
            made->queue->begin(slice_);
            made->queue->set_on_ready([this] { node_.scheduler().notify(*this); });
        });
    }
    ~Told() override {
        node_.remove_registration(registration_);
        registration_->queue->set_on_ready(nullptr);
        CHECK(node_.scheduler().forget(*this, kNever));
        registration_->queue->end(slice_);
    }
    bool run_slice(Nanos until) override {
        Run run;
        while (now_ns() < until && registration_->queue->pop(run, slice_)) {
            got.fetch_add(run.size());
            node_.finish(run);
            registration_->queue->done(slice_);
        }
        return !registration_->queue->empty();
    }
    std::uint32_t flow() const { return registration_->flow; }
    std::uint32_t least_charge() const { return registration_->least_charge; }

    std::atomic<std::uint64_t> got{0};

   private:
    Node& node_;
    TaskQueue::Slice slice_;
    std::shared_ptr<Registration> registration_;
};

std::size_t flows_to(Node& node, std::uint16_t id) {
    Peer& peer = *node.find_peer(id);
    std::lock_guard lock(peer.mutex);
    return peer.subscription_flows.size();
}

std::size_t flows_from(Node& node, std::uint16_t id) {
    Selector::Turn turn(node.selector());
    return node.find_peer(id)->in_flows.size();
}

// Shared memory of this process that is in use, in KiB: rings, and nothing else of this size.
std::uint64_t shared_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind("RssShmem:", 0) == 0) return std::stoull(line.substr(9));
    }
    return 0;
}

Outcome say(Node& node, Peer& peer, OutFlow& flow, std::string_view word) {
    Node::Sending sending{peer, now_ns() + node.options().send_timeout, now_ns()};
    for (;;) {
        const std::uint32_t session = peer.session.load();
        const Attempt attempt = session == 0 ? Attempt{Status::not_connected}
                                             : node.try_word(peer, flow, session, {word.data(), word.size()});
        if (attempt.status == Status::sent) return {};
        if (flow.withdrawn.load()) return failed(Code::closed);
        const Outcome outcome = node.wait(sending, attempt, nullptr);
        if (!outcome.ok()) return outcome;
    }
}

}  // namespace

TEST("handlers that come and go under load leave nothing behind") {
    auto a = make_node(brisk(1)), b = make_node(brisk(2));
    a->add_peer(2, b->address());
    Ledger ledger(Ledger::Gaps::allowed);
    std::atomic<bool> ends{false};
    std::thread producer([&] {
        for (std::uint64_t i = 0; !ends.load(); ++i) CHECK_OK(send(*a, 2, kKind, stamped(0, i, 100)));
    });
    auto random = check::random(3);
    const std::uint64_t rounds = check::count(2000, 20'000);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        Handler handler(*b, kKind, ledger.on_message());
        std::this_thread::sleep_for(std::chrono::microseconds(check::below(random, 500)));
    }
    ends.store(true);
    producer.join();
    CHECK_OK(flush(*a));
    CHECK(ledger.total() != 0);
    CHECK(check::soon([&] { return b->counters().registrations == 0; }));
    CHECK_EQUAL(flows_from(*b, 1), std::size_t{1});  // that of what nobody is registered for
    CHECK_EQUAL(b->statistics()[0].losses, std::uint64_t{0});
    CHECK(b->statistics()[0].messages_in >= ledger.total());  // what went by flows that are no more counts, too
}

TEST("a kind that is registered anew again and again costs a sender no more than so many flows") {
    auto a = make_node(brisk(1)), b = make_node(brisk(2));
    a->add_peer(2, b->address());
    CHECK_OK(send(*a, 2, kKind, "first"));
    // Nodes that do not rest discard what is sent by a flow of long ago, of which a sender that lags still makes use.
    const auto reach = [&](Pull& pull, const std::string& text) {
        const Nanos until = now_ns() + check::patience(20 * kSecond);
        for (bool came = false; !came;) {
            CHECK(now_ns() < until);
            CHECK_OK(send(*a, 2, kKind, text));
            std::optional<std::string> got;
            while (!came && (got = pull.take(check::patience(kSecond)))) came = *got == text;
        }
    };
    const std::uint64_t rounds = check::count(10'000, 100'000);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        Pull pull(*b, kKind);
        if (round % 1000 == 0) reach(pull, "more");
    }
    Pull last(*b, kKind);
    reach(last, "last");
    Selector::Turn turn(a->selector());
    CHECK(a->find_peer(2)->old_flows.size() <= 65536);
    CHECK_EQUAL(a->find_peer(2)->losses, std::uint64_t{0});
}

TEST("subscriptions that come and go leave no flow behind at either end") {
    auto a = make_node(brisk(1)), b = make_node(brisk(2));
    introduce(*a, *b);
    Peer& peer = *a->find_peer(2);
    const std::uint64_t rounds = check::count(1000, 20'000);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        Told told(*b);
        const auto way = a->subscription_flow(peer, b->incarnation(), told.flow(), told.least_charge(), kGroupKind);
        if (round % 3 == 2) continue;  // nobody ever sent there
        CHECK_OK(say(*a, peer, *way, "word"));
        if (round % 3 == 0) CHECK(check::soon([&] { return told.got.load() == 1; }));
    }
    CHECK(check::soon([&] { return flows_to(*a, 2) == 0; }));
    CHECK(check::soon([&] { return b->counters().registrations == 0; }));
    CHECK_EQUAL(flows_from(*b, 1), std::size_t{1});
    CHECK_EQUAL(a->statistics()[0].losses, std::uint64_t{0});
    CHECK(a->statistics()[0].messages_out >= rounds / 2);
}

TEST("what comes on a flow that has gone is discarded, whoever asks is told, and the connection lives") {
    auto a = make_node(brisk(1)), b = make_node(brisk(2));
    introduce(*a, *b);
    Peer& peer = *a->find_peer(2);
    auto told = std::make_unique<Told>(*b);
    const auto way = a->subscription_flow(peer, b->incarnation(), told->flow(), told->least_charge(), kGroupKind);
    CHECK_OK(say(*a, peer, *way, "word"));
    CHECK(check::soon([&] { return told->got.load() == 1; }));
    told.reset();
    CHECK(check::soon([&] { return way->withdrawn.load() && b->counters().registrations == 0; }));
    // Somebody who has not understood that, and sends more than anybody ever gave credit for.
    way->in_flight.reset(peer.session.load());
    way->window.store(1u << 30);
    const std::string much(64 << 10, 'x');
    std::uint64_t sent = 0;
    while (sent < 200) {
        const Attempt attempt = a->try_word(peer, *way, peer.session.load(), {much.data(), much.size()});
        CHECK(attempt.status == Status::sent || attempt.status == Status::ring_full);
        sent += attempt.status == Status::sent;
    }
    CHECK(check::soon([&] { return b->counters().unknown_kind == sent; }));
    Handler other(*b, kKind, OnRequest([](Question question) { CHECK_OK(question.answer("fine")); }));
    Request request(*a, 2, kKind);
    CHECK_OK(request.send("how are you", now_ns() + check::patience(20 * kSecond)));
    CHECK(request.wait(now_ns() + check::patience(20 * kSecond)));
    CHECK_EQUAL(std::string(request.body()), std::string("fine"));
    CHECK_EQUAL(a->statistics()[0].losses, std::uint64_t{0});
    // One who opens what has gone hears that it has.
    const auto again = a->subscription_flow(peer, b->incarnation(), 1, 64, kGroupKind);
    again->withdrawn.store(false);
    again->window.store(0);
    again->asked.store(false);
    again->in_flight.reset(peer.session.load());
    CHECK(say(*a, peer, *again, "word").code == Code::closed);
}

TEST("a ring that has become quiet gives its pages back, and works on") {
    auto a = make_node(brisk(1)), b = make_node(brisk(2));
    a->add_peer(2, b->address());
    std::atomic<std::uint64_t> got{0};
    Handler handler(*b, kKind, [&](auto, const char*, std::size_t) { got.fetch_add(1); });
    const std::string much(32 << 10, 'x');
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 512; ++i) CHECK_OK(send(*a, 2, kKind, much));  // several times round
        CHECK_OK(flush(*a));
        CHECK(check::soon([&] { return shared_kib() < 256; }));
        // A trickle goes round as well, if slowly. Those who send at the moment of giving back wait for it.
        std::vector<std::thread> producers;
        for (int t = 0; t < 2; ++t) {
            producers.emplace_back([&] {
                for (int i = 0; i < 200; ++i) {
                    CHECK_OK(send(*a, 2, kKind, std::string(4 << 10, 'y')));
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
            });
        }
        for (std::thread& producer : producers) producer.join();
        CHECK_OK(flush(*a));
    }
    CHECK_EQUAL(got.load(), std::uint64_t{3 * (512 + 400)});
    a->remove_peer(2);
    CHECK(check::soon([&] { return shared_kib() < 64; }));
}

namespace {

std::size_t ring_maps() {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("antiphon-ring") != std::string::npos;
    return count;
}

}  // namespace

TEST("the ring of a peer without a connection has no memory, whoever is about to send, and has it again") {
    auto hub = make_node(brisk(1));
    Handler handler(*hub, kKind, [](std::uint16_t, const char*, std::size_t) {});
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> sent{0}, got{0};
    std::vector<std::thread> senders;
    for (int t = 0; t < 3; ++t) {
        senders.emplace_back([&] {
            const std::string text(3000, 'x');
            while (!over.load()) {
                for (std::uint16_t id = 2; id < 4; ++id) {
                    Peer* peer = hub->find_peer(id);
                    if (peer == nullptr) continue;
                    const Attempt attempt = hub->try_message(*peer, kKind, {text.data(), text.size()});
                    sent += attempt.status == Status::sent;
                    if (attempt.status == Status::no_credit) hub->want_credit(*peer, attempt);
                }
                std::this_thread::yield();
            }
        });
    }
    const std::uint64_t rounds = check::count(30, 1000);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        std::atomic<std::uint64_t> came{0};
        auto client = make_node(options(static_cast<std::uint16_t>(2 + round % 2), ""));
        Handler mine(*client, kKind, [&](std::uint16_t, const char*, std::size_t) { ++came; });
        client->add_peer(1, hub->address());
        CHECK_OK(send(*client, 1, kKind, "here I am"));
        CHECK(check::soon([&] { return came.load() > round % 7 * 20; }));
        got += came.load();
        mine.close();
        client->close(0);
    }
    CHECK(check::soon([] { return ring_maps() == 0; }));  // those who send go on all the time
    over.store(true);
    for (std::thread& sender : senders) sender.join();
    CHECK(got.load() > 0);
    CHECK(sent.load() >= got.load());
    CHECK_EQUAL(hub->counters().protocol_errors, std::uint64_t{0});
}

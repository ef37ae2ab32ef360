// Windows by themselves, and lanes between whole nodes: what members of a group send each other.
//
// Forbidden: a message that is lost while its receiver stays a member, that comes twice or out of its
// sender's order; a window that grows beyond its bound; a sender that sleeps on although there is room, or
// although the group was left; a slow member that holds up another before the window is full.
#include "groups/outgoing.hpp"

#include <deque>

#include "groups/acknowledging.hpp"
#include "members.hpp"

using namespace antiphon;
using namespace antiphon::tests;
using namespace antiphon::groups;
using window::Lane;
using window::ReceiveWindow;
using window::SendWindow;
using window::Tag;

namespace {

constexpr char kWhole[] = {0};

std::string text_of(const SendWindow& window, std::uint64_t number) {
    const auto pieces = window.bytes(number, number + 1);
    return std::string(pieces.first).append(pieces.second);
}

// A member: one lane to all others, and a task that takes what they send.
class Person : public Task {
   public:
    Person(std::uint16_t id, const std::string& scheme, std::size_t window_bytes)
        : node(make_node(options(id, scheme))), life(id * 1000) {
        all = std::make_shared<Outgoing>(node, LaneKind::all, window_bytes, 4096, nullptr);
        data = node->add_flow(kGroupKind, 65536, 0, [&](const auto& made) {
            made->queue->begin(slice_);
            made->queue->set_on_ready([this] { node->scheduler().notify(*this); });
        });
        words = node->add_flow(kGroupKind, 1024, 64 << 10, [&](const auto& made) {
            taker = std::make_unique<AcknowledgementTask>(
                *node, made, [this](std::uint16_t source, const auto& word) { all->acknowledged(source, word); });
            made->queue->set_on_ready([this] { node->scheduler().notify(*taker); });
        });
        all->open(life);
        // As a group does, some times a second: tries again, and asks whoever is silent.
        ticking = std::thread([this] {
            while (!done.load()) {
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                all->tick();
            }
        });
    }
    ~Person() override {
        done = true;
        ticking.join();
        all->close();
        for (const auto& registration : {data, words}) {
            node->remove_registration(registration);
            registration->queue->set_on_ready(nullptr);
        }
        node->scheduler().forget(*this, kNever);
        node->scheduler().forget(*taker, kNever);
        all->remove_all();
        node->scheduler().forget(*all, kNever);
        data->queue->end(slice_);
        taker.reset();
        node->close(0);
    }

    Route route() const { return {life, node->id(), node->incarnation(), data->flow, data->least_charge}; }

    bool run_slice(Nanos until) override {
        Run run;
        while (!paused.load() && data->queue->pop(run, slice_)) {
            RunCursor cursor(run);
            const char* bytes;
            std::size_t size;
            BatchHead head;
            cursor.next(bytes, size);
            CHECK_EQUAL(size, sizeof head);
            std::memcpy(&head, bytes, sizeof head);
            if (head.to == life) take(run.source, head, cursor);
            node->finish(run);
            data->queue->done(slice_);
            if (now_ns() >= until) break;
        }
        return !paused.load() && !data->queue->empty();
    }

    void take(std::uint16_t source, const BatchHead& head, RunCursor& cursor) {
        auto& from = windows.try_emplace(head.from, 64 << 20).first->second;
        const auto taken = from.accept(head.base, head.first, cursor.left());
        CHECK(!taken.gap);
        std::uint64_t skip = taken.skip;
        while (cursor.left() != 0) {
            const char* bytes;
            std::size_t size;
            cursor.next(bytes, size);
            if (skip != 0) {
                --skip;
                continue;
            }
            std::string_view message;
            if (from.put_together({bytes, size}, message)) {
                std::lock_guard lock(mutex);
                got[head.from].emplace_back(message);
            }
            from.advance();
        }
        const Acknowledgement word{life, head.from, from.expected(), head.lane, 0};
        Peer* peer = node->find_peer(source);
        const auto flow = node->subscription_flow(*peer, incarnations.at(source), flows.at(source), 64, kGroupKind);
        const std::uint32_t session = peer->session.load();
        if (session == 0) return node->want_connection(*peer);
        const Attempt attempt =
            node->try_word(*peer, *flow, session, {reinterpret_cast<const char*>(&word), sizeof word});
        if (attempt.status == Status::no_credit) node->want_credit(*peer, attempt);
    }

    void meet(Person& other) {
        introduce(*node, *other.node);
        incarnations[other.node->id()] = other.node->incarnation();
        flows[other.node->id()] = other.words->flow;
        other.incarnations[node->id()] = node->incarnation();
        other.flows[node->id()] = words->flow;
    }
    void add(Person& other) { all->add(other.route()); }

    std::vector<std::string> from(const Person& other) {
        std::lock_guard lock(mutex);
        return got[other.life];
    }

    std::shared_ptr<Node> node;
    const std::uint64_t life;
    std::shared_ptr<Outgoing> all;
    std::shared_ptr<Registration> data, words;
    std::unique_ptr<AcknowledgementTask> taker;
    std::map<std::uint16_t, std::uint64_t> incarnations;
    std::map<std::uint16_t, std::uint32_t> flows;
    std::map<std::uint64_t, ReceiveWindow> windows;
    std::mutex mutex;
    std::map<std::uint64_t, std::vector<std::string>> got;
    std::atomic<bool> paused{false}, done{false};
    std::thread ticking;

   private:
    TaskQueue::Slice slice_;
};

}  // namespace

// --- windows -----------------------------------------------------------------------------------------

TEST("a window gives back what was put in, across the end of its memory") {
    SendWindow window(1000, 64);
    auto random = check::random(1);
    std::deque<std::string> kept;
    for (int i = 0; i < 20000; ++i) {
        const std::string text(check::below(random, 300), static_cast<char>('a' + i % 26));
        if (window.append({kWhole, 1}, text)) {
            kept.push_back(std::string(1, 0) + text);
        } else {
            CHECK(!kept.empty());
            const std::uint64_t gone = 1 + check::below(random, kept.size());
            window.release(window.first() + gone);
            kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(gone));
        }
        CHECK_EQUAL(window.messages(), kept.size());
        CHECK(window.used() <= window.capacity());
        for (std::size_t at = 0; at < kept.size(); ++at) CHECK(text_of(window, window.first() + at) == kept[at]);
    }
}

TEST("a window is bounded in messages as well, and keeps a little back for ends") {
    SendWindow window(1 << 20, 100);
    int fitted = 0;
    while (window.append({kWhole, 1}, "x")) ++fitted;
    CHECK(fitted >= 100);
    CHECK(fitted <= 256);
    CHECK(window.append({kWhole, 1}, "x", true));
}

TEST("nobody gets what was sent before he came, and what he lacks is kept for him alone") {
    Lane lane(1 << 16, 256);
    lane.add(1);
    CHECK(lane.window().append({kWhole, 1}, "first"));
    lane.add(2);
    CHECK_EQUAL(lane.find(2)->base, 2);
    CHECK(lane.window().append({kWhole, 1}, "second"));
    CHECK(lane.ready(*lane.find(1), 7));
    lane.sent(*lane.find(1), 2);
    CHECK(lane.acknowledge(1, 3, false));  // the first is everybody's
    CHECK_EQUAL(lane.window().first(), 2);
    CHECK(!lane.acknowledge(2, 9, false));  // it was never sent so much
    CHECK(lane.remove(2));
    CHECK(lane.settled());
}

TEST("a new session repeats what was not acknowledged, and an old word still counts") {
    Lane lane(1 << 16, 256);
    lane.add(1);
    for (int i = 0; i < 4; ++i) CHECK(lane.window().append({kWhole, 1}, "x"));
    CHECK(lane.ready(*lane.find(1), 1));
    lane.sent(*lane.find(1), 4);
    CHECK(!lane.ready(*lane.find(1), 1));
    CHECK(lane.acknowledge(1, 3, false));
    CHECK(lane.ready(*lane.find(1), 2));
    CHECK_EQUAL(lane.find(1)->next, 3);
    CHECK_EQUAL(lane.repeated(), 2);
    CHECK(lane.acknowledge(1, 5, false));  // said in the session before
    CHECK(!lane.ready(*lane.find(1), 2));
    CHECK(lane.settled());
}

// --- between nodes -----------------------------------------------------------------------------------

TEST("everything from many threads reaches all others once, each thread's in order") {
    for (const std::string scheme : {"tcp", "unix", "inproc"}) {
        Person a(1, scheme, 256 << 10), b(2, scheme, 256 << 10), c(3, scheme, 256 << 10);
        const std::vector<Person*> all{&a, &b, &c};
        a.meet(b);
        a.meet(c);
        b.meet(c);
        for (Person* one : all) {
            for (Person* other : all) {
                if (one != other) one->add(*other);
            }
        }
        const std::uint64_t count = check::count(2000, 50000);
        // Some in parts, some larger than the window by far.
        send_to_each_other(all, count, [](std::uint64_t i) -> std::size_t {
            return i % 501 == 500 ? 600 << 10 : i % 50 == 49 ? 40 << 10 : i % 300;
        });
        for (Person* one : all) CHECK(one->all->counts().capacity < 300u << 10);
    }
}

TEST("a member that takes nothing stops the sender, and only once the window is full") {
    Person a(1, "unix", 256 << 10), b(2, "unix", 64 << 10), c(3, "unix", 64 << 10);
    a.meet(b);
    a.meet(c);
    a.add(b);
    a.add(c);
    c.paused = true;
    std::uint64_t sent = 0;
    while (a.all->put(message(0, sent, 1000), now_ns() + 200 * kMillisecond, nullptr).ok()) ++sent;
    CHECK(sent >= 200);
    CHECK(a.all->counts().used <= a.all->counts().capacity);
    const Nanos until = now_ns() + check::patience(10 * kSecond);
    while (b.from(a).size() < sent && now_ns() < until) std::this_thread::yield();
    CHECK_EQUAL(b.from(a).size(), sent);  // the other one has everything
    // Its removal gives the room back, and wakes whoever waits for it.
    std::thread waiting([&] { CHECK(send(a, message(0, sent, 1000))); });
    while (a.all->counts().waits == 0) std::this_thread::yield();
    a.all->remove(c.life);
    waiting.join();
}

TEST("whoever waits for room wakes when the group is left") {
    Person a(1, "inproc", 64 << 10), b(2, "inproc", 64 << 10);
    a.meet(b);
    a.add(b);
    b.paused = true;
    std::thread waiting([&] {
        Outcome outcome;
        while (outcome.ok()) outcome = a.all->put(std::string(1000, 'x'), now_ns() + check::patience(20 * kSecond), nullptr);
        CHECK(outcome.code == Outcome::Code::closed);
    });
    while (a.all->counts().waits == 0) std::this_thread::yield();
    a.all->close();
    waiting.join();
}

TEST("a message that does not fit in time leaves no half of it behind") {
    Person a(1, "unix", 64 << 10), b(2, "unix", 64 << 10);
    a.meet(b);
    a.add(b);
    b.paused = true;
    const Outcome outcome = a.all->put(std::string(1 << 20, 'x'), now_ns() + 100 * kMillisecond, nullptr);
    CHECK(outcome.code == Outcome::Code::timeout);
    b.paused = false;
    b.node->scheduler().notify(b);
    CHECK(send(a, "after"));
    CHECK(settle(a));
    CHECK_EQUAL(b.from(a).size(), 1);
    CHECK(b.from(a)[0] == "after");
    CHECK_EQUAL(b.windows.at(a.life).open_streams(), 0);
}

TEST("what was under way when a connection broke comes on the next one") {
    Person a(1, "tcp", 256 << 10), b(2, "tcp", 256 << 10);
    a.meet(b);
    a.add(b);
    const std::uint64_t count = check::count(3000, 30000);
    std::atomic<bool> done{false};
    std::thread breaking([&] {
        while (!done) {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            const std::string address = b.node->address();
            a.node->remove_peer(b.node->id());
            a.node->add_peer(b.node->id(), address);
        }
    });
    for (std::uint64_t i = 0; i < count; ++i) CHECK(send(a, message(0, i, 500)));
    done = true;
    breaking.join();
    CHECK(settle(a));
    const auto got = b.from(a);
    CHECK_EQUAL(got.size(), count);
    for (std::uint64_t i = 0; i < count; ++i) CHECK(got[i] == message(0, i, 500));
}

TEST("whoever holds up a full window is told, and nobody else, until it goes on") {
    Person a(1, "unix", 64 << 10), b(2, "unix", 64 << 10), c(3, "unix", 64 << 10);
    a.meet(b);
    a.meet(c);
    a.add(b);
    a.add(c);
    CHECK(send(a, "to all"));
    CHECK(settle(a));
    CHECK(a.all->held_up().empty());
    b.paused = true;
    // Behind, but nobody waits for it.
    CHECK(send(a, "kept"));
    CHECK(check::soon([&] { return c.from(a).size() == 2; }));
    CHECK(a.all->held_up().empty());
    while (a.all->try_put(std::string(4000, 'x')) != Outgoing::Put::full) continue;
    CHECK(check::soon([&] { return a.all->held_up().size() == 1; }));
    CHECK(a.all->held_up().contains(b.life));
    CHECK(check::soon([&] {
        const auto held = a.all->held_up();
        return held.size() == 1 && held.at(b.life) > 0.1;
    }));
    b.paused = false;
    b.node->scheduler().notify(b);
    CHECK(settle(a));
    CHECK(a.all->held_up().empty());
}

TEST("a word of a stranger, or of another life, changes nothing") {
    Person a(1, "unix", 64 << 10), b(2, "unix", 64 << 10);
    a.meet(b);
    a.add(b);
    b.paused = true;
    CHECK(send(a, "kept"));
    a.all->acknowledged(9, {b.life, a.life, 2, 0, 0});
    a.all->acknowledged(2, {b.life, a.life + 1, 2, 0, 0});
    a.all->acknowledged(2, {b.life + 1, a.life, 2, 0, 0});
    a.all->acknowledged(2, {b.life, a.life, 99, 0, 0});
    CHECK_EQUAL(a.all->counts().messages, 1);
    a.all->acknowledged(2, {b.life, a.life, 2, 0, 0});
    CHECK_EQUAL(a.all->counts().messages, 0);
}

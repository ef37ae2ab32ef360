// Groups by datagrams, between whole nodes over the loopback: what members send each other by multicast.
//
// Forbidden: a message that is lost while its receiver stays a member, that comes twice or out of its
// sender's order, whatever happens to datagrams; a window or a queue that grows beyond its bound; a sender that
// sleeps on although there is room; anything that a stranger's datagram changes.
#include <arpa/inet.h>

#include "groups/datagram_lane.hpp"
#include "members.hpp"
#include "window/wanted.hpp"

using namespace antiphon;
using namespace antiphon::tests;
using namespace antiphon::groups;
using window::CastReceiver;
using window::Range;
using window::Wanted;

namespace {

std::uint16_t fresh_port() {
    static std::atomic<std::uint16_t> next{0};
    return static_cast<std::uint16_t>(20000 + (getpid() * 17 + next.fetch_add(1)) % 20000);
}

DatagramPort::Options port_options(std::uint16_t port, const DatagramFaults::Options& faults) {
    DatagramPort::Options options;
    options.socket.address = "239.255.77.1";
    options.socket.port = port;
    options.socket.interface = "127.0.0.1";
    options.socket.mtu = 1400;
    options.group = 7;
    options.receivers.fill({.most_bytes = 300 << 10, .most_messages = 8192});
    options.faults = faults;
    return options;
}

// A member: one lane to all others, and a task that takes what they send.
class Person : public Task {
   public:
    Person(std::uint16_t id, std::uint16_t at, window::Flow::Kind kind = window::Flow::Kind::share,
           DatagramFaults::Options faults = {})
        : node(make_node(options(id, "inproc"))), life(id * 1000) {
        faults.seed += id;
        port = std::make_shared<DatagramPort>(node, port_options(at, faults));
        DatagramLane::Options lane{256 << 10, 4096, {}, {}};
        lane.cast.datagram_bytes = DatagramLane::room_in(port->mtu());
        lane.flow = {.kind = kind, .most = lane.bytes, .least = 2800, .credits = 100 << 10, .credits_least = 50 << 10};
        all = std::make_shared<DatagramLane>(node, port, LaneKind::all, nullptr, lane);
        port->attach(0, all);
        port->start([this] { node->scheduler().notify(*this); });
    }
    ~Person() override {
        all->close();
        port->stop();
        node->scheduler().forget(*this, kNever);
        all->remove_all();
        node->scheduler().forget(*all, kNever);
        node->close(0);
    }

    Route route() const {
        Route made{};
        made.member = life;
        made.node = node->id();
        made.datagrams = port->socket().local();
        made.buffer = port->socket().receive_buffer();
        return made;
    }
    void view(const std::vector<Person*>& members) {
        std::vector<Route> routes;
        all->identify(life);
        for (Person* one : members) {
            routes.push_back(one->route());
            if (one != this) all->add(one->route());
        }
        all->open(life);
        port->admit(life, routes);
    }

    bool run_slice(Nanos until) override {
        DatagramPort::Batch batch;
        while (!paused.load() && port->pop(batch)) {
            const window::Chunk& chunk = *batch.ready.chunk;
            std::size_t at = 0, bytes = 0;
            for (std::size_t i = 0; i < chunk.lengths.size(); ++i) {
                const std::string_view raw(chunk.bytes.data() + at, chunk.lengths[i]);
                at += chunk.lengths[i];
                if (i < batch.ready.begin) continue;
                bytes += raw.size();
                std::string_view message;
                if (!parts.try_emplace(batch.member, 64 << 20).first->second.put_together(raw, message)) continue;
                std::lock_guard lock(mutex);
                got[batch.member].emplace_back(message);
            }
            port->handled(batch.member, batch.lane, chunk.end(), bytes);
            if (now_ns() >= until) break;
        }
        return !paused.load() && port->has_ready();
    }

    std::vector<std::string> from(const Person& other) {
        std::lock_guard lock(mutex);
        return got[other.life];
    }

    std::shared_ptr<Node> node;
    const std::uint64_t life;
    std::shared_ptr<DatagramPort> port;
    std::shared_ptr<DatagramLane> all;
    std::map<std::uint64_t, window::ReceiveWindow> parts;  // of the task
    std::mutex mutex;
    std::map<std::uint64_t, std::vector<std::string>> got;
    std::atomic<bool> paused{false};
};

void all_to_all(window::Flow::Kind kind, const DatagramFaults::Options& faults, std::uint64_t count) {
    const std::uint16_t port = fresh_port();
    Person a(1, port, kind, faults), b(2, port, kind, faults), c(3, port, kind, faults);
    const std::vector<Person*> all{&a, &b, &c};
    for (Person* one : all) one->view(all);
    send_to_each_other(all, count, [](std::uint64_t i) -> std::size_t {
        return i % 301 == 300 ? 400 << 10 : i % 50 == 49 ? 40 << 10 : i % 300;
    });
}

}  // namespace

// --- what is wanted ------------------------------------------------------------------------------------

TEST("what two want goes to all, what one wants to it alone, whatever overlaps") {
    auto random = check::random(3);
    for (int round = 0; round < 300; ++round) {
        Wanted wanted;
        std::map<std::uint64_t, std::uint64_t> askers;  // of each number
        for (int i = 0; i < 12; ++i) {
            const std::uint64_t first = 1 + check::below(random, 60), end = first + 1 + check::below(random, 20);
            const std::uint64_t asker = 1 + check::below(random, 3);
            wanted.add({first, end}, asker);
            for (std::uint64_t number = first; number < end; ++number) {
                const auto [at, fresh] = askers.try_emplace(number, asker);
                if (!fresh && at->second != asker) at->second = Wanted::kSeveral;
            }
        }
        Range range;
        std::uint64_t asker;
        while (wanted.front(range, asker)) {
            CHECK(range.first < range.end);
            for (std::uint64_t number = range.first; number < range.end; ++number) {
                CHECK(askers.contains(number));
                CHECK_EQUAL(askers.at(number), asker);
                askers.erase(number);
            }
            wanted.drop_before(range.end);
        }
        CHECK(askers.empty());
    }
}

TEST("a receiver holds no more than its bound, and forgets nothing that it has acknowledged") {
    CastReceiver window({.most_bytes = 1000, .most_messages = 100}, 1);
    window.begin(1, 1);
    for (std::uint64_t number = 2; number < 50; ++number) {  // the first one is missing
        auto chunk = std::make_shared<window::Chunk>();
        chunk->first = number;
        chunk->lengths = {100};
        chunk->bytes.assign(100, 'x');
        window.data(chunk, 0, 1000, false, 1);
        CHECK(window.held_bytes() <= 1000);
    }
    CHECK(window.refused() > 0);
    CHECK_EQUAL(window.received(), 1);
    std::vector<Range> ranges;
    std::uint32_t attempt;
    CHECK(window.ask(kSecond, ranges, attempt));
    CHECK_EQUAL(ranges.size(), 1);  // there is room for nothing but what is next
    CHECK_EQUAL(ranges[0].first, 1);
    CHECK_EQUAL(ranges[0].end, 2);
}

// --- between nodes -----------------------------------------------------------------------------------

TEST("everything from many threads reaches all others once, each thread's in order") {
    for (const auto kind : {window::Flow::Kind::share, window::Flow::Kind::reactive, window::Flow::Kind::credit}) {
        all_to_all(kind, {}, check::count(400, 10000));
    }
}

TEST("the same although datagrams are lost, doubled and mixed up") {
    all_to_all(window::Flow::Kind::share, {.drop = 0.1, .duplicate = 0.1, .shuffle = 8, .seed = 3},
               check::count(150, 3000));
    all_to_all(window::Flow::Kind::reactive, {.drop = 0.05, .delay_most = 3 * kMillisecond, .seed = 4},
               check::count(100, 3000));
}

TEST("a member that takes nothing stops the sender, until it goes") {
    const std::uint16_t port = fresh_port();
    Person a(1, port), b(2, port), c(3, port);
    const std::vector<Person*> all{&a, &b, &c};
    for (Person* one : all) one->view(all);
    c.paused = true;
    std::uint64_t sent = 0;
    while (a.all->put(message(0, sent, 1000), now_ns() + 300 * kMillisecond, nullptr).ok()) ++sent;
    CHECK(sent >= 100);
    CHECK(a.all->counts().used <= a.all->counts().capacity);
    CHECK(c.port->counts().held_bytes <= 300u << 10);
    const Nanos until = now_ns() + check::patience(10 * kSecond);
    while (b.from(a).size() < sent && now_ns() < until) std::this_thread::yield();
    CHECK_EQUAL(b.from(a).size(), sent);
    CHECK(a.all->held_up().at(c.life) >= 0);
    std::thread waiting([&] { CHECK(send(a, message(0, sent, 1000))); });
    while (a.all->counts().waits == 0) std::this_thread::yield();
    a.all->remove(c.life);
    waiting.join();
}

TEST("whoever waits for room wakes when the group is left") {
    const std::uint16_t port = fresh_port();
    Person a(1, port), b(2, port);
    a.view({&a, &b});
    b.view({&a, &b});
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

TEST("datagrams of a stranger change nothing, also with the name of a member") {
    const std::uint16_t port = fresh_port();
    Person a(1, port), b(2, port);
    a.view({&a, &b});
    b.view({&a, &b});
    DatagramSocket stranger(port_options(port, {}).socket);
    std::vector<Datagram> sent;
    auto random = check::random(9);
    for (int i = 0; i < 2000; ++i) {
        Datagram one{{}, i % 2 == 0 ? stranger.group() : b.port->socket().local()};
        const auto kind = static_cast<DatagramKind>(check::below(random, 8));
        append_word(one.bytes, DatagramHead{kDatagramMagic, kind, static_cast<std::uint8_t>(check::below(random, 3)), 0, 0,
                                            7, a.life, 0});
        for (std::uint64_t more = check::below(random, 12); more > 0; --more) append_word(one.bytes, check::below(random, 5));
        sent.push_back(std::move(one));
    }
    stranger.send(sent);
    CHECK(send(a, "the only one"));
    CHECK(settle(a));
    CHECK_EQUAL(b.from(a).size(), 1);
    CHECK(b.from(a)[0] == "the only one");
    CHECK(b.port->counts().strangers > 0);
}

TEST("what a member sends wrongly is counted, and harms nobody") {
    // As the one above, but from where the member sends: its head is believed, and no more.
    const std::uint16_t port = fresh_port();
    Person a(1, port), b(2, port);
    a.view({&a, &b});
    b.view({&a, &b});
    std::vector<Datagram> sent;
    auto random = check::random(11);
    for (int i = 0; i < 2000; ++i) {
        Datagram one{{}, b.port->socket().local()};
        const auto kind = static_cast<DatagramKind>(check::below(random, 8));
        append_word(one.bytes, DatagramHead{kDatagramMagic, kind, static_cast<std::uint8_t>(check::below(random, 3)), 0, 0,
                                            7, a.life, b.life});
        // No length of a word that is one: data, a head, a base, or a question.
        one.bytes.append(check::below(random, 7), 'x');
        if (kind == DatagramKind::ask_base) one.bytes.append("x");
        sent.push_back(std::move(one));
    }
    a.port->socket().send(sent);
    CHECK(send(a, "the only one"));
    CHECK(settle(a));
    CHECK_EQUAL(b.from(a).size(), 1);
    CHECK(b.port->counts().malformed > 0);
}

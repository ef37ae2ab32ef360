// Windows of what goes by datagrams, by themselves: no socket, no clock, one thread.
//
// Forbidden: a receiver that waits for ever because of what it holds; a sender that waits although everything was
// handled; anything sent that is not in the window any more.
#include "check.hpp"
#include "window/cast_receiver.hpp"
#include "window/cast_sender.hpp"

using namespace antiphon;
using namespace antiphon::window;

namespace {

std::shared_ptr<const Chunk> chunk(std::uint64_t first, std::size_t count, std::uint16_t size = 10) {
    auto made = std::make_shared<Chunk>();
    made->first = first;
    made->lengths.assign(count, size);
    made->bytes.assign(count * size, 'x');
    return made;
}

// Takes what is ready, and says so.
std::uint64_t handle(CastReceiver& receiver, Nanos now) {
    CastReceiver::Ready ready;
    std::uint64_t messages = 0;
    while (receiver.take(ready)) {
        std::size_t bytes = 0;
        for (std::size_t i = ready.begin; i < ready.chunk->lengths.size(); ++i) bytes += ready.chunk->lengths[i];
        messages += ready.chunk->lengths.size() - ready.begin;
        receiver.handled(ready.chunk->end(), bytes, now);
    }
    return messages;
}

bool covers(const std::vector<Range>& ranges, std::uint64_t number) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const Range& one) { return one.first <= number && number < one.end; });
}

}  // namespace

TEST("what is next is taken although all room is used by what waits for it") {
    for (const bool by_bytes : {false, true}) {
        CastReceiver receiver({.most_bytes = by_bytes ? 100u : 100000u, .most_messages = by_bytes ? 1000u : 10u}, 1);
        receiver.begin(1, 1);
        CHECK(receiver.data(chunk(2, 5), 0, 1, false, 1));
        CHECK(receiver.data(chunk(7, 5), 0, 1, false, 1));
        CHECK(!receiver.data(chunk(12, 5), 0, 1, false, 1));  // no room, and it can wait
        CHECK(receiver.data(chunk(1, 1), 0, 1, false, 2));
        CHECK_EQUAL(receiver.received(), 7);
        CHECK_EQUAL(handle(receiver, 3), 6);
        CHECK_EQUAL(receiver.held_bytes(), 0);
        // What made room for it is asked for again.
        std::vector<Range> ranges;
        std::uint32_t attempt;
        Nanos now = 3;
        bool asked = false;
        for (int i = 0; i < 10 && !asked; ++i) {
            now = std::max(now + 1, receiver.next_time());
            receiver.acknowledge(now);
            asked = receiver.ask(now, ranges, attempt) && covers(ranges, 7) && covers(ranges, 11) && covers(ranges, 16);
        }
        CHECK(asked);
        CHECK(receiver.data(chunk(7, 10), 0, 1, false, now));
        CHECK_EQUAL(handle(receiver, now), 10);
        CHECK(!receiver.missing());
    }
}

TEST("what was not handled holds back what comes, also what is next") {
    CastReceiver receiver({.most_bytes = 100, .most_messages = 100}, 1);
    receiver.begin(1, 1);
    CHECK(receiver.data(chunk(1, 10), 0, 1, false, 1));
    CHECK(!receiver.data(chunk(11, 1), 0, 1, false, 1));
    CHECK_EQUAL(receiver.held_bytes(), 100);
    CHECK_EQUAL(handle(receiver, 2), 10);
    CHECK(receiver.data(chunk(11, 1), 0, 1, false, 3));
}

TEST("a sender that asked is told when everything was handled, however long a word may wait") {
    CastReceiver receiver({.most_bytes = 1 << 20, .most_messages = 1000, .acknowledge = 5 * kSecond}, 1);
    receiver.begin(1, 1);
    CHECK(receiver.acknowledge(1));
    CHECK(receiver.data(chunk(1, 10), 0, 1 << 20, false, 2));
    CHECK(!receiver.acknowledge(2));
    CHECK(receiver.data(chunk(11, 10), 0, 1 << 20, true, 3));
    CHECK(receiver.acknowledge(3));  // that it has come
    CHECK_EQUAL(receiver.handled(), 1);
    CHECK_EQUAL(handle(receiver, 4), 20);
    CHECK(receiver.next_time() <= 4);
    CHECK(receiver.acknowledge(4));
    CHECK_EQUAL(receiver.handled(), 21);
    // It is said once, and what nobody asked for waits.
    CHECK(!receiver.acknowledge(5));
    CHECK(receiver.data(chunk(21, 1), 0, 1 << 20, false, 6));
    CHECK_EQUAL(handle(receiver, 7), 1);
    CHECK(!receiver.acknowledge(7));
}

TEST("what another one passes on changes nothing about when to acknowledge") {
    CastReceiver receiver({.most_bytes = 1 << 20, .most_messages = 1000, .acknowledge = 5 * kSecond}, 1);
    receiver.begin(1, 1);
    CHECK(receiver.acknowledge(1));
    CHECK(receiver.data(chunk(2, 5), 0, 100, false, 2));
    CHECK(!receiver.acknowledge(2));
    CHECK(receiver.data(chunk(1, 1), 0, 0, false, 3));
    CHECK(receiver.data(chunk(7, 5), 0, 0, false, 3));
    CHECK(receiver.acknowledge(3));
    CHECK(receiver.data(chunk(12, 5), 0, 0, false, 4));
    CHECK(!receiver.acknowledge(4));
}

TEST("a chunk is passed on once, however many ranges lie in it") {
    CastReceiver receiver({.most_bytes = 1 << 20, .most_messages = 1000}, 1);
    receiver.begin(1, 1);
    for (std::uint64_t first = 1; first < 100; first += 10) receiver.data(chunk(first, 10), 0, 1, false, 1);
    receiver.data(chunk(121, 10), 0, 1, false, 1);
    std::vector<std::shared_ptr<const Chunk>> chunks;
    for (std::uint64_t number = 35; number < 45; ++number) receiver.find({number, number + 1}, chunks, 16);
    CHECK_EQUAL(chunks.size(), 2);
    receiver.find({99, 125}, chunks, 16);
    CHECK_EQUAL(chunks.size(), 4);
    CHECK_EQUAL(chunks[0]->first, 31);
    CHECK_EQUAL(chunks[1]->first, 41);
    CHECK_EQUAL(chunks[2]->first, 91);
    CHECK_EQUAL(chunks[3]->first, 121);
}

TEST("what a member has said it has does not go again for it") {
    Lane lane(1 << 16, 64);
    CastSender sender(lane, {.datagram_bytes = 500, .gather = false}, {.most = 1 << 16, .least = 1000});
    CastSender::Piece piece;
    for (const std::uint64_t member : {1, 2}) {
        lane.add(member);
        sender.add(member, 0, 1);
    }
    const std::string text(400, 'x');
    for (int i = 0; i < 4; ++i) CHECK(lane.window().append(text, {}));
    Nanos now = kSecond;
    while (sender.next(++now, piece)) {}
    CHECK_EQUAL(sender.sent(), 5);
    sender.acknowledge(1, 4, 1, false, now);
    sender.asked(1, {1, 4}, now);
    now += kSecond;
    CHECK(!sender.repair(now, piece));
    sender.asked(1, {3, 5}, now);
    sender.asked(2, {2, 3}, now);
    now += kSecond;
    CHECK(sender.repair(now, piece));
    CHECK_EQUAL(piece.first, 2);
    CHECK_EQUAL(piece.to, 2);
    CHECK(sender.repair(now, piece));
    CHECK_EQUAL(piece.first, 4);
    CHECK_EQUAL(piece.to, 1);
    CHECK(!sender.repair(now, piece));
}

TEST("what only a member was to get that has gone is not sent to those who came after it") {
    Lane lane(1 << 16, 64);
    CastSender sender(lane, {.datagram_bytes = 500, .gather = false},
                      {.kind = Flow::Kind::credit, .most = 1 << 16, .least = 1000, .credits = 1000, .credits_least = 0});
    CastSender::Piece piece;
    lane.add(1);
    sender.add(1, 0, 1);
    const std::string text(400, 'x');
    for (int i = 0; i < 20; ++i) CHECK(lane.window().append(text, {}));
    Nanos now = 1;
    while (sender.next(++now, piece)) {}  // until its credit is used up
    CHECK(sender.sent() < 21);
    lane.add(2);
    sender.add(2, 0, now);
    CHECK(lane.window().append(text, {}));
    lane.remove(1);
    sender.remove(1);
    CHECK_EQUAL(lane.window().first(), 21);
    CHECK(sender.next(++now, piece));
    CHECK_EQUAL(piece.first, 21);
    CHECK_EQUAL(piece.end, 22);
    CHECK(!sender.next(++now, piece));
    CHECK(sender.acknowledge(2, 22, 22, false, now));
    CHECK(lane.settled());
}

// The outgoing ring: several producers, one consumer.
//
// Forbidden: a byte lost, doubled or changed; frames of one producer out of order; a claim that is
// granted without room; a consumer that sees a region before it is committed.
#include "ring/ring.hpp"

#include <deque>

#include "check.hpp"
#include "frames/layout.hpp"

using namespace antiphon;

namespace {

constexpr std::size_t kPage = 4096;

char pattern(std::uint64_t producer, std::uint64_t sequence, std::size_t at) {
    return static_cast<char>(sequence * 131 + producer * 17 + at * 7 + (at >> 8));
}

std::string payload(std::uint64_t producer, std::uint64_t sequence, std::size_t size) {
    std::string bytes(size, 0);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(producer, sequence, i);
    return bytes;
}

// One frame of a single-threaded test: claimed, written and published.
bool put(Ring& ring, const std::string& bytes) {
    std::uint64_t position;
    if (!ring.claim(bytes.size(), position)) return false;
    ring.write(position, bytes.data(), bytes.size());
    ring.wait_turn(position);
    ring.publish(position + bytes.size());
    return true;
}

// Takes up to `most` bytes, in as many steps as the ring needs.
std::string take(Ring& ring, std::size_t most) {
    std::string out;
    while (out.size() < most) {
        const char* data;
        const std::size_t bytes = std::min(ring.readable(data), most - out.size());
        if (bytes == 0) break;
        out.append(data, bytes);
        ring.release(bytes);
    }
    return out;
}

struct Course {
    std::size_t capacity;
    int producers;
    std::uint64_t messages;  // per producer
    std::size_t largest;     // payload
    unsigned abort_one_in;   // 0: never
};

// Producers run the claim, write, wait_turn, publish sequence of a node, with some claims given up
// as padding; the consumer takes random amounts and puts the stream back together.
void run_course(const Course& course) {
    Ring ring(course.capacity);
    std::atomic<std::uint64_t> aborted{0};
    std::atomic<int> done{0};
    std::vector<std::thread> producers;
    for (int p = 0; p < course.producers; ++p) {
        producers.emplace_back([&, p] {
            auto random = check::random(static_cast<std::uint64_t>(p));
            std::uint64_t sequence = 0;
            while (sequence < course.messages) {
                const std::size_t size = check::below(random, course.largest + 1);
                const bool abort = course.abort_one_in != 0 && check::below(random, course.abort_one_in) == 0;
                Header header{static_cast<std::uint32_t>(size), static_cast<std::uint16_t>(kFirstUserKind + p), 0,
                              static_cast<std::uint32_t>(sequence)};
                std::uint64_t position;
                for (Spin spin; !ring.claim(kHeaderBytes + size, position);) spin.once();
                if (abort) {
                    header.kind = static_cast<std::uint16_t>(Control::pad);
                    aborted.fetch_add(1, std::memory_order_relaxed);
                    ring.write(position, &header, kHeaderBytes);
                } else {
                    const std::string bytes = payload(static_cast<std::uint64_t>(p), sequence, size);
                    ring.write(position, &header, kHeaderBytes);
                    // In two parts, as a node writes fragments: an id, then the data.
                    const std::size_t first = check::below(random, size + 1);
                    ring.write(position + kHeaderBytes, bytes.data(), first);
                    ring.write(position + kHeaderBytes + first, bytes.data() + first, size - first);
                    ++sequence;
                }
                ring.wait_turn(position);
                ring.publish(position + kHeaderBytes + size);
            }
            done.fetch_add(1);
        });
    }

    auto random = check::random(1000);
    std::vector<std::uint64_t> next(static_cast<std::size_t>(course.producers), 0);
    std::uint64_t padding = 0;
    std::string stream;
    for (Spin spin;;) {
        const bool finished = done.load() == course.producers;
        const char* data;
        const std::size_t readable = ring.readable(data);
        CHECK(readable <= course.capacity);
        if (readable == 0) {
            if (finished && ring.empty()) break;
            spin.once();
            continue;
        }
        // Sometimes all of it, sometimes a part that ends anywhere, as a socket would.
        const std::size_t part = check::below(random, 3) == 0 ? readable : 1 + check::below(random, readable);
        stream.append(data, part);
        ring.release(part);
        std::size_t at = 0;
        while (stream.size() - at >= kHeaderBytes) {
            const Header header = load_header(stream.data() + at);
            CHECK(header.length <= course.largest);
            if (stream.size() - at < kHeaderBytes + header.length) break;
            const char* body = stream.data() + at + kHeaderBytes;
            at += kHeaderBytes + header.length;
            if (header.kind == static_cast<std::uint16_t>(Control::pad)) {
                ++padding;
                continue;
            }
            const std::size_t p = static_cast<std::size_t>(header.kind - kFirstUserKind);
            CHECK(p < next.size());
            CHECK_EQUAL(header.flow, next[p]);
            for (std::size_t i = 0; i < header.length; ++i) {
                if (body[i] != pattern(p, next[p], i)) {
                    CHECK_SAYS(false, "byte " + std::to_string(i) + " of frame " + std::to_string(next[p]) +
                                          " of producer " + std::to_string(p));
                }
            }
            ++next[p];
        }
        stream.erase(0, at);
    }
    for (std::thread& producer : producers) producer.join();
    CHECK(stream.empty());
    CHECK_EQUAL(padding, aborted.load());
    for (const std::uint64_t frames : next) CHECK_EQUAL(frames, course.messages);
    CHECK_EQUAL(ring.free_bytes(), course.capacity);
    CHECK_EQUAL(ring.head(), ring.tail());
}

}  // namespace

TEST("an empty ring has everything free and nothing to read") {
    Ring ring(kPage);
    const char* data;
    CHECK(ring.empty());
    CHECK_EQUAL(ring.readable(data), 0);
    CHECK_EQUAL(ring.free_bytes(), kPage);
}

TEST("a claim of exactly the ring's size is granted once, and again when it was taken") {
    Ring ring(kPage);
    for (std::uint64_t round = 0; round < 5; ++round) {
        const std::string all = payload(1, round, kPage);
        CHECK(put(ring, all));
        CHECK_EQUAL(ring.free_bytes(), 0);
        std::uint64_t position;
        CHECK(!ring.claim(1, position));
        CHECK(take(ring, kPage) == all);
        CHECK_EQUAL(ring.free_bytes(), kPage);
        // From the next round on the claim does not start at the ring's first byte.
        CHECK(put(ring, "odd"));
        CHECK_EQUAL(take(ring, 3), "odd");
    }
}

TEST("a claim without room changes nothing") {
    Ring ring(kPage);
    std::uint64_t position;
    CHECK(!ring.claim(kPage + 1, position));
    CHECK(put(ring, payload(0, 0, kPage - 10)));
    const std::uint64_t tail = ring.tail();
    CHECK(!ring.claim(11, position));
    CHECK_EQUAL(ring.tail(), tail);
    CHECK_EQUAL(ring.free_bytes(), 10);
    CHECK(ring.claim(10, position));
    CHECK_EQUAL(position, tail);
}

TEST("a frame is whole wherever the ring's end cuts it") {
    Ring ring(kPage);
    constexpr std::size_t kFrame = 512;
    // The frame begins at every offset of the ring once, so that its end crosses the ring's end at
    // every one of its bytes.
    for (std::size_t offset = 0; offset <= kPage; ++offset) {
        CHECK_EQUAL(ring.tail() % kPage, offset % kPage);
        const std::string frame = payload(2, offset, kFrame);
        CHECK(put(ring, frame));
        CHECK(take(ring, kFrame) == frame);
        // On to the next offset, in two steps that together are one more than the ring.
        CHECK(put(ring, payload(0, 0, kPage - kFrame)));
        CHECK_EQUAL(take(ring, kPage).size(), kPage - kFrame);
        CHECK(put(ring, "+"));
        CHECK_EQUAL(take(ring, 1), "+");
    }
}

TEST("a region is invisible until it and everything before it is committed") {
    Ring ring(kPage);
    std::uint64_t first, second;
    CHECK(ring.claim(100, first));
    CHECK(ring.claim(50, second));
    const std::string a = payload(0, 1, 100), b = payload(1, 1, 50);
    ring.write(second, b.data(), b.size());
    const char* data;
    CHECK_EQUAL(ring.readable(data), 0);
    CHECK(ring.empty());

    std::atomic<bool> published{false};
    std::thread later([&] {
        ring.wait_turn(second);  // until the first is there
        ring.publish(second + 50);
        published.store(true);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(!published.load());
    CHECK_EQUAL(ring.readable(data), 0);
    ring.write(first, a.data(), a.size());
    ring.wait_turn(first);
    ring.publish(first + 100);
    later.join();
    CHECK_EQUAL(ring.readable(data), 150);
    CHECK(take(ring, 150) == a + b);
}

TEST("positions go on past four gigabytes") {
    constexpr std::size_t kCapacity = 1 << 20;
    Ring ring(kCapacity);
    std::uint64_t total = 0;
    while (total <= (std::uint64_t{1} << 32) + 3 * kCapacity) {
        // Only the ends are written: the bytes between were checked elsewhere.
        std::uint64_t position;
        CHECK(ring.claim(kCapacity, position));
        CHECK_EQUAL(position, total);
        ring.write(position, &total, sizeof total);
        ring.write(position + kCapacity - sizeof total, &total, sizeof total);
        ring.publish(position + kCapacity);
        CHECK_EQUAL(ring.free_bytes(), 0);
        const char* data;
        CHECK_EQUAL(ring.readable(data), kCapacity);
        std::uint64_t first, last;
        std::memcpy(&first, data, sizeof first);
        std::memcpy(&last, data + kCapacity - sizeof last, sizeof last);
        CHECK_EQUAL(first, total);
        CHECK_EQUAL(last, total);
        ring.release(kCapacity);
        total += kCapacity;
    }
}

TEST("a ring whose pages were given back works on") {
    Ring ring(4 * kPage);
    const std::string before = payload(3, 1, 3 * kPage);
    CHECK(put(ring, before));
    CHECK(take(ring, before.size()) == before);
    ring.forget();
    std::uint64_t position;
    CHECK(ring.claim(kPage, position));
    ring.publish(position + kPage);  // never written: it must not show what was there before
    CHECK(take(ring, kPage) == std::string(kPage, 0));
    const std::string after = payload(3, 2, 4 * kPage);
    CHECK(put(ring, after));
    CHECK(take(ring, after.size()) == after);
}

TEST("a ring without memory has no room, and is empty when it has memory again") {
    Ring ring(4 * kPage);
    for (const std::size_t left : {std::size_t{0}, kPage, 4 * kPage}) {  // in it, and never taken
        if (left != 0) CHECK(put(ring, payload(3, 1, left)));
        CHECK(ring.retire());
        CHECK(ring.retired());
        CHECK(ring.retire());
        std::uint64_t position;
        CHECK(!ring.claim(1, position));
        CHECK_EQUAL(ring.free_bytes(), 0u);
        ring.revive();
        CHECK(!ring.retired());
        CHECK(ring.empty());
        CHECK_EQUAL(ring.free_bytes(), 4 * kPage);
        const std::string after = payload(3, 2, 4 * kPage);
        CHECK(put(ring, after));
        CHECK(take(ring, after.size()) == after);
    }
    std::uint64_t position;
    CHECK(ring.claim(kPage, position));
    CHECK(!ring.retire());  // somebody writes there
    ring.publish(position + kPage);
    CHECK(ring.retire());
}

TEST("a ring loses its memory under producers, who never touch what is not there") {
    Ring ring(4 * kPage);
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> written{0};
    std::vector<std::thread> producers;
    for (std::uint32_t t = 0; t < 3; ++t) {
        producers.emplace_back([&, t] {
            const std::string bytes = payload(t, 1, 600);
            while (!over.load(std::memory_order_relaxed)) {
                std::uint64_t position;
                if (!ring.claim(bytes.size(), position)) {
                    std::this_thread::yield();
                    continue;
                }
                ring.write(position, bytes.data(), bytes.size());
                ring.wait_turn(position);
                ring.publish(position + bytes.size());
                written.fetch_add(1, std::memory_order_relaxed);
            }
        });
    }
    const std::uint64_t rounds = check::count(3000, 200'000);
    std::uint64_t retired = 0;
    // Until they have had their share of it: on a busy machine they begin late.
    for (std::uint64_t round = 0; round < rounds || written.load() < rounds / 10; ++round) {
        if (ring.retire()) {
            ++retired;
            if (round % 16 == 0) std::this_thread::yield();
            ring.revive();
            if (round % 2 == 0) std::this_thread::yield();
            continue;
        }
        const char* data;
        ring.release(ring.readable(data));
    }
    // All is written at some time, and then nobody is in it.
    while (!ring.retire()) std::this_thread::yield();
    const std::uint64_t before = written.load();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(written.load() <= before + 3);  // those who had just published
    over.store(true);
    for (std::thread& producer : producers) producer.join();
    CHECK(retired > 0);
    CHECK(written.load() > 0);
}

TEST("random steps of one thread agree with a queue of bytes") {
    Ring ring(2 * kPage);
    auto random = check::random(7);
    std::deque<char> model;
    struct Claim {
        std::uint64_t position;
        std::string bytes;
    };
    std::deque<Claim> open;
    std::size_t claimed = 0;
    const std::uint64_t steps = check::count(200'000, 5'000'000);
    for (std::uint64_t step = 0; step < steps; ++step) {
        switch (check::below(random, 3)) {
            case 0: {
                const std::size_t size = check::below(random, 8) == 0 ? 2 * kPage : check::below(random, 700);
                std::uint64_t position;
                const bool granted = ring.claim(size, position);
                CHECK_EQUAL(granted, model.size() + claimed + size <= 2 * kPage);
                if (!granted) break;
                open.push_back({position, payload(0, step, size)});
                claimed += size;
                break;
            }
            case 1: {
                if (open.empty()) break;
                const Claim& first = open.front();
                ring.write(first.position, first.bytes.data(), first.bytes.size());
                ring.wait_turn(first.position);
                ring.publish(first.position + first.bytes.size());
                model.insert(model.end(), first.bytes.begin(), first.bytes.end());
                claimed -= first.bytes.size();
                open.pop_front();
                break;
            }
            default: {
                const std::string got = take(ring, check::below(random, 1500));
                CHECK(got.size() <= model.size());
                for (const char byte : got) {
                    CHECK(byte == model.front());
                    model.pop_front();
                }
            }
        }
        CHECK_EQUAL(ring.free_bytes(), 2 * kPage - model.size() - claimed);
        CHECK_EQUAL(ring.empty(), model.empty());
    }
}

TEST("several producers and random aborts lose, double and reorder nothing") {
    run_course({64 << 10, 4, check::count(15'000, 2'000'000), 700, 7});
}

TEST("several producers of frames as large as the ring take turns") {
    run_course({kPage, 3, check::count(8'000, 300'000), kPage - kHeaderBytes, 5});
}

TEST("many producers of tiny frames fill and empty a ring") {
    run_course({kPage, 8, check::count(20'000, 500'000), 3, 0});
}

TEST("one producer and one consumer keep a large ring in order") {
    run_course({1 << 20, 1, check::count(100'000, 3'000'000), 2000, 50});
}

// Sealed datagrams: what members of a view send each other where anybody can listen and send.
//
// Forbidden: a datagram that is opened twice, with a bit that was changed, with the key of another view after
// its time, or of somebody that the view does not name; a nonce that is used twice; plain text in what goes.
#include "groups/seal.hpp"

#include <algorithm>
#include <set>

#include "check.hpp"

using namespace antiphon;
using namespace antiphon::groups;
using Sealed = Sealer::Result;
using Opened = Opener::Result;

namespace {

constexpr std::string_view kClear = "clear head";

std::string key(char fill) { return std::string(kKeyBytes, fill); }

std::shared_ptr<Keyring> ring(char fill, std::vector<std::uint64_t> senders) {
    auto made = std::make_shared<Keyring>();
    made->install(key(fill), std::move(senders), now_ns());
    return made;
}

std::string seal(Sealer& sealer, std::string_view body, std::string_view clear = kClear) {
    std::string out(clear.size() + body.size() + kSealBytes, '?');
    const std::string_view pieces[] = {body.substr(0, body.size() / 3), body.substr(body.size() / 3)};
    std::size_t size = 0;
    CHECK(sealer.seal(clear, pieces, out.data(), size) == Sealed::sealed);
    CHECK_EQUAL(size, out.size());
    return out;
}

Opened open(Opener& opener, const std::string& datagram, std::string* body = nullptr, Nanos now = now_ns(),
            std::uint64_t sender = 7) {
    std::string out(datagram.size() + 16, '?');
    std::size_t size = 0;
    const Opened result = opener.open(datagram, kClear.size(), sender, out.data(), size, now);
    if (result == Opened::opened && body != nullptr) *body = out.substr(0, size);
    return result;
}

SealHead head_of(const std::string& datagram) {
    SealHead head;
    std::memcpy(&head, datagram.data() + kClear.size(), sizeof head);
    return head;
}

std::string counted(std::uint64_t number) { return "number " + std::to_string(number); }

}  // namespace

TEST("what is sealed is opened, of any size, and nothing of it can be read") {
    auto keys = ring('k', {7});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    auto generator = check::random(1);
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{1400}, std::size_t{65000}}) {
        std::string body(size, 0);
        for (char& c : body) c = static_cast<char>(generator());
        const std::string datagram = seal(sealer, body);
        CHECK(datagram.starts_with(kClear));
        if (size >= 15) CHECK(datagram.find(body.substr(0, 15)) == std::string::npos);
        std::string got;
        CHECK(open(opener, datagram, &got) == Opened::opened);
        CHECK(got == body);
    }
    CHECK_EQUAL(opener.counts().opened, 6);
    CHECK_EQUAL(sealer.sealed(), 6);
}

TEST("a body is opened in its place") {
    auto keys = ring('k', {7});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    std::string datagram = seal(sealer, "in its place");
    std::size_t size = 0;
    char* const place = datagram.data() + kClear.size() + sizeof(SealHead);
    CHECK(opener.open(datagram, kClear.size(), 7, place, size, now_ns()) == Opened::opened);
    CHECK(std::string_view(place, size) == "in its place");
}

TEST("any bit that is changed, and any length that is cut, is refused and harms nothing") {
    auto keys = ring('k', {7});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    const std::string datagram = seal(sealer, "a body of some bytes");
    for (std::size_t bit = 0; bit < datagram.size() * 8; ++bit) {
        std::string changed = datagram;
        changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
        CHECK(open(opener, changed) != Opened::opened);
    }
    for (std::size_t size = 0; size < datagram.size(); ++size) CHECK(open(opener, datagram.substr(0, size)) != Opened::opened);
    CHECK(open(opener, datagram + "x") == Opened::forged);
    const Opener::Counts counts = opener.counts();
    CHECK_EQUAL(counts.opened, 0);
    CHECK(counts.forged > 0);
    CHECK(counts.unknown_key >= 64);
    CHECK_EQUAL(counts.malformed, kClear.size() + kSealBytes);
    // Not one of them has taken the place of the real one.
    CHECK(open(opener, datagram) == Opened::opened);
}

TEST("another key opens nothing, under its own name or a borrowed one") {
    auto ours = ring('k', {7}), theirs = ring('x', {7});
    Sealer stranger(theirs, 7), sealer(ours, 7);
    Opener opener(ours);
    std::string datagram = seal(stranger, "let me in");
    CHECK(open(opener, datagram) == Opened::unknown_key);
    const std::uint64_t name = Keyring::name_of(key('k'));
    std::memcpy(datagram.data() + kClear.size(), &name, sizeof name);
    CHECK(open(opener, datagram) == Opened::forged);
    CHECK(open(opener, seal(sealer, "mine")) == Opened::opened);
}

TEST("one that the view does not name is refused, though it has the key") {
    auto keys = ring('k', {7, 8});
    Sealer seven(keys, 7), nine(keys, 9);
    Opener opener(keys);
    CHECK(open(opener, seal(nine, "hello"), nullptr, now_ns(), 9) == Opened::stranger);
    CHECK(open(opener, seal(seven, "hello")) == Opened::opened);
    // It goes with the next view.
    const std::string late = seal(seven, "late");
    keys->install(key('l'), {8}, now_ns());
    CHECK(open(opener, late) == Opened::stranger);
}

TEST("one sender cannot take another's datagram for its own") {
    auto keys = ring('k', {7, 8});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    CHECK(open(opener, seal(sealer, "mine"), nullptr, now_ns(), 8) == Opened::forged);
}

TEST("the key of the view before is accepted for a while, and no longer") {
    auto keys = ring('a', {7});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    const std::string first = seal(sealer, "first"), second = seal(sealer, "second");
    const Nanos now = now_ns();
    keys->install(key('b'), {7}, now);
    CHECK(open(opener, first, nullptr, now) == Opened::opened);
    CHECK(open(opener, first, nullptr, now) == Opened::replayed);
    const std::string third = seal(sealer, "third");
    CHECK(head_of(third).key == Keyring::name_of(key('b')));
    CHECK(open(opener, third, nullptr, now) == Opened::opened);
    CHECK(open(opener, second, nullptr, now + Keyring::kPrevious) == Opened::unknown_key);
    // The present one has no end.
    CHECK(open(opener, seal(sealer, "later"), nullptr, now + 1000 * kSecond) == Opened::opened);
}

TEST("views that follow each other fast do not prolong an old key, and are not kept without end") {
    auto keys = ring('a', {7});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    const std::string old = seal(sealer, "old");
    const Nanos now = now_ns();
    keys->install(key('b'), {7}, now);
    keys->install(key('c'), {7}, now + Keyring::kPrevious - 1);
    CHECK(open(opener, old, nullptr, now + Keyring::kPrevious) == Opened::unknown_key);
    const std::string kept = seal(sealer, "kept");
    for (std::size_t i = 0; i <= Keyring::kMostPrevious; ++i) {
        keys->install(key(static_cast<char>('d' + i)), {7}, now + Keyring::kPrevious);
    }
    CHECK(open(opener, kept, nullptr, now + Keyring::kPrevious) == Opened::unknown_key);
}

TEST("one that has no view seals and opens nothing") {
    auto keys = std::make_shared<Keyring>();
    Sealer sealer(keys, 7);
    Opener opener(keys);
    char out[100];
    std::size_t size = 0;
    CHECK(sealer.seal(kClear, {}, out, size) == Sealed::no_key);
    auto others = ring('k', {7});
    Sealer other(others, 7);
    const std::string datagram = seal(other, "x");
    CHECK(open(opener, datagram) == Opened::unknown_key);
    keys->install(key('k'), {7}, now_ns());
    CHECK(open(opener, datagram) == Opened::opened);
    const std::string next = seal(other, "y");
    keys->clear();
    CHECK(open(opener, next) == Opened::unknown_key);
    CHECK(sealer.seal(kClear, {}, out, size) == Sealed::no_key);
}

TEST("a datagram that comes again is refused, however far back it lies") {
    auto keys = ring('k', {7});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    std::vector<std::string> all;
    for (std::uint64_t i = 0; i < 3 * ReplayWindow::kWidth; ++i) all.push_back(seal(sealer, counted(i)));
    for (const std::string& one : all) CHECK(open(opener, one) == Opened::opened);
    for (const std::string& one : all) {
        const Opened result = open(opener, one);
        CHECK(result == Opened::replayed || result == Opened::too_old);
    }
    const Opener::Counts counts = opener.counts();
    CHECK(counts.replayed > ReplayWindow::kWidth - 64 && counts.replayed <= ReplayWindow::kWidth);
    CHECK_EQUAL(counts.replayed + counts.too_old, all.size());
}

TEST("what overtakes and what is late within the window is accepted, once") {
    auto keys = ring('k', {7});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    auto generator = check::random(2);
    for (int round = 0; round < 20; ++round) {
        std::vector<std::string> all;
        for (std::uint64_t i = 0; i < 1 + check::below(generator, 3000); ++i) all.push_back(seal(sealer, counted(i)));
        std::shuffle(all.begin(), all.end(), generator);
        for (std::size_t i = 0; i < all.size(); ++i) {
            CHECK(open(opener, all[i]) == Opened::opened);
            CHECK(open(opener, all[check::below(generator, i + 1)]) == Opened::replayed);
        }
    }
}

TEST("the window of counters is as a set of them would be") {
    auto generator = check::random(3);
    for (int round = 0; round < 20; ++round) {
        ReplayWindow window;
        std::set<std::uint64_t> come;
        std::uint64_t highest = 0, step = std::uint64_t{1} << check::below(generator, 20);
        for (std::uint64_t i = 0; i < check::count(4000, 100'000); ++i) {
            const std::uint64_t up = highest + check::below(generator, step);
            const std::uint64_t down = check::below(generator, 2 * ReplayWindow::kWidth);
            const std::uint64_t counter = up > down ? up - down : up;
            switch (window.look(counter)) {
                case ReplayWindow::Seen::fresh:
                    CHECK(!come.contains(counter));
                    window.mark(counter);
                    come.insert(counter);
                    highest = std::max(highest, counter);
                    break;
                case ReplayWindow::Seen::again: CHECK(come.contains(counter)); break;
                case ReplayWindow::Seen::too_old: CHECK(highest - counter > ReplayWindow::kWidth - 64); break;
            }
        }
    }
}

TEST("no nonce is used twice: counters go on over keys, and end") {
    auto keys = ring('a', {7});
    Sealer sealer(keys, 7);
    std::set<std::uint64_t> counters;
    for (char fill : {'a', 'b', 'a', 'c', 'a'}) {
        keys->install(key(fill), {7}, now_ns());
        for (int i = 0; i < 50; ++i) CHECK(counters.insert(head_of(seal(sealer, "x")).counter).second);
    }
    Opener opener(keys);
    Sealer last(keys, 7, UINT64_MAX - 1);
    CHECK(open(opener, seal(last, "the last one")) == Opened::opened);
    char out[100];
    std::size_t size = 0;
    for (int i = 0; i < 3; ++i) CHECK(last.seal(kClear, {}, out, size) == Sealed::exhausted);
}

TEST("after 2^32 datagrams a sender goes on with its next key, and late ones of the key before are opened") {
    auto keys = ring('k', {7});
    Sealer sealer(keys, 7, (std::uint64_t{1} << 32) - 2);
    Opener opener(keys);
    std::vector<std::string> all;
    for (int i = 0; i < 4; ++i) all.push_back(seal(sealer, counted(static_cast<std::uint64_t>(i))));
    for (const int i : {0, 2, 1, 3}) {
        std::string body;
        CHECK(open(opener, all[static_cast<std::size_t>(i)], &body) == Opened::opened);
        CHECK(body == counted(static_cast<std::uint64_t>(i)));
    }
}

TEST("keys are installed while others seal and open") {
    auto keys = ring('a', {7});
    Sealer sealer(keys, 7);
    Opener opener(keys);
    std::atomic<bool> done{false};
    std::thread changing([&] {
        char fill = 'a';
        while (!done.load()) {
            fill = fill == 'z' ? 'a' : static_cast<char>(fill + 1);
            keys->install(key(fill), {7, 8}, now_ns());
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
    });
    std::mutex mutex;
    std::vector<std::string> way;
    const std::uint64_t many = check::count(20'000, 500'000);
    std::thread sealing([&] {
        for (std::uint64_t i = 0; i < many; ++i) {
            const std::string made = seal(sealer, counted(i));
            std::lock_guard lock(mutex);
            way.push_back(made);
        }
    });
    std::uint64_t seen = 0, unknown = 0;
    while (seen < many) {
        std::vector<std::string> came;
        {
            std::lock_guard lock(mutex);
            came.swap(way);
        }
        for (const std::string& one : came) {
            std::string body;
            const Opened result = open(opener, one, &body);
            // Sixteen views within one datagram's way are more than are kept.
            if (result == Opened::unknown_key) ++unknown;
            else CHECK(result == Opened::opened && body == counted(seen));
            ++seen;
        }
        CHECK_EQUAL(opener.counts().opened + unknown, seen);
    }
    done = true;
    sealing.join();
    changing.join();
    CHECK(opener.counts().opened > 0);
}

// Bytes in, runs out: the parser of the data direction, the receive buffers it fills, and the small
// records of the hand-shake.
//
// Forbidden: a frame lost, doubled, changed or moved by the way the stream was cut; a frame behind a
// bad one; a buffer that is reused while somebody refers to it, or never comes back.
#include "frames/data_parser.hpp"

#include <deque>
#include <mutex>
#include <numeric>
#include <tuple>

#include "check.hpp"
#include "frames/bytes.hpp"
#include "frames/handshake.hpp"
#include "frames/sha256.hpp"
#include "scheduler/run.hpp"

using namespace antiphon;

namespace {

constexpr std::size_t kMaxFrame = 64 << 10;

struct Found {
    char what;  // d data, f fragment, c control
    std::uint16_t kind;
    std::uint32_t flow;
    std::string bytes;
    bool operator==(const Found&) const = default;
};

// Takes runs as a task queue does: by reference to the buffer, read later. Keeping the last few
// makes the parser move on to other buffers.
class Recorder : public DataSink {
   public:
    explicit Recorder(std::size_t keep, std::uint32_t least = 0) : keep_(keep), least_(least) {}
    ~Recorder() override { give_back(0); }

    std::uint32_t least_charge(std::uint16_t, std::uint32_t) override { return least_; }
    void run(const RunView& view) override {
        Run run;
        run.shape = view.first.flags & kPacked ? Run::Shape::packed : Run::Shape::frames;
        run.buffer = view.buffer;
        run.offset = view.offset;
        run.bytes = view.bytes;
        run.count = run.last = view.count;
        run.charge = view.charge;
        view.buffer->retain();
        CHECK(view.count != 0);
        CHECK(std::size_t{view.offset} + view.bytes <= view.buffer->capacity());
        held_.push_back({view.first, std::move(run), order_++});
        charge += view.charge;
        ++runs;
        give_back(keep_);
    }
    bool fragment(const Header& header, std::uint64_t id, std::string_view part) override {
        settle();
        found.push_back({'f', header.kind, header.flow, std::string(reinterpret_cast<const char*>(&id), 8) + std::string(part)});
        return true;
    }
    bool response(const Header& header, std::string_view payload) override {
        settle();
        found.push_back({'r', header.kind, header.flow, std::string(payload)});
        return true;
    }
    bool control(const Header& header, std::string_view payload) override {
        settle();
        if (refuse_control) return false;
        found.push_back({'c', header.kind, header.flow, std::string(payload)});
        return true;
    }
    // Reads what is still held, so that `found` is complete.
    void settle() { give_back(0); }
    bool holds() const { return !held_.empty(); }
    void give_back_one() { give_back(held_.size() - 1); }

    std::vector<Found> found;
    std::uint64_t charge = 0, runs = 0;
    bool refuse_control = false;

   private:
    struct Held {
        Header first;
        Run run;
        std::uint64_t order;
    };
    void give_back(std::size_t left) {
        while (held_.size() > left) {
            Held held = std::move(held_.front());
            held_.pop_front();
            RunCursor cursor(held.run);
            while (cursor.left() != 0) {
                const char* data;
                std::size_t size;
                cursor.next(data, size);
                found.push_back({'d', held.first.kind, held.first.flow, std::string(data, size)});
            }
            held.run.buffer->release();
        }
    }
    const std::size_t keep_;
    const std::uint32_t least_;
    std::deque<Held> held_;
    std::uint64_t order_ = 0;
};

std::string frame(std::uint16_t kind, std::uint16_t flags, std::uint32_t flow, std::string_view payload) {
    const Header header{static_cast<std::uint32_t>(payload.size()), kind, flags, flow};
    return std::string(reinterpret_cast<const char*>(&header), kHeaderBytes) + std::string(payload);
}

std::string packed(const std::vector<std::string>& messages) {
    ByteWriter writer;
    writer.put(static_cast<std::uint32_t>(messages.size()));
    for (const std::string& message : messages) writer.put(static_cast<std::uint32_t>(message.size()));
    for (const std::string& message : messages) writer.raw(message);
    return writer.bytes();
}

std::string letters(std::mt19937_64& random, std::size_t size) {
    std::string bytes(size, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
}

struct Stream {
    std::string bytes;
    std::vector<Found> frames;
    std::uint64_t charge = 0;
};

// Any frames that a well-behaved sender may write.
Stream make_stream(std::mt19937_64& random, std::size_t frames, std::size_t largest, std::uint32_t least = 0) {
    Stream stream;
    // Few kinds, so that frames of one kind often follow each other and become one run.
    auto user_kind = [&] { return static_cast<std::uint16_t>(kFirstDataKind + check::below(random, 3)); };
    for (std::size_t i = 0; i < frames; ++i) {
        const std::size_t size = check::below(random, 6) == 0 ? check::below(random, largest + 1)
                                                              : check::below(random, std::min<std::size_t>(largest, 80) + 1);
        const auto flow = static_cast<std::uint32_t>(check::below(random, 2));
        switch (check::below(random, 8)) {
            case 0: {
                const std::uint16_t kind = user_kind();
                std::vector<std::string> messages(1 + check::below(random, 9));
                for (std::string& message : messages) message = letters(random, check::below(random, size / messages.size() + 1));
                const std::string payload = packed(messages);
                stream.bytes += frame(kind, kPacked, flow, payload);
                for (std::string& message : messages) stream.frames.push_back({'d', kind, flow, std::move(message)});
                stream.charge += std::max<std::uint64_t>(kHeaderBytes + payload.size(), std::uint64_t{least} * messages.size());
                break;
            }
            case 1: {
                const std::uint16_t kind = user_kind();
                const std::string payload = letters(random, 8 + size);
                const bool last = check::below(random, 2) == 0;
                stream.bytes += frame(kind, static_cast<std::uint16_t>(kFragment | (last ? kLast : 0)), flow, payload);
                stream.frames.push_back({'f', kind, flow, payload});
                break;
            }
            case 2: {
                const auto kind = static_cast<std::uint16_t>(check::below(random, kFirstDataKind));
                const std::string payload = letters(random, size);
                stream.bytes += frame(kind, 0, flow, payload);
                stream.frames.push_back({'c', kind, flow, payload});
                break;
            }
            default: {
                const std::uint16_t kind = user_kind();
                const std::string payload = letters(random, size);
                stream.bytes += frame(kind, 0, flow, payload);
                stream.frames.push_back({'d', kind, flow, payload});
                stream.charge += std::max<std::uint64_t>(kHeaderBytes + payload.size(), least);
            }
        }
    }
    return stream;
}

std::shared_ptr<BufferPool> make_pool(std::vector<std::pair<std::size_t, std::size_t>> sizes) {
    return std::make_shared<BufferPool>(sizes);
}

// Puts one chunk, as one read of a socket would bring it, into as many buffers as it takes. False
// once the stream is bad.
bool feed(DataParser& parser, BufferPool& pool, Recorder& recorder, std::string_view chunk) {
    while (!chunk.empty()) {
        char* at;
        std::size_t room;
        while (!parser.prepare(pool, at, room)) {
            CHECK(recorder.holds());  // else the pool has lost a buffer
            recorder.give_back_one();
        }
        CHECK(room != 0);
        const std::size_t part = std::min(room, chunk.size());
        std::memcpy(at, chunk.data(), part);
        chunk.remove_prefix(part);
        if (!parser.parse(part, recorder)) return false;
    }
    parser.rest();
    return true;
}

void check_same(const std::vector<Found>& found, const std::vector<Found>& wanted) {
    for (std::size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
        CHECK_SAYS(found[i] == wanted[i], "frame " + std::to_string(i) + " of " + std::to_string(wanted.size()));
    }
    CHECK_EQUAL(found.size(), wanted.size());
}

// A stream cut at these places gives its frames, and leaves no buffer behind.
void check_cuts(const Stream& stream, const std::vector<std::size_t>& cuts, std::size_t keep, std::uint32_t least = 0) {
    auto pool = make_pool({{4096, 3}, {16384, 3}});
    {
        DataParser parser(kMaxFrame);
        Recorder recorder(keep, least);
        std::size_t at = 0;
        for (const std::size_t cut : cuts) {
            CHECK(feed(parser, *pool, recorder, std::string_view(stream.bytes).substr(at, cut - at)));
            at = cut;
        }
        CHECK(feed(parser, *pool, recorder, std::string_view(stream.bytes).substr(at)));
        CHECK(!parser.mid_frame());
        CHECK(parser.error().empty());
        recorder.settle();
        check_same(recorder.found, stream.frames);
        CHECK_EQUAL(recorder.charge, stream.charge);
    }
    CHECK_EQUAL(pool->out_bytes(), 0);
}

// A bad frame behind good ones: they arrive, it does not, and the parser says why.
void check_bad(const std::string& bad, bool refuse_control = false) {
    const Stream good = [] {
        Stream stream;
        stream.bytes = frame(70, 0, 1, "before") + frame(70, 0, 1, "it");
        stream.frames = {{'d', 70, 1, "before"}, {'d', 70, 1, "it"}};
        return stream;
    }();
    const std::string bytes = good.bytes + bad + frame(70, 0, 1, "after");
    for (std::size_t step : {std::size_t{1}, std::size_t{5}, bytes.size()}) {
        auto pool = make_pool({{4096, 2}, {65536, 2}});
        DataParser parser(kMaxFrame);
        Recorder recorder(0);
        recorder.refuse_control = refuse_control;
        bool fine = true;
        for (std::size_t at = 0; fine && at < bytes.size(); at += step) {
            fine = feed(parser, *pool, recorder, std::string_view(bytes).substr(at, step));
        }
        CHECK(!fine);
        CHECK(!parser.error().empty());
        recorder.settle();
        check_same(recorder.found, good.frames);
    }
}

}  // namespace

// --- well-formed streams -------------------------------------------------------------------------

TEST("a short stream cut in two at any place gives its frames") {
    auto random = check::random(1);
    for (int round = 0; round < 20; ++round) {
        const Stream stream = make_stream(random, 12, 60);
        for (std::size_t cut = 0; cut <= stream.bytes.size(); ++cut) check_cuts(stream, {cut}, 0);
    }
}

TEST("a short stream cut in three at any two places gives its frames") {
    auto random = check::random(2);
    const Stream stream = make_stream(random, 7, 20);
    for (std::size_t a = 0; a <= stream.bytes.size(); ++a) {
        for (std::size_t b = a; b <= stream.bytes.size(); b += 1 + b % 3) check_cuts(stream, {a, b}, 1);
    }
}

TEST("a stream that comes byte by byte gives its frames") {
    auto random = check::random(3);
    const Stream stream = make_stream(random, 120, 900);
    std::vector<std::size_t> cuts(stream.bytes.size());
    std::iota(cuts.begin(), cuts.end(), 0);
    for (std::size_t keep : {0, 1, 3}) check_cuts(stream, cuts, keep);
}

TEST("random streams at random cuts give their frames, whoever still holds earlier ones") {
    auto random = check::random(4);
    const std::uint64_t rounds = check::count(400, 20'000);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        const auto least = static_cast<std::uint32_t>(check::below(random, 3) * 100);
        const Stream stream = make_stream(random, 1 + check::below(random, 200), round % 4 == 0 ? 30'000 : 600, least);
        std::vector<std::size_t> cuts(check::below(random, 60));
        for (std::size_t& cut : cuts) cut = check::below(random, stream.bytes.size() + 1);
        std::sort(cuts.begin(), cuts.end());
        check_cuts(stream, cuts, check::below(random, 12), least);
    }
}

TEST("frames larger than every pooled buffer arrive whole") {
    auto random = check::random(5);
    Stream stream;
    for (const std::size_t size : {std::size_t{16384}, std::size_t{16385}, std::size_t{40000}, kMaxFrame, std::size_t{0}}) {
        const std::string payload = letters(random, size);
        stream.bytes += frame(80, 0, 3, payload);
        stream.frames.push_back({'d', 80, 3, payload});
        stream.charge += kHeaderBytes + size;
    }
    for (std::size_t keep : {0, 2, 10}) {
        std::vector<std::size_t> cuts;
        for (std::size_t at = 0; at < stream.bytes.size(); at += 3001) cuts.push_back(at);
        check_cuts(stream, {}, keep);
        check_cuts(stream, cuts, keep);
    }
}

TEST("frames of one kind and flow that come together are one run") {
    auto pool = make_pool({{65536, 2}});
    DataParser parser(kMaxFrame);
    Recorder recorder(10);
    std::string bytes;
    for (int i = 0; i < 100; ++i) bytes += frame(90, 0, 2, "0123456789");
    CHECK(feed(parser, *pool, recorder, bytes));
    CHECK_EQUAL(recorder.runs, 1);
    CHECK(feed(parser, *pool, recorder, frame(90, 0, 2, "x") + frame(90, 0, 3, "x") + frame(91, 0, 3, "x")));
    CHECK_EQUAL(recorder.runs, 4);
    recorder.settle();
    CHECK_EQUAL(recorder.found.size(), 103);
}

TEST("a parser at rest between frames holds no buffer") {
    auto pool = make_pool({{4096, 1}});
    DataParser parser(kMaxFrame);
    Recorder recorder(0);
    CHECK(feed(parser, *pool, recorder, frame(70, 0, 1, "one")));
    CHECK_EQUAL(pool->out_bytes(), 0);
    CHECK(feed(parser, *pool, recorder, frame(70, 0, 1, "two").substr(0, 5)));
    CHECK(parser.mid_frame());
    CHECK_EQUAL(pool->out_bytes(), 4096);
    parser.drop();
    CHECK_EQUAL(pool->out_bytes(), 0);
}

// --- others ----------------------------------------------------------------------------------------

TEST("a frame above the agreed size ends the stream before anything is kept for it") {
    check_bad(frame(70, 0, 1, std::string(kMaxFrame + 1, 'x')));
    Header header{0xffffffff, 70, 0, 1};
    check_bad(std::string(reinterpret_cast<const char*>(&header), kHeaderBytes));
    header.kind = static_cast<std::uint16_t>(Control::flush);
    check_bad(std::string(reinterpret_cast<const char*>(&header), kHeaderBytes));
}

TEST("a frame with unknown flags ends the stream") {
    check_bad(frame(70, 8, 1, "?"));
    check_bad(frame(70, 0x8000, 1, "?"));
}

TEST("a packed frame whose facts disagree ends the stream") {
    check_bad(frame(70, kPacked, 1, ""));
    check_bad(frame(70, kPacked, 1, "abc"));
    check_bad(frame(70, kPacked, 1, packed({})));
    check_bad(frame(70, kPacked, 1, packed({"a", "b"}) + "c"));
    std::string less = packed({"abc", "def"});
    less.pop_back();
    check_bad(frame(70, kPacked, 1, less));
    check_bad(frame(70, kPacked | kLast, 1, packed({"a"})));
    // Counts and lengths that only fit after an overflow.
    check_bad(frame(70, kPacked, 1, ByteWriter().put(std::uint32_t{0x40000000}).bytes()));
    check_bad(frame(70, kPacked, 1, ByteWriter().put(std::uint32_t{0xffffffff}).put(std::uint32_t{0}).bytes()));
    check_bad(frame(70, kPacked, 1,
                    ByteWriter().put(std::uint32_t{2}).put(std::uint32_t{0xffffffff}).put(std::uint32_t{1}).bytes()));
}

TEST("a fragment without an id ends the stream") {
    check_bad(frame(70, kFragment, 1, "1234567"));
    check_bad(frame(70, kFragment | kLast, 1, ""));
}

TEST("a control frame that the node does not want ends the stream") { check_bad(frame(5, 0, 0, "ready?"), true); }

TEST("a damaged stream gives frames or an error, never more") {
    auto random = check::random(6);
    const std::uint64_t rounds = check::count(3'000, 200'000);
    std::uint64_t refused = 0;
    for (std::uint64_t round = 0; round < rounds; ++round) {
        Stream stream = make_stream(random, 1 + check::below(random, 30), 300);
        for (std::uint64_t hits = 1 + check::below(random, 4); hits != 0; --hits) {
            char& byte = stream.bytes[check::below(random, stream.bytes.size())];
            byte = static_cast<char>(byte ^ (1 << check::below(random, 8)));
        }
        if (check::below(random, 4) == 0) stream.bytes.resize(check::below(random, stream.bytes.size() + 1));
        auto pool = make_pool({{4096, 2}, {16384, 2}});
        {
            DataParser parser(4096);
            Recorder recorder(check::below(random, 5));
            std::string_view rest = stream.bytes;
            bool fine = true;
            while (fine && !rest.empty()) {
                const std::size_t part = std::min<std::size_t>(rest.size(), 1 + check::below(random, 900));
                fine = feed(parser, *pool, recorder, rest.substr(0, part));
                rest.remove_prefix(part);
            }
            recorder.settle();
            std::size_t bytes = 0;
            for (const Found& found : recorder.found) bytes += found.bytes.size();
            CHECK(bytes <= stream.bytes.size());
            CHECK_EQUAL(fine, parser.error().empty());
            refused += !fine;
        }
        CHECK_EQUAL(pool->out_bytes(), 0);
    }
    CHECK(refused != 0);
}

// --- receive buffers -------------------------------------------------------------------------------

TEST("a pool gives the smallest buffer that is large enough, then larger ones, then the least") {
    auto pool = make_pool({{16384, 1}, {4096, 2}, {65536, 1}});
    CHECK_EQUAL(pool->smallest(), 4096);
    CHECK_EQUAL(pool->largest(), 65536);
    CHECK_EQUAL(pool->bound_bytes(), 2 * 4096 + 16384 + 65536);
    std::vector<Buffer*> out;
    for (const std::size_t wanted : {4096, 4096, 4096, 4096}) {
        Buffer* buffer = pool->acquire(wanted, wanted);
        CHECK(buffer != nullptr);
        out.push_back(buffer);
    }
    CHECK_EQUAL(out[0]->capacity(), 4096);
    CHECK_EQUAL(out[1]->capacity(), 4096);
    CHECK_EQUAL(out[2]->capacity(), 16384);
    CHECK_EQUAL(out[3]->capacity(), 65536);
    CHECK_EQUAL(pool->out_bytes(), pool->bound_bytes());
    CHECK(pool->acquire(1, 1) == nullptr);
    out[2]->release();
    // Nothing holds 65536, but 5000 will do.
    Buffer* least = pool->acquire(65536, 5000);
    CHECK(least != nullptr && least->capacity() == 16384);
    CHECK(pool->acquire(65536, 20000) == nullptr);
    least->release();
    out[0]->release();
    out[1]->release();
    out[3]->release();
    CHECK_EQUAL(pool->out_bytes(), 0);
}

TEST("an exhausted pool calls back once, when the first buffer returns") {
    auto pool = make_pool({{4096, 2}});
    int calls = 0;
    pool->set_on_return([&] { ++calls; });
    Buffer* a = pool->acquire(1, 1);
    Buffer* b = pool->acquire(1, 1);
    b->release();
    CHECK_EQUAL(calls, 0);  // nobody had been refused
    b = pool->acquire(1, 1);
    CHECK(pool->acquire(1, 1) == nullptr);
    CHECK(pool->acquire(1, 1) == nullptr);
    CHECK_EQUAL(calls, 0);
    a->retain();
    a->release();
    CHECK_EQUAL(calls, 0);  // somebody still refers to it
    a->release();
    CHECK_EQUAL(calls, 1);
    b->release();
    CHECK_EQUAL(calls, 1);
    a = pool->acquire(1, 1);
    b = pool->acquire(1, 1);
    CHECK(pool->acquire(1, 1) == nullptr);
    pool->set_on_return(nullptr);
    a->release();
    b->release();
    CHECK_EQUAL(calls, 1);
}

TEST("a buffer is its holder's alone until it is shared") {
    auto pool = make_pool({{4096, 1}});
    Buffer* buffer = pool->acquire(1, 1);
    CHECK(buffer->sole());
    buffer->retain();
    CHECK(!buffer->sole());
    buffer->release();
    CHECK(buffer->sole());
    buffer->release();
    CHECK_EQUAL(pool->out_bytes(), 0);
}

TEST("a buffer outlives its pool's owner") {
    auto pool = make_pool({{4096, 1}});
    Buffer* buffer = pool->acquire(1, 1);
    std::weak_ptr<BufferPool> gone = pool;
    pool.reset();
    CHECK(!gone.expired());
    std::memset(buffer->data(), 1, buffer->capacity());
    buffer->release();
    CHECK(gone.expired());
    Buffer* alone = Buffer::standalone(100'000);
    std::memset(alone->data(), 1, alone->capacity());
    alone->retain();
    alone->release();
    alone->release();
}

TEST("pins are counted by capacity, up to a quarter of the pool, and end with the last reference") {
    auto pool = make_pool({{4096, 16}});
    std::vector<Buffer*> out;
    for (int i = 0; i < 8; ++i) out.push_back(pool->acquire(1, 1));
    for (int i = 0; i < 4; ++i) {
        CHECK(out[static_cast<std::size_t>(i)]->pin());
        CHECK(out[static_cast<std::size_t>(i)]->pin());  // a second view of the same buffer is free
    }
    CHECK_EQUAL(pool->pinned_bytes(), 4 * 4096);
    CHECK(!out[4]->pin());
    CHECK_EQUAL(pool->pinned_bytes(), 4 * 4096);
    out[0]->release();
    CHECK_EQUAL(pool->pinned_bytes(), 3 * 4096);
    CHECK(out[4]->pin());
    // A buffer of its own was paid for elsewhere.
    Buffer* alone = Buffer::standalone(1 << 20);
    CHECK(alone->pin());
    CHECK_EQUAL(pool->pinned_bytes(), 4 * 4096);
    alone->release();
    for (std::size_t i = 1; i < out.size(); ++i) out[i]->release();
    CHECK_EQUAL(pool->pinned_bytes(), 0);
    CHECK_EQUAL(pool->out_bytes(), 0);
}

TEST("a pool with little left refuses pins") {
    auto pool = make_pool({{4096, 8}});
    std::vector<Buffer*> out;
    for (int i = 0; i < 7; ++i) out.push_back(pool->acquire(1, 1));
    CHECK(pool->pressed());
    CHECK(!out[0]->pin());
    out.back()->release();
    out.pop_back();
    CHECK(!pool->pressed());
    CHECK(out[0]->pin());
    for (Buffer* buffer : out) buffer->release();
    CHECK_EQUAL(pool->pinned_bytes(), 0);
}

TEST("threads that take, share, pin and drop buffers lose none") {
    auto pool = make_pool({{4096, 24}, {16384, 8}});
    std::atomic<std::uint64_t> returns{0}, refusals{0}, pins{0};
    pool->set_on_return([&] { returns.fetch_add(1); });
    std::mutex mutex;
    std::deque<Buffer*> shared;
    std::vector<std::thread> threads;
    const std::uint64_t steps = check::count(60'000, 2'000'000);
    for (std::uint64_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            auto random = check::random(100 + t);
            std::deque<Buffer*> mine;
            for (std::uint64_t step = 0; step < steps; ++step) {
                switch (check::below(random, 5)) {
                    case 0: {
                        Buffer* buffer = pool->acquire(1 + check::below(random, 16384), 1);
                        if (buffer == nullptr) {
                            refusals.fetch_add(1);
                            break;
                        }
                        CHECK(buffer->sole());
                        // Whoever else had it would write its own mark here.
                        std::memcpy(buffer->data(), &t, sizeof t);
                        std::memcpy(buffer->data() + buffer->capacity() - sizeof step, &step, sizeof step);
                        std::uint64_t first, last;
                        std::memcpy(&first, buffer->data(), sizeof first);
                        std::memcpy(&last, buffer->data() + buffer->capacity() - sizeof last, sizeof last);
                        CHECK_EQUAL(first, t);
                        CHECK_EQUAL(last, step);
                        mine.push_back(buffer);
                        break;
                    }
                    case 1: {
                        if (mine.empty()) break;
                        mine.back()->retain();
                        std::lock_guard lock(mutex);
                        shared.push_back(mine.back());
                        break;
                    }
                    case 2: {
                        Buffer* buffer = nullptr;
                        {
                            std::lock_guard lock(mutex);
                            if (shared.empty()) break;
                            buffer = shared.front();
                            shared.pop_front();
                        }
                        if (buffer->pin()) pins.fetch_add(1);
                        buffer->release();
                        break;
                    }
                    default:
                        if (mine.empty()) break;
                        mine.front()->release();
                        mine.pop_front();
                }
            }
            for (Buffer* buffer : mine) buffer->release();
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (Buffer* buffer : shared) buffer->release();
    CHECK_EQUAL(pool->out_bytes(), 0);
    CHECK_EQUAL(pool->pinned_bytes(), 0);
    CHECK(pins.load() != 0);
    CHECK(returns.load() <= refusals.load());
    // All of them are there again.
    std::vector<Buffer*> all;
    while (Buffer* buffer = pool->acquire(1, 1)) all.push_back(buffer);
    CHECK_EQUAL(all.size(), 32);
    for (Buffer* buffer : all) buffer->release();
}

// --- records of the hand-shake ---------------------------------------------------------------------

TEST("HMAC-SHA256 agrees with the published vectors") {
    auto hex = [](const std::string& bytes) {
        std::string text;
        for (const char byte : bytes) {
            char two[3];
            std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
            text += two;
        }
        return text;
    };
    // FIPS 180 and RFC 4231.
    CHECK_EQUAL(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_EQUAL(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_EQUAL(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK_EQUAL(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK_EQUAL(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    CHECK(same_proof("abc", "abc"));
    CHECK(!same_proof("abc", "abd"));
    CHECK(!same_proof("abc", "ab"));
}

TEST("a hello is read as it was written, fields of the future are ignored, and a part of one is none") {
    Hello hello;
    hello.version_min = 1;
    hello.version_max = 3;
    hello.features = 0x80000001;
    hello.direction = Direction::yours;
    hello.flags = Hello::kHasSecret;
    hello.id = 65535;
    hello.expected = 7;
    hello.incarnation = 0x0123456789abcdef;
    hello.nonce = std::string(kNonceBytes, 'n');
    hello.max_message = std::uint64_t{1} << 40;
    hello.max_frame = 1 << 20;
    hello.address = "tcp://127.0.0.1:7001";
    hello.heartbeat_ms = 250;
    const std::string bytes = hello.encode();
    for (const std::string& text : {bytes, bytes + "what comes later"}) {
        Hello read;
        CHECK(Hello::decode(text, read));
        CHECK_EQUAL(read.encode() == bytes, true);
    }
    // The heartbeat was appended later: a record without it is an older node's.
    const std::size_t first_version = bytes.size() - sizeof hello.heartbeat_ms;
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        Hello read;
        CHECK_EQUAL(Hello::decode(std::string_view(bytes).substr(0, size), read), size >= first_version);
        CHECK_EQUAL(read.heartbeat_ms, 0);
    }
    std::string other = bytes;
    other[0] = 'X';
    Hello read;
    CHECK(!Hello::decode(other, read));
}

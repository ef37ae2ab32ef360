// What comes from one member on one lane by datagrams: puts it in order, and asks for what is missing.
//
// It asks after a random moment, so that not all ask at once, in ranges, and one holder at a time: the sender
// first, then another member in turn with it; ever more seldom while nothing comes of it. What it has passed
// on is kept until the sender says that everybody has it, for others that ask. What it holds is bounded in
// bytes and in messages; beyond that it drops what is furthest on, and asks again later.
//
// No clock, no socket and no thread in here, and no lock: whoever uses it has one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "window/wanted.hpp"

namespace antiphon::window {

// Messages with numbers that follow each other, as they lay in one datagram.
struct Chunk {
    std::uint64_t first = 0;
    std::vector<std::uint16_t> lengths;
    std::string bytes;
    Nanos arrived = 0;
    std::uint64_t end() const { return first + lengths.size(); }
};

class CastReceiver {
   public:
    struct Options {
        std::size_t most_bytes, most_messages;
        Nanos ask_first = 2 * kMillisecond;   // on average, after a gap was seen
        Nanos ask_again = 20 * kMillisecond;  // then twice as long every time
        Nanos ask_most = 200 * kMillisecond;
        Nanos acknowledge = 10 * kMillisecond;  // so long at most after something came
    };
    // Some of the messages of a chunk, next in order.
    struct Ready {
        std::shared_ptr<const Chunk> chunk;
        std::size_t begin = 0;  // the first of them, among those of the chunk
    };

    CastReceiver(Options options, std::uint64_t seed) : options_(options), chance_(seed) {}

    // Where we begin. A second time changes nothing.
    void begin(std::uint64_t base, Nanos now);
    bool begun() const { return expected_ != 0; }
    // A datagram; they are to be acknowledged after so many bytes (0: as before). Whether any of it is new and was
    // kept.
    bool data(std::shared_ptr<const Chunk> chunk, std::uint64_t stable, std::uint32_t every, bool ask, Nanos now);
    // The sender has sent everything before `next`. `ask`: and asks how far we are.
    void head(std::uint64_t next, std::uint64_t stable, bool ask, Nanos now);
    // What is next in order.
    bool take(Ready& ready);
    // Everything before this number was handled, of so many bytes since the last time.
    void handled(std::uint64_t upto, std::size_t bytes, Nanos now);

    // Whether it is time to say how far we are; then it counts as said.
    bool acknowledge(Nanos now);
    std::uint64_t received() const { return expected_; }
    std::uint64_t handled() const { return handled_; }
    bool slow() const { return held_bytes_ > options_.most_bytes / 2; }
    // Whether it is time to ask for something: what, and for the how manieth time in a row, from 0.
    bool ask(Nanos now, std::vector<Range>& ranges, std::uint32_t& attempt);
    // Whether it is time to ask where we begin.
    bool ask_base(Nanos now);
    // For others: adds chunks that we have of a range, up to so many in all.
    void find(Range range, std::vector<std::shared_ptr<const Chunk>>& chunks, std::size_t most) const;

    Nanos next_time() const;
    std::uint64_t duplicates() const { return duplicates_; }
    std::uint64_t refused() const { return refused_; }
    std::uint64_t gaps() const { return gaps_; }
    std::uint64_t asked() const { return asked_; }
    std::size_t held_bytes() const { return held_bytes_; }
    std::size_t kept() const { return kept_.size(); }
    bool missing() const { return expected_ != 0 && expected_ < highest_; }

    static constexpr std::size_t kMostRanges = 64;

   private:
    using Later = std::map<std::uint64_t, std::shared_ptr<const Chunk>>;

    void advance();
    void owe(Nanos now);
    Later::iterator drop(Later::iterator at);
    void forget_stable(std::uint64_t stable);
    void noticed(Nanos now);
    Nanos some(Nanos about);

    const Options options_;
    std::minstd_rand chance_;
    std::uint64_t expected_ = 0;  // everything before it is in order; 0: where we begin is not known
    std::uint64_t handled_ = 0;
    std::uint64_t highest_ = 0;  // everything before it was sent
    std::uint64_t stable_ = 0;
    // By the first number that is new in it. None lies within another, so that ends go up like beginnings.
    Later later_;
    std::deque<Ready> ready_;
    std::deque<std::shared_ptr<const Chunk>> kept_;
    std::size_t held_bytes_ = 0, held_messages_ = 0;  // that were not handled
    std::size_t kept_bytes_ = 0;
    // Acknowledging:
    std::uint32_t every_ = 1;
    std::size_t unsaid_received_ = 0, unsaid_handled_ = 0;  // bytes
    std::size_t unsaid_messages_ = 0;                       // handled: small ones fill a window too
    bool asked_for_ = false;
    // The sender has asked, and may wait for what was not handled then: it is told when everything is.
    bool owed_ = false;
    Nanos say_at_ = kNever;
    // Asking:
    Nanos ask_at_ = kNever, again_at_ = kNever;
    std::uint64_t asked_upto_ = 0;       // what is missing before it was asked for
    std::uint64_t expected_then_ = 0;    // when everything was asked for the last time
    std::uint32_t attempt_ = 0;
    Nanos base_at_ = 0, base_pause_ = 0;
    std::uint64_t duplicates_ = 0, refused_ = 0, gaps_ = 0, asked_ = 0;
};

}  // namespace antiphon::window

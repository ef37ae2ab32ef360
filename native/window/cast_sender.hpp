// One stream of messages to others by datagrams, of which any may be lost, doubled or late.
//
// A lane keeps the messages; this says which of them go into the next datagram, which go again because
// somebody has asked, and when the others are told how far the stream is, so that they notice what they lack.
// Nothing goes again by itself: a receiver asks for what it misses, and one that misses the last message
// learns of it from the word that follows when the sender is quiet, which is sent ever more seldom.
//
// No clock, no socket and no thread in here, and no lock: whoever uses it has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/clock.hpp"
#include "window/flow.hpp"
#include "window/lane.hpp"
#include "window/wanted.hpp"

namespace antiphon::window {

class CastSender {
   public:
    struct Options {
        std::size_t datagram_bytes;       // for messages and their lengths, in one datagram
        Nanos quiet = 20 * kMillisecond;  // so long after the last datagram the others are told how far it is
        double repair_fraction = 0.5;     // what goes again, at most, of what goes for the first time
        double repair_floor = 8e6;        // bytes a second that may go again in any case
        bool gather = true;               // a datagram that is not full waits a moment for more
    };
    // Messages of one datagram. `to`: a member, 0: all of them. `ask`: it is to be acknowledged at once.
    struct Piece {
        std::uint64_t first = 0, end = 0, to = 0;
        bool ask = false;
    };
    static constexpr std::size_t kLengthBytes = 2;  // of every message in a datagram

    CastSender(Lane& lane, Options options, Flow::Options flow) : lane_(lane), options_(options), flow_(flow) {}

    // Who gets it, from the next message on; after Lane::add. `buffer`: bytes of its socket, 0: not known.
    void add(std::uint64_t member, std::size_t buffer, Nanos now);
    // After Lane::remove.
    void remove(std::uint64_t member);

    // The next datagram, if one may go now: those messages count as sent.
    bool next(Nanos now, Piece& piece);
    // It did not go after all, nor what was behind it.
    void rewind(const Piece& piece);
    // Something that goes again.
    bool repair(Nanos now, Piece& piece);
    // Whether all are to be told that everything before sent() was sent and before stable() is stable. `ask`: and
    // asked how far they are; otherwise everybody has everything, and what is kept for others may go.
    bool head(Nanos now, bool& ask);
    // It is wanted now: somebody waits for everybody to have everything.
    void hasten(Nanos now) { head_at_ = std::min(head_at_, now); }
    // A member that is to be told where it begins.
    bool base(Nanos now, std::uint64_t& member, std::uint64_t& base);
    // It says that it does not know.
    void asks_base(std::uint64_t member, Nanos now);

    // It has everything before `received`, and has handled everything before `handled`. True when that gave
    // room in the window. What was never sent cannot be acknowledged: such words are ignored.
    bool acknowledge(std::uint64_t member, std::uint64_t received, std::uint64_t handled, bool slow, Nanos now);
    // It lacks those.
    void asked(std::uint64_t member, Range range, Nanos now);

    // When any of the above has something to do again by itself.
    Nanos next_time() const;
    std::uint64_t sent() const { return sent_; }
    std::uint64_t stable() const { return lane_.window().first(); }
    std::uint32_t acknowledge_every() const { return static_cast<std::uint32_t>(flow_.acknowledge_every()); }
    std::size_t flight() const { return flow_.flight(); }
    std::uint64_t repeated() const { return repeated_; }
    std::uint64_t heads() const { return heads_; }
    std::uint64_t cuts() const { return flow_.cuts(); }
    std::uint64_t held() const { return held_; }  // how often flow control has held it up

   private:
    struct Receiver {
        std::uint64_t received, handled;
        std::size_t buffer;
        bool knows = false;  // where it begins: it has acknowledged something
        Nanos base_at;
        Nanos base_pause;
    };
    std::size_t size_of(std::uint64_t from, std::uint64_t to) const;
    // The end of what fits into one datagram, from a number on.
    std::uint64_t fill(std::uint64_t from, std::uint64_t end, std::size_t& bytes, bool& full) const;
    void look();  // who is furthest behind
    void share();
    void rate(std::size_t bytes, Nanos now);

    Lane& lane_;
    const Options options_;
    Flow flow_;
    std::map<std::uint64_t, Receiver> receivers_;
    Wanted wanted_;
    std::uint64_t sent_ = 1;  // everything before it was sent
    std::uint64_t received_ = 1, handled_ = 1;  // by everybody, up to here
    bool blocked_ = false;  // by flow control
    Nanos last_sent_ = 0;
    Nanos gather_at_ = kNever;
    Nanos head_at_ = kNever, head_pause_ = 0;
    std::uint64_t told_stable_ = 1;  // in the last datagram to all
    // What goes again: bytes that may, since when, and how fast data goes for the first time.
    double tokens_ = 0, rate_ = 0;
    Nanos tokens_at_ = 0, rate_at_ = 0;
    Nanos repair_at_ = 0;  // not before: others may ask for the same
    std::size_t rate_bytes_ = 0;
    std::uint64_t repeated_ = 0, heads_ = 0, held_ = 0;
};

}  // namespace antiphon::window

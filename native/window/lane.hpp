// One stream of messages from this member to one or several others: a window, and how far each has come.
//
// Numbers go up by one and never begin again. A member that is added gets what is sent from then on: its
// base. Everything that a session carries arrives in order or not at all, so that nothing has to be asked
// for while a session lasts; in a new session a member is sent again whatever it has not acknowledged,
// and drops what it knows. What everybody has is released: that is stability, and what the window waits
// for.
//
// No clock, no socket and no thread in here, and no lock: whoever uses it has one.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.hpp"
#include "window/send_window.hpp"

namespace antiphon::window {

class Lane {
   public:
    Lane(std::size_t bytes, std::size_t messages) : window_(bytes, messages) {}

    struct Receiver {
        std::uint64_t base;   // the first number that is for it
        std::uint64_t next;   // what it is sent next
        std::uint64_t acked;  // what it has, up to here
        std::uint64_t session = 0;
        std::uint64_t seen = 0;  // acked, at the last look
        // What it had acknowledged when it began to hold up others, and when that was; 0: it does not.
        std::uint64_t held = 0;
        Nanos held_since = 0;
    };

    SendWindow& window() { return window_; }
    const SendWindow& window() const { return window_; }

    // From the next message on. Adding one that is there changes nothing.
    void add(std::uint64_t member);
    // What it did not have holds up nobody any more; true when that gave room.
    bool remove(std::uint64_t member);
    Receiver* find(std::uint64_t member);
    std::size_t receivers() const { return receivers_.size(); }

    // In this session of the way to it. Another one than before: all that is not acknowledged goes again.
    // True when there is something to send.
    bool ready(Receiver& receiver, std::uint64_t session);
    void sent(Receiver& receiver, std::uint64_t count) { receiver.next += count; }
    // It has everything before this number. `resume`: and what it was sent last does not follow on that.
    // True when that gave room. What was never sent cannot be acknowledged: such words are ignored.
    bool acknowledge(std::uint64_t member, std::uint64_t upto, bool resume);
    // Asked from time to time: whether to ask it how far it is, because it has been silent since the
    // last time although something is not acknowledged.
    bool quiet(Receiver& receiver);
    // Asked from time to time, and whether senders wait for room: those for which they wait, and how long. They
    // are the furthest behind, and have acknowledged nothing in that time.
    std::map<std::uint64_t, Nanos> held_up(Nanos now, bool full);
    // Everybody has everything.
    bool settled() const { return window_.messages() == 0; }

    // This member itself, where it gets its own messages: it reads the window in place.
    void deliver_here(bool here);
    std::uint64_t delivered() const { return own_; }
    bool delivered_here(std::uint64_t upto);  // true when that gave room

    std::uint64_t repeated() const { return repeated_; }  // messages that were sent again
    // Numbers from this one on are sent; those who follow do not get what was before.
    std::uint64_t next() const { return window_.next(); }

   private:
    bool release();

    SendWindow window_;
    std::map<std::uint64_t, Receiver> receivers_;
    bool here_ = false;
    std::uint64_t own_ = 1;
    std::uint64_t repeated_ = 0;
};

}  // namespace antiphon::window

// A thread that waits for an answer reads the channel that the answer comes on by itself: the way over
// the selector's thread would cost a second wake-up.
//
// At most one thread leads a channel; the others wait as usual, and are woken by what it reads. It
// handles everything that it reads, with the selector's turn. While it leads, the selector's thread
// does not watch that channel for reading.
#pragma once

#include "base/clock.hpp"

namespace antiphon {

class Node;
class Peer;
struct Channel;

class Lead {
   public:
    // Takes the lead if nobody has it, the channel is open, and the selector does not work just now.
    Lead(Node& node, Peer& peer, Channel* Peer::*which);
    ~Lead();
    Lead(const Lead&) = delete;

    explicit operator bool() const { return channel_ != nullptr; }
    // Waits until something was read, Peer::wake, or the point in time. The lead may be lost then.
    void wait(Nanos until);

   private:
    bool still() const;  // with the turn

    Node& node_;
    Peer& peer_;
    Channel* Peer::*const which_;
    Channel* channel_ = nullptr;
    int fd_ = -1;
};

}  // namespace antiphon

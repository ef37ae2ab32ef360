// A thread that waits for an answer reads the channel that the answer comes on by itself: the way over
// the selector's thread would cost a second wake-up.
//
// At most one thread leads a channel; the others wait as usual, and are woken by what it reads. It
// handles everything that it reads, with the selector's turn. While it leads, the selector's thread
// does not watch that channel for reading.
#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.hpp"

namespace antiphon {

class Node;
class Peer;
struct Channel;

// The eventfds of threads that lead: as many as have led at the same time. They are not the peers', of which a
// node may meet any number. None is closed before the node's end: those who wake a leader hold no lock, so one of
// them may be about to write when the lead is over. The next leader then wakes for nothing, and looks again.
// With the selector's turn.
class LeadWakes {
   public:
    LeadWakes() = default;
    ~LeadWakes();
    LeadWakes(const LeadWakes&) = delete;

    int take();  // -1: the system has none for us
    void give_back(int wake) { idle_.push_back(wake); }
    std::size_t made() const { return made_; }

   private:
    std::vector<int> idle_;  // has room for all there are
    std::size_t made_ = 0;
};

class Lead {
   public:
    // Takes the lead if nobody has it, the channel is open, and the selector does not work just now.
    Lead(Node& node, Peer& peer, Channel* Peer::*which);
    ~Lead();
    Lead(const Lead&) = delete;

    explicit operator bool() const { return channel_ != nullptr; }
    // Waits until something was read (true), Peer::wake, or the point in time. The lead may be lost then.
    bool wait(Nanos until);

   private:
    bool still() const;  // with the turn
    void end();          // with the turn: nobody wakes this thread any more

    Node& node_;
    Peer& peer_;
    Channel* Peer::*const which_;
    Channel* channel_ = nullptr;
    int fd_ = -1, wake_ = -1;
};

}  // namespace antiphon

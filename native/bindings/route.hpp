// Where a broker's subscription hands the events of one publisher on to.
#pragma once

#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "topics/event_head.hpp"

namespace antiphon::python {

class Route {
   public:
    virtual ~Route() = default;
    // Events as they came from one node, and how many were lost before them. With the interpreter's lock,
    // which it lets go; on a scheduler thread. Waits at most so long for those that have no room.
    virtual void relay(const std::vector<EventView>& views, std::uint32_t missed, Nanos arrived, Nanos patience) = 0;
    // Subscriptions that it has ended for want of room since it was asked last: node and flow.
    using Ended = std::vector<std::pair<std::uint16_t, std::uint32_t>>;
    virtual Ended take_ended() { return {}; }
    // Whether it is for the events of this producer; 0: of one who sends nothing again. A node that begins
    // another life has the numbers of the one before, and another producer.
    virtual bool serves(std::uint64_t) const { return true; }
    // The producer knows that all before this one are recorded. On the task that relays, before it does.
    virtual void resume(std::uint64_t) {}
};

}  // namespace antiphon::python

// From messages to events.
#pragma once

#include <memory>
#include <unordered_map>

#include "bindings/acks.hpp"
#include "bindings/event.hpp"
#include "bindings/tasks.hpp"

namespace antiphon::python {

// Turns messages into events: names, numbers, what was missed. One thread at a time.
class EventReader {
   public:
    EventReader(Registration& registration, Handler& handler) : registration_(registration), handler_(handler) {}

    // A sequence, and the store that it is one of.
    struct Place {
        std::uint64_t sequence = 0, store = 0;
    };
    struct Topic {
        std::shared_ptr<BoundTopic> bound;
        PyObject* name;  // str; the handler's
        std::uint64_t version;  // of the names, when it was found
        std::uint32_t session;  // for which it was looked up
        Place* last;            // of a recorded topic: the last sequence that was handed out

        // Whose event it is that came from that node.
        std::uint16_t source(std::uint16_t from) const { return bound->origin != 0 ? bound->origin : from; }
    };
    // The topic of an event of that node, as it came in that session; null when it has no name here.
    // Until the next call.
    Topic* topic(std::uint16_t source, std::uint32_t topic, std::uint32_t session);
    // How many came to grief since the last one; the one with this number is the last one now.
    static std::uint32_t missed(Topic& topic, std::uint32_t number);
    // Whose event it is, and what is said of it. `fresh`: it is worth handing out, after that wait. False for
    // one that came too late, or out of a log a second time, since a subscription begins again behind what
    // it told when its connection was lost.
    struct Told {
        std::uint16_t source;
        std::uint8_t attempt;  // 0: nobody asks for an acknowledgement
        enum { fresh, expired, repeated } state;
    };
    Told told(Topic& topic, EventView& view, std::uint16_t from, Nanos waited);
    AckOf ack_of(const Topic& topic, const EventView& view, std::uint16_t from) const {
        return {from, view.head.topic, topic.bound->epoch, view.head.number};
    }
    // The sequence that comes next of each recorded topic, as far as that is known. With the interpreter's lock.
    std::unordered_map<std::string, Place> positions() const;

   private:
    PyObject* text(std::uint64_t key, const std::string& name);
    void sweep();

    Registration& registration_;
    Handler& handler_;
    std::unordered_map<std::uint64_t, Topic> known_;
    // By topic, the last sequence that was handed out; with the interpreter's lock.
    std::unordered_map<std::string, Place> positions_;
    std::uint64_t last_key_ = 0;
    Topic* last_ = nullptr;
    static constexpr std::size_t kMany = 256;
    std::size_t sweep_at_ = kMany;  // with so many, those that are no more are looked for
};

}  // namespace antiphon::python

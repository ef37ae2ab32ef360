// How an event begins, behind the frame's header: who numbers it how, when it was made, what follows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace antiphon {

struct EventHead {
    std::uint32_t topic;       // the publisher's number for it; Control::bind gives the name
    std::uint32_t number;      // of this publisher's events to this subscription, without a gap
    std::uint64_t sequence;    // of this publisher's events
    std::int64_t time_ns;      // when it was published, by the publisher's clock
    std::uint32_t ttl_us;      // how long it is worth anything from now on; 0: for ever
    std::uint32_t properties;  // bytes of them, before the data

    // After so long a wait.
    bool expired(std::int64_t waited_ns) const { return ttl_us != 0 && waited_ns / 1000 > ttl_us; }
};
inline constexpr std::size_t kEventHead = 32;
// Properties that an event may have beside data of the size that the receiver allows; more than that is data.
inline constexpr std::size_t kFreeProperties = 64 * 1024;
static_assert(sizeof(EventHead) == kEventHead);

// What stands in the place of the time to live of an event that comes out of a broker's log: whose it
// was, and for the how manieth time it is handed out. 0: nobody asks for it to be acknowledged.
struct LogMark {
    std::uint16_t source;
    std::uint8_t attempt;

    static LogMark of(const EventHead& head) {
        return {static_cast<std::uint16_t>(head.ttl_us), static_cast<std::uint8_t>(head.ttl_us >> 16)};
    }
    std::uint32_t word() const { return std::uint32_t{source} | std::uint32_t{attempt} << 16; }
};

// An event as it lies in a message.
struct EventView {
    EventHead head;
    const char* properties;
    const char* data;
    std::size_t size;

    // False when the message is none.
    bool read(const char* message, std::size_t bytes) {
        if (bytes < kEventHead) return false;
        std::memcpy(&head, message, kEventHead);
        if (head.properties > bytes - kEventHead) return false;
        properties = message + kEventHead;
        data = properties + head.properties;
        size = bytes - kEventHead - head.properties;
        return true;
    }
};

// What becomes of an event's head when it is passed on.
struct Passing {
    std::uint32_t topic;    // our number for it
    std::uint32_t number;   // of the first one to this subscription
    std::int64_t waited_us; // here, until now

    EventHead head(const EventView& view, std::uint32_t i) const {
        EventHead own = view.head;
        own.topic = topic;
        own.number = number + i;
        if (own.ttl_us != 0) own.ttl_us = static_cast<std::uint32_t>(std::max<std::int64_t>(1, own.ttl_us - waited_us));
        return own;
    }
};

}  // namespace antiphon

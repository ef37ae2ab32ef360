// The wire: frame header, flags, and the registry of the library's own kinds.
//
// Every frame is a header of twelve bytes and `length` bytes behind it, little-endian. Kinds 0 to 63
// are the library's; the numbers below are the only place where they are given out.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace antiphon {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

struct Header {
    std::uint32_t length;
    std::uint16_t kind;
    std::uint16_t flags;
    std::uint32_t flow;
};
inline constexpr std::size_t kHeaderBytes = 12;
static_assert(sizeof(Header) == kHeaderBytes);

inline Header load_header(const char* at) {
    Header header;
    std::memcpy(&header, at, kHeaderBytes);
    return header;
}

enum Flag : std::uint16_t {
    kPacked = 1,    // u32 count, u32 lengths[count], then the payloads without a gap
    kFragment = 2,  // u64 message id, then a part of a large message
    kLast = 4,      // the last part
    kRequest = 8,   // a message that wants a response: u64 request id, then the message
    kResponse = 16,  // ResponseHead (requests/requests.hpp), then the answer
};
inline constexpr std::uint16_t kKnownFlags = kPacked | kFragment | kLast | kRequest | kResponse;

// Below are frames of control, from here on messages: the library's own, then the users'.
inline constexpr std::uint16_t kFirstDataKind = 32;
inline constexpr std::uint16_t kEventKind = 32;  // an event of a topic, for the subscription that its flow names
inline constexpr std::uint16_t kBusKind = 33;    // between buses: who publishes, who subscribes
inline constexpr std::uint16_t kAskKind = 34;    // to a broker: questions about recorded topics and subscriptions
inline constexpr std::uint16_t kReceiptKind = 35;  // of a broker: what was recorded of a publisher
inline constexpr std::uint16_t kAckKind = 36;      // to a broker: what was handled of a subscription
inline constexpr std::uint16_t kGroupKind = 37;  // messages and acknowledgements of a group, for the flow of a member
inline constexpr std::uint16_t kMembershipKind = 38;  // between groups: who is there, views
inline constexpr std::uint16_t kFirstUserKind = 64;

enum class Control : std::uint16_t {
    hello = 1,      // dialler: who I am, which way the data goes, a nonce
    reply = 2,      // acceptor: who I am, a nonce, the proof of the secret
    confirm = 3,    // dialler: the proof of the secret
    refuse = 4,     // either: why not
    ready = 5,      // data receiver: every registration is announced, send
    liveness = 6,   // either: I live; milliseconds that my oldest work has waited
    probe = 7,      // either: answer with liveness at once
    bye = 8,        // data sender: nothing follows; receiver: I am closing
    announce = 9,   // data receiver: kind -> flow, least charge
    withdraw = 10,  // data receiver: this kind has no flow any more
    open = 11,      // data sender: I want a window on this flow
    shut = 12,      // data sender: I am idle, take the window back
    window = 13,    // data receiver: your window on this flow, and the credit unit
    credit = 14,    // data receiver: so many units and messages handled
    flush = 15,     // data sender: tell me when all before this is handled
    flushed = 16,   // data receiver: it is
    reserve = 17,   // data sender: a large message of so many bytes wants to come
    reserved = 18,  // data receiver: let it come
    cancel = 19,    // data sender: forget that large message
    pad = 20,       // data sender: an aborted claim; skip
    dial_me = 21,   // data receiver: I cannot reach you, open a channel for me to send on
    part = 22,      // either: I have too many connections, may I close this one? and its number
    agree = 23,     // either: you may; I send nothing new
    refrain = 24,   // either: you may not, it is needed
    stay = 25,      // either: the one who asked needs it after all
    bind = 26,      // data sender: my number for a topic, and its name, on this subscription's flow
};

inline constexpr std::uint32_t kMagic = 0x48504e41;  // "ANPH"
inline constexpr std::uint16_t kVersionMin = 1;
inline constexpr std::uint16_t kVersionMax = 1;
// What both ends can do beyond that; used when both said so.
inline constexpr std::uint32_t kPartFeature = 1;  // part to stay, and a bye with kParted
inline constexpr std::uint32_t kLifeFeature = 2;  // a sign of life on each channel, not only on one of them
inline constexpr std::uint32_t kUnbindFeature = 4;  // a bind with an empty name takes one back
inline constexpr std::uint32_t kFeatures = kPartFeature | kLifeFeature | kUnbindFeature;
inline constexpr std::string_view kParted = "\1";  // of a bye: nothing is wrong, and nothing is lost
// No control frame is longer, so that a stranger cannot make us hold more.
inline constexpr std::size_t kMaxControlBytes = 4096;

}  // namespace antiphon

// What members of a group send each other in datagrams: heads, which whoever receives them checks to the byte.
//
// Little-endian, as everything on the wire. Every datagram begins with a DatagramHead; what follows depends on
// its kind, and has exactly the length that the kind and its counts give.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "groups/seal.hpp"

namespace antiphon::groups {

inline constexpr std::uint32_t kDatagramMagic = 0x31475041;  // "APG1"
inline constexpr std::size_t kMostDatagram = 65507;

enum class DatagramKind : std::uint8_t {
    data = 1,         // DataHead, u16 lengths, messages
    head = 2,         // HeadWord: how far the sender is
    base = 3,         // BaseWord: where the receiver begins
    ask_base = 4,     // nothing: the receiver does not know that
    acknowledge = 5,  // AcknowledgeWord: how far the receiver is
    ask = 6,          // AskHead, u64 pairs: what it lacks
};

struct DatagramHead {
    std::uint32_t magic;
    DatagramKind kind;
    std::uint8_t lane;
    std::uint8_t flags;
    std::uint8_t zero;
    std::uint64_t group;
    std::uint64_t from, to;  // members; to: 0, all
};
static_assert(sizeof(DatagramHead) == 32);

inline constexpr std::uint8_t kAskNow = 1;  // data, head: to be acknowledged at once
inline constexpr std::uint8_t kSlow = 1;    // acknowledge: far behind with what has come

struct DataHead {
    std::uint64_t origin;  // who has sent it first; another one than `from` if that was asked for it
    std::uint64_t first, stable;
    std::uint32_t acknowledge_every;  // bytes; 0: as before
    std::uint32_t count;
};
static_assert(sizeof(DataHead) == 32);

struct HeadWord {
    std::uint64_t next, stable;
};
struct BaseWord {
    std::uint64_t base;
};
struct AcknowledgeWord {
    std::uint64_t received, handled;
};
struct AskHead {
    std::uint64_t origin;  // whose messages
    std::uint64_t count;
};
struct AskedRange {
    std::uint64_t first, end;
};

template <typename Word>
void append_word(std::string& text, const Word& word) {
    text.append(reinterpret_cast<const char*>(&word), sizeof word);
}

// Takes one from the front; false when there is not enough.
template <typename Word>
bool take_word(std::string_view& text, Word& word) {
    if (text.size() < sizeof word) return false;
    std::memcpy(&word, text.data(), sizeof word);
    text.remove_prefix(sizeof word);
    return true;
}

}  // namespace antiphon::groups

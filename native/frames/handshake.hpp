// The hand-shake's records. Fields may only be appended: readers ignore what they do not know.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace antiphon {

enum class Direction : std::uint8_t {
    mine = 0,   // the dialler sends data on this channel
    yours = 1,  // the acceptor does: the dialler cannot be dialled
};

// Sent by both: by the dialler as hello, by the acceptor as reply.
struct Hello {
    // kAsksWho: it reads the reply and goes.
    static constexpr std::uint8_t kHasSecret = 1, kNoListener = 2, kAsksWho = 4;

    std::uint16_t version_min = 0, version_max = 0;
    std::uint32_t features = 0;
    Direction direction = Direction::mine;
    std::uint8_t flags = 0;
    std::uint16_t id = 0, expected = 0;
    std::uint64_t incarnation = 0;
    std::string nonce;
    std::uint64_t max_message = 0;
    std::uint32_t max_frame = 0;
    std::string address;
    std::uint32_t heartbeat_ms = 0;  // 0: not said

    std::string encode() const;
    // False when it is not a hello of ours at all.
    static bool decode(std::string_view bytes, Hello& hello);
};

inline constexpr std::size_t kNonceBytes = 16, kProofBytes = 32;

std::string random_bytes(std::size_t count);
std::uint64_t random_u64();

}  // namespace antiphon

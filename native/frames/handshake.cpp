#include "frames/handshake.hpp"

#include <sys/random.h>

#include <cstring>

#include "frames/bytes.hpp"

namespace antiphon {

std::string Hello::encode() const {
    ByteWriter writer;
    writer.put(kMagic)
        .put(version_min)
        .put(version_max)
        .put(features)
        .put(direction)
        .put(flags)
        .put(id)
        .put(expected)
        .put(incarnation)
        .raw(nonce)
        .put(max_message)
        .put(max_frame)
        .text(address)
        .put(heartbeat_ms);
    return writer.bytes();
}

bool Hello::decode(std::string_view bytes, Hello& hello) {
    ByteReader reader(bytes);
    if (reader.get<std::uint32_t>() != kMagic) return false;
    hello.version_min = reader.get<std::uint16_t>();
    hello.version_max = reader.get<std::uint16_t>();
    hello.features = reader.get<std::uint32_t>();
    const auto direction = reader.get<std::uint8_t>();
    hello.direction = static_cast<Direction>(direction);
    hello.flags = reader.get<std::uint8_t>();
    hello.id = reader.get<std::uint16_t>();
    hello.expected = reader.get<std::uint16_t>();
    hello.incarnation = reader.get<std::uint64_t>();
    hello.nonce = reader.raw(kNonceBytes);
    hello.max_message = reader.get<std::uint64_t>();
    hello.max_frame = reader.get<std::uint32_t>();
    hello.address = reader.text();
    if (reader.left() >= sizeof hello.heartbeat_ms) hello.heartbeat_ms = reader.get<std::uint32_t>();
    return reader.ok() && direction <= 1;
}

std::string random_bytes(std::size_t count) {
    std::string bytes(count, 0);
    std::size_t at = 0;
    while (at < count) {
        const ssize_t got = getrandom(bytes.data() + at, count - at, 0);
        if (got > 0) at += static_cast<std::size_t>(got);
    }
    return bytes;
}

std::uint64_t random_u64() {
    const std::string bytes = random_bytes(8);
    std::uint64_t value;
    std::memcpy(&value, bytes.data(), 8);
    return value;
}

}  // namespace antiphon

#include "log/crc32c.hpp"

#include <array>
#include <cstring>

namespace antiphon::log {

namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t value = i;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0);
        tables[0][i] = value;
    }
    for (std::uint32_t i = 0; i < 256; ++i) {
        for (std::size_t step = 1; step < 8; ++step) {
            const std::uint32_t last = tables[step - 1][i];
            tables[step][i] = (last >> 8) ^ tables[0][last & 0xff];
        }
    }
    return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::uint32_t before, const void* data,
                                                               std::size_t bytes) {
    const char* at = static_cast<const char*>(data);
    std::uint64_t sum = ~before;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        std::uint64_t word;
        std::memcpy(&word, at, 8);
        sum = __builtin_ia32_crc32di(sum, word);
    }
    auto rest = static_cast<std::uint32_t>(sum);
    for (; bytes > 0; ++at, --bytes) rest = __builtin_ia32_crc32qi(rest, static_cast<unsigned char>(*at));
    return ~rest;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    std::uint32_t sum = ~before;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        std::uint32_t low, high;
        std::memcpy(&low, at, 4);
        std::memcpy(&high, at + 4, 4);
        low ^= sum;
        sum = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
              kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][(high >> 8) & 0xff] ^
              kTables[1][(high >> 16) & 0xff] ^ kTables[0][high >> 24];
    }
    for (; bytes > 0; ++at, --bytes) sum = (sum >> 8) ^ kTables[0][(sum ^ *at) & 0xff];
    return ~sum;
}

std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes) {
#if defined(__x86_64__)
    static const bool fast = __builtin_cpu_supports("sse4.2");
    if (fast) return by_instruction(before, data, bytes);
#endif
    return crc32c_by_table(before, data, bytes);
}

}  // namespace antiphon::log

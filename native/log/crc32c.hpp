// CRC-32C (Castagnoli): the checksum for which processors have an instruction.
#pragma once

#include <cstddef>
#include <cstdint>

namespace antiphon::log {

// Goes on from `before`, so that parts can be summed one after the other. 0 begins.
std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes);

// The same by tables alone, for processors without the instruction; the tests hold the two together.
std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes);

}  // namespace antiphon::log

// How the files of a store are called.
//
//   DIR/store                       format and epoch
//   DIR/lock                        whoever writes holds it
//   DIR/topics/plant%2F7%2Ftemp/    one log
//       00000000000000000001.log    a segment, by its first sequence
//       00000000000000000001.idx    its index, once it is finished; can be made again
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace antiphon::log {

inline constexpr std::size_t kLongestTopic = 4096;
// Behind the name of a segment that is being made.
inline constexpr std::string_view kDraft = ".new";

// A directory's name for any topic, no two alike. What is not plain is escaped; what would become too
// long for a file system ends in a hash instead. The topic itself stands in every segment.
std::string directory_of(std::string_view topic);

std::string segment_name(std::uint64_t base);
std::string index_name(std::uint64_t base);
// The base, if this is the name of a segment.
std::optional<std::uint64_t> segment_base(std::string_view name);
std::optional<std::uint64_t> index_base(std::string_view name);

}  // namespace antiphon::log

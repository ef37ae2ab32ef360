// A file that grows by one write() after the other, synced at intervals, and nothing else: what this
// machine's disk takes. The benchmark holds the log against it. Blocks the calling thread, touches no
// Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace antiphon::bench {

struct LogResult {
    std::uint64_t bytes;
    double seconds;
};

// Appends `size` bytes at a time to a new file until `seconds` have passed, with an fdatasync whenever
// `interval` seconds have passed since the last one ended, and one at the end, which counts. The file is
// removed. Throws std::invalid_argument (size, seconds) and std::system_error.
LogResult raw_log_write(const std::string& path, std::size_t size, double seconds, double interval);

// Reads a file from its beginning to its end, a megabyte at a time.
LogResult raw_log_read(const std::string& path);

}  // namespace antiphon::bench

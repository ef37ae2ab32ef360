// Going through a segment from batch to batch, over what is damaged.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "log/disk.hpp"
#include "log/format.hpp"

namespace antiphon::log {

// A part of a file in memory. Not a mapping: a file that is cut, or a disk that fails, would become a
// signal there, in the middle of whatever reads.
class Window {
   public:
    explicit Window(File& file) : file_(file) {}

    // So many bytes from there on, valid until the next call. Null: the file does not reach so far, or
    // cannot be read.
    const char* at(std::uint64_t position, std::size_t bytes);
    int error() const { return error_; }  // of the last read that failed; 0: none did

   private:
    static constexpr std::size_t kAhead = std::size_t{1} << 20;

    File& file_;
    std::unique_ptr<char[]> buffer_;
    std::size_t capacity_ = 0, held_ = 0;
    std::uint64_t begin_ = 0;
    int error_ = 0;
};

// A place where there should be a batch, and is none.
struct Bad {
    std::uint64_t position = 0;
    std::uint64_t expected = 0;  // the sequence that comes next there, or a later one
    std::string what;
};

class Walk {
   public:
    // Batches from `from` to `to` whose sequences are not below `expected`.
    Walk(File& file, std::uint64_t salt, std::uint64_t expected, std::uint64_t from, std::uint64_t to)
        : window_(file), salt_(salt), expected_(expected), position_(from), to_(to) {}

    // The next good one; its body is valid until the next call. Looks for it behind a bad place. False
    // at the end.
    bool next(Batch& batch);
    // What was passed over just before this batch or, after the last one, at the end.
    const std::optional<Bad>& skipped() const { return skipped_; }
    // Not 0: the file could not be read from position() on, and what is there remains unknown.
    int error() const { return window_.error(); }
    std::uint64_t position() const { return position_; }

   private:
    const char* check(std::uint64_t position, Batch& batch);
    std::uint64_t find(std::uint64_t from, Batch& batch);

    Window window_;
    const std::uint64_t salt_;
    std::uint64_t expected_, position_;
    const std::uint64_t to_;
    std::optional<Bad> skipped_;
};

}  // namespace antiphon::log

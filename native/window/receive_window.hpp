// What has come from one member on one lane: which number is next, and messages of which a part has come.
//
// No clock, no socket and no thread in here, and no lock: whoever uses it has one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace antiphon::window {

// Every message in a window begins with one of these. A part has a `PartHead` behind it.
enum class Tag : std::uint8_t { whole = 0, part = 1, last = 2, abort = 3 };

struct PartHead {
    std::uint32_t stream;  // which message it is a part of, among those of one sender and lane
    std::uint64_t total;   // bytes of all parts
} __attribute__((packed));
static_assert(sizeof(PartHead) == 12);

class ReceiveWindow {
   public:
    explicit ReceiveWindow(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

    // A batch of so many messages, from `first` on, of a sender for whom we began at `base`.
    struct Taken {
        std::uint64_t skip = 0;  // of the first ones, which are known
        bool gap = false;        // something before is missing: none of it counts
    };
    Taken accept(std::uint64_t base, std::uint64_t first, std::uint64_t count);
    // One message was handed out or put together.
    void advance() { ++expected_; }
    std::uint64_t expected() const { return expected_; }

    // One message as it stands in a batch. False: it is only a part, or nothing; true: `message` is whole.
    // What is put together lives until the next call.
    bool put_together(std::string_view raw, std::string_view& message);
    std::uint64_t malformed() const { return malformed_; }
    std::uint64_t duplicates() const { return duplicates_; }
    std::uint64_t gaps() const { return gaps_; }
    std::size_t open_streams() const { return streams_.size(); }

   private:
    // More than one sender has under way at once; whoever goes beyond it wants our memory.
    static constexpr std::size_t kMostStreams = 1024;

    const std::uint64_t most_bytes_;
    std::uint64_t expected_ = 0;  // 0: nothing has come
    std::uint64_t malformed_ = 0, duplicates_ = 0, gaps_ = 0;
    std::map<std::uint32_t, std::string> streams_;
    std::string whole_;
};

}  // namespace antiphon::window

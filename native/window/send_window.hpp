// What a member has sent and not everybody has yet: messages with numbers, in a bounded ring of bytes.
//
// No clock, no socket and no thread in here, and no lock: whoever uses it has one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace antiphon::window {

class SendWindow {
   public:
    // Bytes and messages that it holds at the most. A part of both is kept back for the words that end a
    // message of several parts (`reserved`).
    SendWindow(std::size_t bytes, std::size_t messages);

    // One message of two pieces. False: there is no room.
    bool append(std::string_view head, std::string_view body, bool reserved = false);
    bool fits(std::size_t bytes) const { return has_room(bytes, kReservedBytes, kReservedMessages); }

    std::uint64_t first() const { return first_; }  // the oldest that is still here
    std::uint64_t next() const { return next_; }    // the number of the next one that comes
    std::size_t used() const { return static_cast<std::size_t>(end_ - begin_); }
    std::size_t capacity() const { return bytes_; }
    std::size_t messages() const { return static_cast<std::size_t>(next_ - first_); }
    // Of one of them.
    std::uint32_t length(std::uint64_t number) const {
        return static_cast<std::uint32_t>(end_of(number) - begin_of(number));
    }
    // Bytes from one message up to another, which lie in at most two pieces.
    struct Pieces {
        std::string_view first, second;
    };
    Pieces bytes(std::uint64_t from, std::uint64_t to) const;
    // Everything before this number goes.
    void release(std::uint64_t upto);

    // That it may hold in fact, when it was made for so many.
    static constexpr std::size_t most_messages(std::size_t messages) { return std::bit_ceil(messages + kReservedMessages); }

    static constexpr std::size_t kReservedBytes = 4096, kReservedMessages = 64;

   private:
    bool has_room(std::size_t bytes, std::size_t reserved_bytes, std::size_t reserved_messages) const {
        return used() + bytes + reserved_bytes <= bytes_ && messages() + 1 + reserved_messages <= ends_.size();
    }
    std::uint64_t end_of(std::uint64_t number) const { return ends_[number & mask_]; }
    std::uint64_t begin_of(std::uint64_t number) const { return number == first_ ? begin_ : end_of(number - 1); }
    void put(std::string_view piece);

    const std::size_t bytes_;
    std::unique_ptr<char[]> memory_;
    std::vector<std::uint64_t> ends_;  // where each message ends, by its number
    const std::uint64_t mask_;
    std::uint64_t first_ = 1, next_ = 1;
    std::uint64_t begin_ = 0, end_ = 0;  // bytes ever released, and ever put in
};

}  // namespace antiphon::window

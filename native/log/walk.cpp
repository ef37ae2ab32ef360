#include "log/walk.hpp"

#include <algorithm>

namespace antiphon::log {

const char* Window::at(std::uint64_t position, std::size_t bytes) {
    if (position >= begin_ && position + bytes <= begin_ + held_) return buffer_.get() + (position - begin_);
    const std::size_t wanted = std::max(bytes, kAhead);
    if (capacity_ < wanted) {
        buffer_ = std::make_unique_for_overwrite<char[]>(wanted);
        capacity_ = wanted;
    }
    held_ = 0;
    const ssize_t got = file_.read(buffer_.get(), wanted, position);
    if (got < 0) {
        error_ = static_cast<int>(got);
        return nullptr;
    }
    begin_ = position;
    held_ = static_cast<std::size_t>(got);
    return held_ < bytes ? nullptr : buffer_.get();
}

const char* Walk::check(std::uint64_t position, Batch& batch) {
    const std::uint64_t room = to_ - position;
    if (room < kBatchHead) return "the head of a batch is cut off";
    const char* at = window_.at(position, kBatchHead);
    if (at == nullptr) return "the file ends before its time";
    if (const char* wrong = check_head(at, room, salt_, position, batch.head)) return wrong;
    // A write that failed half way, and was followed by a shorter one, may have left its end behind.
    if (batch.head.base < expected_) return "a batch of an earlier attempt";
    at = window_.at(position, batch.head.bytes());
    if (at == nullptr) return "the file ends before its time";
    batch.body = at + kBatchHead;
    return check_body(batch.head, batch.body);
}

// Batches stand at multiples of eight, so their first word is looked for there, window by window.
std::uint64_t Walk::find(std::uint64_t from, Batch& batch) {
    constexpr std::size_t kPart = std::size_t{64} << 10;
    for (std::uint64_t position = from; position + kBatchHead <= to_;) {
        const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(kPart, to_ - position)) & ~std::size_t{7};
        const char* at = window_.at(position, part);
        if (at == nullptr) return to_;
        std::size_t offset = 0;
        for (; offset < part; offset += 8) {
            std::uint32_t word;
            std::memcpy(&word, at + offset, sizeof word);
            if (word != kBatchMagic) continue;
            if (check(position + offset, batch) == nullptr) return position + offset;
            if (window_.error() != 0) return to_;
            // The look at the batch may have moved the window.
            if ((at = window_.at(position, part)) == nullptr) return to_;
        }
        position += part;
    }
    return to_;
}

bool Walk::next(Batch& batch) {
    skipped_.reset();
    if (position_ >= to_ || window_.error() != 0) return false;
    if (const char* wrong = check(position_, batch)) {
        if (window_.error() != 0) return false;
        skipped_ = Bad{position_, expected_, wrong};
        const std::uint64_t found = find(position_ + 8, batch);
        if (window_.error() != 0) return false;
        position_ = found;
        if (found == to_) return false;
    }
    position_ += batch.head.bytes();
    expected_ = batch.head.next();
    return true;
}

}  // namespace antiphon::log

#include "window/receive_window.hpp"

#include <algorithm>
#include <cstring>

namespace antiphon::window {

namespace {

constexpr std::size_t kKept = 64 << 10;  // of memory that the next message can use

}  // namespace

ReceiveWindow::Taken ReceiveWindow::accept(std::uint64_t base, std::uint64_t first, std::uint64_t count) {
    if (expected_ == 0) expected_ = base;
    if (first > expected_) {
        ++gaps_;
        return {0, true};
    }
    const std::uint64_t known = expected_ - first;
    const std::uint64_t skip = known < count ? known : count;
    duplicates_ += skip;
    return {skip, false};
}

bool ReceiveWindow::put_together(std::string_view raw, std::string_view& message) {
    if (whole_.capacity() > kKept) whole_ = {};  // the last one was handed out
    if (raw.empty()) {
        ++malformed_;
        return false;
    }
    const Tag tag = static_cast<Tag>(raw[0]);
    raw.remove_prefix(1);
    if (tag == Tag::whole) {
        message = raw;
        return true;
    }
    PartHead head;
    if (raw.size() < sizeof head || tag > Tag::abort) {
        ++malformed_;
        return false;
    }
    std::memcpy(&head, raw.data(), sizeof head);
    raw.remove_prefix(sizeof head);
    const std::uint32_t stream = head.stream;
    if (tag == Tag::abort) {
        streams_.erase(stream);
        return false;
    }
    auto found = streams_.find(stream);
    if (found == streams_.end()) {
        if (head.total > most_bytes_ || streams_.size() >= kMostStreams) {
            ++malformed_;
            return false;
        }
        found = streams_.emplace(stream, std::string()).first;
    }
    std::string& parts = found->second;
    if (parts.size() + raw.size() > head.total || head.total > most_bytes_) {
        streams_.erase(found);
        ++malformed_;
        return false;
    }
    // Reserved as it comes, not as it is announced: a word of a few bytes takes no memory. And not beyond what it
    // will be.
    const std::size_t needed = parts.size() + raw.size();
    if (needed > parts.capacity()) parts.reserve(std::min<std::uint64_t>(head.total, std::max(needed, 2 * parts.capacity())));
    parts.append(raw);
    if (tag == Tag::part) return false;
    if (parts.size() != head.total) {
        streams_.erase(found);
        ++malformed_;
        return false;
    }
    whole_ = std::move(parts);
    streams_.erase(found);
    message = whole_;
    return true;
}

}  // namespace antiphon::window

#include "window/send_window.hpp"

#include <algorithm>

namespace antiphon::window {

SendWindow::SendWindow(std::size_t bytes, std::size_t messages)
    : bytes_(bytes + kReservedBytes),
      memory_(new char[bytes + kReservedBytes]),
      ends_(most_messages(messages)),
      mask_(ends_.size() - 1) {}

bool SendWindow::append(std::string_view head, std::string_view body, bool reserved) {
    const std::size_t size = head.size() + body.size();
    if (!has_room(size, reserved ? 0 : kReservedBytes, reserved ? 0 : kReservedMessages)) return false;
    put(head);
    put(body);
    ends_[next_ & mask_] = end_;
    ++next_;
    return true;
}

void SendWindow::put(std::string_view piece) {
    const std::size_t at = static_cast<std::size_t>(end_ % bytes_);
    const std::size_t before_wrap = std::min(piece.size(), bytes_ - at);
    if (before_wrap != 0) std::memcpy(memory_.get() + at, piece.data(), before_wrap);
    if (before_wrap != piece.size()) {
        std::memcpy(memory_.get(), piece.data() + before_wrap, piece.size() - before_wrap);
    }
    end_ += piece.size();
}

SendWindow::Pieces SendWindow::bytes(std::uint64_t from, std::uint64_t to) const {
    if (from >= to) return {};
    const std::uint64_t begin = begin_of(from);
    const auto size = static_cast<std::size_t>(end_of(to - 1) - begin);
    const auto at = static_cast<std::size_t>(begin % bytes_);
    const std::size_t before_wrap = std::min(size, bytes_ - at);
    return {{memory_.get() + at, before_wrap}, {memory_.get(), size - before_wrap}};
}

void SendWindow::release(std::uint64_t upto) {
    upto = std::min(upto, next_);
    if (upto <= first_) return;
    begin_ = end_of(upto - 1);
    first_ = upto;
}

}  // namespace antiphon::window

#include "window/cast_sender.hpp"

#include <algorithm>

namespace antiphon::window {

namespace {

// A datagram that is not full waits so long for more, unless there was none for as long.
constexpr Nanos kGather = 200 * kMicrosecond;
constexpr Nanos kBaseFirst = 20 * kMillisecond, kBaseMost = kSecond;
constexpr Nanos kHeadMost = kSecond / 2;
constexpr Nanos kBurst = 20 * kMillisecond;  // of what goes again, may go at once
constexpr Nanos kRepairLook = kMillisecond;
constexpr Nanos kRate = 10 * kMillisecond;
constexpr std::size_t kLeastDatagram = 1200;

}  // namespace

std::size_t CastSender::size_of(std::uint64_t from, std::uint64_t to) const {
    from = std::max(from, lane_.window().first());
    const auto pieces = lane_.window().bytes(from, to);
    return pieces.first.size() + pieces.second.size();
}

// --- who gets it -------------------------------------------------------------------------------------

void CastSender::add(std::uint64_t member, std::size_t buffer, Nanos now) {
    const Lane::Receiver* known = lane_.find(member);
    if (known == nullptr || receivers_.contains(member)) return;
    // Without anybody else nothing was sent, and nothing has to be.
    if (receivers_.empty()) sent_ = known->base;
    receivers_.emplace(member, Receiver{known->base, known->base, buffer, false, now, kBaseFirst});
    share();
    look();
}

void CastSender::remove(std::uint64_t member) {
    if (receivers_.erase(member) == 0) return;
    wanted_.forget(member);
    // What only that one was to get goes nowhere, and may not be in the window any more.
    std::uint64_t least = lane_.next();
    for (const auto& [one, receiver] : receivers_) least = std::min(least, lane_.find(one)->base);
    sent_ = std::max(sent_, least);
    share();
    look();
}

void CastSender::share() {
    std::size_t least = SIZE_MAX;
    for (const auto& [member, receiver] : receivers_) {
        if (receiver.buffer != 0) least = std::min(least, receiver.buffer);
    }
    // As many as get it send to each of them, at the most.
    flow_.room(least == SIZE_MAX ? SIZE_MAX : least / std::max<std::size_t>(1, receivers_.size()));
}

void CastSender::look() {
    received_ = handled_ = sent_;
    for (const auto& [member, receiver] : receivers_) {
        received_ = std::min(received_, receiver.received);
        handled_ = std::min(handled_, receiver.handled);
    }
}

bool CastSender::base(Nanos now, std::uint64_t& member, std::uint64_t& base) {
    for (auto& [one, receiver] : receivers_) {
        if (receiver.base_at > now) continue;
        const Lane::Receiver* known = lane_.find(one);
        if (known == nullptr) continue;
        receiver.base_at = receiver.knows ? kNever : now + receiver.base_pause;
        receiver.base_pause = std::min(receiver.base_pause * 2, kBaseMost);
        member = one;
        base = known->base;
        return true;
    }
    return false;
}

void CastSender::asks_base(std::uint64_t member, Nanos now) {
    if (auto found = receivers_.find(member); found != receivers_.end()) found->second.base_at = now;
}

// --- sending -----------------------------------------------------------------------------------------

std::uint64_t CastSender::fill(std::uint64_t from, std::uint64_t end, std::size_t& bytes, bool& full) const {
    // Several of them fit into the flight, or the sender would wait for every single one.
    const std::size_t most =
        std::min(options_.datagram_bytes, std::max(kLeastDatagram, flow_.flight() / 4));
    std::size_t room = most;
    std::uint64_t number = from;
    bytes = 0;
    for (; number < end; ++number) {
        const std::size_t size = lane_.window().length(number);
        if (number != from && size + kLengthBytes > room) break;
        bytes += size;
        room -= std::min(room, size + kLengthBytes);
    }
    full = number < end || room < most / 8;
    return number;
}

bool CastSender::next(Nanos now, Piece& piece) {
    gather_at_ = kNever;
    if (receivers_.empty()) {
        sent_ = lane_.next();
        look();
    }
    if (sent_ == lane_.next()) return false;
    std::size_t bytes;
    bool full;
    const std::uint64_t end = fill(sent_, lane_.next(), bytes, full);
    if (options_.gather && !full && now - last_sent_ < kGather) {
        gather_at_ = last_sent_ + kGather;
        return false;
    }
    const std::size_t flight = size_of(received_, sent_), unhandled = size_of(handled_, sent_);
    if ((flight != 0 && flight + bytes > flow_.flight()) ||
        (unhandled != 0 && unhandled + bytes > flow_.credits())) {
        if (!blocked_) ++held_;
        blocked_ = true;
        return false;
    }
    const std::size_t after = options_.datagram_bytes + bytes;
    piece = {sent_, end, 0, flight + after > flow_.flight() || unhandled + after > flow_.credits()};
    blocked_ = false;
    sent_ = end;
    last_sent_ = now;
    head_pause_ = options_.quiet;
    head_at_ = now + head_pause_;
    told_stable_ = stable();
    rate(bytes, now);
    return true;
}

void CastSender::rewind(const Piece& piece) { sent_ = std::min(sent_, piece.first); }

void CastSender::rate(std::size_t bytes, Nanos now) {
    rate_bytes_ += bytes;
    if (now - rate_at_ < kRate) return;
    const double seen = static_cast<double>(rate_bytes_) * 1e9 / static_cast<double>(now - rate_at_);
    rate_ = rate_at_ == 0 ? 0 : (rate_ + seen) / 2;
    rate_at_ = now;
    rate_bytes_ = 0;
}

bool CastSender::repair(Nanos now, Piece& piece) {
    wanted_.drop_before(lane_.window().first());
    Range range;
    std::uint64_t asker;
    if (now < repair_at_ || !wanted_.front(range, asker)) return false;
    const double speed = std::max(options_.repair_floor, options_.repair_fraction * rate_) / 1e9;
    const double most = speed * static_cast<double>(kBurst) + static_cast<double>(options_.datagram_bytes);
    tokens_ = std::min(most, tokens_ + speed * static_cast<double>(now - tokens_at_));
    tokens_at_ = now;
    if (tokens_ <= 0) {
        repair_at_ = now + kRepairLook;
        return false;
    }
    std::size_t bytes;
    bool full;
    // Nothing is noted that was not sent; but what was sent may have been rewound since.
    const std::uint64_t end = fill(range.first, std::min(range.end, sent_), bytes, full);
    wanted_.drop_before(std::max(end, range.first + 1));
    if (end <= range.first) return false;
    tokens_ -= static_cast<double>(bytes);
    repeated_ += end - range.first;
    piece = {range.first, end, asker, false};
    return true;
}

bool CastSender::head(Nanos now, bool& ask) {
    if (now < head_at_ || receivers_.empty()) return false;
    ask = handled_ < sent_;
    if (!ask) {
        head_at_ = kNever;
        if (told_stable_ >= stable()) return false;
    }
    told_stable_ = stable();
    if (!ask) return true;
    ++heads_;
    head_pause_ = std::min(std::max(head_pause_, options_.quiet) * 2, std::max(kHeadMost, options_.quiet));
    head_at_ = now + head_pause_;
    return true;
}

// --- what comes back ---------------------------------------------------------------------------------

bool CastSender::acknowledge(std::uint64_t member, std::uint64_t received, std::uint64_t handled, bool slow,
                             Nanos now) {
    const auto found = receivers_.find(member);
    if (found == receivers_.end() || received > std::max(sent_, lane_.find(member)->base) || handled > received) return false;
    Receiver& receiver = found->second;
    receiver.knows = true;
    const std::uint64_t received_before = received_, handled_before = handled_;
    receiver.received = std::max(receiver.received, received);
    receiver.handled = std::max(receiver.handled, handled);
    if (slow) flow_.slow(now);
    look();
    if (received_ > received_before) flow_.moved(size_of(received_before, received_), blocked_);
    if (handled_ > handled_before || received_ > received_before) {
        head_pause_ = options_.quiet;
        if (head_at_ != kNever) head_at_ = now + head_pause_;
    }
    return lane_.acknowledge(member, handled, false);
}

void CastSender::asked(std::uint64_t member, Range range, Nanos now) {
    const auto found = receivers_.find(member);
    if (found == receivers_.end()) return;
    // A question that was overtaken, or is not its own: what it has does not go again.
    range.first = std::max({range.first, lane_.window().first(), found->second.received});
    range.end = std::min(range.end, sent_);
    if (range.first >= range.end) return;
    flow_.lost(now);
    if (wanted_.empty()) repair_at_ = now + kRepairLook;
    wanted_.add(range, member);
}

Nanos CastSender::next_time() const {
    Nanos when = gather_at_;
    if (!receivers_.empty()) when = std::min(when, head_at_);
    if (!wanted_.empty()) when = std::min(when, repair_at_);
    for (const auto& [member, receiver] : receivers_) when = std::min(when, receiver.base_at);
    return when;
}

}  // namespace antiphon::window

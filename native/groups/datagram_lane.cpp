#include "groups/datagram_lane.hpp"

#include <algorithm>

namespace antiphon::groups {

namespace {

constexpr std::size_t kPerTurn = 16;
// When the kernel has no room for more: it sends what it has in about that time.
constexpr Nanos kStalled = 200 * kMicrosecond;

}  // namespace

std::size_t DatagramLane::room_in(std::size_t mtu) {
    return mtu - sizeof(DatagramHead) - sizeof(DataHead) - kSealBytes;
}

std::size_t DatagramLane::part_in(std::size_t mtu) {
    return room_in(mtu) - window::CastSender::kLengthBytes - 1 - sizeof(window::PartHead);
}

// --- who gets it -------------------------------------------------------------------------------------

void DatagramLane::add(const Route& route) {
    std::lock_guard lock(mutex_);
    addresses_.try_emplace(route.member, route.datagrams);
    lane_.add(route.member);
    // What is for one member shares a buffer with words, and with what others send to it alone.
    cast_.add(route.member, kind_ == LaneKind::one ? route.buffer / 4 : route.buffer, now_ns());
    pump();
}

void DatagramLane::remove(std::uint64_t member) {
    std::lock_guard lock(mutex_);
    addresses_.erase(member);
    const bool room = lane_.remove(member);
    cast_.remove(member);
    if (room) made_room();
    room_.notify_all();
    pump();
}

void DatagramLane::remove_all() {
    std::lock_guard lock(mutex_);
    bool room = false;
    for (const auto& [member, address] : addresses_) {
        room |= lane_.remove(member);
        cast_.remove(member);
    }
    addresses_.clear();
    if (room) made_room();
}

// --- sending -----------------------------------------------------------------------------------------

Datagram& DatagramLane::next_datagram(DatagramKind kind, std::uint64_t to, std::uint8_t flags) {
    if (used_ == out_.size()) out_.emplace_back();
    Datagram& one = out_[used_++];
    one.bytes.clear();
    if (kind_ == LaneKind::one && to == 0 && !addresses_.empty()) to = addresses_.begin()->first;
    const auto found = addresses_.find(to);
    one.to = found == addresses_.end() ? port_->group_address() : found->second;
    append_word(one.bytes, port_->head(kind, kind_, flags, self_, to));
    return one;
}

void DatagramLane::build(const window::CastSender::Piece& piece) {
    const window::SendWindow& window = lane_.window();
    Datagram& one = next_datagram(DatagramKind::data, piece.to, piece.ask ? kAskNow : 0);
    append_word(one.bytes, DataHead{self_, piece.first, cast_.stable(), cast_.acknowledge_every(),
                                    static_cast<std::uint32_t>(piece.end - piece.first)});
    for (std::uint64_t number = piece.first; number < piece.end; ++number) {
        append_word(one.bytes, static_cast<std::uint16_t>(window.length(number)));
    }
    const auto pieces = window.bytes(piece.first, piece.end);
    one.bytes.append(pieces.first).append(pieces.second);
    ++batches_;
}

// False: the kernel has no room for the rest. `again`: there is nothing that goes for the first time among them.
bool DatagramLane::flush(bool again) {
    if (used_ == 0) return true;
    out_.resize(used_);
    const std::size_t went = port_->send(out_);
    used_ = 0;
    if (went == out_.size()) return true;
    // Data goes on where it did not go; words and repetitions that did not are as good as lost.
    for (std::size_t i = went; i < out_.size() && !again; ++i) {
        std::string_view bytes = out_[i].bytes;
        DatagramHead head;
        DataHead data;
        if (!take_word(bytes, head) || head.kind != DatagramKind::data || !take_word(bytes, data)) continue;
        cast_.rewind({data.first, data.first + data.count});
        break;
    }
    stalled_until_ = now_ns() + kStalled;
    return false;
}

bool DatagramLane::pump() {
    const Nanos now = now_ns();
    if (self_ == 0 || now < stalled_until_) return false;
    using Piece = window::CastSender::Piece;
    std::uint64_t member, base;
    while (cast_.base(now, member, base)) {
        append_word(next_datagram(DatagramKind::base, member, 0).bytes, BaseWord{base});
    }
    Piece piece;
    // What somebody lacks comes first: all others wait for it, in the end. It is bounded by its rate.
    bool went = flush(true);
    while (went && cast_.repair(now, piece)) {
        build(piece);
        went = flush(true);
    }
    while (went && cast_.next(now, piece)) {
        build(piece);
        if (used_ == kPerTurn) went = flush(false);
    }
    bool ask;
    if (went && cast_.head(now, ask)) {
        append_word(next_datagram(DatagramKind::head, 0, ask ? kAskNow : 0).bytes, HeadWord{cast_.sent(), cast_.stable()});
    }
    went = flush(false) && went;
    port_->arm(went ? cast_.next_time() : stalled_until_);
    return went;
}

void DatagramLane::hasten() {
    cast_.hasten(now_ns());
    pump();
}

Nanos DatagramLane::turn() {
    // Whoever has it sends; the selector has others to serve and looks again in a moment.
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return now_ns() + kStalled;
    pump();
    return std::max(cast_.next_time(), stalled_until_);
}

// --- what comes back ---------------------------------------------------------------------------------

void DatagramLane::acknowledged(std::uint64_t member, const AcknowledgeWord& word, bool slow, Nanos now) {
    std::lock_guard lock(mutex_);
    if (cast_.acknowledge(member, word.received, word.handled, slow, now)) made_room();
    pump();
}

void DatagramLane::asked(std::uint64_t member, const std::vector<window::Range>& ranges, Nanos now) {
    std::lock_guard lock(mutex_);
    for (const window::Range& range : ranges) cast_.asked(member, range, now);
    // Not at once: whoever else lacks it may ask as well, and then it goes to all.
    port_->arm(cast_.next_time());
}

void DatagramLane::asks_base(std::uint64_t member, Nanos now) {
    std::lock_guard lock(mutex_);
    cast_.asks_base(member, now);
    pump();
}

Outgoing::Counts DatagramLane::counts() {
    Counts counts = Outgoing::counts();
    std::lock_guard lock(mutex_);
    counts.repeated = cast_.repeated();
    counts.probes = cast_.heads();
    counts.flight = cast_.flight();
    counts.held = cast_.held();
    counts.cuts = cast_.cuts();
    return counts;
}

}  // namespace antiphon::groups

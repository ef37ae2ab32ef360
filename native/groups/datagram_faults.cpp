#include "groups/datagram_faults.hpp"

#include <algorithm>

#include "groups/datagrams.hpp"

namespace antiphon::groups {

namespace {

constexpr std::size_t kMostHeld = 16384;
constexpr std::size_t kMostSenders = 4096;
constexpr Nanos kMixed = 3 * kMillisecond;  // the last ones of a series wait no longer for others

}  // namespace

bool DatagramFaults::lose(std::string_view bytes) {
    DatagramHead head;
    if (!take_word(bytes, head)) return false;
    if (head.kind == DatagramKind::data && (options_.drop_first != 0 || options_.drop_every != 0) &&
        (seen_.size() < kMostSenders || seen_.contains(head.from))) {
        const std::uint64_t number = ++seen_[head.from];
        if (number <= options_.drop_first) return true;
        if (options_.drop_every != 0 && number % options_.drop_every == 0) return true;
    }
    const auto kind = static_cast<unsigned>(head.kind);
    return kind < 32 && (options_.drop_kinds >> kind & 1) != 0 && chance(options_.drop);
}

void DatagramFaults::take(std::string_view bytes, const sockaddr_in& from, Nanos now, std::vector<Came>& out) {
    if (lose(bytes)) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    if (chance(options_.duplicate)) pass({std::string(bytes), from}, now, out);
    pass({std::string(bytes), from}, now, out);
}

void DatagramFaults::pass(Came came, Nanos now, std::vector<Came>& out) {
    if (options_.delay_most != 0 && held_.size() < kMostHeld) {
        const Nanos spread = std::max<Nanos>(1, options_.delay_most - options_.delay_least);
        held_.emplace(now + options_.delay_least + static_cast<Nanos>(chance_() % static_cast<std::uint64_t>(spread)),
                      std::move(came));
        return;
    }
    if (options_.shuffle < 2) return out.push_back(std::move(came));
    mixed_.push_back(std::move(came));
    mixed_until_ = now + kMixed;
    if (mixed_.size() < options_.shuffle) return;
    std::swap(mixed_[chance_() % mixed_.size()], mixed_.back());
    out.push_back(std::move(mixed_.back()));
    mixed_.pop_back();
}

void DatagramFaults::due(Nanos now, std::vector<Came>& out) {
    while (!held_.empty() && held_.begin()->first <= now) {
        out.push_back(std::move(held_.begin()->second));
        held_.erase(held_.begin());
    }
    if (now < mixed_until_) return;
    std::shuffle(mixed_.begin(), mixed_.end(), chance_);
    std::move(mixed_.begin(), mixed_.end(), std::back_inserter(out));
    mixed_.clear();
    mixed_until_ = kNever;
}

Nanos DatagramFaults::next_time() const {
    return std::min(mixed_until_, held_.empty() ? kNever : held_.begin()->first);
}

}  // namespace antiphon::groups

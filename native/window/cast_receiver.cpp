#include "window/cast_receiver.hpp"

#include <algorithm>

namespace antiphon::window {

namespace {

constexpr Nanos kBaseFirst = 10 * kMillisecond, kBaseMost = kSecond;

}  // namespace

// --- what comes --------------------------------------------------------------------------------------

void CastReceiver::begin(std::uint64_t base, Nanos now) {
    if (base == 0) return;
    asked_for_ = true;  // the sender wants to know that we know
    say_at_ = now;
    if (expected_ != 0) return;
    expected_ = handled_ = asked_upto_ = base;
    highest_ = std::max(highest_, base);
    while (!later_.empty() && later_.begin()->second->end() <= base) drop(later_.begin());
    advance();
    noticed(now);
}

bool CastReceiver::data(std::shared_ptr<const Chunk> chunk, std::uint64_t stable, std::uint32_t every, bool ask,
                        Nanos now) {
    if (every != 0) every_ = every;
    forget_stable(stable);
    if (ask) owe(now);
    const std::uint64_t end = chunk->end(), first = std::max(chunk->first, expected_);
    const std::size_t bytes = chunk->bytes.size(), messages = chunk->lengths.size();
    highest_ = std::max(highest_, end);
    unsaid_received_ += bytes;
    if (say_at_ == kNever) say_at_ = now + options_.acknowledge;
    auto at = later_.upper_bound(first);
    const bool known = at != later_.begin() && std::prev(at)->second->end() >= end;
    if (first >= end || known) {
        duplicates_ += messages;
        return false;
    }
    const auto full = [&] {
        return held_bytes_ + bytes > options_.most_bytes || held_messages_ + messages > options_.most_messages;
    };
    // What is next goes before what is further on, which would otherwise lie here and wait for it for ever. That is
    // asked for again.
    while (first == expected_ && full() && !later_.empty() && later_.rbegin()->first > first) {
        refused_ += later_.rbegin()->second->lengths.size();
        drop(std::prev(later_.end()));
    }
    if (full()) {
        refused_ += messages;
        noticed(now);
        return false;
    }
    // Those that lie within it are not needed any more.
    at = later_.upper_bound(first);
    if (at != later_.begin() && std::prev(at)->first >= first) --at;
    while (at != later_.end() && at->second->end() <= end) at = drop(at);
    held_bytes_ += bytes;
    held_messages_ += messages;
    later_.emplace_hint(at, first, std::move(chunk));
    advance();
    noticed(now);
    return true;
}

void CastReceiver::head(std::uint64_t next, std::uint64_t stable, bool ask, Nanos now) {
    forget_stable(stable);
    highest_ = std::max(highest_, next);
    if (ask) owe(now);
    noticed(now);
}

void CastReceiver::owe(Nanos now) {
    asked_for_ = owed_ = true;
    say_at_ = now;
}

CastReceiver::Later::iterator CastReceiver::drop(Later::iterator at) {
    held_bytes_ -= at->second->bytes.size();
    held_messages_ -= at->second->lengths.size();
    return later_.erase(at);
}

void CastReceiver::advance() {
    if (expected_ == 0) return;
    for (;;) {
        auto at = later_.upper_bound(expected_);
        if (at == later_.begin()) return;
        --at;
        const std::shared_ptr<const Chunk> chunk = at->second;
        const std::uint64_t end = chunk->end();
        // It, and what lies before it, which is over as well.
        for (const auto behind = std::next(at); later_.begin() != behind;) drop(later_.begin());
        if (end <= expected_) continue;
        const auto begin = static_cast<std::size_t>(expected_ - chunk->first);
        for (std::size_t i = begin; i < chunk->lengths.size(); ++i) held_bytes_ += chunk->lengths[i];
        held_messages_ += chunk->lengths.size() - begin;
        ready_.push_back({chunk, begin});
        kept_bytes_ += chunk->bytes.size();
        kept_.push_back(chunk);
        expected_ = end;
        forget_stable(stable_);
    }
}

bool CastReceiver::take(Ready& ready) {
    if (ready_.empty()) return false;
    ready = std::move(ready_.front());
    ready_.pop_front();
    return true;
}

void CastReceiver::handled(std::uint64_t upto, std::size_t bytes, Nanos now) {
    if (upto <= handled_ || upto > expected_) return;
    held_messages_ -= std::min<std::size_t>(held_messages_, upto - handled_);
    held_bytes_ -= std::min(held_bytes_, bytes);
    unsaid_messages_ += upto - handled_;
    handled_ = upto;
    unsaid_handled_ += bytes;
    if (unsaid_handled_ >= every_ || unsaid_messages_ >= options_.most_messages / 8 || (owed_ && handled_ == highest_)) {
        asked_for_ = true;
        say_at_ = now;
    } else if (say_at_ == kNever) say_at_ = now + options_.acknowledge;
}

void CastReceiver::forget_stable(std::uint64_t stable) {
    stable_ = std::max(stable_, stable);
    while (!kept_.empty() && (kept_.front()->end() <= stable_ || kept_bytes_ > options_.most_bytes)) {
        kept_bytes_ -= kept_.front()->bytes.size();
        kept_.pop_front();
    }
}

void CastReceiver::find(Range range, std::vector<std::shared_ptr<const Chunk>>& chunks, std::size_t most) const {
    // Several ranges may lie in one chunk.
    const auto add = [&](const std::shared_ptr<const Chunk>& chunk) {
        if (std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) chunks.push_back(chunk);
    };
    auto at = std::partition_point(kept_.begin(), kept_.end(), [&](const auto& one) { return one->end() <= range.first; });
    for (; at != kept_.end() && (*at)->first < range.end && chunks.size() < most; ++at) add(*at);
    for (const auto& [first, chunk] : later_) {
        if (chunks.size() >= most || first >= range.end) return;
        if (chunk->end() > range.first) add(chunk);
    }
}

// --- saying how far we are -----------------------------------------------------------------------------

bool CastReceiver::acknowledge(Nanos now) {
    if (expected_ == 0) return false;
    if (!asked_for_ && unsaid_received_ < every_ && unsaid_handled_ < every_ && now < say_at_) return false;
    asked_for_ = false;
    if (handled_ >= highest_) owed_ = false;
    unsaid_received_ = unsaid_handled_ = unsaid_messages_ = 0;
    say_at_ = kNever;
    return true;
}

// --- asking ------------------------------------------------------------------------------------------

Nanos CastReceiver::some(Nanos about) {
    return about / 2 + static_cast<Nanos>(chance_() % static_cast<std::uint64_t>(std::max<Nanos>(1, about)));
}

void CastReceiver::noticed(Nanos now) {
    if (!missing()) {
        ask_at_ = again_at_ = kNever;
        attempt_ = 0;
        asked_upto_ = std::max(asked_upto_, expected_);
        return;
    }
    // New numbers are known of, behind those that were asked for: they are asked for once, soon.
    if (ask_at_ == kNever && highest_ > asked_upto_) {
        ++gaps_;
        ask_at_ = now + some(options_.ask_first);
    }
}

bool CastReceiver::ask(Nanos now, std::vector<Range>& ranges, std::uint32_t& attempt) {
    ranges.clear();
    if (!missing() || (now < ask_at_ && now < again_at_)) return false;
    const bool all = now >= again_at_;
    std::uint64_t from = all ? expected_ : std::max(asked_upto_, expected_);
    // When there is hardly room, what is next is asked for, and nothing else.
    const std::size_t most = held_bytes_ * 4 > options_.most_bytes * 3 ? 1 : kMostRanges;
    if (most == 1) from = expected_;
    auto at = later_.upper_bound(from);
    if (at != later_.begin()) from = std::max(from, std::prev(at)->second->end());
    std::uint64_t upto = highest_;
    while (from < highest_) {
        if (ranges.size() == most) {
            upto = from;
            break;
        }
        const std::uint64_t end = at == later_.end() ? highest_ : at->first;
        if (end > from) ranges.push_back({from, end});
        if (at == later_.end()) break;
        from = std::max(from, at->second->end());
        ++at;
    }
    if (all) attempt_ = expected_ == expected_then_ ? attempt_ + 1 : 0;
    if (all || again_at_ == kNever) {
        expected_then_ = expected_;
        again_at_ = now + some(std::min(options_.ask_again << std::min(attempt_, 16u), options_.ask_most));
    }
    asked_upto_ = std::max(asked_upto_, upto);
    ask_at_ = upto < highest_ && most != 1 ? now + some(options_.ask_first) : kNever;
    attempt = attempt_;
    asked_ += ranges.empty() ? 0 : 1;
    return !ranges.empty();
}

bool CastReceiver::ask_base(Nanos now) {
    if (expected_ != 0 || now < base_at_) return false;
    base_pause_ = std::clamp(base_pause_ * 2, kBaseFirst, kBaseMost);
    base_at_ = now + some(base_pause_);
    return true;
}

Nanos CastReceiver::next_time() const {
    if (expected_ == 0) return base_at_;
    return std::min({say_at_, ask_at_, again_at_});
}

}  // namespace antiphon::window

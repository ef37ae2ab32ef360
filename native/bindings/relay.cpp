// Events of somebody else on their way through a broker: `Publisher::relay` and what it needs.
#include <algorithm>
#include <utility>

#include "bindings/publisher.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

const Verdict kNothing;

// For one that was waited for in vain, and has perhaps room again; for everybody; and then only some wait.
constexpr Nanos kBriefly = 20 * kMillisecond, kMoment = 200 * kMillisecond;

}  // namespace

void Publisher::relay(const std::vector<EventView>& views, std::uint32_t missed, Nanos arrived, Nanos patience) {
    if (node_->forked() || closed_) return;
    if (missed != 0) owed_gap_.fetch_add(missed, std::memory_order_relaxed);
    const std::size_t passed = quota_ ? quota_->take(views.data(), views.size()) : views.size();
    const Beyond beyond{*this, static_cast<std::uint32_t>(views.size() - passed)};
    if (passed == 0) return;
    if (!targets_.filters() && !retains_) {
        const Chosen chosen = targets_.unfiltered();
        Released released;
        relay_to(chosen, views.data(), passed, arrived, patience);
        return;
    }
    if (!targets_.contents()) {
        Released released;
        relay_chosen(views.data(), passed, {}, arrived, patience);
        return;
    }
    // A part at a time: what was judged goes on its way before the next is.
    std::vector<Body> bodies;
    std::vector<Verdict> verdicts;
    for (std::size_t first = 0; first < passed; first += bodies.size()) {
        bodies.clear();
        std::size_t bytes = 0;
        while (first + bodies.size() < passed && bodies.size() < kJudgedAtOnce && bytes < kMostJudged) {
            const EventView& view = views[first + bodies.size()];
            bodies.push_back({{view.properties, view.head.properties}, {view.data, view.size}});
            bytes += view.size;
        }
        // One that fails says so, and those who do not ask it get theirs.
        if (!content_.judge(targets_, bodies, verdicts)) PyErr_WriteUnraisable(nullptr);
        if (closed_) return;
        Released released;
        relay_chosen(views.data() + first, bodies.size(), verdicts, arrived, patience);
    }
}

// Without the interpreter's lock. No verdicts: nobody asked for any.
void Publisher::relay_chosen(const EventView* views, std::size_t total, const std::vector<Verdict>& verdicts,
                             Nanos arrived, Nanos patience) {
    Chosen chosen, next;
    const EventView* first = views;
    std::size_t count = 0;
    for (std::size_t i = 0; i < total; ++i) {
        const EventView& view = views[i];
        // A publisher that keeps its last event sends it again to whoever asks again, as a broker may.
        if (retains_ && view.head.sequence <= last_relayed_) continue;
        last_relayed_ = view.head.sequence;
        targets_.choose({view.properties, view.head.properties}, verdicts.empty() ? kNothing : verdicts[i], next);
        if (retains_) {  // it has to be kept before the next one is looked at
            relay_to(next, &view, 1, arrived, patience);
            if (closed_) return;
            continue;
        }
        // Those that follow each other to the same ones go together.
        if (count != 0 && next != chosen) {
            relay_to(chosen, first, count, arrived, patience);
            if (closed_) return;
            count = 0;
        }
        if (count++ == 0) {
            first = &view;
            chosen.swap(next);
        }
    }
    if (count != 0) relay_to(chosen, first, count, arrived, patience);
}

// The turn, for a relay; false: these events are a gap for whoever comes next.
bool Publisher::take_for_relay(std::size_t count, Nanos patience) {
    if (try_take()) return true;
    Scheduler::Blocked blocked;
    Outcome outcome;
    if (take(now_ns() + patience, nullptr, outcome)) return true;
    pass_up(count);
    return false;
}

// These reach nobody; whoever gets the next one is told.
void Publisher::pass_up(std::size_t count) {
    owed_gap_.fetch_add(static_cast<std::uint32_t>(count), std::memory_order_relaxed);
    dropped_.fetch_add(count, std::memory_order_relaxed);
}

// Without the interpreter's lock.
void Publisher::relay_to(const Chosen& targets, const EventView* views, std::size_t count, Nanos arrived,
                         Nanos patience) {
    const bool owes = owed_gap_.load(std::memory_order_relaxed) != 0;
    const Load load{{}, {nullptr, 0}, nullptr, count, 0, 0, views, arrived};
    sequence_.fetch_add(count, std::memory_order_relaxed);
    if (targets.empty() && !owes && !retains_) return;  // nobody wants them, and nobody has to be told
    if (!take_for_relay(count, patience)) return;
    const Passed passed{*this};
    if (owes) {
        const std::uint32_t gap = owed_gap_.exchange(0, std::memory_order_relaxed);
        for (const auto& target : targets_.everyone()) target->number += gap;  // a gap is everybody's
    }
    if (retains_) retain(load);
    std::vector<Rest> rest;
    send_what_goes(targets, load, rest);
    if (!rest.empty()) wait_for_room(load, rest, patience);
}

// With the turn. Those that were waited for in vain are not waited for again until they make room, and
// only some threads wait for long: the others are for those that have room.
void Publisher::wait_for_room(const Load& load, std::vector<Rest>& rest, Nanos patience) {
    for (Rest& one : rest) {
        OutFlow& flow = one.target->flow;
        const bool hopeless = flow.stalled.load(std::memory_order_relaxed);
        std::vector<Rest> alone{one};
        if (one.target->ends && one.target->full_since == 0) one.target->full_since = now_ns();
        // Whether there is room for what goes in fragments is known only by trying.
        if (hopeless && one.attempt.status != Status::large) {
            pass_over(load, alone);
            end_if_full(*one.target, patience);
            continue;
        }
        const std::uint64_t lost = lost_.load(std::memory_order_relaxed);
        const Nanos first = hopeless ? kBriefly : std::min(patience, kMoment);
        send_within(load, alone, first);
        const bool reached = lost_.load(std::memory_order_relaxed) == lost;
        if (alone[0].done < load.count && !hopeless && reached && patience > first && !one.target->gone()) {
            Node::LongWait few(*node_);
            if (few) send_within(load, alone, patience - first);
        }
        if (one.target->gone()) continue;
        const std::uint64_t unsent = load.count - alone[0].done;
        one.target->number += static_cast<std::uint32_t>(unsent);
        flow.stalled.store(unsent != 0, std::memory_order_relaxed);
        if (unsent == 0) {
            one.target->full_since = 0;
        } else {
            end_if_full(*one.target, patience);
        }
        const std::uint64_t dropped = unsent - std::min(unsent, lost_.load(std::memory_order_relaxed) - lost);
        dropped_.fetch_add(dropped, std::memory_order_relaxed);
        missed(*one.target, dropped, 0);
    }
}

// Who is slow, or away, and not only whose events it did not get. With the turn.
void Publisher::missed(const Target& target, std::uint64_t dropped, std::uint64_t lost) {
    if (origin_ == 0 || dropped + lost == 0) return;
    std::lock_guard lock(mutex_);
    Missed& found = missed_by_[target.peer.id];
    found.dropped += dropped;
    found.lost += lost;
}

// One that would rather be ended than miss events. It gets nothing more; its client is told by whoever asks.
void Publisher::end_if_full(Target& target, Nanos patience) {
    if (!target.ends || now_ns() - target.full_since < patience || target.gone()) return;
    target.left.store(true, std::memory_order_seq_cst);
    std::lock_guard lock(mutex_);
    ended_.emplace_back(target.peer.id, target.flow.id.load(std::memory_order_relaxed));
}

Publisher::Ended Publisher::take_ended() {
    std::lock_guard lock(mutex_);
    return std::exchange(ended_, {});
}

// As send_rest for one target, which is not given a gap for what is left.
void Publisher::send_within(const Load& load, std::vector<Rest>& alone, Nanos length) {
    const Nanos began = now_ns();
    std::uint16_t at = 0;
    std::size_t left_over = 0;
    send_rest(load, alone, began + length, began, nullptr, at, left_over);
    alone[0].target->number -= static_cast<std::uint32_t>(load.count - alone[0].done);
}

}  // namespace antiphon::python

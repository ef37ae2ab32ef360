// Events of somebody else on their way through a broker: `Publisher::relay` and what it needs.
#include <algorithm>

#include "bindings/event.hpp"
#include "bindings/publisher.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

// For one that was waited for in vain, and has perhaps room again; for everybody; and then only some wait.
constexpr Nanos kBriefly = 20 * kMillisecond, kMoment = 200 * kMillisecond;

}  // namespace

bool Publisher::relay(const std::vector<EventView>& views, std::uint32_t missed, Nanos arrived, Nanos patience) {
    if (node_->forked() || closed_) return true;
    if (missed != 0) owed_gap_.fetch_add(missed, std::memory_order_relaxed);
    Chosen chosen;
    if (!filters() && !retains_) {
        if (!wanted(nullptr, chosen)) return false;
        relay_to(chosen, views.data(), views.size(), arrived, patience);
        return true;
    }
    for (std::size_t at = 0; at < views.size(); ++at) {
        const EventView& view = views[at];
        // A publisher that keeps its last event sends it again to whoever asks again, as a broker may.
        if (retains_ && view.head.sequence <= last_relayed_) continue;
        last_relayed_ = view.head.sequence;
        Reference properties = event_properties(view);
        if (!properties) {
            // Nothing that a filter could look at; whoever has none gets it as it is.
            PyErr_Clear();
            properties = Reference::steal(PyDict_New());
        }
        chosen.clear();
        if (!properties || !wanted(properties.get(), chosen)) {
            sequence_.fetch_add(views.size() - at, std::memory_order_relaxed);
            pass_up(views.size() - at);
            return false;
        }
        if (retains_) keep_properties(properties.get(), chosen);
        relay_to(chosen, &view, 1, arrived, patience);
        if (closed_) return true;
    }
    return true;
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

void Publisher::relay_to(const Chosen& targets, const EventView* views, std::size_t count, Nanos arrived,
                         Nanos patience) {
    Chosen all;  // a gap is everybody's
    const bool owes = owed_gap_.load(std::memory_order_relaxed) != 0;
    if (owes) {
        for (const auto& [target, where] : targets_) all.push_back(target);
    }
    Released released;
    const Load load{{}, {nullptr, 0}, nullptr, count, 0, views, arrived};
    sequence_.fetch_add(count, std::memory_order_relaxed);
    if (!take_for_relay(count, patience)) return;
    const Passed passed{*this};
    if (owes) {
        const std::uint32_t gap = owed_gap_.exchange(0, std::memory_order_relaxed);
        for (const auto& target : all) target->number += gap;
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
        // Whether there is room for what goes in fragments is known only by trying.
        if (hopeless && one.attempt.status != Status::large) {
            pass_over(load, alone);
            continue;
        }
        const std::uint64_t lost = lost_.load(std::memory_order_relaxed);
        const Nanos first = hopeless ? kBriefly : std::min(patience, kMoment);
        send_within(load, alone, first);
        const bool reached = lost_.load(std::memory_order_relaxed) == lost;
        if (alone[0].done < load.count && !hopeless && reached && patience > first && !gone(*one.target)) {
            Node::LongWait few(*node_);
            if (few) send_within(load, alone, patience - first);
        }
        if (gone(*one.target)) continue;
        const std::uint64_t unsent = load.count - alone[0].done;
        one.target->number += static_cast<std::uint32_t>(unsent);
        flow.stalled.store(unsent != 0, std::memory_order_relaxed);
        dropped_.fetch_add(unsent - std::min(unsent, lost_.load(std::memory_order_relaxed) - lost), std::memory_order_relaxed);
    }
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

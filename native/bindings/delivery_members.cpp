// The members of a delivery: who has which events, what they say of them, and what when they say nothing.
//
// A member handles its events in the order in which it got them, as a rule, and many wait in its queue. So
// the time of an event begins when those before it are done with, not when it is sent: otherwise the last of
// a long queue would be late whenever the handler is slow, and come again though nothing is wrong.
#include <algorithm>
#include <tuple>

#include "bindings/delivery.hpp"
#include "topics/numbers.hpp"

namespace antiphon::python {

namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // that one member has, and one event more
constexpr std::size_t kMostLate = 8192;                    // of one member, that it may still speak of

}  // namespace

void Delivery::join(Peer& peer, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge,
                    std::size_t capacity) {
    leave(peer.id, flow, false);
    {
        std::lock_guard lock(mutex_);
        members_.emplace(Key{peer.id, flow}, Member{peer, node_->subscription_flow(peer, incarnation, flow, least_charge),
                                                    incarnation, std::max<std::size_t>(1, capacity), now_ns()});
    }
    nudge();
}

// What it had and has not acknowledged is for the others, or for the next one. The one that it has had for
// longest may be why it went.
void Delivery::leave(std::uint16_t peer, std::uint32_t flow, bool blame) {
    if (node_->forked()) return;
    {
        std::lock_guard lock(mutex_);
        const auto found = members_.find({peer, flow});
        if (found == members_.end()) return;
        for (auto& [number, lane] : found->second.lanes) lane.target->left.store(true, std::memory_order_seq_cst);
        for (Out& out : found->second.outs) {
            if (!out.settled) again(std::move(out.item), true, std::exchange(blame, false));
        }
        members_.erase(found);
    }
    nudge();
}

std::size_t Delivery::dismiss(std::uint16_t peer, std::uint32_t flow) {
    std::lock_guard lock(mutex_);
    const auto found = members_.find({peer, flow});
    if (found == members_.end()) return 0;
    found->second.capacity = 0;
    return found->second.out;
}

void Delivery::acknowledge(std::uint16_t peer, const AckRange& range) {
    {
        std::lock_guard lock(mutex_);
        const auto known = members_.find({peer, range.flow});
        if (known == members_.end()) return;
        Member& member = known->second;
        const auto found = member.lanes.find(range.topic);
        if (found == member.lanes.end() || found->second.target->epoch != range.epoch) return;
        std::uint64_t behind = acknowledge_late(member, range);
        Lane& lane = found->second;
        for (auto place = first_from(lane.places, range.first);
             place != lane.places.end() && !number_before(range.last, place->number); ++place) {
            Out& out = member.at(place->order);
            if (out.settled) continue;
            behind = std::max(behind, place->order + 1);
            settle(member, out);
            if (range.verdict == AckRange::done) {
                if (!answered(out.item)) ++counts_.acknowledged;
                finish(out.item);
            } else {
                again(std::move(out.item), false, true);
            }
            out.item.bytes = {};
        }
        if (behind != 0) heard(member, behind, now_ns());
    }
    nudge();
}

// With the mutex, as all below. What it has done in spite of all is done: the one that is to come again, or
// is with another by now, counts no more. That it could not be done comes too late to matter.
std::uint64_t Delivery::acknowledge_late(Member& member, const AckRange& range) {
    std::uint64_t behind = 0;
    std::erase_if(member.late, [&](const Late& late) {
        if (late.topic != range.topic || late.epoch != range.epoch) return false;
        if (number_before(late.number, range.first) || number_before(range.last, late.number)) return false;
        behind = std::max(behind, late.order + 1);
        const auto open = late_.find(late.id);
        if (range.verdict != AckRange::done || open == late_.end() || open->second) return true;
        open->second = true;
        ++counts_.acknowledged;
        const auto topic = topics_.find(late.topic);
        if (topic != topics_.end()) topic->second.pending.erase(late.sequence);
        version_.fetch_add(1, std::memory_order_relaxed);
        return true;
    });
    return behind;
}

// It has acknowledged one, and perhaps others, before that order.
void Delivery::heard(Member& member, std::uint64_t behind, Nanos now) {
    member.heard = now;
    if (member.stalled && behind >= member.sign_of_life) member.stalled = false;
    const bool is_last = behind >= member.begun;
    begin(member, behind, now);  // it has had those before, whatever it does with them
    drop_settled(member);
    if (is_last || member.begun <= member.first) turn_to_next(member, now);
}

void Delivery::begin(Member& member, std::uint64_t before, Nanos now) {
    const Nanos deadline = now + options_.ack_timeout;
    for (before = std::min(before, member.end()); member.begun < before; ++member.begun) {
        if (member.begun < member.first) continue;
        Out& out = member.at(member.begun);
        if (out.settled) continue;
        out.deadline = deadline;
        outs_due_ = std::min(outs_due_, deadline);
    }
}

void Delivery::turn_to_next(Member& member, Nanos now) {
    member.begun = std::max(member.begun, member.first);
    while (member.begun < member.end() && member.at(member.begun).settled) ++member.begun;
    begin(member, member.begun + 1, now);
}

void Delivery::sent(Member& member, Lane& lane, std::deque<Item>& from, std::size_t count) {
    const Nanos now = now_ns();
    member.served = ++served_;
    for (std::size_t i = 0; i < count; ++i) {
        Item item = std::move(from.front());
        from.pop_front();
        ++item.attempts;
        const std::size_t bytes = item.bytes.size();
        member.bytes += bytes;
        lane.places.push_back({lane.target->number, member.end()});
        member.outs.push_back({item.topic, lane.target->number++, bytes, kNever, false, std::move(item)});
    }
    member.out += count;
    member.trial_at = now + options_.ack_timeout;
    counts_.delivered += count;
    if (member.begun <= member.first) turn_to_next(member, now);
}

// The last one, which did not go after all.
Delivery::Item Delivery::take_back(Member& member, Lane& lane) {
    settle(member, member.outs.back());
    Item item = std::move(member.outs.back().item);
    member.outs.pop_back();
    lane.places.pop_back();
    member.begun = std::min(member.begun, member.end());
    drop_settled(member);
    return item;
}

void Delivery::settle(Member& member, Out& out) {
    out.settled = true;
    --member.out;
    member.bytes -= out.bytes;
}

// Those at the front. One that is open keeps the places of those behind it, and not their room.
void Delivery::drop_settled(Member& member) {
    for (; !member.outs.empty() && member.outs.front().settled; ++member.first) {
        const auto lane = member.lanes.find(member.outs.front().topic);
        if (lane != member.lanes.end()) {
            std::deque<Place>& places = lane->second.places;
            if (!places.empty() && places.front().order == member.first) places.pop_front();
        }
        member.outs.pop_front();
    }
}

// The one with the least to do that has room. One that said nothing for too long gets something now and then,
// or whatever comes if there is nobody else.
Delivery::Member* Delivery::choose() {
    const bool others = std::any_of(members_.begin(), members_.end(), [](const auto& one) {
        return !one.second.stalled && one.second.capacity != 0;
    });
    Member* best = nullptr;
    for (auto& [key, member] : members_) {
        if (member.blocked || member.out >= member.room() || member.bytes >= kMostBytes) continue;
        if (member.stalled && others && now_ns() < member.trial_at) continue;
        // Those that have equally little take turns: with little to do, one would get all of it.
        if (best == nullptr || std::tie(member.out, member.served) < std::tie(best->out, best->served)) best = &member;
    }
    return best;
}

void Delivery::give_up(Member& member, std::uint64_t order, bool strike) {
    Out& out = member.at(order);
    settle(member, out);
    const auto lane = member.lanes.find(out.topic);
    if (lane != member.lanes.end() && !answered(out.item)) {
        member.late.push_back({out.topic, lane->second.target->epoch, out.number, order, out.item.id, out.item.sequence});
        if (member.late.size() > kMostLate) member.late.pop_front();
        late_.emplace(out.item.id, false);
    }
    again(std::move(out.item), true, strike);
    out.item.bytes = {};
}

void Delivery::look_at_deadlines(Nanos now) {
    // All of them are gone through only when one may have passed, not in each slice.
    if (now >= outs_due_) {
        outs_due_ = kNever;
        for (auto& [key, member] : members_) {
            bool late = false;
            for (std::uint64_t order = member.first; order < member.begun; ++order) {
                Out& out = member.at(order);
                if (out.settled) continue;
                if (out.deadline > now) {  // they began in this order
                    outs_due_ = std::min(outs_due_, out.deadline);
                    break;
                }
                late = true;
                give_up(member, order, true);
            }
            if (!late) continue;
            if (now - member.heard >= options_.ack_timeout) stall(member, now);
            drop_settled(member);
            if (member.begun <= member.first) turn_to_next(member, now);
        }
    }
    if (unburied_.empty() || (bury_pause_ != 0 && now < bury_at_)) return;
    std::deque<Item> once_more;
    once_more.swap(unburied_);
    for (Item& item : once_more) bury(std::move(item));
}

// One event may be why it says nothing. The others are not to blame, and others may do them.
void Delivery::stall(Member& member, Nanos now) {
    for (std::uint64_t order = member.first; order < member.end(); ++order) {
        if (!member.at(order).settled) give_up(member, order, false);
    }
    member.trial_at = now + options_.ack_timeout;
    if (std::exchange(member.stalled, true)) return;
    member.sign_of_life = member.end();
}

}  // namespace antiphon::python

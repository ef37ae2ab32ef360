// The receiving side of a node: parking, windows, large messages. On the selector thread, apart from
// progress() and finish(), which handlers and inboxes call.
#include <algorithm>
#include <bit>
#include <utility>

#include "node/node.hpp"

namespace antiphon {

namespace {

// Kinds without a registration share this: they are skipped as they come, so it only has to cover
// the way.
constexpr std::uint32_t kUnannouncedWindow = 256 << 10;
constexpr std::uint32_t kLeastWindow = 4 << 10;
constexpr int kIdleTicks = 5;
constexpr int kHastyIdleTicks = 120;
// More than a sender of ours ever has at once; a peer that asks for more wants our memory.
constexpr int kMostFlushes = 4096;

}  // namespace

namespace {

std::string announcement(const Registration& registration) {
    return ByteWriter().put(registration.kind).put(registration.least_charge).bytes();
}

}  // namespace

// --- credit ----------------------------------------------------------------------------------------

void Node::give_credit(Run& run, std::uint32_t due) {
    InFlow& flow = *run.flow;
    if (due <= run.returned) return;
    const std::uint32_t amount = due - run.returned;
    run.returned = due;
    if (!flow.handled.add(run.session, amount, UINT32_MAX)) return;  // of a session that is over
    if (flow.handled.count(run.session) < flow.unit.load(std::memory_order_seq_cst)) return;
    if (flow.credit_due.exchange(true, std::memory_order_seq_cst)) return;
    {
        std::lock_guard lock(flow.peer->mutex);
        flow.peer->credits_due.push_back(&flow);
    }
    // The sender may be waiting for it: it goes out at once, unless the selector is at work and will
    // see to it.
    if (!selector_.has_turn()) {
        if (Selector::Turn turn(selector_, std::try_to_lock); turn) {
            Peer& peer = *flow.peer;
            try {
                write_back(peer);
            } catch (const std::exception& error) {
                // No memory: credit is lost, and the connection with it.
                if (peer.in || peer.out) take_down(peer, error.what());
            }
            return;
        }
    }
    add_interest(*flow.peer, kWriteBack);
}

void Node::progress(Run& run, std::uint32_t done) {
    const std::uint32_t messages = done - run.done;
    run.done = done;
    if (run.flow == nullptr || messages == 0) return;
    run.flow->handled_messages.fetch_add(messages, std::memory_order_seq_cst);
    give_credit(run, done == run.count ? run.charge
                                       : static_cast<std::uint32_t>(std::uint64_t{run.charge} * done / run.count));
}

std::uint32_t Node::messages_per_credit(const Run& run) {
    if (run.flow == nullptr || run.charge == 0) return std::max(1u, run.count);
    const std::uint64_t unit = run.flow->unit.load(std::memory_order_relaxed);
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(unit * run.count / run.charge, 1, std::max(1u, run.count)));
}

void Node::finish(Run& run) {
    if (run.request && !run.begun && run.buffer) refuse_requests(run, 0, false);
    progress(run, run.count);
    if (run.flow) std::exchange(run.flow, nullptr)->pins.fetch_sub(1, std::memory_order_release);
    if (run.buffer) run.buffer->release();
    run.buffer = nullptr;
    if (run.large_bytes != 0) {
        const std::uint64_t bytes = run.large_bytes;
        const std::uint32_t flow = run.large_flow;
        run.large_bytes = 0;
        selector_.post([this, flow, bytes] {
            use_large(flow, -static_cast<std::int64_t>(bytes));
            retry_reservations();
        });
    }
    run.barrier.reset();
}

void Node::queue_credit(InFlow& flow, bool confirm) {
    // Cleared before the units are taken: a unit that fills up afterwards is reported again.
    flow.credit_due.store(false, std::memory_order_seq_cst);
    Peer& peer = *flow.peer;
    const std::uint32_t unit = std::max(1u, flow.unit.load(std::memory_order_relaxed));
    const std::uint32_t units = flow.handled.count(peer.in_session) / unit;
    if (units == 0 && (!confirm || flow.confirmed_messages == flow.handled_messages.load())) return;
    flow.handled.subtract(peer.in_session, std::uint64_t{units} * unit);
    flow.outstanding -= std::min(flow.outstanding, std::uint64_t{units} * unit);
    const std::uint64_t handled = flow.handled_messages.load(std::memory_order_relaxed);
    const auto messages = static_cast<std::uint32_t>(handled - flow.confirmed_messages);
    flow.confirmed_messages = handled;
    const std::uint32_t id = flow.registration ? flow.registration->flow : 0;
    peer.send_back(Control::credit, ByteWriter().put(units).put(messages).bytes(), id);
}

// --- parking ---------------------------------------------------------------------------------------

// What the sender charged a message at the least: what it was told of the flow, even if that has
// been withdrawn since.
std::uint32_t Node::least_charge(std::uint16_t kind, std::uint32_t flow) {
    const Registration* registration = flow_of(flow);
    return registration && registration->kind == kind ? registration->least_charge : 0;
}

// Who gets it: the flow's registration, or whoever has the kind by now. Null: nobody.
Registration* Node::registration_for(std::uint16_t kind, std::uint32_t flow) {
    Registration* registration = flow_of(flow);
    if (registration == nullptr || registration->kind != kind ||
        !registration->active.load(std::memory_order_acquire)) {
        registration = by_kind_[kind].load(std::memory_order_acquire);
    }
    return registration;
}

InFlow& Node::in_flow(Peer& peer, std::uint32_t id) {
    if (const auto found = peer.in_flows.find(id); found != peer.in_flows.end()) return *found->second;
    auto flow = std::make_unique<InFlow>(&peer, flow_of(id));
    flow->handled.reset(peer.in_session);
    return *peer.in_flows.emplace(id, std::move(flow)).first->second;
}

// Null: the peer was never given that flow, or it is long gone.
InFlow* Node::known_flow(Peer& peer, std::uint32_t id) {
    if (id == 0) return &in_flow(peer, 0);
    const auto found = peer.in_flows.find(id);
    return found == peer.in_flows.end() ? nullptr : found->second.get();
}

void Node::park(Peer& peer, const RunView& view) {
    // A node that closes reads on, for the answers that its handlers wait for; but takes nothing in. Its
    // senders count that as not confirmed.
    if (phase_.load(std::memory_order_acquire) != Phase::running) return;
    peer.use(now_ns());  // the selector's own time stands still while others read
    Registration* registration = registration_for(view.first.kind, view.first.flow);
    InFlow* const known = known_flow(peer, view.first.flow);
    if (known == nullptr) {
        const Registration* there = flow_of(view.first.flow);
        if (there == nullptr || !there->active.load(std::memory_order_acquire)) return discard(peer, view);
    }
    // One that it has not opened: it has no credit there.
    InFlow& flow = known ? *known : in_flow(peer, view.first.flow);
    flow.messages.store(flow.messages.load(std::memory_order_relaxed) + view.count, std::memory_order_relaxed);
    flow.bytes.store(flow.bytes.load(std::memory_order_relaxed) + view.bytes, std::memory_order_relaxed);
    Run run;
    run.shape = view.first.flags & kPacked ? Run::Shape::packed : Run::Shape::frames;
    run.request = (view.first.flags & kRequest) != 0;
    run.source = peer.id;
    run.session = peer.in_session;
    run.offset = view.offset;
    run.bytes = view.bytes;
    run.count = run.last = view.count;
    run.charge = view.charge;
    run.pin(flow);
    run.arrived = selector_.now();
    if (overdrawn(peer, flow, view.charge)) return finish(run);
    if (registration != nullptr && registration->queue->when_full() == WhenFull::block &&
        registration->least_charge < flow.window && flow.outstanding + registration->least_charge > flow.window) {
        registration->queue->brim();
    }
    if (registration == nullptr) {
        unknown_kind_.fetch_add(view.count, std::memory_order_relaxed);
    }
    if (registration == nullptr || (run.request && !registration->answers)) {
        if (run.request) {
            run.buffer = view.buffer;
            refuse_requests(run, view.first.kind, registration == nullptr);
            run.request = false;
            run.buffer = nullptr;
        }
        return finish(run);
    }
    if (pool_->pressed()) {
        // Few buffers are left: this run must not hold a whole one.
        try {
            run.buffer = Buffer::standalone(view.bytes);
        } catch (const std::bad_alloc&) {
            flow.pins.fetch_sub(1, std::memory_order_release);  // nobody will finish it
            throw;
        }
        std::memcpy(run.buffer->data(), view.buffer->data() + view.offset, view.bytes);
        run.offset = 0;
    } else {
        run.buffer = view.buffer;
        run.buffer->retain();
    }
    park_run(*registration, std::move(run));
}

// What comes on a flow that there is not, and so has no credit: a sender that was told so keeps nothing back that
// was under way, and that may be much. It takes no memory, and is no reason to part.
void Node::discard(Peer& peer, const RunView& view) {
    unknown_kind_.fetch_add(view.count, std::memory_order_relaxed);
    if ((view.first.flags & kRequest) == 0) return;
    Run run;
    run.shape = view.first.flags & kPacked ? Run::Shape::packed : Run::Shape::frames;
    run.offset = view.offset;
    run.bytes = view.bytes;
    run.last = view.count;
    run.session = peer.in_session;
    run.buffer = view.buffer;
    run.pin(in_flow(peer, 0));
    refuse_requests(run, view.first.kind, true);
    run.buffer = nullptr;
    finish(run);
}

// Books what came. A sender that keeps to its credit never has more under way than the largest window
// it was given; one that does not is cut off, or it could fill our memory.
bool Node::overdrawn(Peer& peer, InFlow& flow, std::uint32_t charge) {
    flow.outstanding += charge;
    const std::uint32_t most = flow.registration ? flow.largest_window : kUnannouncedWindow;
    if (flow.outstanding <= most) return false;
    if (peer.in) peer.in->farewell = "protocol error: it sent more than it had credit for";
    return true;
}

void Node::park_run(Registration& registration, Run run) {
    registration.messages.fetch_add(run.count, std::memory_order_relaxed);
    registration.bytes.fetch_add(run.bytes, std::memory_order_relaxed);
    if (registration.queue->when_full() != WhenFull::block) {
        // The queue itself holds to its bounds; the sender is not to wait for it.
        give_credit(run, run.charge);
    }
    registration.queue->push(std::move(run));
}

// --- windows ---------------------------------------------------------------------------------------

void Node::set_window(InFlow& flow, std::uint32_t flow_id, std::uint32_t window) {
    granted_ += window;
    granted_ -= flow.window;
    granted_now_.store(granted_, std::memory_order_relaxed);
    flow.window = window;
    flow.largest_window = std::max(flow.largest_window, window);
    const std::uint32_t least = flow.registration ? flow.registration->least_charge : 0;
    // What is handled but below a unit is not given back yet; the rest of the window must still hold
    // the largest frame, or sender and receiver would wait for each other.
    const std::uint32_t keep = std::max(window / 4, std::min(least, window));
    const auto unit = std::max<std::uint32_t>(
        1, std::min(static_cast<std::uint32_t>(options_.flow_threshold * window), window - keep));
    if (unit != flow.unit.load(std::memory_order_relaxed)) queue_credit(flow);  // in the old unit
    flow.unit.store(unit, std::memory_order_seq_cst);
    flow.peer->send_back(Control::window, ByteWriter().put(window).put(unit).bytes(), flow_id);
    if (flow.handled.count(flow.peer->in_session) >= unit &&
        !flow.credit_due.exchange(true, std::memory_order_seq_cst)) {
        std::lock_guard lock(flow.peer->mutex);
        flow.peer->credits_due.push_back(&flow);
    }
    add_interest(*flow.peer, kWriteBack);
}

// Divides a registration's window among its senders.
void Node::share_window(Registration& registration) {
    const auto count = static_cast<std::uint32_t>(registration.senders.size());
    if (count == 0) return;
    std::uint64_t held = 0;
    for (const InFlow* sender : registration.senders) held += sender->window;
    const std::uint64_t left = options_.receive_bytes - std::min(options_.receive_bytes, granted_ - held);
    // Below a quarter a window holds too few messages to keep a sender and its receiver both at work,
    // and all of them end up waiting for each other: many senders get more than one window in all,
    // as long as the budget lasts.
    const std::uint64_t fair = std::max(registration.window / count, registration.window / 4);
    const std::uint32_t least = std::max(kLeastWindow, registration.least_charge);
    // Where the budget is what limits it, in powers of two: not every sender that comes changes the
    // windows of all others.
    const std::uint64_t part = left / count < fair ? std::bit_floor(left / count) : fair;
    const auto share = std::max<std::uint32_t>(least, static_cast<std::uint32_t>(part));
    for (InFlow* sender : registration.senders) {
        if (sender->window != share) set_window(*sender, registration.flow, share);
    }
}

void Node::open_flow(Peer& peer, std::uint32_t id) {
    if (id == 0) return;
    Registration* registration = flow_of(id);
    if (registration == nullptr || !registration->active.load(std::memory_order_acquire)) {
        // A kind was withdrawn before; a subscription only from those who had opened it. What is quite gone may
        // have been one.
        if (registration != nullptr && !registration->told) return;
        peer.send_back(Control::withdraw, ByteWriter().put(kEventKind).put(std::uint32_t{0}).bytes(), id);
        add_interest(peer, kWriteBack);
        return;
    }
    InFlow& flow = in_flow(peer, id);
    auto& senders = registration->senders;
    if (std::find(senders.begin(), senders.end(), &flow) != senders.end()) return;
    const std::uint64_t least = std::max(kLeastWindow, registration->least_charge);
    if (!make_room(least)) {
        const std::pair<Peer*, std::uint32_t> open(&peer, id);  // until somebody gives a window back
        if (std::find(waiting_opens_.begin(), waiting_opens_.end(), open) == waiting_opens_.end()) {
            waiting_opens_.push_back(open);
        }
        return;
    }
    senders.push_back(&flow);
    share_window(*registration);
}

// The budget is used up when more is open than fits with full windows. Then the largest are halved, as
// far as they can be, rather than that anybody waits for others to become idle.
bool Node::make_room(std::uint64_t bytes) {
    while (granted_ + bytes > options_.receive_bytes && granted_ != 0) {
        InFlow* largest = nullptr;
        for (const auto& [id, registration] : flows_) {
            const std::uint32_t least = std::max(kLeastWindow, registration->least_charge);
            for (InFlow* sender : registration->senders) {
                if (sender->window > least && (!largest || sender->window > largest->window)) largest = sender;
            }
        }
        if (largest == nullptr) return false;
        const std::uint32_t least = std::max(kLeastWindow, largest->registration->least_charge);
        set_window(*largest, largest->registration->flow, std::max(least, largest->window / 2));
    }
    return true;
}

void Node::shut_flow(Peer& peer, std::uint32_t id) {
    const auto found = peer.in_flows.find(id);
    if (found == peer.in_flows.end()) return;
    InFlow& flow = *found->second;
    granted_ -= flow.window;
    granted_now_.store(granted_, std::memory_order_relaxed);
    flow.window = 0;
    if (flow.registration) {
        std::erase(flow.registration->senders, &flow);
        share_window(*flow.registration);
    }
    retry_opens();
}

void Node::retry_opens() {
    auto waiting = std::move(waiting_opens_);
    waiting_opens_.clear();
    for (auto [peer, id] : waiting) open_flow(*peer, id);
}

// The sender's part: a flow that nobody has used for a while gives its window back.
void Node::return_idle_windows(Peer& peer) {
    auto look = [&](OutFlow& flow) {
        const std::uint64_t messages = flow.messages.load(std::memory_order_relaxed);
        const bool used = messages != flow.seen ||
                          flow.in_flight.count(peer.session.load(std::memory_order_relaxed)) >= flow.unit;
        flow.seen = messages;
        if (used || flow.window.load(std::memory_order_relaxed) == 0) {
            flow.idle_ticks = 0;
            return false;
        }
        const bool hasty = flow.hasty.load(std::memory_order_relaxed);
        if (++flow.idle_ticks < (hasty ? kHastyIdleTicks : kIdleTicks)) return false;
        flow.idle_ticks = 0;
        return true;
    };
    auto give_back = [&](OutFlow& flow) {
        // Queued before anybody can find the window gone and ask for another.
        peer.send_forward(Control::shut, {}, flow.id.load(std::memory_order_relaxed));
        flow.asked.store(false, std::memory_order_seq_cst);
        flow.window.store(0, std::memory_order_seq_cst);
        add_interest(peer, kWrite);
        peer.wake();  // whoever waited for credit on it asks again
    };
    for (auto& [kind, flow] : peer.out_flows) {
        if (peer.kinds.find(kind) == flow.get() && look(*flow)) give_back(*flow);  // else it is withdrawn
    }
    std::vector<OutFlow*> idle;
    {
        std::lock_guard lock(peer.mutex);
        for (auto& [key, flow] : peer.subscription_flows) {
            if (key.first != peer.incarnation || flow->withdrawn.load(std::memory_order_relaxed)) continue;
            if (look(*flow)) idle.push_back(flow.get());
        }
    }
    for (OutFlow* flow : idle) give_back(*flow);
}

// --- announcements ---------------------------------------------------------------------------------

void Node::announce_all(Channel& channel) {
    for (const auto& [id, registration] : flows_) {
        if (!registration->told && registration->active.load(std::memory_order_acquire)) {
            append_frame(channel.out, Control::announce, announcement(*registration), registration->flow);
        }
    }
    InFlow& unannounced = in_flow(*channel.peer, 0);
    unannounced.unit.store(kUnannouncedWindow / 4, std::memory_order_seq_cst);
    append_frame(channel.out, Control::window,
                 ByteWriter().put(kUnannouncedWindow).put(kUnannouncedWindow / 4).bytes(), 0);
    append_frame(channel.out, Control::ready, {});
}

void Node::announce(Registration& registration) {
    const bool active = registration.active.load(std::memory_order_acquire);
    // The start may have taken it in already.
    if (active && std::exchange(registration.announced, true)) return;
    if (active) flows_.emplace(registration.flow, &registration);
    std::vector<Peer*> peers, senders;
    {
        std::lock_guard lock(mutex_);
        for (auto& peer : peer_list_) peers.push_back(peer.get());
    }
    for (Peer* peer : peers) {
        if (active && registration.told) break;  // the bus or the group tells whom it concerns
        const bool opened = peer->in_flows.contains(registration.flow);
        if (!active && opened) senders.push_back(peer);
        if (registration.told && !opened) continue;  // it has never asked for it
        if (peer->in == nullptr || peer->in->state != Channel::State::open) continue;
        peer->send_back(active ? Control::announce : Control::withdraw, announcement(registration),
                        registration.flow);
        add_interest(*peer, kWriteBack);
    }
    if (!active) {
        for (InFlow* sender : registration.senders) {
            granted_ -= sender->window;
            sender->window = 0;
        }
        granted_now_.store(granted_, std::memory_order_relaxed);
        registration.senders.clear();
        retired_.push_back({registration.flow, selector_.now(), std::move(senders)});
        retry_opens();
    }
}

// --- control ---------------------------------------------------------------------------------------

// Frames on the back direction of the channel we send on.
bool Node::back_control(Peer& peer, const Header& header, std::string_view payload) {
    ByteReader reader(payload);
    auto subscription_flow_of = [&]() -> OutFlow* {
        std::lock_guard lock(peer.mutex);
        const auto found = peer.subscription_flows.find({peer.incarnation.load(), header.flow});
        return found == peer.subscription_flows.end() ? nullptr : found->second.get();
    };
    auto flow_of = [&]() -> OutFlow* {
        if (header.flow == 0) return &peer.unannounced;
        if (OutFlow* flow = subscription_flow_of()) return flow;
        for (auto& [kind, flow] : peer.out_flows) {
            if (flow->id.load(std::memory_order_relaxed) == header.flow) return flow.get();
        }
        return nullptr;
    };
    switch (static_cast<Control>(header.kind)) {
        case Control::announce: {
            const auto kind = reader.get<std::uint16_t>();
            const auto least = reader.get<std::uint32_t>();
            if (!reader.ok() || header.flow == 0) return false;
            const auto found = peer.out_flows.find(kind);
            OutFlow* flow = found == peer.out_flows.end() ? nullptr : found->second.get();
            const std::uint32_t known = flow ? flow->id.load(std::memory_order_relaxed) : 0;
            if (flow == nullptr || (known != 0 && known != header.flow)) {
                auto fresh = fresh_flow(peer, kind);
                if (!fresh) return false;
                if (flow == nullptr) {
                    flow = peer.out_flows.emplace(kind, std::move(fresh)).first->second.get();
                } else {
                    // Never two ids for one object within a session: a thread that still uses the old one
                    // would charge the new.
                    Peer::OldFlow& old = peer.old_flows.emplace_back();
                    flow->in_flight.reset(0);
                    flow->window.store(UINT32_MAX, std::memory_order_seq_cst);  // whoever waits goes on
                    old = {std::exchange(found->second, std::move(fresh)), selector_.now()};
                    flow = found->second.get();
                }
            }
            flow->session = peer.sessions;
            flow->id.store(header.flow, std::memory_order_relaxed);
            flow->least_charge.store(least, std::memory_order_relaxed);
            flow->window.store(0, std::memory_order_relaxed);
            flow->asked.store(false, std::memory_order_relaxed);
            flow->confirmed = 0;
            flow->at_session_start = flow->messages.load(std::memory_order_relaxed);
            flow->in_flight.reset(peer.sessions);
            peer.kinds.set(kind, flow);
            peer.wake();
            return true;
        }
        case Control::withdraw: {
            const auto kind = reader.get<std::uint16_t>();
            if (kind == kEventKind || kind == kGroupKind) {
                if (OutFlow* flow = subscription_flow_of()) {
                    flow->withdrawn.store(true, std::memory_order_seq_cst);
                    flow->in_flight.reset(0);
                    flow->window.store(UINT32_MAX, std::memory_order_seq_cst);  // whoever waits goes on
                    peer.wake();
                }
                return reader.ok();
            }
            const auto found = peer.out_flows.find(kind);
            if (found != peer.out_flows.end() && found->second->id == header.flow) {
                peer.kinds.set(kind, nullptr);
                // Whoever waits on it goes on, and finds the kind unannounced.
                found->second->in_flight.reset(0);
                found->second->window.store(UINT32_MAX, std::memory_order_seq_cst);
                peer.wake();
            }
            return reader.ok();
        }
        case Control::window: {
            const auto window = reader.get<std::uint32_t>();
            const auto unit = reader.get<std::uint32_t>();
            OutFlow* flow = flow_of();
            if (!reader.ok() || window > (1u << 30)) return false;
            if (flow == nullptr) return true;
            flow->unit = unit;
            if (header.flow == 0) {
                flow->in_flight.reset(peer.sessions);
                flow->confirmed = 0;
                flow->at_session_start = flow->messages.load(std::memory_order_relaxed);
            }
            flow->window.store(window, std::memory_order_seq_cst);
            peer.wake();
            return true;
        }
        case Control::credit: {
            const auto units = reader.get<std::uint32_t>();
            const auto messages = reader.get<std::uint32_t>();
            if (!reader.ok()) return false;
            if (OutFlow* flow = flow_of()) {
                flow->confirmed += messages;
                flow->in_flight.subtract(peer.sessions, std::uint64_t{units} * flow->unit);
                if (units != 0) flow->stalled.store(false, std::memory_order_relaxed);
                peer.wake();
            }
            return true;
        }
        case Control::flushed: {
            const auto id = reader.get<std::uint64_t>();
            {
                std::lock_guard lock(peer.mutex);
                peer.flushed = std::max(peer.flushed, id);
            }
            peer.wake();
            return reader.ok();
        }
        case Control::reserved: {
            const auto id = reader.get<std::uint64_t>();
            const auto granted = reader.get<std::uint8_t>();
            {
                std::lock_guard lock(peer.mutex);
                const auto found = peer.reservations.find(id);
                if (found != peer.reservations.end()) {
                    (granted ? found->second.granted : found->second.refused) = true;
                }
            }
            peer.wake();
            return reader.ok();
        }
        case Control::liveness:
            peer.remote_age_ms = reader.get<std::uint32_t>();
            return true;
        case Control::probe:
            peer.send_forward(Control::liveness, ByteWriter().put(std::uint32_t{0}).bytes());
            add_interest(peer, kWrite);
            return true;
        case Control::dial_me: connect_for_peer(peer); return true;
        case Control::part:
        case Control::agree:
        case Control::refrain:
        case Control::stay: return got_part(peer, static_cast<Control>(header.kind), payload);
        case Control::bye:
            if (payload == kParted && (peer.agreed != 0 || peer.ending)) {
                if (!peer.ending) end_session(peer);
                return true;
            }
            take_down(peer, "the peer closed");
            return true;
        case Control::refuse: take_down(peer, "refused: " + (reader.get<std::uint8_t>(), reader.text())); return true;
        default: return false;
    }
}

// Calls it when everything that the peer has sent so far was handled, on whichever thread handles the last
// message.
void Node::when_handled(Peer& peer, std::function<void()> call) {
    const auto barrier = std::make_shared<Barrier>(std::move(call));
    auto mark = [&](Registration& registration) {
        Run run;
        run.barrier = barrier;
        registration.queue->push(std::move(run));
    };
    bool elsewhere = false;  // some may lie in queues that their flow does not name
    for (auto& [id, flow] : peer.in_flows) {
        if (flow->messages.load(std::memory_order_relaxed) ==
            flow->handled_messages.load(std::memory_order_seq_cst)) {
            continue;
        }
        elsewhere |= !flow->registration || !flow->registration->active.load(std::memory_order_acquire);
        if (flow->registration) mark(*flow->registration);
    }
    if (!elsewhere) return;
    std::vector<std::shared_ptr<Registration>> all;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [id, registration] : registrations_) all.push_back(registration);
    }
    for (auto& registration : all) {
        if (registration->active.load(std::memory_order_acquire)) mark(*registration);
    }
}

// Frames of ours among the data.
bool Node::forward_control(Channel& channel, Peer& peer, const Header& header, std::string_view payload) {
    ByteReader reader(payload);
    switch (static_cast<Control>(header.kind)) {
        case Control::pad: return true;
        case Control::liveness: peer.remote_age_ms = reader.get<std::uint32_t>(); return true;
        case Control::probe:
            peer.send_back(Control::liveness, ByteWriter().put(std::uint32_t{0}).bytes());
            add_interest(peer, kWriteBack);
            return true;
        case Control::open: open_flow(peer, header.flow); return true;
        case Control::bind: return got_bind(peer, header.flow, payload);
        case Control::shut: shut_flow(peer, header.flow); return true;
        case Control::flush: {
            const auto id = reader.get<std::uint64_t>();
            if (!reader.ok()) return false;
            // What came before it may not have been taken in.
            if (phase_.load(std::memory_order_acquire) != Phase::running) return true;
            if (peer.flushes.fetch_add(1, std::memory_order_relaxed) >= kMostFlushes) {
                peer.flushes.fetch_sub(1, std::memory_order_relaxed);
                return false;
            }
            when_handled(peer, [this, &peer, id, session = peer.in_session.load()] {
                // On whichever thread handles the last message; or in a child that drops what it inherited.
                if (forked()) return;
                peer.flushes.fetch_sub(1, std::memory_order_relaxed);
                peer.confirm_all.store(true, std::memory_order_seq_cst);
                {
                    std::lock_guard lock(peer.mutex);
                    if (peer.in_session.load(std::memory_order_seq_cst) != session) return;
                    append_frame(peer.back, Control::flushed, ByteWriter().put(id).bytes());
                }
                add_interest(peer, kWriteBack);
            });
            return true;
        }
        case Control::reserve: {
            const auto id = reader.get<std::uint64_t>();
            const auto size = reader.get<std::uint64_t>();
            const auto kind = reader.get<std::uint16_t>();
            if (!reader.ok()) return false;
            if (phase_.load(std::memory_order_acquire) != Phase::running && kind >= kFirstDataKind && header.flow != 0) {
                return true;
            }
            reserve(peer, id, size, kind, header.flow);
            return true;
        }
        case Control::cancel: {
            const auto id = reader.get<std::uint64_t>();
            std::erase_if(waiting_reservations_,
                          [&](const auto& waiting) { return waiting.peer == &peer && waiting.id == id; });
            const auto found = peer.assemblies.find(id);
            if (found != peer.assemblies.end()) {
                if (found->second.buffer) found->second.buffer->release();
                use_large(found->second.flow, -static_cast<std::int64_t>(found->second.size));
                peer.assemblies.erase(found);
                retry_reservations();
            }
            return reader.ok();
        }
        case Control::part:
        case Control::agree:
        case Control::refrain:
        case Control::stay: return got_part(peer, static_cast<Control>(header.kind), payload);
        case Control::bye:
            channel.parted = payload == kParted && (peer.agreed != 0 || peer.ending);
            if (!channel.parted) channel.farewell = "the peer closed";
            return true;
        case Control::refuse: {
            reader.get<std::uint8_t>();
            channel.farewell = "refused: " + reader.text();
            return true;
        }
        default: return false;
    }
}

// The receiving side of a connection ends. What is parked stays parked: it arrived.
void Node::drop_receiving(Peer& peer) {
    // Odd while something may come, and only then: a peer that we have only sent to is taken down as well.
    if (peer.in_session % 2 == 1) ++peer.in_session;
    for (auto& [id, assembly] : peer.assemblies) {
        if (assembly.buffer) assembly.buffer->release();
        use_large(assembly.flow, -static_cast<std::int64_t>(assembly.size));
    }
    peer.assemblies.clear();
    std::erase_if(waiting_opens_, [&](const auto& waiting) { return waiting.first == &peer; });
    for (auto& [id, known] : peer.in_flows) {
        InFlow& flow = *known;
        flow.handled.reset(peer.in_session + 1);  // the session that the next channel will have
        flow.credit_due.store(false, std::memory_order_seq_cst);
        flow.outstanding = 0;
        flow.largest_window = 0;
        flow.confirmed_messages = flow.handled_messages.load(std::memory_order_relaxed);
        if (id != 0) shut_flow(peer, id);
    }
    retry_reservations();
}

}  // namespace antiphon

// The sending side of a node: any thread. Attempts never block; wait() is where threads wait.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>

#include "base/wait.hpp"
#include "node/lead.hpp"
#include "node/node.hpp"
#include "node/put.hpp"

namespace antiphon {

namespace {

using Status = Attempt::Status;

// When nothing was sent for this long the sender writes to the socket itself: it is not about to send
// much more, and the hop to the selector would take longer than the system call.
constexpr Nanos kQuiet = 60 * kMicrosecond;
// Waiting threads look this often whether they were interrupted.
constexpr std::uint64_t kOpenFlushes = 1024;
constexpr Nanos kInterruptEvery = 100 * kMillisecond;

// While it lives, the peer's connection is not given back.
// A thread that waits for a peer, or is about to.
struct Waiting {
    explicit Waiting(Peer& peer_) : peer(peer_) { peer.waiters.fetch_add(1, std::memory_order_seq_cst); }
    ~Waiting() { peer.waiters.fetch_sub(1, std::memory_order_seq_cst); }
    Waiting(const Waiting&) = delete;
    Peer& peer;
};

struct Busy {
    explicit Busy(Peer& peer_) : peer(peer_) { peer.busy.fetch_add(1, std::memory_order_seq_cst); }
    ~Busy() { peer.busy.fetch_sub(1, std::memory_order_seq_cst); }
    Busy(const Busy&) = delete;
    Peer& peer;
};

}  // namespace

bool Node::sends_allowed() const {
    const Phase phase = phase_.load(std::memory_order_seq_cst);
    return phase == Phase::running || (phase == Phase::draining && Scheduler::on_scheduler_thread());
}

Attempt Node::try_message(Peer& peer, std::uint16_t kind, Message message) {
    return put(peer, kind, 0, message.size, 1, [&](Ring& ring, std::uint64_t position) {
        ring.write(position, message.data, message.size);
    });
}

Attempt Node::try_packed(Peer& peer, std::uint16_t kind, const Message* messages, std::size_t count,
                         std::size_t& taken) {
    taken = 0;
    // How much one frame may hold: the session's largest frame, and a quarter of the flow's window in
    // bytes as well as in messages, so that a window holds several frames.
    const std::uint32_t max_frame = peer.max_frame.load(std::memory_order_relaxed);
    std::uint64_t most_bytes = max_frame > kHeaderBytes ? max_frame - kHeaderBytes : 0;
    std::uint64_t most_count = count;
    OutFlow* flow = peer.kinds.find(kind);
    if (flow == nullptr) flow = &peer.unannounced;
    if (const std::uint32_t window = flow->window.load(std::memory_order_acquire); window != 0) {
        const std::uint32_t least = flow->least_charge.load(std::memory_order_relaxed);
        most_bytes = std::min<std::uint64_t>(most_bytes, window / 4 - kHeaderBytes);
        if (least != 0) {
            most_count = std::min<std::uint64_t>(most_count, std::max(1u, window / 4 / least));
        }
    }
    const std::uint64_t limit = message_limit(peer);  // what is over it goes, and fails, by itself
    std::uint64_t payload = 4;
    std::size_t fits = 0;
    while (fits < most_count && messages[fits].size <= limit && payload + 4 + messages[fits].size <= most_bytes) {
        payload += 4 + messages[fits].size;
        ++fits;
    }
    if (fits <= 1) {
        const Attempt attempt = try_message(peer, kind, messages[0]);
        taken = attempt.status == Status::sent ? 1 : 0;
        return attempt;
    }
    const auto many = static_cast<std::uint32_t>(fits);
    const Attempt attempt =
        put(peer, kind, kPacked, payload, many, [&](Ring& ring, std::uint64_t position) {
            ring.write(position, &many, 4);
            std::uint64_t at = position + 4;
            for (std::size_t i = 0; i < fits; ++i, at += 4) {
                const auto size = static_cast<std::uint32_t>(messages[i].size);
                ring.write(at, &size, 4);
            }
            // Messages that lie side by side, as those of a packed buffer do, are copied in one go.
            for (std::size_t i = 0; i < fits;) {
                const char* from = messages[i].data;
                std::size_t bytes = messages[i++].size;
                while (i < fits && messages[i].data == from + bytes) bytes += messages[i++].size;
                ring.write(at, from, bytes);
                at += bytes;
            }
        });
    if (attempt.status == Status::sent) taken = fits;
    return attempt;
}

void Node::signal_data(Peer& peer, Haste haste) {
    if (peer.unused.load(std::memory_order_relaxed)) peer.unused.store(false, std::memory_order_relaxed);
    if (haste == Haste::at_once && write_inline(peer)) return;
    if (peer.write_armed.load(std::memory_order_seq_cst)) return;
    // Of the node, not of the peer: whoever sends to many in turn is busy, however rarely each is met.
    const bool quiet = haste != Haste::gather && now_ns() - last_signal_.load(std::memory_order_relaxed) > kQuiet;
    const bool done = quiet && write_inline(peer);
    const Nanos now = now_ns();
    last_signal_.store(now, std::memory_order_relaxed);
    peer.used.store(now, std::memory_order_relaxed);
    if (done) return;
    if (!peer.write_armed.exchange(true, std::memory_order_seq_cst)) add_interest(peer, kWrite);
}

// True when the ring is empty afterwards.
bool Node::write_inline(Peer& peer) {
    if (peer.write_token.exchange(true, std::memory_order_acquire)) return false;
    bool emptied = false;
    Channel* channel = peer.out;
    // The selector changes `out` and closes its descriptor only with the token.
    if (channel != nullptr && peer.session.load(std::memory_order_acquire) != 0 &&
        peer.lane_out.empty() && !peer.out_blocked) {
        Ring& ring = *peer.ring.load(std::memory_order_acquire);
        const char* data;
        const std::size_t bytes = ring.readable(data);
        const std::uint64_t boundary = ring.committed();
        if (bytes != 0) {
            const ssize_t sent = channel->transmit(data, bytes);
            if (sent > 0) {
                ring.release(static_cast<std::size_t>(sent));
                peer.block_left = boundary - ring.head();
                peer.inline_writes.fetch_add(1, std::memory_order_relaxed);
                peer.bytes_written.fetch_add(static_cast<std::uint64_t>(sent), std::memory_order_relaxed);
                emptied = ring.empty();
                if (ring.free_bytes() >= ring.capacity() / 2) peer.wake();
            } else if (channel->tls && errno == EAGAIN) {
                // TLS has made a record of these bytes already: they come next, before any control.
                peer.block_left = boundary - ring.head();
            }
        }
    }
    peer.write_token.store(false, std::memory_order_seq_cst);
    if (peer.handover.load(std::memory_order_seq_cst) &&
        peer.handover.exchange(false, std::memory_order_seq_cst)) {
        add_interest(peer, kWrite);
    }
    return emptied;
}

void Node::add_interest(Peer& peer, std::uint8_t interests) {
    if (interests_.add(peer, interests)) selector_.wake();
}

void Node::want_connection(Peer& peer) {
    const Nanos until = now_ns() + options_.connect_timeout;
    Nanos seen = peer.wanted_until.load(std::memory_order_relaxed);
    while (seen < until && !peer.wanted_until.compare_exchange_weak(seen, until)) {
    }
    add_interest(peer, kConnect);
}

void Node::want_credit(Peer& peer, const Attempt& attempt) {
    OutFlow& flow = *attempt.flow;
    if (flow.window.load(std::memory_order_seq_cst) != 0 || flow.asked.exchange(true)) return;
    peer.send_forward(Control::open, {}, flow.id.load(std::memory_order_relaxed));
    add_interest(peer, kWrite);
}

std::uint64_t Node::message_limit(const Peer& peer) const {
    const std::uint64_t theirs = peer.max_message.load(std::memory_order_acquire);
    return theirs == 0 ? options_.max_message_bytes : std::min(theirs, options_.max_message_bytes);
}

Outcome Node::too_large(const Peer& peer, std::uint64_t size) const {
    Outcome outcome;
    outcome.code = Outcome::Code::too_large;
    outcome.size = size;
    outcome.limit = message_limit(peer);
    outcome.text = "a message of " + std::to_string(size) + " bytes to node " + std::to_string(peer.id) +
                   " is over the limit of " + std::to_string(outcome.limit) +
                   "; raise max_message_bytes on both nodes, or send parts";
    return outcome;
}

Outcome Node::lost(Peer& peer) {
    if (!sends_allowed()) return {Outcome::Code::closed, {}, {}, {}};
    std::lock_guard lock(peer.mutex);
    Outcome outcome{Outcome::Code::unreachable, peer.failure.text, peer.failure.address, {}};
    if (outcome.text.empty()) outcome.text = "the connection was lost";
    return outcome;
}

// A connection that this call has already used is gone: what it sent may be lost. Unless it was given
// back, with everything delivered.
bool Node::was_lost(const Sending& sending, std::uint32_t session) {
    return sending.session != 0 && sending.session != session &&
           sending.session <= sending.peer.lost_session.load(std::memory_order_seq_cst);
}

// Blocks until done(), which is asked with the peer's mutex held.
Outcome Node::block(Peer& peer, Nanos deadline, const Interrupted* interrupted,
                    const std::function<bool()>& done, Channel* Peer::*answers) {
    Scheduler::Blocked blocked;
    std::optional<Lead> lead;
    Outcome outcome;
    Nanos look = now_ns() + kInterruptEvery;  // for signals, next
    Waiting waiting(peer);
    std::unique_lock lock(peer.mutex);
    for (;;) {
        // First of all: the node's own end also ends its sessions, and is not to be taken for a loss.
        const bool open = sends_allowed();
        if (open && done()) break;
        const Nanos now = now_ns();
        if (!open) {
            outcome.code = Outcome::Code::closed;
        } else if (now >= deadline) {
            outcome.code = Outcome::Code::timeout;
        } else {
            const Nanos until = interrupted ? std::min(deadline, look) : deadline;
            if (answers != nullptr && !lead) {
                lock.unlock();
                lead.emplace(*this, peer, answers);
                lock.lock();
                continue;  // what came meanwhile was the selector's to read
            }
            if (lead && *lead) {
                lock.unlock();
                lead->wait(until);
                lock.lock();
            } else {
                wait_until(peer.changed, lock, until);
            }
            if (interrupted && now_ns() >= until) {
                lock.unlock();
                lead.reset();  // signal handlers may send, and what is led is read by nobody else
                if ((*interrupted)()) outcome.code = Outcome::Code::interrupted;
                if (forked()) return {Outcome::Code::closed, {}, {}, {}};
                look = now_ns() + kInterruptEvery;
                lock.lock();
            }
        }
        if (!outcome.ok()) break;
    }
    lock.unlock();  // giving up the lead needs the selector's turn, which comes before all locks
    lead.reset();
    return outcome;
}

Outcome Node::wait(Sending& sending, const Attempt& attempt, const Interrupted* interrupted) {
    Peer& peer = sending.peer;
    if (attempt.status == Status::again) return {};
    if (attempt.status == Status::closed) return {Outcome::Code::closed, {}, {}, {}};
    if (attempt.status != Status::not_connected && now_ns() >= sending.deadline) {
        return {Outcome::Code::timeout, {}, {}, {}};
    }
    Nanos deadline = sending.deadline;

    std::function<bool()> worth_it;
    std::optional<Waiting> wish;  // a connection that is lost, or given back, before we wait is opened again
    if (attempt.status == Status::not_connected) {
        wish.emplace(peer);
        if (peer.held.load(std::memory_order_seq_cst)) {
            // It is being given back. If we have not yet gone too far it stays, else another is opened.
            want_connection(peer);
            return block(peer, deadline, interrupted,
                         [&peer] { return !peer.held.load(std::memory_order_seq_cst); });
        }
        if (was_lost(sending, 0)) return lost(peer);
        if (sending.session != 0) sending.session = 0, sending.connect_deadline = 0;
        if (sending.connect_deadline == 0) {
            sending.connect_deadline = now_ns() + options_.connect_timeout;
            std::lock_guard lock(peer.mutex);
            sending.failures = peer.failures;
        }
        want_connection(peer);
        deadline = std::min(deadline, sending.connect_deadline);
        worth_it = [&] {
            return peer.session.load(std::memory_order_seq_cst) != 0 ||
                   peer.failures != sending.failures;
        };
    } else {
        if (was_lost(sending, attempt.session)) return lost(peer);
        sending.session = attempt.session;
        auto gone = [&peer, session = attempt.session] {
            return peer.session.load(std::memory_order_seq_cst) != session;
        };
        if (attempt.status == Status::no_credit) {
            OutFlow& flow = *attempt.flow;
            flow.waits.fetch_add(1, std::memory_order_relaxed);
            want_credit(peer, attempt);
            // This thread has nothing better to do than to send on its way what it has sent so far.
            write_inline(peer);
            // Another window means another measure of how much goes into one frame: try again then.
            worth_it = [&, gone] {
                const std::uint32_t window = flow.window.load(std::memory_order_seq_cst);
                const std::uint64_t after =
                    std::uint64_t{flow.in_flight.count(attempt.session)} + attempt.amount;
                if (window == 0) return gone() || !flow.asked.load(std::memory_order_seq_cst);
                return gone() || after <= window || window != attempt.window;
            };
        } else {
            peer.ring_waits.fetch_add(1, std::memory_order_relaxed);
            Ring& ring = *peer.ring.load(std::memory_order_acquire);
            // Half of the ring at once, so that a full ring costs few wake-ups; at the end of the
            // patience, whatever there is.
            const std::size_t enough = std::max<std::size_t>(attempt.amount, ring.capacity() / 2);
            worth_it = [&, gone, enough] {
                const std::size_t free = ring.free_bytes();
                return gone() || free >= enough || (free >= attempt.amount && now_ns() >= deadline);
            };
        }
    }

    const auto unwanted = [&] {
        return sending.asked_in != 0 && sending.asked_in != peer.in_session.load(std::memory_order_seq_cst);
    };
    Outcome outcome = block(peer, deadline, interrupted, [&] { return unwanted() || worth_it(); },
                            attempt.status == Status::no_credit ? &Peer::out : nullptr);
    if (attempt.status == Status::not_connected && outcome.code != Outcome::Code::closed &&
        outcome.code != Outcome::Code::interrupted &&
        peer.session.load(std::memory_order_seq_cst) == 0) {
        std::lock_guard lock(peer.mutex);
        // There was one, and it was given back already: try again.
        if (outcome.ok() && peer.failures == sending.failures) return outcome;
        outcome = why_not(peer);
    }
    return outcome;
}

Outcome Node::wait_apart(Sending& sending, const Attempt& attempt, Nanos& until) {
    Peer& peer = sending.peer;
    if (attempt.status == Status::closed || !sends_allowed()) return {Outcome::Code::closed, {}, {}, {}};
    const Nanos now = now_ns();
    const bool late = now >= sending.deadline;
    until = sending.deadline;
    if (attempt.status == Status::again) {
        until = now;
        return {};
    }
    if (attempt.status == Status::not_connected) {
        if (peer.held.load(std::memory_order_seq_cst)) {
            // As in wait(): it stays, or another is opened.
            if (late) return {Outcome::Code::timeout, {}, {}, {}};
            want_connection(peer);
            return {};
        }
        if (was_lost(sending, 0)) return lost(peer);
        if (sending.session != 0) sending.session = 0, sending.connect_deadline = 0;
        std::unique_lock lock(peer.mutex);
        if (sending.connect_deadline == 0) {
            sending.connect_deadline = now + options_.connect_timeout;
            sending.failures = peer.failures;
            lock.unlock();
            want_connection(peer);
        } else if (peer.failures != sending.failures || late || now >= sending.connect_deadline) {
            // Unless it is here, and not yet looked at: then the next attempt finds it.
            if (peer.session.load(std::memory_order_seq_cst) == 0) return why_not(peer);
            if (late) return {Outcome::Code::timeout, {}, {}, {}};
            until = now;
            return {};
        }
        until = std::min(until, sending.connect_deadline);
        return {};
    }
    if (was_lost(sending, attempt.session)) return lost(peer);
    const bool begins = sending.session != attempt.session;
    sending.session = attempt.session;
    if (late) return {Outcome::Code::timeout, {}, {}, {}};
    if (attempt.status == Status::no_credit) {
        if (begins) attempt.flow->waits.fetch_add(1, std::memory_order_relaxed);
        want_credit(peer, attempt);
        // What was sent so far is on its way sooner, and so is the credit for it.
        write_inline(peer);
    } else if (begins) {
        peer.ring_waits.fetch_add(1, std::memory_order_relaxed);
    }
    return {};
}

// Connecting failed for good, or in time nobody answered. With the peer's mutex.
Outcome Node::why_not(const Peer& peer) {
    const Failure& failure = peer.failure;
    Outcome outcome;
    outcome.text = failure.text.empty() ? "no answer" : failure.text;
    outcome.address = failure.address;
    outcome.other = failure.other;
    outcome.id = failure.id;
    switch (failure.code) {
        case Failure::Code::authentication: outcome.code = Outcome::Code::authentication; break;
        case Failure::Code::duplicate: outcome.code = Outcome::Code::duplicate; break;
        case Failure::Code::protocol: outcome.code = Outcome::Code::protocol; break;
        default: outcome.code = Outcome::Code::unreachable;
    }
    return outcome;
}

Outcome Node::identify(const std::string& address, Nanos timeout, const Interrupted* interrupted, Identity& found) {
    Peer& peer = unknown_;
    std::unique_lock one_at_a_time(identify_mutex_, std::try_to_lock);
    if (!one_at_a_time) return {Outcome::Code::timeout, {}, {}, {}};
    const Nanos deadline = now_ns() + timeout;
    for (;;) {
        std::uint64_t failures;
        const std::uint16_t own = id();
        {
            std::lock_guard lock(peer.mutex);
            peer.explicit_address = address;
            peer.known = true;
            failures = peer.failures;
            found_.reset();
        }
        // Once: whoever wants to know will ask again.
        peer.wanted_until.store(0, std::memory_order_relaxed);
        add_interest(peer, kConnect);
        Outcome outcome = block(peer, deadline, interrupted,
                                [&] { return found_.has_value() || peer.failures != failures; });
        if (outcome.ok() && id() != own) continue;  // ours was taken, and another one drawn
        std::lock_guard lock(peer.mutex);
        if (found_) {
            found = *found_;
            return {};
        }
        const bool asked = outcome.ok() || outcome.code == Outcome::Code::timeout;
        if (!asked) return outcome;
        // On a busy machine it may not have been dialled yet, and what is known is of an earlier question.
        const bool known = peer.failure.code == Failure::Code::duplicate || peer.failure.address == address;
        return known ? why_not(peer) : Outcome{Outcome::Code::unreachable, "no answer", address, {}};
    }
}

Outcome Node::send_large(Sending& sending, std::uint16_t kind, Message message, const Interrupted* interrupted,
                         std::uint16_t flags, Message prefix, OutFlow* on) {
    Peer& peer = sending.peer;
    std::optional<Busy> busy(peer);
    // In this order: with `busy` raised and not held, the session lasts.
    const bool held = peer.held.load(std::memory_order_seq_cst);
    const std::uint32_t session = peer.session.load(std::memory_order_seq_cst);
    if (session == 0 || (flags != kResponse && held)) {
        busy.reset();
        return wait(sending, {Status::not_connected}, interrupted);
    }
    if (sending.only_in != 0 && sending.only_in != session) return {};
    if (was_lost(sending, session)) return lost(peer);
    sending.session = session;
    if (message.size > message_limit(peer)) return too_large(peer, message.size);
    // Its bytes are paid for by the reservation, its place in the queue by the flow.
    OutFlow* flow = on ? on : peer.kinds.find(kind);
    if (flow == nullptr) flow = &peer.unannounced;
    // An answer is paid for by its request, and belongs to no flow.
    const std::uint32_t flow_id = flags == kResponse ? 0 : flow->id.load(std::memory_order_relaxed);
    const std::uint32_t charge =
        flags == kResponse ? 0 : std::max(1u, flow->least_charge.load(std::memory_order_relaxed));
    const std::size_t size = prefix.size + message.size;
    const Nanos deadline = std::exchange(sending.deadline, std::min(sending.deadline, sending.grant_by));
    while (charge != 0) {
        const std::uint32_t window = flow->window.load(std::memory_order_acquire);
        if (flow->in_flight.add(session, charge, window)) break;
        Outcome outcome = wait(sending, {Status::no_credit, flow, charge, session, window}, interrupted);
        if (!outcome.ok()) return outcome;
        if (peer.session.load(std::memory_order_seq_cst) != session) return lost(peer);
        const bool known = on ? !on->withdrawn.load(std::memory_order_seq_cst)
                              : peer.kinds.find(kind) == flow || flow == &peer.unannounced;
        if (!known) return {};  // withdrawn: begin again
    }
    sending.went = true;

    const std::uint64_t id = large_ids_.fetch_add(1, std::memory_order_relaxed) + 1;
    {
        std::lock_guard lock(peer.mutex);
        peer.reservations.emplace(id, Reservation{});
        append_frame(peer.forward, Control::reserve,
                     ByteWriter().put(id).put(std::uint64_t{size}).put(kind).bytes(), flow_id);
    }
    add_interest(peer, kWrite);

    Outcome outcome = block(peer, sending.deadline, interrupted, [&] {
        const Reservation& reservation = peer.reservations[id];
        return reservation.granted || reservation.refused ||
               peer.session.load(std::memory_order_seq_cst) != session;
    });
    {
        std::lock_guard lock(peer.mutex);
        if (peer.reservations[id].refused && outcome.code != Outcome::Code::interrupted) {
            outcome = too_large(peer, message.size);
        }
        peer.reservations.erase(id);
    }
    sending.deadline = deadline;

    if (outcome.ok()) {
        const std::size_t most =
            std::max<std::size_t>(peer.max_frame.load(std::memory_order_relaxed), 64) - kHeaderBytes - 8;
        std::size_t at = 0;
        do {
            const std::size_t part = std::min(most, size - at);
            const bool last = at + part == size;
            const Header header{static_cast<std::uint32_t>(part + 8), kind,
                                static_cast<std::uint16_t>(kFragment | flags | (last ? kLast : 0)), flow_id};
            auto copy = [&](Ring& ring, std::uint64_t position) {
                ring.write(position, &id, 8);
                const std::size_t first = at < prefix.size ? std::min(part, prefix.size - at) : 0;
                if (first != 0) ring.write(position + 8, prefix.data + at, first);
                if (part != first) ring.write(position + 8 + first, message.data + (at + first - prefix.size), part - first);
            };
            struct Filled : Fill<decltype(copy)&> {
                std::atomic<std::uint64_t>* whole;  // with the last part of a request or an answer
                void count() const {
                    Fill<decltype(copy)&>::count();
                    if (whole != nullptr) whole->fetch_add(1, std::memory_order_relaxed);
                }
            };
            std::atomic<std::uint64_t>* const whole = !last                ? nullptr
                                                      : flags == kResponse ? &answers_
                                                      : flags == kRequest  ? &requests_made_
                                                                           : nullptr;
            const Attempt attempt = put_uncharged(
                peer, header, session,
                Filled{{charge != 0 ? flow : nullptr, last ? 1u : 0u, kHeaderBytes + 8 + part, copy}, whole});
            if (attempt.status == Status::sent) {
                at += part;
                continue;
            }
            if (attempt.status == Status::again) {
                outcome = lost(peer);
            } else {
                outcome = wait(sending, attempt, interrupted);
            }
            if (peer.session.load(std::memory_order_seq_cst) != session && outcome.ok()) {
                outcome = lost(peer);
            }
        } while (outcome.ok() && at < size);
    }
    if (outcome.ok()) {
        peer.large_out.fetch_add(1, std::memory_order_relaxed);
    } else {
        if (charge != 0) flow->in_flight.subtract(session, charge);
        peer.wake();
        if (outcome.code == Outcome::Code::too_large) return outcome;
        peer.send_forward(Control::cancel, ByteWriter().put(id).bytes());
        add_interest(peer, kWrite);
    }
    return outcome;
}

Outcome Node::ask_flush(Sending& sending, std::uint64_t& id, const Interrupted* interrupted) {
    Peer& peer = sending.peer;
    // Flushes whose callers gave up are still on the other side's books: there is a limit to them.
    Outcome room = block(peer, sending.deadline, interrupted, [&] {
        return peer.next_flush - std::max(peer.flushed, peer.first_flush) < kOpenFlushes ||
               peer.session.load(std::memory_order_seq_cst) != sending.session;
    });
    if (!room.ok()) return room;
    {
        std::lock_guard lock(peer.mutex);
        id = ++peer.next_flush;
    }
    for (;;) {
        if (!sends_allowed()) return {Outcome::Code::closed, {}, {}, {}};
        auto copy = [&](Ring& ring, std::uint64_t position) { ring.write(position, &id, 8); };
        const Header header{8, static_cast<std::uint16_t>(Control::flush), 0, 0};
        const Attempt attempt =
            put_uncharged(peer, header, sending.session, Fill<decltype(copy)&>{nullptr, 0, 0, copy});
        if (attempt.status == Status::sent) return {};
        if (attempt.status == Status::again) return lost(peer);
        Outcome outcome = wait(sending, attempt, interrupted);
        if (!outcome.ok()) return outcome;
    }
}

Outcome Node::flush_peers(std::uint16_t only, Nanos deadline, const Interrupted* interrupted,
                          std::uint16_t& at) {
    std::vector<Peer*> peers;
    {
        std::lock_guard lock(mutex_);
        for (auto& peer : peer_list_) {
            if (only == 0 || peer->id == only) peers.push_back(peer.get());
        }
    }
    std::vector<std::pair<Sending, std::uint64_t>> asked;
    std::list<Busy> busy;
    for (Peer* peer : peers) {
        at = peer->id;
        for (;;) {
            busy.emplace_back(*peer);
            const bool held = peer->held.load(std::memory_order_seq_cst);  // before the session, as above
            const std::uint32_t session = peer->session.load(std::memory_order_seq_cst);
            if (session != 0 && !held) {
                asked.push_back({Sending{*peer, deadline, now_ns(), session}, 0});
                break;
            }
            busy.pop_back();
            // Nothing is on its way, and a connection that was given back had everything handled.
            if (!held || peer->ring.load(std::memory_order_acquire) == nullptr) break;
            Outcome outcome = block(*peer, deadline, interrupted,
                                    [&] { return !peer->held.load(std::memory_order_seq_cst); });
            if (!outcome.ok()) return outcome;
        }
    }
    // Behind the look at the sessions: closing ends them, and then there would be nothing to wait for.
    if (!sends_allowed()) return {Outcome::Code::closed, {}, {}, {}};
    for (auto& [sending, id] : asked) {
        at = sending.peer.id;
        Outcome outcome = ask_flush(sending, id, interrupted);
        if (!outcome.ok()) return outcome;
    }
    for (auto& [sending, id] : asked) {
        Peer& peer = sending.peer;
        at = peer.id;
        bool gone = false;
        Outcome outcome = block(peer, deadline, interrupted, [&, wanted = id, session = sending.session] {
            gone = peer.session.load(std::memory_order_seq_cst) != session;
            return gone || peer.flushed >= wanted;
        });
        if (outcome.ok() && gone) outcome = lost(peer);
        if (!outcome.ok()) return outcome;
    }
    return {};
}

}  // namespace antiphon

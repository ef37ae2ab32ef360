// Giving connections back. With more of them than max_connections, the one that was used least recently
// is closed, and nothing is lost by that. On the selector thread.
//
//   the one with too many                the other
//   part                              ->                 both send nothing new from here on
//                                     <- agree, or refrain
//   everything that was sent, bye     ->                 or stay, when somebody wants it after all
//                                     <- everything that was sent, bye
//
// Nobody agrees while a request is open, a large message is under way or a flush is waited for. The
// receiver of a channel closes it, when it has read the bye: then neither end closes over unread bytes.
// Whoever wants to send meanwhile waits, and opens a new connection afterwards. Questions are numbered:
// the two channels may overtake each other.
#include <algorithm>

#include "base/spin.hpp"
#include "node/node.hpp"

namespace antiphon {

namespace {

constexpr Nanos kGrace = 100 * kMillisecond;
constexpr Nanos kAskAgain = 2 * kMillisecond;  // one that said no; twice as long after each further no

}  // namespace

// Too many connections: asks the peer that was used least recently to part, and so on.
void Node::keep_to_limit() {
    if (options_.max_connections == 0 || phase_.load(std::memory_order_acquire) != Phase::running) return;
    // With the time at which each was looked at: senders change it meanwhile, and sorting by what
    // changes runs out of bounds.
    std::vector<std::pair<Nanos, Peer*>> connected;
    {
        std::lock_guard lock(mutex_);
        for (auto& peer : peer_list_) {
            if ((peer->in || peer->out) && peer->asked == 0 && !peer->ending) {
                connected.emplace_back(peer->used.load(std::memory_order_relaxed), peer.get());
            }
        }
    }
    if (connected.size() <= options_.max_connections) return;
    std::size_t over = connected.size() - options_.max_connections;
    std::sort(connected.begin(), connected.end());
    const std::size_t first = over;
    bool later = false;
    for (std::size_t i = 0; i < connected.size() && over != 0; ++i) {
        Peer& peer = *connected[i].second;
        const Nanos idle = selector_.now() - peer.used.load(std::memory_order_relaxed);
        // One that was just opened, and not used yet, was opened for somebody who will come back. And if
        // those that come first cannot go just now, one that is in use does not go in their place.
        const bool fresh = peer.unused.load(std::memory_order_relaxed) && idle < kGrace;
        const bool said_no = selector_.now() < peer.ask_again;
        if (fresh || said_no || (i >= first && idle < options_.heartbeat) || !hold(peer)) {
            later = true;
            continue;
        }
        peer.asked = ++partings_;
        say(peer, Control::part, ByteWriter().put(peer.asked).bytes());
        --over;
    }
    if (over != 0 && later) look_at_limit(selector_.now() + kGrace);
}

void Node::look_at_limit(Nanos when) {
    if (limit_timer_ != 0) {
        if (limit_due_ <= when) return;
        selector_.cancel(limit_timer_);
    }
    limit_due_ = when;
    limit_timer_ = selector_.at(when, [this] {
        limit_timer_ = 0;
        keep_to_limit();
    });
}

// Nothing new goes to this peer; false, and nothing has changed, if it cannot do without the connection.
bool Node::hold(Peer& peer) {
    const bool open = (!peer.out || peer.out->state == Channel::State::open) &&
                      (!peer.in || peer.in->state == Channel::State::open) && !peer.dialling && !peer.offering &&
                      peer.looking_up.empty() && peer.retry_timer == 0;
    if (!open || peer.id == id() || (peer.features & kPartFeature) == 0) return false;
    // Both must be able to open another one. Who asked the other to dial for it could not.
    if (listener_ < 0 || peer.undiallable || (peer.out && !peer.out->dialled) || (peer.in && peer.in->dialled)) {
        return false;
    }
    {
        std::lock_guard lock(peer.mutex);
        if (peer.explicit_address.empty() && peer.learned_address.empty()) return false;
    }
    const bool was_held = peer.held.exchange(true, std::memory_order_seq_cst);
    if (!was_held) peer.held_since = selector_.now();
    // Behind the mark: whoever raises one of these looks at it afterwards.
    if (peer.busy.load(std::memory_order_seq_cst) == 0 && peer.asking.load(std::memory_order_seq_cst) == 0 &&
        peer.waiters.load(std::memory_order_seq_cst) == 0 && all_handled(peer)) {
        return true;
    }
    if (!was_held) let_go(peer);
    return false;
}

// Nothing waits in our ring for the peer, and nothing of the peer's in our queues: with every connection
// comes a new window, and a slow handler would have more and more to hold.
bool Node::all_handled(const Peer& peer) const {
    const Ring* ring = peer.ring.load(std::memory_order_relaxed);
    if (peer.out && ring && ring->head() != ring->tail()) return false;
    return std::all_of(peer.in_flows.begin(), peer.in_flows.end(), [](const auto& entry) {
        const InFlow& flow = *entry.second;
        return flow.messages.load(std::memory_order_relaxed) == flow.handled_messages.load(std::memory_order_seq_cst);
    });
}

void Node::let_go(Peer& peer) {
    peer.held.store(false, std::memory_order_seq_cst);
    peer.wake();
    // Who came meanwhile found it held.
    if (!peer.out && peer.waiters.load(std::memory_order_seq_cst) != 0) add_interest(peer, kConnect);
}

// A peer that asks or agrees and then says nothing, or never closes, does not keep its senders for ever.
void Node::drop_question(Peer& peer, Nanos patience) {
    if (!peer.held.load(std::memory_order_relaxed) || selector_.now() - peer.held_since < patience) return;
    if (peer.ending) return take_down(peer, "it does not close the connection that was given back");
    stay(peer);
    peer.agreed = 0;
    let_go(peer);
}

// On whichever channel there is.
void Node::say(Peer& peer, Control word, std::string_view payload) {
    if (peer.out) {
        peer.send_forward(word, payload);
        add_interest(peer, kWrite);
    } else if (peer.in) {
        peer.send_back(word, payload);
        add_interest(peer, kWriteBack);
    }
}

// Somebody wants a connection that was to be given back.
void Node::stay(Peer& peer) {
    if (peer.asked == 0 || peer.ending) return;
    say(peer, Control::stay, ByteWriter().put(peer.asked).bytes());
    peer.asked = 0;
    peer.used.store(selector_.now(), std::memory_order_relaxed);
    if (peer.agreed == 0) let_go(peer);
}

bool Node::got_part(Peer& peer, Control word, std::string_view payload) {
    ByteReader reader(payload);
    const auto number = reader.get<std::uint32_t>();
    if (!reader.ok() || number == 0 || (peer.features & kPartFeature) == 0) return false;
    if (peer.ending) return true;  // the peer learns that soon enough
    if (word == Control::part) {
        if (number <= peer.part_seen) return true;  // a later one came before it, on the other channel
        peer.part_seen = number;
        const bool free = phase_.load(std::memory_order_acquire) == Phase::running && hold(peer);
        if (free) peer.agreed = number;
        say(peer, free ? Control::agree : Control::refrain, ByteWriter().put(number).bytes());
    } else if (word == Control::stay) {
        if (peer.agreed == number) peer.agreed = 0;
    } else if (peer.asked == number) {
        // What the peer sent before it agreed is here by now.
        if (word == Control::agree && !hold(peer)) return stay(peer), true;
        if (word == Control::agree) {
            dismissed_.fetch_add(1, std::memory_order_relaxed);
            end_session(peer);
            return true;
        }
        // It is still the one to go, and soon will: most often its handler has yet to return. Were another
        // to go in its place, that might be the busiest.
        peer.asked = 0;
        peer.ask_again = selector_.now() + std::min(kGrace, kAskAgain << std::min(peer.refusals++, 6));
        look_at_limit(peer.ask_again);
    }
    if (peer.asked == 0 && peer.agreed == 0 && peer.held.load(std::memory_order_relaxed)) let_go(peer);
    return true;
}

// What is in the ring still goes out, and then a bye.
void Node::end_session(Peer& peer) {
    peer.ending = true;
    peer.ask_again = 0;
    peer.refusals = 0;
    peer.held.store(true, std::memory_order_seq_cst);
    peer.session.store(0, std::memory_order_seq_cst);
    peer.wake();  // whoever waits for credit or room
    if (peer.out) {
        add_interest(peer, kWrite);
    } else {
        say(peer, Control::bye, kParted);
    }
}

// The peer has read everything and closed the channel that we sent on.
void Node::out_ended(Peer& peer) {
    if (Channel* out = release_out(peer)) close_channel(out);
    finish_parting(peer);
    if (finishing_) check_drained();
}

// We have read everything that the peer sent. The channel is closed when all of it was handled: to the
// peer that means just this.
void Node::in_ended(Peer& peer) {
    pause_reading(*peer.in);  // it is at its end, and epoll would go on about that
    if (!peer.ending) end_session(peer);
    when_handled(peer, [this, &peer, session = peer.in_session.load()] {
        if (forked()) return;
        selector_.post([this, &peer, session] {
            if (peer.in && peer.in->parted && peer.in_session.load() == session) close_in(peer);
        });
    });
}

void Node::close_in(Peer& peer) {
    peer.confirm_all.store(true, std::memory_order_seq_cst);
    write_back(peer);  // the last credit, as far as the socket takes it
    if (peer.in == nullptr) return;
    close_channel(peer.in);
    peer.in = nullptr;
    drop_receiving(peer);
    finish_parting(peer);
}

void Node::finish_parting(Peer& peer) {
    if (!peer.ending || peer.in || peer.out) return;
    take_down(peer, peer.asked != 0 ? "dismissed: it was used least recently of too many connections"
                               : "dismissed by the peer, which had too many connections");
}

}  // namespace antiphon

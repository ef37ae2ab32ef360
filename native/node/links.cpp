// Connections that stand: interests, reading, writing, liveness, and their end. On the selector thread;
// how they come about is in dial.cpp and hand_shake.cpp.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/descriptors.hpp"
#include "base/spin.hpp"
#include "node/node.hpp"
#include "node/sink.hpp"

namespace antiphon {

namespace {

constexpr std::size_t kWriteChunk = 256 << 10;  // released at once, so that producers can go on
constexpr std::size_t kWriteTurn = 4 << 20;     // then the others have their turn
constexpr std::size_t kWorthwhile = 64 << 10;   // enough for a system call of its own
constexpr int kMostFrames = 64;                 // more need not be counted
constexpr Nanos kLinger = 100 * kMicrosecond, kLongestLinger = kMillisecond;
constexpr std::size_t kReadTurn = 1 << 20;
constexpr int kDeadAfter = 5;  // heartbeats
constexpr int kChannelDeadAfter = 15;  // of one, while the other is heard; a sign comes on each every four
constexpr std::size_t kPeersPerTick = 64, kTicksPerBeat = 8;
constexpr int kTlsTurns = 4;   // then the others have their turn

std::size_t lane_bytes(Peer& peer, const std::string& lane) {
    std::lock_guard lock(peer.mutex);
    return lane.size();
}

std::string error_text(int error) { return std::strerror(error); }

// The bytes begin with a frame.
int count_frames(const char* data, std::size_t bytes) {
    int count = 0;
    for (std::size_t at = 0; at + kHeaderBytes <= bytes && count < kMostFrames; ++count) {
        at += kHeaderBytes + load_header(data + at).length;
    }
    return count;
}

}  // namespace

void Channel::ready(std::uint32_t events) {
    Node& owner = node;  // this channel may be gone when something is caught
    try {
        owner.channel_ready(*this, events);
    } catch (const std::exception& error) {
        // No memory for a ring, say: that ends this connection and nothing else.
        if (owner.channels_.count(this) != 0) owner.channel_failed(*this, error.what());
    }
}

bool Node::apply_interests() {
    bool any = false;
    if (buffer_returned_.exchange(false, std::memory_order_seq_cst) &&
        phase_.load(std::memory_order_acquire) == Phase::running) {
        std::vector<Channel*> hungry;
        hungry.swap(starved_);
        for (Channel* channel : hungry) {
            if (channels_.count(channel) == 0) continue;
            channel->paused = false;
            add_interest(*channel->peer, kRead);
        }
    }
    any |= interests_.take([&](Peer& peer, std::uint8_t interests) {
        try {
            apply(peer, interests);
        } catch (const std::exception& error) {
            if (peer.in || peer.out) return take_down(peer, error.what());
            dial_failed(peer, {Failure::Code::unreachable, error.what(), "", ""}, false);
        }
    });
    return any;
}

void Node::apply(Peer& peer, std::uint8_t interests) {
    in_order(interests, [&](Interest interest) {
        switch (interest) {
            case kConnect: return connect(peer);
            case kReadBack: return peer.out ? read_again(*peer.out) : void();
            case kRead: return peer.in ? read_again(*peer.in) : void();
            case kWriteBack: return write_back(peer);
            case kWrite: return write_out(peer);
            case kClose: return forget(peer);
        }
    });
}

// The peer was removed, and may have been added again since.
void Node::forget(Peer& peer) {
    if (peer.dialling) close_channel(peer.dialling);
    if (peer.offering) close_channel(peer.offering);
    if (peer.retry_timer != 0) selector_.cancel(std::exchange(peer.retry_timer, 0));
    peer.looking_up.clear();
    if (peer.in || peer.out) take_down(peer, "the peer was removed");
    std::unique_lock lock(peer.mutex);
    peer.removing = false;
    const bool removed = !peer.known;  // and not added again
    if (removed) {
        peer.failure = removed_peer();
        ++peer.failures;
    }
    lock.unlock();
    peer.wake();
    if (!removed && peer.waiters.load(std::memory_order_seq_cst) != 0) add_interest(peer, kConnect);
}

void Node::read_again(Channel& channel) {
    open_reading(channel);
    if (channel.tls && channel.tls->pending()) channel.ready(EPOLLIN);
}

void Node::open_reading(Channel& channel) {
    if (channel.paused || (channel.watching & EPOLLIN)) return;
    channel.watching |= EPOLLIN;
    watch(channel);
}

void Node::watch(Channel& channel) {
    // A thread that waits for what comes on it reads it by itself.
    const std::uint32_t mine = channel.led ? channel.watching & ~std::uint32_t{EPOLLIN} : channel.watching;
    selector_.change(channel.fd, mine, &channel);
}

// Takes the socket out of the set altogether: a peer that hangs up would be reported on every turn.
void Node::pause_reading(Channel& channel) {
    channel.paused = true;
    channel.watching &= ~std::uint32_t{EPOLLIN};
    selector_.pause(channel.fd);
}

void Node::want_writable(Channel& channel, bool wanted) {
    const std::uint32_t watching =
        wanted ? channel.watching | EPOLLOUT : channel.watching & ~std::uint32_t{EPOLLOUT};
    if (watching == channel.watching) return;
    channel.watching = watching;
    watch(channel);
}

// --- ending ----------------------------------------------------------------------------------------

void Node::close_channel(Channel* channel) {
    if (channel->timer != 0) selector_.cancel(channel->timer);
    if (channel->stranger != 0) strangers_.erase(channel->stranger);
    std::erase(starved_, channel);
    if (Peer* peer = channel->peer) {
        if (peer->dialling == channel) peer->dialling = nullptr;
        if (peer->offering == channel) peer->offering = nullptr;
    }
    selector_.unwatch(channel->fd, channel);
    close_descriptor(channel->fd);
    // Behind the close, or it might go back to sleep on it: who polls it holds the socket open.
    if (channel->led && channel->peer) channel->peer->wake_leader();
    channels_.erase(channel);
    // Its buffers go back at once, and the rest when nobody up the stack asks for it any more.
    channel->parser.reset();
    channel->tls.reset();
    selector_.bury(std::unique_ptr<Watcher>(channel));
}

void Node::channel_failed(Channel& channel, const std::string& reason) {
    Peer* peer = channel.peer;
    if (peer == nullptr || (peer->dialling != &channel && peer->offering != &channel &&
                            peer->out != &channel && peer->in != &channel)) {
        if (peer == nullptr && channel.wire_in != 0) {
            refused_.fetch_add(1, std::memory_order_relaxed);
            warn(channel.claimed_id, "a connection was dropped: " + reason);
        }
        return close_channel(&channel);
    }
    if (peer->dialling == &channel || peer->offering == &channel) {
        const bool mine = peer->dialling == &channel;
        (mine ? peer->dialling : peer->offering) = nullptr;
        const std::string address = channel.dial_address;
        auto endpoints = std::move(channel.endpoints);
        const bool unconnected = channel.state == Channel::State::connecting;
        close_channel(&channel);
        if (unconnected && !endpoints.empty()) {
            return dial_endpoints(*peer, address, std::move(endpoints), !mine);
        }
        if (mine) dial_failed(*peer, {Failure::Code::unreachable, reason, address, ""}, false);
        return;
    }
    take_down(*peer, reason);
}

// The channel we send on, which is then nobody's.
Channel* Node::release_out(Peer& peer) {
    // The token keeps an inline writer away from the descriptor that is about to be closed.
    for (Spin spin; peer.write_token.exchange(true, std::memory_order_acquire);) spin.once();
    Channel* out = peer.out;
    peer.out = nullptr;
    peer.lane_out.clear();
    peer.lane_written = 0;
    peer.out_blocked = false;
    peer.write_token.store(false, std::memory_order_seq_cst);
    peer.write_armed.store(false, std::memory_order_seq_cst);
    return out;
}

void Node::take_down(Peer& peer, const std::string& reason) {
    const bool sending = peer.session.load(std::memory_order_relaxed) != 0 || peer.ending;
    // Given back: everything has arrived.
    const bool parted = peer.ending && !peer.in && !peer.out;
    if (!parted && sending) peer.lost_session.store(peer.sessions, std::memory_order_seq_cst);
    peer.session.store(0, std::memory_order_seq_cst);
    std::string address = peer.out ? peer.out->dial_address : "";
    if (address.empty()) address = peer.learned_address;  // it was the peer who dialled
    if (Channel* out = release_out(peer)) close_channel(out);
    if (peer.in) close_channel(peer.in);
    peer.in = nullptr;
    peer.asked = peer.agreed = 0;
    peer.ask_again = 0;
    peer.refusals = 0;
    peer.ending = false;

    std::uint64_t unconfirmed = 0, dropped = 0;
    if (sending) {
        if (Ring* ring = peer.ring.load(std::memory_order_relaxed)) {
            dropped = ring->committed() - ring->head();
        }
        auto count_flow = [&](OutFlow& flow) {
            const std::uint64_t sent = flow.messages.load(std::memory_order_relaxed) - flow.at_session_start;
            unconfirmed += sent - std::min(sent, flow.confirmed);
            flow.window.store(0, std::memory_order_seq_cst);
        };
        auto close_flow = [&](OutFlow& flow) {
            count_flow(flow);
            flow.id.store(0, std::memory_order_relaxed);
            if (flow.kind != 0) peer.kinds.set(flow.kind, nullptr);
        };
        for (auto& [kind, flow] : peer.out_flows) close_flow(*flow);
        {
            std::lock_guard lock(peer.mutex);
            for (auto& [key, flow] : peer.subscription_flows) {
                if (flow->session == peer.sessions && !flow->withdrawn.load(std::memory_order_relaxed)) count_flow(*flow);
            }
        }
        for (auto& old : peer.old_flows) {
            if (old.flow->session == peer.sessions) close_flow(*old.flow);
        }
        close_flow(peer.unannounced);
    }
    drop_receiving(peer);
    std::string text = reason;
    if (!parted && (dropped != 0 || unconfirmed != 0)) {
        peer.dropped_bytes.fetch_add(dropped, std::memory_order_relaxed);
        peer.unconfirmed_messages.fetch_add(unconfirmed, std::memory_order_relaxed);
        text += "; " + std::to_string(dropped) + " bytes were not written, " +
                std::to_string(unconfirmed) + " messages at the most were not confirmed";
    }
    {
        std::lock_guard lock(peer.mutex);
        peer.forward.clear();
        peer.back.clear();
        // A handler may have listed one after its mark was cleared.
        for (InFlow* flow : peer.credits_due) flow->credit_due.store(false, std::memory_order_seq_cst);
        peer.credits_due.clear();
        peer.failure = {Failure::Code::unreachable, text, address, ""};
        if (!parted) ++peer.losses;
    }
    // Requests that were made since a connection was given back wait for the next one.
    if (!parted) requests_.end_all(&peer, Pending::State::lost, text);
    peer.held.store(false, std::memory_order_seq_cst);
    if (peer.up) {
        peer.up = false;
        if (on_event_) on_event_({Event::Type::disconnected, peer.id, text});
    }
    retire_ring(peer);
    peer.wake();
    if (finishing_) return check_drained();
    if (selector_.now() < peer.wanted_until.load(std::memory_order_relaxed) &&
        peer.waiters.load(std::memory_order_seq_cst) != 0) {
        add_interest(peer, kConnect);
    }
}

void Node::warn(std::uint16_t peer, const std::string& text) {
    if (warnings_left_-- <= 0) return;  // a hostile client must not fill the log
    if (on_event_) on_event_({Event::Type::warning, peer, text});
}

// --- the sockets -----------------------------------------------------------------------------------

void Node::channel_ready(Channel& channel, std::uint32_t events) {
    if (channel.state == Channel::State::connecting) {
        if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
        int error = 0;
        socklen_t length = sizeof error;
        getsockopt(channel.fd, SOL_SOCKET, SO_ERROR, &error, &length);
        if (error != 0) return channel_failed(channel, error_text(error));
        want_writable(channel, false);
        return begin(channel);
    }
    if (channel.state == Channel::State::first_bytes) return look_at_first_bytes(channel);
    if (channel.state == Channel::State::tls) return shake_tls(channel);
    if (events & EPOLLOUT) {
        if (channel.state == Channel::State::open && channel.sends) {
            want_writable(channel, false);
            write_out(*channel.peer);
        } else {
            write_channel(channel);
        }
        if (channels_.count(&channel) == 0) return;
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        if (!read_channel(channel)) return;
        // What TLS has read from the socket is not reported by epoll.
        for (int again = 0; channel.tls && channel.tls->pending(); ++again) {
            if (again == kTlsTurns && channel.state == Channel::State::open) return add_interest(*channel.peer, kRead | kReadBack);
            if (!read_channel(channel)) return;
        }
    }
}

// False when there is nothing to be done with it any more.
bool Node::read_channel(Channel& channel) {
    if (channel.paused) return false;
    if (channel.parser) {
        read_data(channel);
    } else {
        read_control(channel);
    }
    return channels_.count(&channel) != 0 && !channel.paused;
}

void Node::read_control(Channel& channel) {
    char bytes[8192];
    const ssize_t got = channel.receive(bytes, sizeof bytes);
    if (got == 0 && channel.shut && channel.peer->ending) return out_ended(*channel.peer);
    if (got == 0) return channel_failed(channel, "the peer closed the connection");
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) return;
        if (channel.tls && errno == EPROTO && channel.state == Channel::State::await_reply) {
            // The last word of a hand-shake is the acceptor's: it did not like our certificate.
            return tls_failed(channel, "it refused: " + channel.tls->error());
        }
        return channel_failed(channel, channel.error(errno));
    }
    channel.wire_in += static_cast<std::uint64_t>(got);
    if (channel.state == Channel::State::open) channel.last_heard = channel.peer->last_heard = selector_.now();
    channel.control_in.append(bytes, static_cast<std::size_t>(got));
    std::size_t at = 0;
    while (channel.control_in.size() - at >= kHeaderBytes) {
        const Header header = load_header(channel.control_in.data() + at);
        if (header.length > kMaxControlBytes) {
            if (channel.state == Channel::State::await_hello && !channel.tls &&
                begins_like_tls(channel.control_in.data() + at)) {
                return refuse_tls(channel);
            }
            protocol_errors_.fetch_add(1, std::memory_order_relaxed);
            return channel_failed(channel, "protocol error: a control frame of " +
                                               std::to_string(header.length) + " bytes");
        }
        if (channel.control_in.size() - at < kHeaderBytes + header.length) break;
        const std::string payload = channel.control_in.substr(at + kHeaderBytes, header.length);
        at += kHeaderBytes + header.length;
        const bool fine = channel.state == Channel::State::open
                              ? back_control(*channel.peer, header, payload)
                              : hand_shake(channel, header, payload);
        if (channels_.count(&channel) == 0) return;
        if (!fine) {
            protocol_errors_.fetch_add(1, std::memory_order_relaxed);
            return channel_failed(channel, "protocol error: an unexpected frame of kind " +
                                               std::to_string(header.kind));
        }
    }
    channel.control_in.erase(0, at);
    if (channel.state == Channel::State::open && lane_bytes(*channel.peer, channel.peer->forward) > kMaxLane) {
        return channel_failed(channel, "it asks and does not read the answers");
    }
    if (channel.parser && !channel.control_in.empty()) {
        protocol_errors_.fetch_add(1, std::memory_order_relaxed);
        channel_failed(channel, "protocol error: data before the connection was ready");
    }
}

void Node::read_data(Channel& channel) {
    Peer& peer = *channel.peer;
    ChannelSink sink(*this, channel);
    std::size_t read = 0;
    while (read < kReadTurn) {
        char* at;
        std::size_t room;
        if (!channel.parser->prepare(*pool_, at, room)) {
            starvations_.fetch_add(1, std::memory_order_relaxed);
            starved_.push_back(&channel);
            return pause_reading(channel);
        }
        const ssize_t got = channel.receive(at, room);
        if (got <= 0) {
            if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
            return channel_failed(channel,
                                  got == 0 ? "the peer closed the connection" : channel.error(errno));
        }
        const auto bytes = static_cast<std::size_t>(got);
        channel.last_heard = peer.last_heard = selector_.now();
        peer.bytes_read.fetch_add(bytes, std::memory_order_relaxed);
        peer.reads.fetch_add(1, std::memory_order_relaxed);
        const bool fine = channel.parser->parse(bytes, sink);
        if (!fine) {
            protocol_errors_.fetch_add(1, std::memory_order_relaxed);
            return channel_failed(channel, "protocol error: " + channel.parser->error());
        }
        if (channel.farewell.empty() && (lane_bytes(peer, peer.back) > kMaxLane || lane_bytes(peer, peer.forward) > kMaxLane)) {
            channel.farewell = "it asks and does not read the answers";
        }
        if (!channel.farewell.empty()) return channel_failed(channel, std::string(channel.farewell));
        if (channel.parted) return in_ended(peer);
        read += bytes;
        if (bytes < room && !channel.tls) break;
    }
    channel.parser->rest();
}

// What a channel has to say before it is open, and afterwards on the back direction.
void Node::write_channel(Channel& channel) {
    while (channel.written < channel.out.size()) {
        const ssize_t sent = channel.transmit(channel.out.data() + channel.written,
                                              channel.out.size() - channel.written);
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) return want_writable(channel, true);
            return channel_failed(channel, channel.error(errno));
        }
        channel.written += static_cast<std::size_t>(sent);
        channel.last_written = selector_.now();
    }
    channel.out.clear();
    channel.written = 0;
    want_writable(channel, false);
    // What came to the back lane while the socket was full.
    if (channel.state == Channel::State::open && !channel.sends) {
        std::unique_lock lock(channel.peer->mutex);
        const bool more = !channel.peer->back.empty() || !channel.peer->credits_due.empty();
        lock.unlock();
        if (more) add_interest(*channel.peer, kWriteBack);
    }
}

void Node::write_back(Peer& peer) {
    Channel* channel = peer.in;
    if (channel == nullptr || channel->state != Channel::State::open) return;
    if (!channel->out.empty()) return;  // written when the socket takes more
    std::vector<InFlow*> due;
    {
        std::lock_guard lock(peer.mutex);
        due.swap(peer.credits_due);
    }
    for (InFlow* flow : due) queue_credit(*flow);
    if (peer.confirm_all.exchange(false, std::memory_order_seq_cst)) {
        for (auto& [id, flow] : peer.in_flows) queue_credit(*flow, true);
    }
    {
        std::lock_guard lock(peer.mutex);
        channel->out.swap(peer.back);
    }
    if (channel->out.size() > kMaxLane) return take_down(peer, "the peer does not read answers");
    if (!channel->out.empty()) write_channel(*channel);
}

void Node::write_out(Peer& peer) {
    if (peer.write_token.exchange(true, std::memory_order_acquire)) {
        // A sender writes inline. It looks at the mark after it has let the token go; we look at the
        // token once more after we have set the mark.
        peer.handover.store(true, std::memory_order_seq_cst);
        if (peer.write_token.exchange(true, std::memory_order_seq_cst)) return;
        peer.handover.store(false, std::memory_order_seq_cst);
    }
    Channel* channel = peer.out;
    bool alive = true;
    std::string error;
    if (channel == nullptr || channel->state != Channel::State::open || channel->shut) {
        peer.write_armed.store(false, std::memory_order_seq_cst);
    } else if ((channel->watching & EPOLLOUT) == 0) {
        peer.out_blocked = false;
        alive = write_some(peer, *channel);
        if (!alive) error = channel->error(errno);
    }
    peer.write_token.store(false, std::memory_order_seq_cst);
    if (!alive) return channel_failed(*channel, error);
    if ((finishing_ || peer.ending) && channel) finish_peer(peer);
}

// With the write token. False when the socket failed, with errno.
bool Node::write_some(Peer& peer, Channel& channel) {
    Ring& ring = *peer.ring.load(std::memory_order_relaxed);
    // False when the socket takes no more, or failed.
    auto send_part = [&](const char* data, std::size_t bytes, std::size_t& done) {
        for (;;) {
            const ssize_t sent = channel.transmit(data, bytes);
            if (sent >= 0) {
                done = static_cast<std::size_t>(sent);
                channel.last_written = selector_.now();
                peer.writes.fetch_add(1, std::memory_order_relaxed);
                peer.bytes_written.fetch_add(done, std::memory_order_relaxed);
                return true;
            }
            if (errno != EINTR) return false;
        }
    };
    auto blocked = [&] {
        if (errno != EAGAIN) return false;
        peer.out_blocked = true;
        want_writable(channel, true);
        return true;
    };
    std::size_t turn = 0, done = 0;
    while (turn < kWriteTurn) {
        if (peer.block_left == 0) {  // at a frame boundary: control goes first
            if (peer.lane_out.empty() && !channel.bye_taken) {
                std::lock_guard lock(peer.mutex);
                peer.lane_out.swap(peer.forward);
                channel.bye_taken = channel.bye_sent;
            }
            if (!peer.lane_out.empty()) {
                if (!send_part(peer.lane_out.data() + peer.lane_written,
                               peer.lane_out.size() - peer.lane_written, done)) {
                    return blocked();
                }
                peer.lane_written += done;
                if (peer.lane_written < peer.lane_out.size()) continue;
                peer.lane_out.clear();
                peer.lane_written = 0;
            }
            if (channel.bye_taken) {  // nothing follows it
                peer.write_armed.store(false, std::memory_order_seq_cst);
                return true;
            }
            const std::uint64_t waiting = ring.committed() - ring.head();
            if (turn != 0 && traffic_.dense() && waiting < kWorthwhile && selector_.precise() && !finishing_ &&
                !peer.ending) {
                // Lately much was written, so more is likely to come: leave the mark set, so
                // that producers need not wake us, and look again in a moment. That gathers what a busy
                // sender writes into fewer, larger system calls; the price is the moment, and only while
                // traffic is dense.
                // The moment grows with the number of busy connections, so that the rate of system
                // calls does not.
                if (!peer.lingering) {
                    peer.lingering = true;
                    ++lingering_;
                    selector_.at(now_ns() + std::min(lingering_ * kLinger, kLongestLinger), [this, &peer] {
                        peer.lingering = false;
                        --lingering_;
                        write_out(peer);
                    });
                }
                return true;
            }
            peer.block_left = waiting;
            const char* data;
            const std::size_t bytes = ring.readable(data);
            if (waiting != 0) traffic_.wrote(count_frames(data, std::min<std::size_t>(bytes, waiting)), now_ns());
        }
        if (peer.block_left == 0) {
            // Say that nobody writes, then look again: a producer that committed before sees its data
            // found here, one that commits later finds the mark cleared.
            peer.write_armed.store(false, std::memory_order_seq_cst);
            if (ring.empty()) return true;
            peer.write_armed.store(true, std::memory_order_seq_cst);
            continue;
        }
        const char* data;
        const std::size_t bytes =
            std::min({ring.readable(data), static_cast<std::size_t>(peer.block_left), kWriteChunk});
        if (!send_part(data, bytes, done)) return blocked();
        ring.release(done);
        peer.used.store(selector_.now(), std::memory_order_relaxed);
        peer.block_left -= done;
        turn += done;
        if (peer.awaited() &&
            ring.free_bytes() >= ring.capacity() / 2) {
            peer.wake();
        }
    }
    add_interest(peer, kWrite);  // the others' turn
    return true;
}

// A session begins: behind everything that was claimed before.
void Node::start_sending(Peer& peer) {
    Ring* ring = peer.ring.load(std::memory_order_relaxed);
    const std::uint64_t start = ring->tail();
    // A producer between claim and commit is a memcpy away from done.
    for (Spin spin; ring->committed() < start;) spin.once();
    ring->release(start - ring->head());
    peer.block_left = 0;
    peer.attempts = 0;
    ++peer.connects;
    drop_unused_flows(peer);  // of the lives before
    {
        // A producer that sees the session finds the windows of the last one gone.
        std::lock_guard lock(peer.mutex);
        for (auto& [key, flow] : peer.subscription_flows) begin_session(*flow, peer.sessions);
        peer.session.store(peer.sessions, std::memory_order_seq_cst);
    }
    peer.wake();
}

// --- time ------------------------------------------------------------------------------------------

void Node::tick() {
    const Nanos now = selector_.now();
    const auto age = static_cast<std::uint32_t>(
        std::min<Nanos>(scheduler_.longest_slice() / kMillisecond, UINT32_MAX));
    const std::string alive = ByteWriter().put(age).bytes();
    std::vector<Peer*> peers;
    // Many peers have their turns spread over the beat: all at once would keep the messages waiting.
    std::size_t turns = 1;
    {
        std::lock_guard lock(mutex_);
        if (peer_list_.size() > kPeersPerTick) turns = kTicksPerBeat;
        tick_turn_ = (tick_turn_ + 1) % turns;
        for (std::size_t i = tick_turn_; i < peer_list_.size(); i += turns) peers.push_back(peer_list_[i].get());
    }
    // A process that was stopped for a while wakes to find every peer silent: it is the one that was.
    if (now - tick_due_ > options_.heartbeat) away_until_ = now;
    if (tick_turn_ == 0) warnings_left_ = kWarningsPerTick;
    tick_due_ = now + options_.heartbeat / static_cast<Nanos>(turns);
    selector_.at(tick_due_, [this] { tick(); });  // whatever may go wrong below
    if (tick_turn_ == 0 && !options_.tls.empty()) reload_certificates();
    if (tick_turn_ == 0) reclaim();
    for (Peer* peer : peers) {
        if (peer->in == nullptr && peer->out == nullptr) {
            retire_ring(*peer);  // somebody was in it when the connection ended, or another one did not come to be
            continue;
        }
        // What we do not read, because no buffer is left or the node closes, cannot be heard.
        if (peer->in && peer->in->paused) peer->excused = now;
        peer->excused = std::max(peer->excused, away_until_);
        // A peer that beats more slowly than this node is not dead for that.
        const Nanos dead = kDeadAfter * std::max(options_.heartbeat, peer->heartbeat);
        if (now - std::max(peer->last_heard, peer->excused) > dead) {
            char seconds[32];
            std::snprintf(seconds, sizeof seconds, "%.1f", static_cast<double>(dead) / kSecond);
            take_down(*peer, std::string("no sign of life for ") + seconds + " s");
            continue;
        }
        if (const Nanos silent = kChannelDeadAfter * std::max(options_.heartbeat, peer->heartbeat);
            half_dead(*peer, now - silent)) {
            take_down(*peer, "one of its two connections is dead: the other is heard, and nothing has come on this one for " +
                                 std::to_string(silent / kSecond) + " s");
            continue;
        }
        if (hoards(*peer, 2 * dead)) {
            take_down(*peer, "it announced a large message, and sends nothing of it while others wait");
            continue;
        }
        // Nothing follows a bye.
        drop_question(*peer, dead);
        if (peer->in == nullptr && peer->out == nullptr) continue;
        const bool over = peer->ending || (peer->out && peer->out->bye_sent);
        show_life(*peer, alive, over);
        if (over) continue;
        if (peer->out) return_idle_windows(*peer);
        drop_unused_flows(*peer);
        if (peer->out) trim_ring(*peer);
        if (peer->out && listener_ < 0 && peer->id != id()) connect_for_peer(*peer);
    }
    keep_to_limit();
}

// A sign of life every other beat, if nothing else was written: on one of the two channels, in turn. And on each of
// them every fourth: a connection may be lost alone, where a firewall has forgotten it.
void Node::show_life(Peer& peer, const std::string& alive, bool over) {
    Channel* in = peer.in && peer.in->state == Channel::State::open ? peer.in : nullptr;
    Channel* out = !over && peer.out && peer.out->state == Channel::State::open ? peer.out : nullptr;
    // Half a beat early, so that a beat is never missed by the length of a turn.
    auto quiet = [&](const Channel* channel, int beats) {
        return channel != nullptr && channel->last_written < selector_.now() - beats * options_.heartbeat + options_.heartbeat / 2;
    };
    const bool silent = (in == nullptr || quiet(in, 2)) && (out == nullptr || quiet(out, 2));
    bool on_in = quiet(in, 4), on_out = quiet(out, 4);
    // What is written behind data that the peer does not take may come too late.
    if (in && !in->out.empty()) in = nullptr;
    if (out && (out->watching & EPOLLOUT) != 0) out = nullptr;
    if (silent) {
        peer.sign_on_out = !peer.sign_on_out;
        on_out |= peer.sign_on_out || !in;
        on_in |= !peer.sign_on_out || !out;
    }
    if (out && on_out) {
        peer.send_forward(Control::liveness, alive);
        write_out(peer);
    }
    in = peer.in;  // writing may have ended it
    if (in && on_in && in->state == Channel::State::open && in->out.empty()) {
        peer.send_back(Control::liveness, alive);
        write_back(peer);
    }
}

bool Node::half_dead(const Peer& peer, Nanos before) const {
    if ((peer.features & kLifeFeature) == 0 || std::max(peer.excused, away_until_) >= before) return false;
    const auto dead = [&](const Channel* channel) {
        return channel != nullptr && channel->state == Channel::State::open && channel->last_heard < before;
    };
    return dead(peer.in) || dead(peer.out);
}

// --- the last writes -------------------------------------------------------------------------------

void Node::finish_peer(Peer& peer) {
    Channel* channel = peer.out;
    if (channel == nullptr || channel->state != Channel::State::open) return;
    if (channel->bye_sent) {
        // The peer closes when it has read the bye. Until then we read: closing a socket with unread
        // bytes would reset it, and take with it what the peer has not read yet.
        if (!channel->shut && channel->bye_taken && peer.lane_out.empty()) {
            channel->shut = true;
            shutdown(channel->fd, SHUT_WR);
        }
        return;
    }
    Ring& ring = *peer.ring.load(std::memory_order_relaxed);
    if (!ring.empty() || ring.tail() != ring.committed()) {
        // A producer is between claim and commit, or writes inline and will not tell: look again.
        if ((channel->watching & EPOLLOUT) == 0) add_interest(peer, kWrite);
        return;
    }
    {
        std::lock_guard lock(peer.mutex);
        if (!peer.forward.empty() || !peer.lane_out.empty()) return;
        append_frame(peer.forward, Control::bye, peer.ending ? kParted : std::string_view{});
    }
    channel->bye_sent = true;
    write_out(peer);
}

void Node::check_drained() {
    std::lock_guard lock(mutex_);
    for (auto& peer : peer_list_) {
        if (peer->out != nullptr) return;
    }
    std::lock_guard drained(close_mutex_);
    is_drained_ = true;
    drained_.notify_all();
}

}  // namespace antiphon

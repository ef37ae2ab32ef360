// The hand-shake, as a state machine on the selector thread.
//
//   dialler                         acceptor
//   hello (who, which way, nonce) ->
//                                <- reply (who, nonce, proof)
//   confirm (proof)               ->
//   ... then whoever receives the data announces its registrations and says ready.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

#include "frames/sha256.hpp"
#include "node/node.hpp"

namespace antiphon {

namespace {

using State = Channel::State;

// Whoever asks who we are connects as soon as it has its answer.
constexpr Nanos kPromised = 3 * kSecond;
constexpr std::size_t kManyPromises = 256;

// How long an incarnation has to answer before another may take its id.
Nanos probe_time(Nanos connect_timeout) { return std::min(kSecond, connect_timeout / 4); }

std::string incarnation_text(std::uint16_t id, const std::string& address) {
    return "node " + std::to_string(id) + (address.empty() ? "" : " at " + address);
}

}  // namespace

Hello Node::my_hello(const Channel& channel) const {
    Hello hello;
    hello.version_min = kVersionMin;
    hello.version_max = kVersionMax;
    hello.features = kFeatures;
    hello.direction = channel.sends == channel.dialled ? Direction::mine : Direction::yours;
    hello.flags = static_cast<std::uint8_t>((options_.secret.empty() ? 0 : Hello::kHasSecret) |
                                            (listener_ < 0 ? Hello::kNoListener : 0) |
                                            (channel.peer == &unknown_ ? Hello::kAsksWho : 0));
    hello.id = id();
    hello.expected = channel.peer ? channel.peer->id : channel.claimed_id;
    hello.incarnation = incarnation_;
    hello.nonce = random_bytes(kNonceBytes);
    hello.max_message = options_.max_message_bytes;
    hello.max_frame = largest_frame();
    hello.address = address_;
    hello.heartbeat_ms = static_cast<std::uint32_t>(std::min<Nanos>(options_.heartbeat / kMillisecond, UINT32_MAX));
    // A wildcard is no address to dial: say the one by which this connection reaches us.
    if (options_.advertise.empty() && listen_address_.scheme == Address::Scheme::tcp &&
        (listen_address_.host == "0.0.0.0" || listen_address_.host == "::")) {
        Endpoint local;
        local.length = sizeof local.storage;
        if (getsockname(channel.fd, reinterpret_cast<sockaddr*>(&local.storage), &local.length) == 0 &&
            local.storage.ss_family != AF_UNIX) {
            Address mine = Address::parse(local.text());
            mine.port = listen_address_.port;
            hello.address = mine.text();
        }
    }
    return hello;
}

std::string Node::proof(const Channel& channel, bool dialler) const {
    // The two records hold direction, ids, incarnations and nonces; the role keeps a proof from
    // being played back at its maker.
    return hmac_sha256(options_.secret, std::string(dialler ? "antiphon 1 dialler " : "antiphon 1 acceptor ") +
                                            channel.hello + channel.reply);
}

void Node::say_hello(Channel& channel) {
    channel.state = State::await_reply;
    channel.hello = my_hello(channel).encode();
    append_frame(channel.out, Control::hello, channel.hello);
    write_channel(channel);
}

bool Node::hand_shake(Channel& channel, const Header& header, std::string_view payload) {
    const auto kind = static_cast<Control>(header.kind);
    if (kind == Control::refuse) {
        got_refuse(channel, payload);
        return true;
    }
    switch (channel.state) {
        case State::await_hello:
            if (kind != Control::hello) return false;
            got_hello(channel, payload);
            return true;
        case State::await_reply:
            if (kind != Control::reply) return false;
            got_reply(channel, payload);
            return true;
        case State::await_confirm:
            if (kind != Control::confirm) return false;
            got_confirm(channel, payload);
            return true;
        case State::await_ready:
            if (kind == Control::ready) {
                opened(channel);
                return true;
            }
            return back_control(*channel.peer, header, payload);
        case State::spare: return true;
        default: return false;
    }
}

void Node::refuse(Channel& channel, Failure::Code code, const std::string& text, const std::string& other) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    warn(channel.claimed_id, "refused a connection" +
                                 (channel.remote_address.empty() ? "" : " from " + channel.remote_address) +
                                 ": " + text);
    append_frame(channel.out, Control::refuse, ByteWriter().put(code).text(text).text(other).bytes());
    const std::string rest = channel.out.substr(channel.written);
    // Once, as far as it goes: a client that is refused gets no more of our time.
    [[maybe_unused]] ssize_t ignored = channel.transmit(rest.data(), rest.size());
    channel.wire_in = 0;
    channel_failed(channel, text);
}

void Node::got_refuse(Channel& channel, std::string_view payload) {
    ByteReader reader(payload);
    const auto code = std::min<std::uint8_t>(reader.get<std::uint8_t>(), 4);
    const std::string text = reader.text(), other = reader.text();
    Peer* peer = channel.peer;
    if (peer == nullptr) return channel_failed(channel, "refused: " + text);
    const bool mine = peer->dialling == &channel;
    Failure failure{static_cast<Failure::Code>(code), text, channel.dial_address, other};
    if (failure.code == Failure::Code::duplicate) {  // it is our id that somebody else has
        failure.address = address_;
        failure.id = id();
    }
    if (mine || peer->offering == &channel) {
        (mine ? peer->dialling : peer->offering) = nullptr;
        close_channel(&channel);
        if (mine) dial_failed(*peer, std::move(failure), true);
        return;
    }
    take_down(*peer, "refused: " + text);
}

void Node::got_hello(Channel& channel, std::string_view payload) {
    Hello hello;
    const bool readable = Hello::decode(payload, hello);
    if (!readable && hello.version_max == 0) {
        protocol_errors_.fetch_add(1, std::memory_order_relaxed);
        return channel_failed(channel, "not an antiphon node");
    }
    channel.claimed_id = hello.id;
    channel.remote_address = hello.address;
    if (hello.version_min > kVersionMax || hello.version_max < kVersionMin || !readable) {
        return refuse(channel, Failure::Code::protocol,
                      "no common protocol version: it speaks " + std::to_string(hello.version_min) + " to " +
                          std::to_string(hello.version_max) + ", this node " + std::to_string(kVersionMin) +
                          " to " + std::to_string(kVersionMax));
    }
    if (channel.needs_tls) {
        return refuse(channel, Failure::Code::authentication, "this node asks for TLS, with a secret or certificates");
    }
    if (hello.expected != 0 && hello.expected != id()) {
        return refuse(channel, Failure::Code::unreachable,
                      "expected node " + std::to_string(hello.expected) + " at " + address_ +
                          ", but node " + std::to_string(id()) + " listens there");
    }
    const bool secret = (hello.flags & Hello::kHasSecret) != 0;
    if (secret != !options_.secret.empty()) {
        return refuse(channel, Failure::Code::authentication,
                      secret ? "this node has no secret, but the other has" : "this node asks for a secret");
    }
    if (hello.id == 0) return refuse(channel, Failure::Code::protocol, "node id 0 means none");
    if (hello.id == id() && hello.incarnation != incarnation_) {
        return refuse(channel, Failure::Code::duplicate,
                      "two nodes have id " + std::to_string(hello.id) + ": " + hello.address + " and " + address_,
                      address_);
    }
    if (channel.tls && !channel.tls->names(hello.id)) {
        return refuse(channel, Failure::Code::authentication,
                      "its certificate is for " + channel.tls->named() + ", not for node " + std::to_string(hello.id));
    }
    channel.sends = hello.direction == Direction::yours;
    channel.incarnation = hello.incarnation;
    channel.remote_undiallable = (hello.flags & Hello::kNoListener) != 0;
    channel.remote_max_message = hello.max_message;
    channel.remote_max_frame = hello.max_frame;
    channel.remote_heartbeat = hello.heartbeat_ms * kMillisecond;
    channel.hello = std::string(payload);
    Hello mine = my_hello(channel);
    mine.version_min = mine.version_max = std::min(kVersionMax, hello.version_max);
    mine.features = channel.features = kFeatures & hello.features;
    channel.reply = mine.encode();
    auto answer = [this, &channel] {
        append_frame(channel.out, Control::reply,
                     ByteWriter().text(channel.reply).raw(options_.secret.empty() ? "" : proof(channel, false)).bytes());
        channel.state = State::await_confirm;
        write_channel(channel);
    };
    if ((hello.flags & Hello::kAsksWho) == 0) return answer();
    // It reads the reply and goes, which is no news. It will come back with that id: better to say now
    // that it is taken.
    channel.wire_in = 0;
    if (phase_.load(std::memory_order_acquire) != Phase::running) return channel_failed(channel, "closing");
    if (!promise(hello.id, hello.incarnation)) {
        return refuse(channel, Failure::Code::duplicate,
                      "two nodes have id " + std::to_string(hello.id) + ": another one has just asked with it");
    }
    if (Peer* other = find_peer(hello.id)) return settle_clash(channel, *other, answer);
    answer();
}

// Nobody else is told for a while that this id is free, if it is one of those that are drawn: two that
// have drawn the same would both keep it, and only one could connect.
bool Node::promise(std::uint16_t id, std::uint64_t incarnation) {
    if (id < kFirstDrawnId) return true;
    const Nanos now = selector_.now();
    if (promises_.size() >= kManyPromises) {
        std::erase_if(promises_, [now](const auto& one) { return one.second.until <= now; });
    }
    Promise& made = promises_[id];
    if (made.until > now && made.incarnation != incarnation) return false;
    made = {incarnation, now + kPromised};
    return true;
}

void Node::got_reply(Channel& channel, std::string_view payload) {
    ByteReader reader(payload);
    channel.reply = reader.text();
    Peer& peer = *channel.peer;
    auto fatal = [&](Failure::Code code, const std::string& text, const std::string& other = {}) {
        const bool mine = peer.dialling == &channel;
        const std::string address = channel.dial_address;
        (mine ? peer.dialling : peer.offering) = nullptr;
        close_channel(&channel);
        if (mine) dial_failed(peer, {code, text, address, other}, true);
    };
    Hello reply;
    if (!reader.ok() || !Hello::decode(channel.reply, reply)) {
        protocol_errors_.fetch_add(1, std::memory_order_relaxed);
        return fatal(Failure::Code::protocol, "its reply cannot be read");
    }
    if (reply.version_max < kVersionMin || reply.version_max > kVersionMax) {
        return fatal(Failure::Code::protocol, "it answers in protocol version " +
                                                  std::to_string(reply.version_max));
    }
    if (!options_.secret.empty() && !same_proof(reader.raw(kProofBytes), proof(channel, false))) {
        return fatal(Failure::Code::authentication, "the other node has another secret");
    }
    if (reply.id != peer.id && &peer != &unknown_) {
        return fatal(Failure::Code::unreachable, "expected node " + std::to_string(peer.id) + ", but node " +
                                                     std::to_string(reply.id) + " listens there");
    }
    if (channel.tls && !channel.tls->names(reply.id)) {
        return fatal(Failure::Code::authentication, "its certificate is for " + channel.tls->named() +
                                                        ", not for node " + std::to_string(reply.id));
    }
    if (&peer == &unknown_) {
        const std::string address = channel.dial_address;
        peer.dialling = nullptr;
        close_channel(&channel);
        peer.attempts = 0;
        {
            std::unique_lock lock(peer.mutex);
            if (peer.explicit_address != address) {  // an earlier question
                lock.unlock();
                return connect(peer);
            }
            found_ = Identity{reply.id, reply.incarnation};
        }
        return peer.wake();
    }
    channel.incarnation = reply.incarnation;
    channel.features = kFeatures & reply.features;
    channel.remote_address = reply.address;
    channel.remote_undiallable = (reply.flags & Hello::kNoListener) != 0;
    channel.remote_max_message = reply.max_message;
    channel.remote_max_frame = reply.max_frame;
    channel.remote_heartbeat = reply.heartbeat_ms * kMillisecond;
    settle_clash(channel, peer, [this, &channel] {
        append_frame(channel.out, Control::confirm,
                     options_.secret.empty() ? std::string{} : proof(channel, true));
        admit(channel);
    });
}

void Node::got_confirm(Channel& channel, std::string_view payload) {
    if (!options_.secret.empty() && !same_proof(payload, proof(channel, true))) {
        return refuse(channel, Failure::Code::authentication, "the other node has another secret");
    }
    Peer& peer = peer_for(channel.claimed_id);
    settle_clash(channel, peer, [this, &channel, &peer] {
        channel.peer = &peer;
        if (channel.stranger != 0) strangers_.erase(std::exchange(channel.stranger, 0));
        admit(channel);
    });
}

// Another incarnation of this peer may be connected. If it answers a probe, two nodes have one id;
// if not, it is dead and this one takes its place.
void Node::settle_clash(Channel& channel, Peer& peer, std::function<void()> then) {
    if ((peer.in == nullptr && peer.out == nullptr) || peer.incarnation == channel.incarnation) return then();
    channel.state = State::probing;
    selector_.change(channel.fd, channel.watching = 0, &channel);
    if (peer.in) {
        peer.send_back(Control::probe, {});
        write_back(peer);
    } else {
        peer.send_forward(Control::probe, {});
        write_out(peer);
    }
    const Nanos asked = selector_.now();
    if (channel.timer != 0) selector_.cancel(channel.timer);
    channel.timer = selector_.at(
        asked + probe_time(options_.connect_timeout), [this, &channel, &peer, asked, then = std::move(then)] {
            channel.timer = 0;
            const bool connected = peer.in != nullptr || peer.out != nullptr;
            if (connected && peer.incarnation != channel.incarnation && peer.last_heard > asked) {
                const std::string other = peer.learned_address;
                const std::string text = "two nodes have id " + std::to_string(peer.id) + ": " +
                                         incarnation_text(peer.id, other) + " and " +
                                         incarnation_text(peer.id, channel.remote_address);
                if (!channel.dialled) return refuse(channel, Failure::Code::duplicate, text, other);
                const bool mine = peer.dialling == &channel;
                (mine ? peer.dialling : peer.offering) = nullptr;
                const std::string address = channel.dial_address;
                close_channel(&channel);
                if (mine) dial_failed(peer, {Failure::Code::duplicate, text, address, other, peer.id}, true);
                return;
            }
            channel.timer = selector_.at(selector_.now() + options_.connect_timeout, [this, &channel] {
                channel.timer = 0;
                channel_failed(channel, "no complete hand-shake in time");
            });
            selector_.change(channel.fd, channel.watching = EPOLLIN, &channel);
            then();
        });
}

// The other side is who it says. The channel becomes one of its peer's two.
void Node::admit(Channel& channel) {
    Peer& peer = *channel.peer;
    promises_.erase(peer.id);  // kept: from now on a probe tells whether it lives
    if (peer.incarnation != channel.incarnation && (peer.in || peer.out)) {
        take_down(peer, "another incarnation took its place");
    }
    // A peer that opens another connection has closed the one that was given back.
    if (peer.ending && !peer.in) out_ended(peer);
    if (!channel.sends && peer.in) {
        // Our own offer came too late. But a peer would not open a second channel if its first were
        // still good.
        if (channel.dialled && peer.incarnation == channel.incarnation) return close_channel(&channel);
        if (peer.in->dialled && peer.incarnation == channel.incarnation) {
            // Our offer and its dial have crossed. It uses its own, and never wrote to ours.
            close_channel(peer.in);
            peer.in = nullptr;
            drop_receiving(peer);
        } else {
            take_down(peer, "the peer connected again");
        }
    }
    // The peer's offer, when ours is as good as open. The peer will see ours, and close its own; closed
    // from here, it could reach the peer first, and look like a loss.
    if (channel.sends && channel.dialled == false &&
        (peer.out || (peer.dialling && peer.dialling->state == State::await_ready))) {
        channel.state = State::spare;
        return;
    }
    if (channel.sends && peer.out) return close_channel(&channel);
    if (peer.incarnation != channel.incarnation) peer.part_seen = 0;
    peer.incarnation = channel.incarnation;
    peer.undiallable = channel.remote_undiallable;
    peer.features = channel.features;
    // Bounded: a peer cannot ask to be waited for until the end of time.
    peer.heartbeat = std::min(channel.remote_heartbeat, 60 * kSecond);
    peer.max_message.store(channel.remote_max_message, std::memory_order_release);
    if (!channel.remote_address.empty()) peer.learned_address = channel.remote_address;
    peer.last_heard = selector_.now();
    const int large = static_cast<int>(options_.socket_buffer_bytes);
    if (!channel.dialled) {
        {
            // Whom we have dialled was known, and may have been removed since. Nor does one come back on a
            // connection that is about to be closed because it was removed.
            std::lock_guard lock(peer.mutex);
            if (!peer.removing) peer.known = true;
        }
        set_buffers(channel.fd, channel.sends ? BufferSizes{large, 16 << 10} : BufferSizes{16 << 10, large});
    }
    if (channel.sends) {
        if (Ring* ring = peer.ring.load(std::memory_order_relaxed)) {
            if (ring->retired()) {
                ring->revive();
                peer.seen_head = peer.trimmed_head = ring->head();
            }
        } else {
            peer.ring.store(new Ring(options_.ring_bytes), std::memory_order_release);
        }
        // What an attempt that came to nothing announced is not true of this one.
        for (auto& [kind, flow] : peer.out_flows) {
            peer.kinds.set(kind, nullptr);
            flow->id.store(0, std::memory_order_relaxed);
            flow->window.store(0, std::memory_order_seq_cst);
        }
        ++peer.sessions;
        {
            std::lock_guard lock(peer.mutex);
            peer.first_flush = peer.next_flush;
        }
        const std::uint32_t frame = std::min<std::uint32_t>(
            channel.remote_max_frame, static_cast<std::uint32_t>(options_.ring_bytes / 4));
        peer.max_frame.store(frame, std::memory_order_relaxed);
        if (peer.dialling && peer.dialling != &channel) close_channel(peer.dialling);
        peer.dialling = &channel;
        channel.state = State::await_ready;
        write_channel(channel);
    } else {
        if (peer.offering == &channel) peer.offering = nullptr;
        peer.in = &channel;
        ++peer.in_session;
        channel.state = State::open;
        channel.parser = std::make_unique<DataParser>(largest_frame(), options_.max_message_bytes);
        announce_all(channel);
        opened(channel);
    }
}

void Node::opened(Channel& channel) {
    Peer& peer = *channel.peer;
    if (channel.incarnation != peer.incarnation) {
        return channel_failed(channel, "another incarnation took its place");
    }
    if (channel.timer != 0) selector_.cancel(channel.timer);
    channel.timer = 0;
    channel.state = State::open;
    channel.last_heard = channel.last_written = peer.last_heard = selector_.now();
    if (!peer.up) {
        peer.up = true;
        if (on_event_) {
            on_event_({Event::Type::connected, peer.id, channel.dialled ? "dialled" : "accepted"});
        }
    }
    if (channel.sends) {
        peer.dialling = nullptr;
        for (Spin spin; peer.write_token.exchange(true, std::memory_order_acquire);) spin.once();
        peer.out = &channel;
        peer.lane_out.swap(channel.out);
        peer.lane_written = channel.written;
        channel.out.clear();
        channel.written = 0;
        start_sending(peer);
        peer.write_token.store(false, std::memory_order_seq_cst);
        if (peer.retry_timer != 0) selector_.cancel(peer.retry_timer);
        peer.retry_timer = 0;
        add_interest(peer, kReadBack | kWrite);
        if (listener_ < 0 && peer.id != id()) connect_for_peer(peer);
    } else {
        add_interest(peer, kRead | kWriteBack);
        write_channel(channel);
    }
    if (peer.in == nullptr || peer.out == nullptr) peer.unused.store(true, std::memory_order_relaxed);
    peer.used.store(selector_.now(), std::memory_order_relaxed);
    keep_to_limit();
}

}  // namespace antiphon

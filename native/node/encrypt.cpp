// TLS around a channel: who needs it, its hand-shake, and certificates that change. On the selector
// thread.
//
// With certificates every TCP connection is encrypted. With a secret those off loopback are; on
// loopback and unix sockets the hand-shake's own proof is enough. An acceptor looks at the first bytes:
// a frame never begins like a TLS record.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "node/node.hpp"

namespace antiphon {

// A record of type 22, version 3; a frame that began so would have a third byte of zero, being shorter
// than 65536.
bool begins_like_tls(const char* bytes) { return bytes[0] == 0x16 && bytes[1] == 0x03 && bytes[2] != 0; }

// The socket of a dialled channel is connected.
void Node::begin(Channel& channel) {
    const Endpoint there = endpoint_of(channel.fd);
    const bool outside = there.tcp() && !there.loopback();
    if (tls_ && there.tcp() && (!tls_->by_secret() || outside)) return start_tls(channel);
    if (outside && !options_.secret.empty()) {
        return tls_failed(channel, "a secret off loopback needs TLS, and this machine has no OpenSSL 3");
    }
    say_hello(channel);
}

void Node::look_at_first_bytes(Channel& channel) {
    char first[3];
    const ssize_t got = recv(channel.fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0) return channel_failed(channel, "the peer closed the connection");
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) return;
        return channel_failed(channel, channel.error(errno));
    }
    if (got < static_cast<ssize_t>(sizeof first)) {
        // Fewer are reported only at the end of the stream, or before this was set.
        const int least = sizeof first;
        int set = 0;
        socklen_t length = sizeof set;
        getsockopt(channel.fd, SOL_SOCKET, SO_RCVLOWAT, &set, &length);
        if (set == least) return channel_failed(channel, "the peer closed the connection");
        setsockopt(channel.fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
        channel.wire_in = static_cast<std::uint64_t>(got);
        return;
    }
    const int one = 1;
    setsockopt(channel.fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    if (begins_like_tls(first)) return start_tls(channel);
    channel.needs_tls = !tls_->by_secret() || !endpoint_of(channel.fd).loopback();
    channel.state = Channel::State::await_hello;
    channel.ready(EPOLLIN);
}

void Node::start_tls(Channel& channel) {
    channel.tls = std::make_unique<tls::Session>(tls_, channel.fd, channel.dialled);
    channel.state = Channel::State::tls;
    channel.wire_in += 1;  // an accepted one has said something: it counts if it fails
    shake_tls(channel);
}

void Node::shake_tls(Channel& channel) {
    switch (channel.tls->shake_hands()) {
        case tls::Session::Step::wants_read: return want_writable(channel, false);
        case tls::Session::Step::wants_write: return want_writable(channel, true);
        case tls::Session::Step::failed:
            return tls_failed(channel, (tls_->by_secret() ? "the other node has another secret, or none (TLS: " : "(TLS: ") +
                                           channel.tls->error() + ")");
        case tls::Session::Step::lost: return channel_failed(channel, channel.tls->error());
        case tls::Session::Step::done: break;
    }
    want_writable(channel, false);
    if (channel.dialled) return say_hello(channel);
    channel.state = Channel::State::await_hello;
    if (channel.tls->pending()) channel.ready(EPOLLIN);
}

// A node without TLS says so in the language of TLS, so that the other one need not guess.
void Node::refuse_tls(Channel& channel) {
    static constexpr char kAlert[] = {0x15, 0x03, 0x03, 0, 2, 2, 40};  // fatal, no hand-shake
    send(channel.fd, kAlert, sizeof kAlert, MSG_DONTWAIT | MSG_NOSIGNAL);
    tls_failed(channel, "it speaks TLS, and this node has neither certificates nor a secret");
}

// One side does not trust the other. Trying again would not help.
void Node::tls_failed(Channel& channel, const std::string& reason) {
    Peer* peer = channel.peer;
    if (!channel.dialled || peer == nullptr) {
        refused_.fetch_add(1, std::memory_order_relaxed);
        const Endpoint there = endpoint_of(channel.fd);
        warn(0, "refused a connection" + (there.length != 0 ? " from " + there.text() : std::string()) + ": " + reason);
        return close_channel(&channel);
    }
    const bool mine = peer->dialling == &channel;
    const std::string address = channel.dial_address;
    (mine ? peer->dialling : peer->offering) = nullptr;
    close_channel(&channel);
    if (mine) dial_failed(*peer, {Failure::Code::authentication, reason, address, ""}, true);
}

// New connections use the new ones; those that stand keep what they have. The helper looks at them: they may be on a
// disk that does not answer.
void Node::reload_certificates() {
    if (std::exchange(tls_looking_, true)) return;
    const bool asked = helper_.ask([this, files = options_.tls, known = tls_times_, tried = tls_tried_]() -> std::function<void()> {
        auto times = tls::changed_at(files);
        if (times == known || times == tried) return [this] { tls_looking_ = false; };
        std::shared_ptr<tls::Context> made;
        std::string error;
        try {
            made = tls::Context::with_certificates(files);
        } catch (const std::exception& refused) {
            error = refused.what();
        }
        return [this, times = std::move(times), made = std::move(made), error = std::move(error)] {
            tls_looking_ = false;
            tls_tried_ = times;
            if (made) {
                tls_ = made;
                tls_times_ = times;
            } else {
                // Half written, perhaps: looked at again when they change once more.
                warn(0, "the new certificates cannot be used, the old ones stay: " + error);
            }
        };
    });
    if (!asked) tls_looking_ = false;  // again with the next beat
}

}  // namespace antiphon

// Opening connections: dialling, dialling back, accepting. On the selector thread, but for the helper's
// name look-ups.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/descriptors.hpp"
#include "node/node.hpp"

namespace antiphon {

namespace {

constexpr std::size_t kMaxStrangers = 512;
constexpr Nanos kFirstBackOff = 20 * kMillisecond, kLongestBackOff = kSecond;
constexpr Nanos kPatience = 250 * kMillisecond;  // with a dial back
constexpr std::size_t kBackBuffer = 16 << 10;

std::string error_text(int error) { return std::strerror(error); }

}  // namespace

void Node::connect(Peer& peer) {
    if (phase_.load(std::memory_order_acquire) > Phase::draining) return;
    stay(peer);
    if (peer.held.load(std::memory_order_relaxed)) return;  // again when it is closed
    if (&peer == &unknown_) drop_earlier_question();
    if (peer.out || peer.dialling || peer.retry_timer != 0) return;
    if (peer.id == id()) return dial_self(peer);
    std::string address;
    bool known;
    {
        std::lock_guard lock(peer.mutex);
        address = peer.explicit_address;
        known = peer.known;
    }
    // Whoever waited for it, or was about to, is told, although it may have said where it is.
    if (!known) return dial_failed(peer, removed_peer(), true);
    const bool learned = address.empty();
    if (learned && !peer.undiallable) address = peer.learned_address;
    if (!address.empty()) {
        if (peer.looking_up == address) return;
        dial(peer, address, false);
        // Dialling back may meet a wall that drops without a word. The peer has reached us, so ask it
        // for a channel as well if nothing comes of ours soon; whichever is first is used.
        if (learned && peer.in) {
            selector_.at(selector_.now() + std::min(kPatience, options_.connect_timeout / 4),
                         [this, &peer, session = peer.in_session.load()] {
                if (peer.out || !peer.in || peer.in_session.load() != session) return;
                peer.send_back(Control::dial_me, {});
                write_back(peer);
            });
        }
        return;
    }
    if (peer.in == nullptr) {
        return dial_failed(peer, {Failure::Code::unreachable, "no address is known for it", "", ""}, false);
    }
    // It cannot be dialled, but it has dialled us: ask for a second channel.
    peer.send_back(Control::dial_me, {});
    write_back(peer);
    peer.retry_timer = selector_.at(selector_.now() + kLongestBackOff, [this, &peer] {
        peer.retry_timer = 0;
        if (selector_.now() < peer.wanted_until.load()) connect(peer);
    });
}

// Another address is asked for its id than the one that is being dialled, which may be silent for long.
void Node::drop_earlier_question() {
    Channel* channel = unknown_.dialling;
    if (channel == nullptr) return;
    std::unique_lock lock(unknown_.mutex);
    const bool same = channel->dial_address == unknown_.explicit_address;
    lock.unlock();
    if (!same) close_channel(channel);
}

void Node::connect_for_peer(Peer& peer) {
    if (phase_.load(std::memory_order_acquire) > Phase::draining) return;
    if (peer.in || peer.offering || !peer.looking_up.empty() || !peer.out || peer.held) return;
    dial(peer, peer.out->dial_address, true);
}

void Node::dial_self(Peer& peer) {
    int pair[2];
    if (open_socket_pair(SOCK_STREAM, pair) != 0) {
        return dial_failed(peer, {Failure::Code::unreachable, error_text(errno), "", ""}, true);
    }
    set_buffers(pair[0], {static_cast<int>(options_.socket_buffer_bytes), 0});
    Channel* channel = new_channel(pair[0], true);
    channel->sends = true;
    channel->peer = &peer;
    peer.dialling = channel;
    adopt_socket(pair[1]);
    say_hello(*channel);
}

void Node::dial(Peer& peer, const std::string& text, bool yours) {
    peer.looking_up.clear();  // a look-up that hangs does not keep us from another address
    Address address;
    try {
        address = Address::parse(text);
    } catch (const std::exception& error) {
        return dial_failed(peer, {Failure::Code::unreachable, error.what(), text, ""}, true);
    }
    if (!yours) {
        std::lock_guard lock(peer.mutex);
        // Until there is one; an earlier attempt may know more than this one, which is not over yet.
        if (peer.attempts == 0 || peer.failure.address != text) {
            peer.failure = {Failure::Code::unreachable, "no answer", text, ""};
        }
    }
    if (address.scheme == Address::Scheme::in_process) {
        return dial_endpoints(peer, text, {Endpoint{}}, yours);
    }
    if (is_numeric(address)) {
        std::string error;
        return dial_endpoints(peer, text, resolve(address, error), yours);
    }
    peer.looking_up = text;
    const bool asked = helper_.ask([this, &peer, address, text, yours]() -> std::function<void()> {
        std::string error;
        std::vector<Endpoint> endpoints = resolve(address, error);  // touches nothing of the node
        return [this, &peer, text, yours, endpoints, error] {
            if (peer.looking_up != text) return;  // it was removed, or has another address by now
            peer.looking_up.clear();
            // Another channel may have come up meanwhile.
            if (yours ? (peer.in || peer.offering || !peer.out) : (peer.out || peer.dialling)) return;
            std::unique_lock lock(peer.mutex);
            const bool known = peer.known;
            lock.unlock();
            if (!known) return dial_failed(peer, removed_peer(), true);
            if (endpoints.empty()) {
                return dial_failed(peer, {Failure::Code::unreachable, error, text, ""}, false);
            }
            dial_endpoints(peer, text, endpoints, yours);
        };
    });
    if (asked) return;
    peer.looking_up.clear();
    if (!yours) dial_failed(peer, {Failure::Code::unreachable, "no thread could be started to look up its name", text, ""}, false);
}

void Node::dial_endpoints(Peer& peer, const std::string& text, std::vector<Endpoint> endpoints,
                          bool yours) {
    if (phase_.load(std::memory_order_acquire) > Phase::draining) return;
    const int large = static_cast<int>(options_.socket_buffer_bytes), small = kBackBuffer;
    const Address address = Address::parse(text);
    while (!endpoints.empty()) {
        const Endpoint endpoint = endpoints.front();
        endpoints.erase(endpoints.begin());
        const int fd = transport_for(address).dial(
            address, endpoint, yours ? BufferSizes{small, large} : BufferSizes{large, small});
        if (fd < 0) {
            if (!endpoints.empty()) continue;
            return dial_failed(peer, {Failure::Code::unreachable, error_text(errno), text, ""}, false);
        }
        Channel* channel = new_channel(fd, true);
        channel->sends = !yours;
        channel->peer = &peer;
        channel->dial_address = text;
        channel->endpoints = std::move(endpoints);
        (yours ? peer.offering : peer.dialling) = channel;
        want_writable(*channel, true);
        return;
    }
}

void Node::dial_failed(Peer& peer, Failure failure, bool fatal) {
    if (peer.out) return;
    if (&peer == &unknown_) {
        std::unique_lock lock(peer.mutex);
        // That two nodes have one id is said with our own address, and true whoever has found it.
        const bool earlier = failure.code != Failure::Code::duplicate && !failure.address.empty() &&
                             failure.address != peer.explicit_address;
        lock.unlock();
        if (earlier) return connect(peer);  // no news of the one that is asked now
    }
    if (failure.code == Failure::Code::duplicate && options_.id == 0 && !peer.up &&
        !id_settled_.load(std::memory_order_relaxed)) {
        // Our id was drawn, and is taken: draw another, unless somebody knows us by it already.
        std::lock_guard lock(mutex_);
        const bool known = std::any_of(peer_list_.begin(), peer_list_.end(),
                                       [](const auto& other) { return other->up; });
        if (!known) {
            draw_id();
            fatal = false;
        }
    }
    if (!fatal && peer.in && !peer.undiallable && !failure.address.empty()) {
        // Dialling back failed, as it does from containers: the peer can open the channel for us.
        peer.undiallable = true;
        std::lock_guard lock(peer.mutex);
        if (!peer.explicit_address.empty()) peer.undiallable = false;
    }
    const Nanos now = selector_.now();
    const Nanos wanted = peer.wanted_until.load(std::memory_order_relaxed);
    bool give_up = fatal || now >= wanted;
    {
        std::lock_guard lock(peer.mutex);
        peer.failure = std::move(failure);
        if (give_up) ++peer.failures;
    }
    if (give_up) {
        peer.attempts = 0;
        peer.wake();
        return;
    }
    Nanos pause = std::min(kFirstBackOff << std::min(peer.attempts++, 10), kLongestBackOff);
    pause = pause / 2 + static_cast<Nanos>(random_u64() % static_cast<std::uint64_t>(pause / 2 + 1));
    peer.retry_timer = selector_.at(now + pause, [this, &peer] {
        peer.retry_timer = 0;
        if (selector_.now() < peer.wanted_until.load()) {
            connect(peer);
        } else {
            peer.attempts = 0;
            std::unique_lock lock(peer.mutex);
            ++peer.failures;
            lock.unlock();
            peer.wake();
        }
    });
}

Channel* Node::new_channel(int fd, bool dialled) {
    auto* channel = new Channel(*this, fd, dialled);
    channel->watching = EPOLLIN;
    channel->last_written = selector_.now();
    try {
        selector_.watch(fd, channel->watching, channel);
    } catch (...) {
        delete channel;
        close_descriptor(fd);
        throw;
    }
    channels_.insert(channel);
    channel->timer = selector_.at(selector_.now() + options_.connect_timeout, [this, channel] {
        channel->timer = 0;
        channel_failed(*channel, "no complete hand-shake in time");
    });
    return channel;
}

void Node::accept_all() {
    for (;;) {
        const int fd = transport_for(listen_address_).accept(listener_);
        if (fd < 0) {
            // Out of descriptors: the waiting connection stays in the backlog, and the next one that
            // closes makes room. Not watching meanwhile, or the loop would spin on it.
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                warn(0, "cannot accept a connection: " + error_text(errno));
                selector_.change(listener_, 0, &door_);
                selector_.at(selector_.now() + 100 * kMillisecond,
                             [this] { if (listener_ >= 0) selector_.change(listener_, EPOLLIN, &door_); });
            }
            return;
        }
        adopt_socket(fd);
    }
}

void Node::adopt_socket(int fd) {
    if (strangers_.size() >= kMaxStrangers) {
        // The one that has been silent for longest: who means well has said who it is long before.
        refused_.fetch_add(1, std::memory_order_relaxed);
        warn(0, "a connection was dropped: " + std::to_string(kMaxStrangers) +
                    " others have not said who they are either, and it is the oldest of them");
        close_channel(strangers_.begin()->second);
    }
    Channel* channel = new_channel(fd, false);
    channel->stranger = ++next_stranger_;
    strangers_.emplace(channel->stranger, channel);
    channel->state = tls_ && endpoint_of(fd).tcp() ? Channel::State::first_bytes : Channel::State::await_hello;
}

}  // namespace antiphon

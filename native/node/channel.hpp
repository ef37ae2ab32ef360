// One socket between two nodes: data one way, control the other. Belongs to the selector thread.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "frames/data_parser.hpp"
#include "selector/address.hpp"
#include "selector/selector.hpp"
#include "tls/session.hpp"

namespace antiphon {

class Node;
class Peer;

struct Channel : Watcher {
    enum class State : std::uint8_t {
        connecting,     // dialled, the socket is not connected yet
        first_bytes,    // accepted: TLS or not?
        tls,            // TLS shakes hands
        await_hello,    // accepted
        await_reply,    // dialled, hello sent
        probing,        // identity clashes with a live incarnation that is being asked
        await_confirm,  // accepted, reply sent
        await_ready,    // we send on it, the receiver has yet to announce its registrations
        spare,          // an offer that crossed a dial of ours: the peer closes it when it sees that
        open,
    };

    Channel(Node& node_, int fd_, bool dialled_) : node(node_), fd(fd_), dialled(dialled_) {}
    void ready(std::uint32_t events) override;

    // recv() and send() that do not block, through TLS where there is one.
    ssize_t receive(void* to, std::size_t room) {
        return tls ? tls->receive(to, room) : recv(fd, to, room, MSG_DONTWAIT);
    }
    ssize_t transmit(const void* from, std::size_t bytes) {
        return tls ? tls->transmit(from, bytes) : send(fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    std::string error(int number) { return tls && number == EPROTO ? tls->error() : std::strerror(number); }

    Node& node;
    int fd;
    const bool dialled;
    std::unique_ptr<tls::Session> tls;
    bool sends = false;  // this node sends data on it
    bool needs_tls = false;  // accepted without it: said to its hello, then closed
    State state = State::connecting;
    Peer* peer = nullptr;        // dialled: from the start; accepted: once it is proven
    std::uint16_t claimed_id = 0;  // accepted: who it says it is
    std::uint64_t incarnation = 0;
    std::string remote_address;  // advertised
    std::string dial_address;
    std::vector<Endpoint> endpoints;  // left to try
    bool remote_undiallable = false;
    std::uint64_t remote_max_message = 0;
    std::uint32_t remote_max_frame = 0;
    Nanos remote_heartbeat = 0;
    std::string hello, reply;  // as they went over the wire, for the proof
    std::string control_in;    // bytes of control frames that are not complete
    std::string out;           // bytes to write, until the channel belongs to a peer and on the back
    std::size_t written = 0;
    std::unique_ptr<DataParser> parser;
    std::uint32_t watching = 0;
    bool paused = false;       // no receive buffer was left
    bool led = false;          // a waiting thread reads it (node/lead.hpp)
    bool bye_sent = false, bye_taken = false, shut = false;  // put behind everything; on its way; gone
    bool parted = false;       // the peer has said bye, and nothing is wrong
    std::uint32_t features = 0;
    std::string farewell;      // the peer's last word on the data direction
    std::uint64_t timer = 0;
    Nanos last_written = 0, last_heard = 0;
    std::uint64_t stranger = 0;  // its number among those who have not proven who they are; 0: it is none
    std::uint64_t wire_in = 0;
};

// Of the first three bytes of a connection.
bool begins_like_tls(const char* bytes);

}  // namespace antiphon

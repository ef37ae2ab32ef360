// Addresses as users write them: tcp://host:port, tcp://[v6]:port, unix:///path, inproc://name.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace antiphon {

struct Address {
    enum class Scheme { tcp, unix_socket, in_process };
    Scheme scheme = Scheme::tcp;
    std::string host;  // or the path, or the name
    std::uint16_t port = 0;

    std::string text() const;
    // Throws std::invalid_argument with a sentence that says what was expected.
    static Address parse(const std::string& text);
};

struct Endpoint {
    sockaddr_storage storage{};
    socklen_t length = 0;

    static Endpoint unix_path(const std::string& path);
    std::string text() const;
    bool tcp() const { return storage.ss_family == AF_INET || storage.ss_family == AF_INET6; }
    bool loopback() const;
};

// Who is at the other end of a socket; empty when nobody is.
Endpoint endpoint_of(int fd);

// True when finding the endpoints needs no name service, and so does not block.
bool is_numeric(const Address& address);
// May block in the name service unless is_numeric(). On failure empty, with the reason in `error`.
std::vector<Endpoint> resolve(const Address& address, std::string& error);

}  // namespace antiphon

#include "selector/address.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstring>
#include <stdexcept>

namespace antiphon {

namespace {

[[noreturn]] void bad(const std::string& text) {
    throw std::invalid_argument("bad address '" + text +
                                "': write tcp://host:port, tcp://[v6]:port, unix:///path or "
                                "inproc://name");
}

}  // namespace

Address Address::parse(const std::string& text) {
    Address address;
    if (text.rfind("unix://", 0) == 0) {
        address.scheme = Scheme::unix_socket;
        address.host = text.substr(7);
        if (address.host.empty() || address.host.size() >= sizeof(sockaddr_un::sun_path)) bad(text);
        return address;
    }
    if (text.rfind("inproc://", 0) == 0) {
        address.scheme = Scheme::in_process;
        address.host = text.substr(9);
        if (address.host.empty()) bad(text);
        return address;
    }
    if (text.rfind("tcp://", 0) != 0) bad(text);
    const std::string rest = text.substr(6);
    const std::size_t colon = rest.rfind(':');
    if (colon == std::string::npos || colon == 0) bad(text);
    address.host = rest.substr(0, colon);
    if (address.host.front() == '[') {
        if (address.host.size() < 3 || address.host.back() != ']') bad(text);
        address.host = address.host.substr(1, address.host.size() - 2);
    } else if (address.host.find(':') != std::string::npos) {
        bad(text);
    }
    const char* first = rest.data() + colon + 1;
    const char* last = rest.data() + rest.size();
    auto [end, error] = std::from_chars(first, last, address.port);
    if (error != std::errc{} || end != last || first == last) bad(text);
    return address;
}

std::string Address::text() const {
    switch (scheme) {
        case Scheme::unix_socket: return "unix://" + host;
        case Scheme::in_process: return "inproc://" + host;
        case Scheme::tcp: break;
    }
    const bool v6 = host.find(':') != std::string::npos;
    return "tcp://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Endpoint Endpoint::unix_path(const std::string& path) {
    Endpoint endpoint;
    auto* at = reinterpret_cast<sockaddr_un*>(&endpoint.storage);
    at->sun_family = AF_UNIX;
    std::memcpy(at->sun_path, path.c_str(), path.size() + 1);
    endpoint.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
    return endpoint;
}

std::string Endpoint::text() const {
    char host[INET6_ADDRSTRLEN] = "";
    if (storage.ss_family == AF_INET) {
        const auto* at = reinterpret_cast<const sockaddr_in*>(&storage);
        inet_ntop(AF_INET, &at->sin_addr, host, sizeof host);
        return Address{Address::Scheme::tcp, host, ntohs(at->sin_port)}.text();
    }
    if (storage.ss_family == AF_INET6) {
        const auto* at = reinterpret_cast<const sockaddr_in6*>(&storage);
        inet_ntop(AF_INET6, &at->sin6_addr, host, sizeof host);
        return Address{Address::Scheme::tcp, host, ntohs(at->sin6_port)}.text();
    }
    return "unix://";
}

bool is_numeric(const Address& address) {
    if (address.scheme != Address::Scheme::tcp) return true;
    unsigned char scratch[sizeof(in6_addr)];
    return inet_pton(AF_INET, address.host.c_str(), scratch) == 1 ||
           inet_pton(AF_INET6, address.host.c_str(), scratch) == 1;
}

std::vector<Endpoint> resolve(const Address& address, std::string& error) {
    std::vector<Endpoint> found;
    if (address.scheme == Address::Scheme::unix_socket) {
        found.push_back(Endpoint::unix_path(address.host));
        return found;
    }
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (is_numeric(address) ? AI_NUMERICHOST : AI_ADDRCONFIG);
    addrinfo* list = nullptr;
    const std::string port = std::to_string(address.port);
    const int status = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list);
    if (status != 0) {
        error = "cannot resolve " + address.host + ": " + gai_strerror(status);
        return found;
    }
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
        Endpoint endpoint;
        std::memcpy(&endpoint.storage, at->ai_addr, at->ai_addrlen);
        endpoint.length = at->ai_addrlen;
        found.push_back(endpoint);
    }
    freeaddrinfo(list);
    return found;
}

bool Endpoint::loopback() const {
    if (storage.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
        return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
    }
    if (storage.ss_family == AF_INET6) {
        const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
    }
    return true;  // a unix socket or a pair: this machine
}

Endpoint endpoint_of(int fd) {
    Endpoint endpoint;
    endpoint.length = sizeof endpoint.storage;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&endpoint.storage), &endpoint.length) != 0) return {};
    return endpoint;
}

}  // namespace antiphon

#include "bench/raw_stream.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "bench/sockets.hpp"

namespace antiphon::bench {
namespace {

constexpr std::size_t kReceiveBytes = 256 * 1024;
// The clock is read once per so many bytes or calls: beside a send() of 64 bytes it would be seen.
constexpr std::size_t kBytesPerLook = 64 * 1024;
constexpr std::size_t kCallsPerLook = 1024;

class Descriptor {
   public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    Descriptor& operator=(Descriptor&&) = delete;
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }

   private:
    int fd_;
};

Descriptor dial(const std::string& host, std::uint16_t port) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
        throw std::invalid_argument("cannot resolve " + host + ": " + ::gai_strerror(code));
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    int error = ECONNREFUSED;
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
        Descriptor stream(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
        if (stream.get() < 0) {
            error = errno;
            continue;
        }
        limit(stream.get(), SO_SNDTIMEO, seconds_to_ns(kStreamPatience));
        if (::connect(stream.get(), at->ai_addr, at->ai_addrlen) == 0) return stream;
        error = errno;
    }
    raise("connect", error);
}

// One connection, or an empty descriptor when the deadline comes first.
Descriptor accept_until(int fd, Nanos deadline) {
    while (true) {
        const Nanos left = deadline - now_ns();
        if (left <= 0) return Descriptor(-1);
        pollfd entry{fd, POLLIN, 0};
        const auto millis = static_cast<int>(std::min<Nanos>(left / kMillisecond + 1, 1000));
        const int ready = ::poll(&entry, 1, millis);
        if (ready < 0 && errno != EINTR) raise("poll");
        if (ready <= 0) continue;
        const int stream = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
        if (stream >= 0) return Descriptor(stream);
        // Gone between poll and accept: wait for the next one.
        if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) raise("accept");
    }
}

double to_seconds(Nanos nanos) { return static_cast<double>(nanos) / 1e9; }

}  // namespace

StreamResult raw_stream_send(const std::string& host, std::uint16_t port, std::size_t size,
                             double seconds) {
    if (size == 0) throw std::invalid_argument("size must be at least 1");
    if (!std::isfinite(seconds) || seconds < 0) {
        throw std::invalid_argument("seconds must be a number, 0 or more");
    }
    const Descriptor stream = dial(host, port);
    const std::vector<char> chunk(size, 'x');

    std::uint64_t bytes = 0;
    std::size_t unlooked = 0;
    std::size_t calls = 0;
    const Nanos begin = now_ns();
    const Nanos deadline = begin + seconds_to_ns(seconds);
    while (true) {
        // The rest of a chunk that was cut short is sent before the next: chunks stay whole.
        std::size_t offset = 0;
        while (offset < size) {
            const ssize_t sent =
                ::send(stream.get(), chunk.data() + offset, size - offset, MSG_NOSIGNAL);
            if (sent > 0) {
                offset += static_cast<std::size_t>(sent);
            } else if (sent < 0 && errno != EINTR) {
                raise("send", errno == EAGAIN ? ETIMEDOUT : errno);
            }
        }
        bytes += size;
        unlooked += size;
        if (unlooked >= kBytesPerLook || ++calls >= kCallsPerLook) {
            unlooked = 0;
            calls = 0;
            if (now_ns() >= deadline) break;
        }
    }
    return {bytes, to_seconds(now_ns() - begin)};
}

StreamResult raw_stream_receive(int fd, double seconds_max) {
    // poll() would take no notice of it, and wait.
    if (fd < 0) raise("raw_stream_receive", EBADF);
    const Nanos deadline = now_ns() + seconds_to_ns(seconds_max);
    const Descriptor stream = accept_until(fd, deadline);
    if (stream.get() < 0) return {0, 0.0};

    std::vector<char> buffer(kReceiveBytes);
    limit(stream.get(), SO_RCVTIMEO, deadline - now_ns());
    std::uint64_t bytes = 0;
    Nanos first = 0;
    Nanos last = 0;
    while (true) {
        const ssize_t got = ::recv(stream.get(), buffer.data(), buffer.size(), 0);
        if (got == 0) break;
        if (got < 0) {
            if (errno == EAGAIN) break;
            if (errno != EINTR) raise("recv");
            if (now_ns() >= deadline) break;
            continue;
        }
        last = now_ns();
        if (bytes == 0) first = last;
        bytes += static_cast<std::uint64_t>(got);
        if (last >= deadline) break;
    }
    return {bytes, to_seconds(last - first)};
}

}  // namespace antiphon::bench

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

// One chunk. The rest of one that was cut short is sent before the next: chunks stay whole.
void send_chunk(int fd, std::span<const char> chunk) {
    std::size_t offset = 0;
    while (offset < chunk.size()) {
        const ssize_t sent = ::send(fd, chunk.data() + offset, chunk.size() - offset, MSG_NOSIGNAL);
        if (sent > 0) {
            offset += static_cast<std::size_t>(sent);
        } else if (sent < 0 && errno != EINTR) {
            raise("send", errno == EAGAIN ? ETIMEDOUT : errno);
        }
    }
}

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
        send_chunk(stream.get(), chunk);
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

void raw_stream_write(int fd, std::span<const char> data, std::uint64_t count) {
    if (data.empty()) throw std::invalid_argument("there is nothing to send");
    for (; count > 0; --count) send_chunk(fd, data);
}

StreamReader::StreamReader(std::size_t size, std::uint8_t first, std::uint8_t mark, std::size_t head)
    : size_(size), first_(first), mark_(mark), head_(head) {
    if (size == 0) throw std::invalid_argument("size must be at least 1");
    if (head == 0) throw std::invalid_argument("head must be at least 1");
}

// Where in a chunk a stream is.
struct StreamReader::Place {
    std::size_t at = 0;
    bool marked = false;
    std::vector<char> head;
};

void StreamReader::read(int fd) {
    std::vector<char> buffer(kReceiveBytes);
    Place place;
    while (true) {
        const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
        if (got == 0) return;
        if (got < 0) {
            if (errno != EINTR && errno != EAGAIN) raise("recv");
            continue;
        }
        StreamCounts found;
        found.bytes = static_cast<std::uint64_t>(got);
        found.last_ns = now_ns();
        count(place, {buffer.data(), static_cast<std::size_t>(got)}, found);
        add(found);
    }
}

void StreamReader::count(Place& place, std::span<const char> data, StreamCounts& found) const {
    while (!data.empty()) {
        if (place.at == 0) {
            const auto begin = static_cast<std::uint8_t>(data[0]);
            place.marked = begin == mark_ && size_ >= head_;
            if (!place.marked && begin != first_) ++found.wrong;
        }
        const std::size_t part = std::min(size_ - place.at, data.size());
        if (place.marked && place.at < head_) {
            const std::size_t more = std::min(part, head_ - place.at);
            place.head.insert(place.head.end(), data.data(), data.data() + more);
        }
        place.at += part;
        data = data.subspan(part);
        if (place.at < size_) return;
        place.at = 0;
        ++found.messages;
        if (place.marked) {
            found.marked.insert(found.marked.end(), place.head.begin(), place.head.end());
            const auto* when = reinterpret_cast<const char*>(&found.last_ns);
            found.marked.insert(found.marked.end(), when, when + sizeof found.last_ns);
            place.head.clear();
        }
    }
}

void StreamReader::add(const StreamCounts& found) {
    const std::lock_guard lock(mutex_);
    counts_.messages += found.messages;
    counts_.bytes += found.bytes;
    counts_.wrong += found.wrong;
    counts_.last_ns = std::max(counts_.last_ns, found.last_ns);
    const std::size_t row = head_ + sizeof(std::int64_t);
    if (counts_.marked.size() < kMostHeld * row) {
        counts_.marked.insert(counts_.marked.end(), found.marked.begin(), found.marked.end());
    } else {
        counts_.dropped += found.marked.size() / row;
    }
}

StreamCounts StreamReader::take() {
    const std::lock_guard lock(mutex_);
    std::vector<char> marked = std::exchange(counts_.marked, {});
    StreamCounts taken = counts_;
    taken.marked = std::move(marked);
    return taken;
}

}  // namespace antiphon::bench

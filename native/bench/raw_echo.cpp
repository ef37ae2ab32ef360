#include "bench/raw_echo.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cmath>
#include <stdexcept>

#include "base/clock.hpp"
#include "bench/sockets.hpp"

namespace antiphon::bench {
namespace {

void check(std::size_t size, double seconds) {
    if (size == 0) throw std::invalid_argument("size must be at least 1");
    if (!std::isfinite(seconds) || seconds < 0) {
        throw std::invalid_argument("seconds must be a number, 0 or more");
    }
}

void send_all(int fd, const std::vector<char>& data) {
    std::size_t offset = 0;
    while (offset < data.size()) {
        const ssize_t sent = ::send(fd, data.data() + offset, data.size() - offset, MSG_NOSIGNAL);
        if (sent > 0) {
            offset += static_cast<std::size_t>(sent);
        } else if (sent < 0 && errno != EINTR) {
            raise("send", errno == EAGAIN ? ETIMEDOUT : errno);
        }
    }
}

// Fills `data`. False when the stream ends, or the socket's own limit passes, before the first byte.
bool receive_all(int fd, std::vector<char>& data) {
    std::size_t offset = 0;
    while (offset < data.size()) {
        const ssize_t got = ::recv(fd, data.data() + offset, data.size() - offset, 0);
        if (got > 0) {
            offset += static_cast<std::size_t>(got);
        } else if (got == 0) {
            if (offset == 0) return false;
            raise("recv", ECONNRESET);
        } else if (errno == EAGAIN) {
            if (offset == 0) return false;
            raise("recv", ETIMEDOUT);
        } else if (errno != EINTR) {
            raise("recv");
        }
    }
    return true;
}

}  // namespace

std::vector<std::int64_t> raw_echo_call(int fd, std::size_t size, double seconds) {
    check(size, seconds);
    limit(fd, SO_SNDTIMEO, seconds_to_ns(kEchoPatience));
    limit(fd, SO_RCVTIMEO, seconds_to_ns(kEchoPatience));
    std::vector<char> ping(size);
    for (std::size_t i = 0; i < size; ++i) ping[i] = static_cast<char>(i % 251 + 1);
    std::vector<char> pong(size);
    std::vector<std::int64_t> times;
    Nanos begin = now_ns();
    const Nanos deadline = begin + seconds_to_ns(seconds);
    while (true) {
        send_all(fd, ping);
        if (!receive_all(fd, pong)) raise("no answer", ETIMEDOUT);
        const Nanos end = now_ns();
        times.push_back(end - begin);
        if (pong != ping) throw std::runtime_error("the answer is not what was sent");
        std::fill(pong.begin(), pong.end(), 0);
        if (end >= deadline) return times;
        begin = now_ns();
    }
}

std::uint64_t raw_echo_serve(int fd, std::size_t size, double seconds_max) {
    check(size, seconds_max);
    limit(fd, SO_SNDTIMEO, seconds_to_ns(kEchoPatience));
    limit(fd, SO_RCVTIMEO, seconds_to_ns(seconds_max));
    std::vector<char> data(size);
    std::uint64_t answered = 0;
    while (receive_all(fd, data)) {
        send_all(fd, data);
        ++answered;
    }
    return answered;
}

}  // namespace antiphon::bench

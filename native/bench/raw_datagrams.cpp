#include "bench/raw_datagrams.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "base/clock.hpp"
#include "bench/sockets.hpp"

namespace antiphon::bench {
namespace {

// In one system call: as many as the kernel's buffers have use for.
constexpr std::size_t kBatch = 64;
constexpr std::size_t kBatchBytes = 256 * 1024;

std::size_t batch_of(std::size_t size) {
    return std::clamp<std::size_t>(kBatchBytes / std::max<std::size_t>(size, 1), 1, kBatch);
}

}  // namespace

void raw_datagrams_send(int fd, std::span<const char> data, std::uint64_t count) {
    if (data.empty()) throw std::invalid_argument("there is nothing to send");
    limit(fd, SO_SNDTIMEO, seconds_to_ns(kDatagramPatience));
    // The kernel only reads it.
    iovec part{const_cast<char*>(data.data()), data.size()};
    std::array<mmsghdr, kBatch> messages{};
    for (mmsghdr& message : messages) {
        message.msg_hdr.msg_iov = &part;
        message.msg_hdr.msg_iovlen = 1;
    }
    const std::size_t batch = batch_of(data.size());
    while (count > 0) {
        const auto now = static_cast<unsigned>(std::min<std::uint64_t>(count, batch));
        const int sent = ::sendmmsg(fd, messages.data(), now, MSG_NOSIGNAL);
        if (sent > 0) {
            count -= static_cast<std::uint64_t>(sent);
        } else if (sent == 0 || errno == ECONNREFUSED || errno == ENOBUFS) {
            --count;  // this one is lost; a refusal is that of an earlier one, told only now
        } else if (errno != EINTR) {
            raise("sendmmsg", errno == EAGAIN ? ETIMEDOUT : errno);
        }
    }
}

Datagrams raw_datagrams_receive(int fd, std::size_t size, double seconds, std::uint8_t mark,
                                std::size_t head) {
    if (size == 0) throw std::invalid_argument("size must be at least 1");
    if (head == 0) throw std::invalid_argument("head must be at least 1");
    if (!std::isfinite(seconds) || seconds < 0) {
        throw std::invalid_argument("seconds must be a number, 0 or more");
    }
    limit(fd, SO_RCVTIMEO, seconds_to_ns(seconds));
    const std::size_t batch = batch_of(size);
    const auto buffer = std::make_unique_for_overwrite<char[]>(batch * size);
    std::array<iovec, kBatch> parts{};
    std::array<mmsghdr, kBatch> messages{};
    for (std::size_t i = 0; i < batch; ++i) {
        parts[i] = {buffer.get() + i * size, size};
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    const std::size_t row = head + sizeof(std::int64_t);
    Datagrams found;
    const Nanos deadline = now_ns() + seconds_to_ns(seconds);
    while (true) {
        // MSG_TRUNC: the length is that of the datagram, also of one that did not fit.
        const int got = ::recvmmsg(fd, messages.data(), static_cast<unsigned>(batch),
                                   MSG_WAITFORONE | MSG_TRUNC, nullptr);
        const Nanos now = now_ns();
        if (got < 0) {
            if (errno == EAGAIN) break;
            if (errno != EINTR) raise("recvmmsg");
        } else {
            const std::int64_t when = now;
            for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i) {
                const std::size_t length = messages[i].msg_len;
                const char* data = buffer.get() + i * size;
                found.bytes += length;
                if (length != size) {
                    ++found.wrong;
                } else if (size >= head && static_cast<std::uint8_t>(*data) == mark) {
                    found.marked.insert(found.marked.end(), data, data + head);
                    const auto* bytes = reinterpret_cast<const char*>(&when);
                    found.marked.insert(found.marked.end(), bytes, bytes + sizeof when);
                }
            }
            found.messages += static_cast<std::uint64_t>(got);
            if (got > 0) found.last_ns = when;
        }
        if (now >= deadline || found.marked.size() >= kMostMarked * row) break;
    }
    return found;
}

}  // namespace antiphon::bench

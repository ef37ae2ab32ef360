#include "groups/datagram_socket.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "groups/datagrams.hpp"

namespace antiphon::groups {

namespace {

constexpr std::size_t kPerCall = 32;
constexpr std::size_t kHeaders = 28;  // of IP and UDP
// Whatever an interface takes: our own heads need room, and IP cuts what is larger.
constexpr std::size_t kLeast = 576 - kHeaders;

[[noreturn]] void fail(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

template <typename Value>
void set(int fd, int level, int option, const Value& value, const std::string& what) {
    if (setsockopt(fd, level, option, &value, sizeof value) != 0) fail(what);
}

struct Interface {
    in_addr address{};
    std::size_t mtu = 1500;
};

// By its address or by its name.
Interface find_interface(const std::string& text, int fd) {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) fail("cannot list network interfaces");
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
    in_addr wanted{};
    const bool by_address = inet_pton(AF_INET, text.c_str(), &wanted) == 1;
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
        const in_addr address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
        if (by_address ? address.s_addr != wanted.s_addr : text != one->ifa_name) continue;
        Interface found{address};
        ifreq request{};
        std::strncpy(request.ifr_name, one->ifa_name, IFNAMSIZ - 1);
        if (ioctl(fd, SIOCGIFMTU, &request) == 0 && request.ifr_mtu > 0) {
            found.mtu = static_cast<std::size_t>(request.ifr_mtu);
        }
        return found;
    }
    throw std::invalid_argument("interface '" + text + "': this machine has none of that name or IPv4 address");
}

// As much as there is to be had; what the kernel gave.
std::size_t buffer(int fd, int forced, int plain, std::size_t bytes) {
    const int wanted = static_cast<int>(std::min<std::size_t>(bytes, 1 << 30));
    if (setsockopt(fd, SOL_SOCKET, forced, &wanted, sizeof wanted) != 0) {
        setsockopt(fd, SOL_SOCKET, plain, &wanted, sizeof wanted);
    }
    int given = 0;
    socklen_t size = sizeof given;
    getsockopt(fd, SOL_SOCKET, plain, &given, &size);
    return static_cast<std::size_t>(std::max(given, 0)) / 2;  // the other half is for its own accounts
}

// What this member multicasts comes back to it: the kernel drops it before it takes room in the buffer.
void ignore_own(int fd, const sockaddr_in& own) {
    const std::uint32_t port = ntohs(own.sin_port), address = ntohl(own.sin_addr.s_addr);
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(SKF_NET_OFF) + 12),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, address, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
    };
    const sock_fprog program{sizeof code / sizeof *code, code};
    // Where it is not permitted, they are dropped when they have come.
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

}  // namespace

DatagramSocket::DatagramSocket(const Options& options) {
    try {
        open(options);
    } catch (...) {
        close();
        throw;
    }
}

void DatagramSocket::close() {
    std::lock_guard lock(life_);
    if (multicast_ >= 0) close_descriptor(multicast_);
    if (unicast_ >= 0) close_descriptor(unicast_);
    multicast_ = unicast_ = -1;
}

void DatagramSocket::open(const Options& options) {
    group_.sin_family = AF_INET;
    group_.sin_port = htons(options.port);
    if (inet_pton(AF_INET, options.address.c_str(), &group_.sin_addr) != 1 ||
        !IN_MULTICAST(ntohl(group_.sin_addr.s_addr))) {
        throw std::invalid_argument("address '" + options.address + "': it must be an IPv4 multicast address");
    }
    const auto make = [] { return ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); };
    multicast_ = open_descriptor(make);
    unicast_ = open_descriptor(make);
    if (multicast_ < 0 || unicast_ < 0) fail("cannot make a datagram socket");
    const Interface interface = find_interface(options.interface, unicast_);
    const std::size_t most = interface.mtu - std::min(interface.mtu, kHeaders);
    mtu_ = std::min(options.mtu != 0 ? options.mtu : std::clamp(most, kLeast, kLargest), kMostDatagram);

    local_.sin_family = AF_INET;
    local_.sin_addr = interface.address;
    const std::string where = options.address + ":" + std::to_string(options.port) + " on " + options.interface;
    if (bind(unicast_, reinterpret_cast<const sockaddr*>(&local_), sizeof local_) != 0) fail("cannot bind " + where);
    socklen_t size = sizeof local_;
    getsockname(unicast_, reinterpret_cast<sockaddr*>(&local_), &size);
    set(unicast_, IPPROTO_IP, IP_MULTICAST_IF, interface.address, "cannot send to " + where);
    set(unicast_, IPPROTO_IP, IP_MULTICAST_TTL, options.ttl, "cannot set the TTL of " + where);
    set(unicast_, IPPROTO_IP, IP_MULTICAST_LOOP, 1, "cannot reach members on this machine by " + where);

    set(multicast_, SOL_SOCKET, SO_REUSEADDR, 1, "cannot share " + where);
    if (bind(multicast_, reinterpret_cast<const sockaddr*>(&group_), sizeof group_) != 0) fail("cannot bind " + where);
    const ip_mreq request{group_.sin_addr, interface.address};
    set(multicast_, IPPROTO_IP, IP_ADD_MEMBERSHIP, request, "cannot join " + where);
    set(multicast_, IPPROTO_IP, IP_MULTICAST_ALL, 0, "cannot join only " + where);
    ignore_own(multicast_, local_);

    receive_buffer_ = buffer(multicast_, SO_RCVBUFFORCE, SO_RCVBUF, options.receive_buffer);
    receive_buffer_ = std::min(receive_buffer_, buffer(unicast_, SO_RCVBUFFORCE, SO_RCVBUF, options.receive_buffer));
    buffer(unicast_, SO_SNDBUFFORCE, SO_SNDBUF, options.receive_buffer);
}

std::size_t DatagramSocket::send(std::vector<Datagram>& datagrams) {
    std::array<mmsghdr, kPerCall> headers;
    std::array<iovec, kPerCall> pieces;
    std::size_t done = 0;
    std::shared_lock lock(life_);
    if (unicast_ < 0) return datagrams.size();
    while (done < datagrams.size()) {
        const std::size_t count = std::min(kPerCall, datagrams.size() - done);
        for (std::size_t i = 0; i < count; ++i) {
            Datagram& one = datagrams[done + i];
            pieces[i] = {one.bytes.data(), one.bytes.size()};
            headers[i] = {};
            headers[i].msg_hdr.msg_name = &one.to;
            headers[i].msg_hdr.msg_namelen = sizeof one.to;
            headers[i].msg_hdr.msg_iov = &pieces[i];
            headers[i].msg_hdr.msg_iovlen = 1;
        }
        const int went = sendmmsg(unicast_, headers.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
        if (went < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN || errno == ENOBUFS) break;
            // No way there, or one that refuses: as if it had been lost. Membership finds out who is away.
            failed.fetch_add(1, std::memory_order_relaxed);
            ++done;
            continue;
        }
        for (int i = 0; i < went; ++i) {
            sent_bytes.fetch_add(datagrams[done + static_cast<std::size_t>(i)].bytes.size(), std::memory_order_relaxed);
        }
        sent.fetch_add(static_cast<std::uint64_t>(went), std::memory_order_relaxed);
        done += static_cast<std::size_t>(went);
    }
    return done;
}

bool DatagramSocket::receive(int fd, const std::function<void(std::string_view, const sockaddr_in&)>& take) {
    // Of the thread, not of the group: one batch at a time lies in it.
    thread_local std::unique_ptr<char[]> memory(new char[kPerCall * (kMostDatagram + 1)]);
    std::array<mmsghdr, kPerCall> headers;
    std::array<iovec, kPerCall> pieces;
    std::array<sockaddr_in, kPerCall> from;
    for (std::size_t i = 0; i < kPerCall; ++i) {
        pieces[i] = {memory.get() + i * (kMostDatagram + 1), kMostDatagram + 1};
        headers[i] = {};
        headers[i].msg_hdr.msg_name = &from[i];
        headers[i].msg_hdr.msg_namelen = sizeof from[i];
        headers[i].msg_hdr.msg_iov = &pieces[i];
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    int count;
    do {
        count = recvmmsg(fd, headers.data(), kPerCall, MSG_DONTWAIT, nullptr);
    } while (count < 0 && errno == EINTR);
    if (count <= 0) return false;
    came.fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
    for (int i = 0; i < count; ++i) {
        const std::string_view bytes(static_cast<const char*>(pieces[static_cast<std::size_t>(i)].iov_base),
                                     headers[static_cast<std::size_t>(i)].msg_len);
        came_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
        // The one place where a datagram could be opened; what does not open is dropped and counted.
        take(bytes, from[static_cast<std::size_t>(i)]);
    }
    return true;
}

}  // namespace antiphon::groups

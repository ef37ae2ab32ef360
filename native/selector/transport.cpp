#include "selector/transport.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/descriptors.hpp"

namespace antiphon {

namespace {

constexpr int kBacklog = 512;

[[noreturn]] void fail(int fd, const std::string& what) {
    const int error = errno;
    if (fd >= 0) close_descriptor(fd);
    throw std::system_error(error, std::generic_category(), what);
}

int stream_socket(int family) {
    return open_descriptor([&] { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

int accept_stream(int listener) {
    return open_descriptor(
        [&] { return accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
}

class Tcp : public Transport {
   public:
    int listen(Address& address) override {
        std::string why;
        const auto endpoints = resolve(address, why);
        if (endpoints.empty()) {
            throw std::system_error(EADDRNOTAVAIL, std::generic_category(), why);
        }
        const Endpoint& endpoint = endpoints.front();
        const int fd = stream_socket(endpoint.storage.ss_family);
        if (fd < 0) fail(fd, "socket");
        const int on = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, reinterpret_cast<const sockaddr*>(&endpoint.storage), endpoint.length) != 0 ||
            ::listen(fd, kBacklog) != 0) {
            fail(fd, "listen on " + address.text());
        }
        Endpoint bound;
        bound.length = sizeof bound.storage;
        getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.length);
        address.port = Address::parse(bound.text()).port;
        return fd;
    }
    void unlisten(const Address&, int) override {}
    int dial(const Address&, const Endpoint& endpoint, BufferSizes sizes) override {
        const int fd = stream_socket(endpoint.storage.ss_family);
        if (fd < 0) return -1;
        // Before connect, so that the window scale fits the buffer.
        set_buffers(fd, sizes);
        const int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return connect_or_close(fd, endpoint);
    }
    int accept(int listener) override {
        const int fd = accept_stream(listener);
        if (fd < 0) return -1;
        const int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return fd;
    }

   protected:
    static int connect_or_close(int fd, const Endpoint& endpoint) {
        if (connect(fd, reinterpret_cast<const sockaddr*>(&endpoint.storage), endpoint.length) == 0 ||
            errno == EINPROGRESS) {
            return fd;
        }
        const int error = errno;
        close_descriptor(fd);
        errno = error;
        return -1;
    }
};

class Unix : public Tcp {
   public:
    Unix() {
        hold_over_fork(mutex_, [this] { files_.clear(); });  // they are the parent's
    }
    int listen(Address& address) override {
        const Endpoint endpoint = Endpoint::unix_path(address.host);
        for (int attempt = 0;; ++attempt) {
            const int fd = stream_socket(AF_UNIX);
            if (fd < 0) fail(fd, "socket");
            if (bind(fd, reinterpret_cast<const sockaddr*>(&endpoint.storage), endpoint.length) == 0) {
                if (::listen(fd, kBacklog) != 0) fail(fd, "listen on " + address.text());
                struct stat made;
                if (stat(address.host.c_str(), &made) == 0) {
                    std::lock_guard lock(mutex_);
                    files_[fd] = {made.st_dev, made.st_ino};
                }
                return fd;
            }
            // A socket file outlives its process. If nobody answers behind it, it is in the way;
            // a file that is no socket is somebody's, and stays.
            const int error = errno;
            struct stat there;
            if (error != EADDRINUSE || attempt != 0 || stat(address.host.c_str(), &there) != 0 ||
                !S_ISSOCK(there.st_mode) || answers(endpoint)) {
                errno = error;
                fail(fd, "listen on " + address.text());
            }
            close_descriptor(fd);
            unlink(address.host.c_str());
        }
    }
    // Only the file that this listener made: somebody may have put another one there.
    void unlisten(const Address& address, int listener) override {
        std::lock_guard lock(mutex_);
        const auto found = files_.find(listener);
        if (found == files_.end()) return;
        struct stat now;
        if (stat(address.host.c_str(), &now) == 0 && File{now.st_dev, now.st_ino} == found->second) {
            unlink(address.host.c_str());
        }
        files_.erase(found);
    }
    int dial(const Address&, const Endpoint& endpoint, BufferSizes sizes) override {
        const int fd = stream_socket(AF_UNIX);
        if (fd < 0) return -1;
        set_buffers(fd, sizes);
        return connect_or_close(fd, endpoint);
    }
    int accept(int listener) override {
        return accept_stream(listener);
    }

   private:
    using File = std::pair<dev_t, ino_t>;
    std::mutex mutex_;
    std::map<int, File> files_;  // what each listener has put into the file system

    static bool answers(const Endpoint& endpoint) {
        const int fd = stream_socket(AF_UNIX);
        if (fd < 0) return true;
        const int status =
            connect(fd, reinterpret_cast<const sockaddr*>(&endpoint.storage), endpoint.length);
        const bool alive = status == 0 || errno == EAGAIN || errno == EINPROGRESS;
        close_descriptor(fd);
        errno = EADDRINUSE;
        return alive;
    }
};

// The listening descriptor is one end of a socket pair; a dialler sends its half of a fresh pair
// through the other end, as SCM_RIGHTS.
class InProcess : public Transport {
   public:
    InProcess() {
        hold_over_fork(mutex_, [this] { doors_.clear(); });  // they were the parent's, and are closed
    }
    int listen(Address& address) override {
        int pair[2];
        if (open_socket_pair(SOCK_DGRAM, pair) != 0) {
            fail(-1, "socketpair");
        }
        std::lock_guard lock(mutex_);
        if (!doors_.emplace(address.host, pair[1]).second) {
            close_descriptor(pair[0]);
            close_descriptor(pair[1]);
            errno = EADDRINUSE;
            fail(-1, "listen on " + address.text());
        }
        return pair[0];
    }
    void unlisten(const Address& address, int) override {
        std::lock_guard lock(mutex_);
        const auto found = doors_.find(address.host);
        if (found == doors_.end()) return;
        close_descriptor(found->second);
        doors_.erase(found);
    }
    int dial(const Address& address, const Endpoint&, BufferSizes sizes) override {
        int pair[2];
        if (open_socket_pair(SOCK_STREAM, pair) != 0) return -1;
        set_buffers(pair[0], sizes);
        set_buffers(pair[1], {sizes.receive, sizes.send});
        int status = -1;
        {
            std::lock_guard lock(mutex_);
            const auto found = doors_.find(address.host);
            if (found == doors_.end()) {
                errno = ECONNREFUSED;
            } else {
                status = pass(found->second, pair[1]);
            }
        }
        const int error = errno;
        close_descriptor(pair[1]);
        if (status == 0) return pair[0];
        close_descriptor(pair[0]);
        errno = error;
        return -1;
    }
    int accept(int listener) override {
        return open_descriptor([&] { return receive(listener); });
    }

   private:
    static int receive(int listener) {
        char byte;
        iovec data{&byte, 1};
        alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))];
        msghdr message{};
        message.msg_iov = &data;
        message.msg_iovlen = 1;
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        if (recvmsg(listener, &message, MSG_CMSG_CLOEXEC) < 0) return -1;
        const cmsghdr* header = CMSG_FIRSTHDR(&message);
        if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
            errno = EPROTO;
            return -1;
        }
        int fd;
        std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
        return fd;
    }

    static int pass(int door, int fd) {
        char byte = 0;
        iovec data{&byte, 1};
        alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
        msghdr message{};
        message.msg_iov = &data;
        message.msg_iovlen = 1;
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
        return sendmsg(door, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
    }

    std::mutex mutex_;
    std::map<std::string, int> doors_;
};

}  // namespace

Transport& transport_for(const Address& address) {
    // Never destroyed: a node may outlive the static objects at exit.
    static auto* tcp = new Tcp;
    static auto* unix_socket = new Unix;
    static auto* in_process = new InProcess;
    switch (address.scheme) {
        case Address::Scheme::unix_socket: return *unix_socket;
        case Address::Scheme::in_process: return *in_process;
        case Address::Scheme::tcp: break;
    }
    return *tcp;
}

void set_buffers(int fd, BufferSizes sizes) {
    if (sizes.send > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sizes.send, sizeof sizes.send);
    if (sizes.receive > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &sizes.receive, sizeof sizes.receive);
}

BufferSizes get_buffers(int fd) {
    BufferSizes sizes;
    socklen_t length = sizeof sizes.send;
    getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sizes.send, &length);
    getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &sizes.receive, &length);
    // The kernel doubles what it is asked for, to pay for its own bookkeeping.
    return {sizes.send / 2, sizes.receive / 2};
}

}  // namespace antiphon

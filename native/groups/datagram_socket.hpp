// The sockets of a group that goes by datagrams: one that hears the multicast address, and one from which
// everything is sent and to which others send what is for this member alone.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptors.hpp"

namespace antiphon::groups {

struct Datagram {
    std::string bytes;
    sockaddr_in to{};
};

struct Came {
    std::string bytes;
    sockaddr_in from{};
};

class DatagramSocket {
   public:
    struct Options {
        std::string address;    // of the multicast group
        std::uint16_t port;
        std::string interface;  // by address or by name
        int ttl = 1;
        std::size_t mtu = 0;  // bytes of a datagram; 0: what the interface takes, at most kLargest
        std::size_t receive_buffer = 8 << 20;
    };
    static constexpr std::size_t kLargest = 32 << 10;

    // Throws std::system_error or std::invalid_argument with a sentence.
    explicit DatagramSocket(const Options& options);
    ~DatagramSocket() { close(); }
    // Waits for whoever is sending, which is a moment. What is sent afterwards counts as lost.
    void close();
    DatagramSocket(const DatagramSocket&) = delete;

    const sockaddr_in& group() const { return group_; }
    const sockaddr_in& local() const { return local_; }  // where others reach this member alone
    std::size_t mtu() const { return mtu_; }
    std::size_t receive_buffer() const { return receive_buffer_; }  // that the kernel gave
    int multicast_fd() const { return multicast_; }
    int unicast_fd() const { return unicast_; }

    // Any thread; never blocks. How many of the first went: the rest did not, because there is no room.
    // Something that can never go counts as gone, as if it had been lost.
    std::size_t send(std::vector<Datagram>& datagrams);
    // On one thread at a time: up to one batch, and each is given to `take`. False: there was nothing.
    bool receive(int fd, const std::function<void(std::string_view, const sockaddr_in&)>& take);

    // Bytes and datagrams that went, and came; and what could not be sent.
    std::atomic<std::uint64_t> sent{0}, sent_bytes{0}, came{0}, came_bytes{0}, failed{0};

   private:
    void open(const Options& options);

    std::shared_mutex life_;  // shared while a descriptor is used
    sockaddr_in group_{}, local_{};
    int multicast_ = -1, unicast_ = -1;
    std::size_t mtu_ = 0, receive_buffer_ = 0;
};

}  // namespace antiphon::groups

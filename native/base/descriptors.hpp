// Every descriptor the core owns, so that a forked child can close them all.
//
// A descriptor that a child inherits keeps the connection open when its parent dies, and hides that
// death from the peer. Opening and closing go through one lock, which fork also takes: a child finds
// the list complete whenever it was made. The child only closes; it never shuts down, and it leaves
// the parent's epoll set alone.
#pragma once

#include <cstdint>
#include <functional>

namespace antiphon {

// Calls `make`, which returns a descriptor or -1, and keeps what it returns.
int open_descriptor(const std::function<int()>& make);
// A pair of connected sockets; 0, or -1 with errno.
int open_socket_pair(int type, int (&pair)[2]);
void close_descriptor(int fd);
// How often this process was forked off another one that used the core.
std::uint32_t fork_generation();

}  // namespace antiphon

// Every descriptor the core owns, so that a forked child can close them all.
//
// A descriptor that a child inherits keeps the connection open when its parent dies, and hides that
// death from the peer. Opening and closing go through one lock, which fork also takes: a child finds
// the list complete whenever it was made. The child only closes; it never shuts down, and it leaves
// the parent's epoll set alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

namespace antiphon {

// Calls `make`, which returns a descriptor or -1, and keeps what it returns.
int open_descriptor(const std::function<int()>& make);
// A pair of connected sockets; 0, or -1 with errno.
int open_socket_pair(int type, int (&pair)[2]);
void close_descriptor(int fd);
// A file, which a disk that does not answer may take for ever to open or close: without the lock, so that nobody else
// waits for it. A child that is forked off in that very moment has it too, which harms nobody.
int open_file(const char* path, int flags, int mode = 0);
void close_file(int fd);
// A lock that is the process's, and not a node's: fork takes it too, before the lock of the descriptors, so that a
// child finds it free. For good; `child` is called in the child, with the lock, which then is released.
void hold_over_fork(std::mutex& mutex, std::function<void()> child);
// How often this process was forked off another one that used the core. Written in a child before it
// has a second thread; asked on every send, hence in line.
inline std::atomic<std::uint32_t> fork_count{0};
inline std::uint32_t fork_generation() { return fork_count.load(std::memory_order_relaxed); }

}  // namespace antiphon

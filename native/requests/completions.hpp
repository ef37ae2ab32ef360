// What an event loop is told: which of its requests are done, which of its inboxes have something. One
// eventfd for all of them, written when the list becomes not empty, so that a loop wakes once for many.
// Nothing happens in a child that was forked off: the descriptor is the parent's.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "base/descriptors.hpp"

namespace antiphon {

class Completions {
   public:
    Completions();  // throws std::system_error when there is no descriptor left
    ~Completions();
    Completions(const Completions&) = delete;

    int fd() const { return fd_; }
    void push(std::uint64_t id);  // any thread
    void push_once(std::uint64_t id);  // unless it is on the list
    std::vector<std::uint64_t> take();

   private:
    bool forked() const { return fork_generation() != generation_; }

    const std::uint32_t generation_ = fork_generation();
    int fd_;
    std::mutex mutex_;
    std::vector<std::uint64_t> ids_;
    std::unordered_set<std::uint64_t> once_;
};

}  // namespace antiphon

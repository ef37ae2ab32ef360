// What an event loop is told: which of its requests are done. One eventfd for all of them, written when
// the list becomes not empty, so that a loop wakes once for many.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace antiphon {

class Completions {
   public:
    Completions();  // throws std::system_error when there is no descriptor left
    ~Completions();
    Completions(const Completions&) = delete;

    int fd() const { return fd_; }
    void push(std::uint64_t id);  // any thread
    std::vector<std::uint64_t> take();

   private:
    int fd_;
    std::mutex mutex_;
    std::vector<std::uint64_t> ids_;
};

}  // namespace antiphon

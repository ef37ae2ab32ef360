// The selector thread: epoll, timers, posted calls, and the interest queue's wake-up.
//
// Everything that touches a descriptor's registration runs on this thread. Other threads leave a
// call or an interest and wake it, and only when it sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.hpp"

struct epoll_event;

namespace antiphon {

class Watcher {
   public:
    virtual ~Watcher() = default;
    // Bits of EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP. On the selector thread.
    virtual void ready(std::uint32_t events) = 0;
};

class Selector {
   public:
    Selector();
    ~Selector();

    // `bulk` is called before every sleep and returns true when it must be called again at once.
    // What one call, timer or watcher throws goes to `failed`; the loop goes on.
    void start(std::function<bool()> bulk, std::function<void(const char*)> failed);
    // The loop ends after its current turn. Joins, unless called on the selector thread itself.
    void stop();

    // --- any thread ----------------------------------------------------------------------------
    // Makes the loop take another turn, if it sleeps. Costs a load when it does not.
    void wake();
    void post(std::function<void()> call);
    bool on_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

    // --- selector thread -----------------------------------------------------------------------
    void watch(int fd, std::uint32_t events, Watcher* watcher);
    void change(int fd, std::uint32_t events, Watcher* watcher);
    // Reports nothing of it, not even errors, until change().
    void pause(int fd);
    void unwatch(int fd, Watcher* watcher);
    std::uint64_t at(Nanos when, std::function<void()> call);
    void cancel(std::uint64_t timer);
    Nanos now() const { return now_; }
    // Whether timers below a millisecond are kept; old kernels round them up.
    bool precise() const { return precise_; }
    std::uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

   private:
    void loop();
    int sleep(epoll_event* events, int most, Nanos timeout);
    bool run_posted();
    void run_timers();

    int epoll_ = -1, wake_ = -1;
    bool precise_ = false;
    template <typename Call>
    void guarded(Call&& call);

    std::function<bool()> bulk_;
    std::function<void(const char*)> failed_;
    std::thread thread_;
    // Stored by the loop before it sleeps, then everything is looked at once more; exchanged by the
    // thread that brings work after it has left the work. Both sequentially consistent.
    std::atomic<bool> asleep_{false};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::vector<std::function<void()>> posted_;
    std::multimap<Nanos, std::pair<std::uint64_t, std::function<void()>>> timers_;
    std::uint64_t next_timer_ = 1;
    Nanos now_ = 0;
    std::vector<Watcher*> gone_;  // unwatched during this turn: their events are stale
    std::atomic<std::uint64_t> turns_{0};
};

}  // namespace antiphon

// The selector thread: epoll, timers, posted calls, and the interest queue's wake-up.
//
// What belongs to the selector belongs to whoever has the turn. That is the selector's own thread
// while it does not sleep; another thread may take the turn for a moment, to do at once what it would
// otherwise have to ask for. Most leave a call or an interest and wake the thread, and only when it
// sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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

    // The turn of the selector, taken by another thread for a few instructions and system calls that
    // do not block. Never while this thread has it already, or holds any lock.
    class Turn {
       public:
        explicit Turn(Selector& selector);                   // waits for it
        Turn(Selector& selector, std::try_to_lock_t);
        ~Turn();
        Turn(const Turn&) = delete;
        explicit operator bool() const { return selector_ != nullptr; }

       private:
        void begin();
        Selector* selector_;
    };
    bool has_turn() const { return turn_of_ == this; }

    // --- with the turn -------------------------------------------------------------------------
    void watch(int fd, std::uint32_t events, Watcher* watcher);
    void change(int fd, std::uint32_t events, Watcher* watcher);
    // Reports nothing of it, not even errors, until change().
    void pause(int fd);
    void unwatch(int fd, Watcher* watcher);
    // Keeps what is no longer watched until the next sleep. Whoever has called it further up the stack asks
    // by its address whether it is still there, and must not find a newcomer at the same one.
    void bury(std::unique_ptr<Watcher> watcher) { buried_.push_back(std::move(watcher)); }
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
    // The turn. What is below it is changed with it.
    std::mutex turn_;
    std::atomic<int> wanted_{0};  // raised by those who wait for it; the loop lets them go first
    static thread_local const Selector* turn_of_;
    Nanos sleeps_until_ = 0;
    std::mutex mutex_;  // of posted_ only
    std::vector<std::function<void()>> posted_;
    std::multimap<Nanos, std::pair<std::uint64_t, std::function<void()>>> timers_;
    std::uint64_t next_timer_ = 1;
    Nanos now_ = 0;
    std::vector<Watcher*> gone_;  // unwatched during this turn: their events are stale
    std::vector<std::unique_ptr<Watcher>> buried_;
    std::atomic<std::uint64_t> turns_{0};
};

}  // namespace antiphon

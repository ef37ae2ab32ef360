#include "selector/selector.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "base/descriptors.hpp"

namespace antiphon {

namespace {

constexpr int kPolite = 100;

}  // namespace

thread_local const Selector* Selector::turn_of_ = nullptr;

Selector::Turn::Turn(Selector& selector) : selector_(&selector) {
    selector_->wanted_.fetch_add(1, std::memory_order_relaxed);
    selector_->turn_.lock();
    selector_->wanted_.fetch_sub(1, std::memory_order_relaxed);
    begin();
}

Selector::Turn::Turn(Selector& selector, std::try_to_lock_t)
    : selector_(selector.turn_.try_lock() ? &selector : nullptr) {
    if (selector_) begin();
}

void Selector::Turn::begin() {
    turn_of_ = selector_;
    selector_->now_ = now_ns();
}

Selector::Turn::~Turn() {
    if (!selector_) return;
    const auto& timers = selector_->timers_;
    const bool sooner = !timers.empty() && timers.begin()->first < selector_->sleeps_until_;
    turn_of_ = nullptr;
    selector_->turn_.unlock();
    if (sooner) selector_->wake();
}

Selector::Selector() {
    epoll_ = open_descriptor([] { return epoll_create1(EPOLL_CLOEXEC); });
    wake_ = open_descriptor([] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
    epoll_event event{EPOLLIN, {}};
    event.data.ptr = nullptr;
    if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) {
        const int error = errno;
        if (epoll_ >= 0) close_descriptor(epoll_);
        if (wake_ >= 0) close_descriptor(wake_);
        throw std::system_error(error, std::generic_category(), "cannot set up epoll");
    }
    epoll_event none;
    const timespec now{0, 0};
    precise_ = syscall(SYS_epoll_pwait2, epoll_, &none, 1, &now, nullptr, std::size_t{0}) >= 0;
}

// A negative timeout sleeps until something happens.
int Selector::sleep(epoll_event* events, int most, Nanos timeout) {
    if (precise_) {
        const timespec length{timeout / kSecond, timeout % kSecond};
        return static_cast<int>(syscall(SYS_epoll_pwait2, epoll_, events, most,
                                        timeout < 0 ? nullptr : &length, nullptr, std::size_t{0}));
    }
    // Rounded up, or the last part of a millisecond would be spent spinning.
    const auto milliseconds = std::min<Nanos>((timeout + kMillisecond - 1) / kMillisecond, 60'000);
    return epoll_wait(epoll_, events, most, timeout < 0 ? -1 : static_cast<int>(milliseconds));
}

Selector::~Selector() {
    stop();
    if (epoll_ >= 0) close_descriptor(epoll_);
    if (wake_ >= 0) close_descriptor(wake_);
}

template <typename Call>
void Selector::guarded(Call&& call) {
    try {
        call();
    } catch (const std::exception& error) {
        failed_(error.what());
    }
}

void Selector::start(std::function<bool()> bulk, std::function<void(const char*)> failed) {
    bulk_ = std::move(bulk);
    failed_ = std::move(failed);
    thread_ = std::thread([this] { loop(); });
}

void Selector::stop() {
    stopping_.store(true, std::memory_order_seq_cst);
    if (!thread_.joinable() || on_this_thread()) return;
    wake();
    thread_.join();
}

void Selector::wake() {
    if (!asleep_.load(std::memory_order_seq_cst)) return;
    if (!asleep_.exchange(false, std::memory_order_seq_cst)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] ssize_t ignored = write(wake_, &one, sizeof one);
}

void Selector::post(std::function<void()> call) {
    {
        std::lock_guard lock(mutex_);
        posted_.push_back(std::move(call));
    }
    wake();
}

void Selector::watch(int fd, std::uint32_t events, Watcher* watcher) {
    epoll_event event{events, {}};
    event.data.ptr = watcher;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
        throw std::system_error(errno, std::generic_category(), "cannot watch a descriptor");
    }
}

void Selector::change(int fd, std::uint32_t events, Watcher* watcher) {
    epoll_event event{events, {}};
    event.data.ptr = watcher;
    if (epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) != 0 && errno == ENOENT) {
        epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    }
}

void Selector::pause(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

void Selector::unwatch(int fd, Watcher* watcher) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
    gone_.push_back(watcher);
}

std::uint64_t Selector::at(Nanos when, std::function<void()> call) {
    const std::uint64_t id = next_timer_++;
    timers_.emplace(when, std::pair{id, std::move(call)});
    return id;
}

void Selector::cancel(std::uint64_t timer) {
    std::erase_if(timers_, [&](const auto& entry) { return entry.second.first == timer; });
}

bool Selector::run_posted() {
    std::vector<std::function<void()>> calls;
    {
        std::lock_guard lock(mutex_);
        calls.swap(posted_);
    }
    for (auto& call : calls) guarded(call);
    return !calls.empty();
}

void Selector::run_timers() {
    // Those that are set meanwhile wait for the next turn, or one that is due at once would never let go.
    const std::uint64_t before = next_timer_;
    for (;;) {
        auto next = timers_.begin();
        while (next != timers_.end() && next->first <= now_ && next->second.first >= before) ++next;
        if (next == timers_.end() || next->first > now_) return;
        auto call = std::move(next->second.second);
        timers_.erase(next);
        guarded(call);
    }
}

void Selector::loop() {
    std::array<epoll_event, 128> events;
    // The default slack of 50 us is as long as the timers that matter here.
    prctl(PR_SET_TIMERSLACK, 1000UL);
    prctl(PR_SET_NAME, "ap-selector");
    turn_.lock();
    turn_of_ = this;
    while (!stopping_.load(std::memory_order_seq_cst)) {
        now_ = now_ns();
        run_posted();
        run_timers();
        bool busy = false;
        guarded([&] { busy = bulk_(); });
        Nanos timeout = 0;
        if (!busy) {
            // Say that we sleep, then look once more: whoever left work before we said so is found
            // here, whoever comes after sees the flag and writes to the eventfd.
            asleep_.store(true, std::memory_order_seq_cst);
            guarded([&] { busy = bulk_(); });
            busy = run_posted() || busy || stopping_.load(std::memory_order_seq_cst);
        }
        sleeps_until_ = 0;
        if (!busy) {
            sleeps_until_ = timers_.empty() ? kNever : timers_.begin()->first;
            timeout = timers_.empty() ? -1 : std::max<Nanos>(0, sleeps_until_ - now_ns());
        }
        gone_.clear();
        buried_.clear();
        turn_of_ = nullptr;
        turn_.unlock();
        const int count = sleep(events.data(), static_cast<int>(events.size()), timeout);
        asleep_.store(false, std::memory_order_seq_cst);
        // A busy loop would take its turn back before those who wait for it are awake.
        for (int i = 0; i < kPolite && wanted_.load(std::memory_order_relaxed) != 0; ++i) sched_yield();
        turn_.lock();
        turn_of_ = this;
        turns_.fetch_add(1, std::memory_order_relaxed);
        now_ = now_ns();
        for (int i = 0; i < count; ++i) {
            auto* watcher = static_cast<Watcher*>(events[i].data.ptr);
            if (watcher == nullptr) {
                std::uint64_t drained;
                [[maybe_unused]] ssize_t ignored = read(wake_, &drained, sizeof drained);
            } else if (std::find(gone_.begin(), gone_.end(), watcher) == gone_.end()) {
                guarded([&] { watcher->ready(events[i].events); });
            }
        }
    }
    turn_of_ = nullptr;
    turn_.unlock();
}

}  // namespace antiphon

#include "scheduler/timers.hpp"

#include <sys/prctl.h>

#include <system_error>

#include "base/wait.hpp"

namespace antiphon {

bool Timers::begin() {
    if (stopped_) return false;
    if (thread_.joinable()) return true;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
        return false;
    }
    return true;
}

bool Timers::add(Ticker& ticker, Nanos first, Nanos period) {
    std::lock_guard lock(mutex_);
    if (!begin()) return false;
    due_.emplace(first, TimerEntry{first, period, 0, &ticker, nullptr});
    changed_.notify_one();
    return true;
}

bool Timers::set(Alarm& alarm, Nanos at) {
    std::lock_guard lock(mutex_);
    if (stopped_) return false;  // where it was is gone as well
    if (alarm.set_) due_.erase(alarm.place_);
    alarm.set_ = false;
    if (at == kNever) return true;
    if (!begin()) return false;
    alarm.place_ = due_.emplace(at, TimerEntry{at, 0, 0, &alarm, &alarm});
    alarm.set_ = true;
    if (alarm.place_ == due_.begin()) changed_.notify_one();
    return true;
}

void Timers::remove(Ticker& ticker) {
    std::lock_guard lock(mutex_);
    std::erase_if(due_, [&](const auto& entry) { return entry.second.ticker == &ticker; });
}

void Timers::stop() {
    {
        std::lock_guard lock(mutex_);
        stopped_ = true;
        due_.clear();
        changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
}

void Timers::run() {
    prctl(PR_SET_NAME, "ap-timer");
    prctl(PR_SET_TIMERSLACK, 1);
    std::unique_lock lock(mutex_);
    while (!stopped_) {
        if (due_.empty()) {
            wait_until(changed_, lock, kNever);
            continue;
        }
        const Nanos next = due_.begin()->first;
        const Nanos now = now_ns();
        if (now < next) {
            wait_until(changed_, lock, next);
            continue;
        }
        if (Alarm* const alarm = due_.begin()->second.alarm) {
            due_.erase(due_.begin());
            alarm->set_ = false;
            alarm->tick(next, 1, 0);
            continue;
        }
        auto node = due_.extract(due_.begin());
        TimerEntry& entry = node.mapped();
        // The last deadline that has passed counts; those before it were missed.
        const std::uint64_t skipped = static_cast<std::uint64_t>((now - next) / entry.period);
        entry.number += skipped;
        entry.ticker->tick(next + static_cast<Nanos>(skipped) * entry.period, entry.number + 1, skipped);
        ++entry.number;
        node.key() = entry.first + static_cast<Nanos>(entry.number) * entry.period;
        due_.insert(std::move(node));
    }
}

}  // namespace antiphon

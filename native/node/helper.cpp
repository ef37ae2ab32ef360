#include "node/helper.hpp"

#include <sys/prctl.h>

#include <system_error>

namespace antiphon {

bool Helper::ask(std::function<std::function<void()>()> job) {
    std::lock_guard lock(state_->mutex);
    if (state_->stopped) return true;  // nobody waits for it any more
    state_->jobs.push_back(std::move(job));
    if (state_->idle < static_cast<int>(state_->jobs.size()) && threads_.size() < kMostThreads) {
        try {
            threads_.emplace_back([state = state_] { run(state); });
        } catch (const std::system_error&) {
            if (threads_.empty()) {
                state_->jobs.pop_back();
                return false;
            }
        }
    }
    state_->work.notify_one();
    return true;
}

void Helper::run(const std::shared_ptr<State>& state) {
    prctl(PR_SET_NAME, "ap-helper");
    std::unique_lock lock(state->mutex);
    while (!state->stopped) {
        if (state->jobs.empty()) {
            ++state->idle;
            state->work.wait(lock);
            --state->idle;
            continue;
        }
        auto job = std::move(state->jobs.front());
        state->jobs.pop_front();
        lock.unlock();
        std::function<void()> result = job();
        lock.lock();
        if (!state->stopped) state->post(std::move(result));
    }
}

void Helper::stop() {
    bool all_idle;
    {
        std::lock_guard lock(state_->mutex);
        state_->stopped = true;
        state_->jobs.clear();
        state_->work.notify_all();
        all_idle = state_->idle == static_cast<int>(threads_.size());
    }
    for (std::thread& thread : threads_) {
        if (all_idle) {
            thread.join();
        } else {
            thread.detach();  // they hold nothing of the node
        }
    }
    threads_.clear();
}

}  // namespace antiphon

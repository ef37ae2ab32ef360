#include "node/helper.hpp"

#include <sys/prctl.h>

namespace antiphon {

void Helper::ask(std::function<std::function<void()>()> job) {
    std::lock_guard lock(state_->mutex);
    if (state_->stopped) return;
    state_->jobs.push_back(std::move(job));
    if (!thread_.joinable()) thread_ = std::thread([state = state_] { run(state); });
    state_->work.notify_one();
}

void Helper::run(const std::shared_ptr<State>& state) {
    prctl(PR_SET_NAME, "ap-helper");
    std::unique_lock lock(state->mutex);
    while (!state->stopped) {
        if (state->jobs.empty()) {
            state->work.wait(lock);
            continue;
        }
        auto job = std::move(state->jobs.front());
        state->jobs.pop_front();
        state->busy = true;
        lock.unlock();
        std::function<void()> result = job();
        lock.lock();
        state->busy = false;
        if (!state->stopped) state->post(std::move(result));
    }
}

void Helper::stop() {
    bool busy;
    {
        std::lock_guard lock(state_->mutex);
        state_->stopped = true;
        state_->jobs.clear();
        state_->work.notify_all();
        busy = state_->busy;
    }
    if (!thread_.joinable()) return;
    if (busy) {
        thread_.detach();
    } else {
        thread_.join();
    }
}

}  // namespace antiphon

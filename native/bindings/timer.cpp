#include "bindings/timer.hpp"

#include <algorithm>

#include "bindings/event.hpp"

namespace antiphon::python {

namespace {

// A call that begins later than this part of its period, and than that, counts as late.
constexpr Nanos kLatePart = 10, kLateLeast = kMillisecond;

std::int64_t wall_clock_at(Nanos moment) { return wall_clock_ns() - (now_ns() - moment); }

}  // namespace

void TimerTask::tick(Nanos intended, std::uint64_t number, std::uint64_t skipped) {
    if (skipped != 0) missed.fetch_add(skipped, std::memory_order_relaxed);
    if (due_.load(std::memory_order_seq_cst) != 0) {
        missed.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    number_ = number;
    missed_before_ = missed.load(std::memory_order_relaxed);
    due_.store(intended, std::memory_order_seq_cst);  // only this thread does
    node_.scheduler().notify(*this);
}

bool TimerTask::run_slice(Nanos) {
    const Nanos intended = due_.load(std::memory_order_seq_cst);
    if (intended == 0) return false;
    Entered entered;
    const Nanos began = now_ns();
    const Nanos lag = began - intended;
    lateness.add(lag);
    if (lag > std::max(kLateLeast, period_ / kLatePart)) late.store(late.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (call_) {
        Reference call = Reference::share(call_.get()), on_error = Reference::share(on_error_.get());
        Reference result, event;
        if (wants_event_) {
            event = Reference::steal(make_timer_event(wall_clock_at(intended), number_,
                                                      static_cast<std::uint32_t>(missed_before_ - told_missed_),
                                                      static_cast<double>(lag) / 1e9));
            told_missed_ = missed_before_;
        }
        if (!wants_event_ || event) {
            PyObject* arguments[] = {nullptr, event.get()};
            result = Reference::steal(
                call_python(call.get(), arguments + 1, (wants_event_ ? 1 : 0) | PY_VECTORCALL_ARGUMENTS_OFFSET));
        }
        if (!result) {
            failed.store(failed.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
            Reference exception = take_exception();
            Reference done = exception ? call_one(on_error.get(), exception.get()) : Reference{};
            if (!done) PyErr_WriteUnraisable(on_error.get());
        }
    }
    calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    due_.store(0, std::memory_order_seq_cst);
    return false;
}

Timer::Timer(std::shared_ptr<Node> node, double period, Reference call, Reference on_error, bool wants_event)
    : node_(std::move(node)), task_(std::make_shared<TimerTask>(*node_)) {
    task_->period_ = std::max<Nanos>(1, seconds_to_ns(period));
    task_->call_ = std::move(call);
    task_->on_error_ = std::move(on_error);
    task_->wants_event_ = wants_event;
}

bool Timer::start() {
    if (closed_ || started_) return started_;
    started_ = node_->timers().add(*task_, now_ns() + task_->period_, task_->period_);
    return started_;
}

Timer::~Timer() {
    if (node_->forked()) {
        new std::shared_ptr<Node>(std::move(node_));
        new std::shared_ptr<TimerTask>(std::move(task_));
        return;
    }
    close();
    PyErr_Clear();
}

bool Timer::close() {
    if (node_->forked()) return true;  // it is the parent's
    closed_ = true;
    bool raised = false;
    {
        Released released;
        if (started_) node_->timers().remove(*task_);
        const Interrupted* interrupted = released.interrupted();
        for (bool in_a_ring = false; !raised && !in_a_ring;) {
            const Nanos point = interrupted ? now_ns() + 100 * kMillisecond : kNever;
            if (node_->scheduler().forget(*task_, point, &in_a_ring)) break;
            raised = interrupted && (*interrupted)();
        }
    }
    task_->call_ = {};
    task_->on_error_ = {};
    // Perhaps this is its own call, or one that was not waited for: it goes on after the last reference.
    node_->scheduler().keep_while_running(task_);
    return !raised;
}

}  // namespace antiphon::python

#include "bindings/tasks.hpp"

#include <algorithm>
#include <cstring>

#include "bindings/answer.hpp"
#include "bindings/batch.hpp"

namespace antiphon::python {

namespace {

// Quick handlers are not charged a look at the clock per call: the distance between two looks grows
// while they come soon after each other, and falls back to one call when a call was slow.
constexpr std::uint32_t kCallsPerLook = 16;
constexpr Nanos kSoon = 50 * kMicrosecond;
constexpr std::size_t kMostEvents = 4096;

}  // namespace

namespace {

using Calls = HandlerTask::Calls;

}  // namespace

void HandlerTask::Calls::report(std::uint16_t source, std::string* told) const {
    Reference exception = take_exception();
    if (told != nullptr && exception) *told = describe(exception.get());
    Reference kind_number = Reference::steal(PyLong_FromLong(kind));
    Reference id = Reference::steal(PyLong_FromLong(source));
    PyObject* arguments[] = {nullptr, kind_number.get(), id.get(), exception ? exception.get() : Py_None};
    Reference done;
    if (kind_number && id) {
        done = Reference::steal(call_python(on_error.get(), arguments + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET));
    }
    if (!done) PyErr_WriteUnraisable(on_error.get());
}

namespace {

// What the handler returned, or null, with the failure reported.
Reference call(const Calls& handler, PyObject* source, std::uint16_t id, Reference data, std::uint64_t& failed,
               std::string* told = nullptr) {
    if (data && handler.decode) {
        data = call_one(handler.decode.get(), data.get());
    }
    if (data) {
        PyObject* arguments[] = {nullptr, source, data.get()};
        Reference result = Reference::steal(
            call_python(handler.call.get(), arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET));
        if (result) return result;
    }
    ++failed;
    handler.report(id, told);
    return {};
}

}  // namespace

HandlerTask::~HandlerTask() {
    if (!node_->forked()) end();
}

void HandlerTask::end() {
    if (ended_.exchange(true)) return;
    if (begun_) {
        leave_rest();
        node_->finish(run_);
        begun_ = false;
    }
    registration_->queue->end(slice_);
}

// What was not handed out: whoever asked is told when the run is finished.
void HandlerTask::leave_rest() {
    run_.first = run_.last - cursor_.left();
    run_.begun = run_.first == run_.last;
}

bool HandlerTask::run_slice(Nanos until) {
    TaskQueue& queue = *registration_->queue;
    // The interpreter's lock is taken once per slice, and only when there is something to hand over.
    if (begun_ || queue.pop(run_, slice_)) {
        Entered entered;
        const Nanos began = now_ns();
        do {
            if (!begun_) {
                cursor_ = RunCursor(run_);
                begun_ = run_.begun = true;
            }
            handle(until);
            if (begun_) break;
        } while (now_ns() < until && !outranked() && queue.pop(run_, slice_));
        handler_->busy_ns.fetch_add(static_cast<std::uint64_t>(now_ns() - began), std::memory_order_relaxed);
    }
    return begun_ || !queue.empty();
}

void HandlerTask::handle(Nanos until) {
    Handler& handler = *handler_;
    const std::uint32_t before = cursor_.left();
    std::uint64_t failed = 0, calls = 0;
    const Calls calls_to(handler);
    const TaskQueue& queue = *registration_->queue;
    Reference source = Reference::steal(PyLong_FromLong(run_.source));
    if (queue.closed() || !source || !calls_to.call) {
        // Nobody is to see these any more.
    } else if (handler.batch) {
        call(calls_to, source.get(), run_.source, Reference::steal(make_batch(run_, cursor_)), failed);
        ++calls;
        failed *= before;
    } else {
        const char* data;
        std::size_t size;
        std::uint32_t distance = 1, to_look = 1;
        Nanos looked = now_ns();
        const std::uint32_t per_credit = Node::messages_per_credit(run_);
        while (cursor_.left() != 0) {
            const std::uint32_t done = run_.size() - cursor_.left();
            if (done - run_.done >= per_credit) node_->progress(run_, done);
            cursor_.next(data, size);
            if (run_.request) {
                answer_request(calls_to, source.get(), data, size, failed);
                ++calls;
                const Nanos now = now_ns();
                if (now >= until || queue.closed() || outranked()) break;
                continue;
            }
            call(calls_to, source.get(), run_.source,
                 Reference::steal(PyBytes_FromStringAndSize(data, static_cast<Py_ssize_t>(size))), failed);
            ++calls;
            if (--to_look != 0) continue;
            const Nanos now = now_ns();
            if (now >= until || queue.closed() || outranked()) break;
            distance = now - looked < kSoon ? std::min(distance * 2, kCallsPerLook) : 1;
            to_look = distance;
            looked = now;
        }
    }
    account(before, handler.batch ? 0 : cursor_.left(), calls, failed);
}

void HandlerTask::account(std::uint32_t before, std::uint32_t left, std::uint64_t calls, std::uint64_t failed) {
    handler_->handled.fetch_add(before - left, std::memory_order_relaxed);
    handler_->calls.fetch_add(calls, std::memory_order_relaxed);
    handler_->failed.fetch_add(failed, std::memory_order_relaxed);
    if (left != 0 && !registration_->queue->closed()) {
        node_->progress(run_, run_.size() - left);
    } else {
        if (left != 0) leave_rest();
        node_->finish(run_);
        begun_ = false;
        registration_->queue->done(slice_);
    }
}

// Hands a request to the handler and sends back what it returns.
void HandlerTask::answer_request(const Calls& handler, PyObject* source, const char* data, std::size_t size,
                                 std::uint64_t& failed) {
    std::uint64_t id;
    std::memcpy(&id, data, kRequestPrefix);
    std::string told;
    Reference result = call(handler, source, run_.source,
                            Reference::steal(PyBytes_FromStringAndSize(
                                data + kRequestPrefix, static_cast<Py_ssize_t>(size - kRequestPrefix))),
                            failed, &told);
    const bool urgent = cursor_.left() == 0 && registration_->queue->empty();
    Answer answer(*node_, run_, handler.kind, id);
    const bool returned = static_cast<bool>(result);
    if (!returned || !answer.encode(std::move(result), handler.kind_of.get(), handler.encode.get())) {
        if (returned) {
            ++failed;
            handler.report(run_.source, &told);
        }
        answer.fail(std::move(told));
    }
    if (!answer.try_send(urgent)) answer.send();
}

void EventTask::push(Event event) {
    {
        std::lock_guard lock(mutex_);
        if (events_.size() >= kMostEvents) {
            events_.pop_front();
            lost_.fetch_add(1, std::memory_order_relaxed);
        }
        events_.push_back(std::move(event));
    }
    if (auto node = node_.lock()) node->scheduler().notify(*this);
}

void EventTask::set_call(Reference call) { call_ = std::move(call); }

bool EventTask::next(Event& event) {
    const std::uint64_t lost = lost_.load(std::memory_order_relaxed) - told_lost_;
    if (lost != 0 && (events_.empty() || now_ns() >= tell_after_)) {
        told_lost_ += lost;
        tell_after_ = now_ns() + kSecond;
        event = {Event::Type::warning, 0,
                 std::to_string(lost) + " events of connections were dropped: on_connected, on_disconnected or what logs "
                                        "warnings takes too long, and more than " +
                     std::to_string(kMostEvents) + " waited"};
        return true;
    }
    if (events_.empty()) return false;
    event = std::move(events_.front());
    events_.pop_front();
    return true;
}

bool EventTask::run_slice(Nanos until) {
    Entered entered;
    for (;;) {
        Event event;
        {
            std::lock_guard lock(mutex_);
            if (now_ns() >= until) return true;
            if (!next(event)) return false;
        }
        if (!call_) continue;
        Reference call = Reference::share(call_.get());
        Reference type = Reference::steal(PyLong_FromLong(static_cast<long>(event.type)));
        Reference peer = Reference::steal(PyLong_FromLong(event.peer));
        Reference reason = Reference::steal(PyUnicode_DecodeUTF8(
            event.reason.data(), static_cast<Py_ssize_t>(event.reason.size()), "replace"));
        PyObject* arguments[] = {nullptr, type.get(), peer.get(), reason.get()};
        Reference done;
        if (type && peer && reason) {
            done = Reference::steal(call_python(call.get(), arguments + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET));
        }
        if (!done) PyErr_WriteUnraisable(call.get());
    }
}

}  // namespace antiphon::python

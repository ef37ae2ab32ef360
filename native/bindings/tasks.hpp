// Python on the scheduler's threads: handlers of messages, and of connections that come and go.
#pragma once

#include <deque>
#include <memory>

#include "bindings/python.hpp"

namespace antiphon::python {

// What all tasks of one registration share.
struct Handler {
    Reference call;
    Reference decode;    // null for raw kinds
    Reference on_error;  // called with (kind, source, exception)
    Reference kind_of, encode;  // of typed answers
    bool batch = false;
    std::uint16_t kind = 0;
    // Written by the task's thread, read for statistics.
    std::atomic<std::uint64_t> handled{0}, failed{0}, busy_ns{0}, calls{0};
};

// One of the threads' worth of work on a registration's queue.
class HandlerTask : public Task {
   public:
    HandlerTask(std::shared_ptr<Node> node, std::shared_ptr<Registration> registration,
                std::shared_ptr<Handler> handler)
        : node_(std::move(node)), registration_(std::move(registration)), handler_(std::move(handler)) {
        registration_->queue->begin(slice_);
    }
    ~HandlerTask() override;
    bool run_slice(Nanos until) override;

    struct Calls;

   private:
    void handle(Nanos until);
    void leave_rest();
    void answer_request(const Calls& handler, PyObject* source, const char* data, std::size_t size,
                        std::uint64_t& failed);

    std::shared_ptr<Node> node_;
    std::shared_ptr<Registration> registration_;
    std::shared_ptr<Handler> handler_;
    Run run_;  // begun and not finished
    RunCursor cursor_;
    bool begun_ = false;
    TaskQueue::Slice slice_;
};

// Connections that came and went, in order, one at a time.
class EventTask : public Task {
   public:
    explicit EventTask(std::weak_ptr<Node> node) : node_(std::move(node)) {}
    void push(Event event);
    bool run_slice(Nanos until) override;
    void set_call(Reference call);  // with the interpreter's lock; null drops it

   private:
    std::weak_ptr<Node> node_;
    std::mutex mutex_;
    std::deque<Event> events_;
    Reference call_;  // with the interpreter's lock
};

}  // namespace antiphon::python

// Python on the scheduler's threads: handlers of messages, and of connections that come and go.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "bindings/python.hpp"

namespace antiphon::python {

class Acks;
class Route;

// What all tasks of one registration share.
struct Handler {
    Reference call;
    Reference decode;    // null for raw kinds
    Reference on_error;  // called with (kind, source, exception)
    Reference kind_of, encode;  // of typed answers
    std::unordered_map<std::uint64_t, Reference> topics;  // of a subscription: their names, str
    bool batch = false;
    // Of a subscription that passes its events on: by whose they are, and how long it waits for room. The
    // call is asked for a route that is not there, with (source, number, topic, whether it retains).
    bool relays = false;
    Nanos patience = 0;
    Reference ended;  // called with (node, flow) when one was ended for want of room
    std::unordered_map<std::uint64_t, std::shared_ptr<Route>> routes;
    // Of a subscription whose events are acknowledged; null: of no other. Set before the first event.
    std::shared_ptr<Acks> acks;
    bool manual = false;  // the program does it
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
    // The scheduler has forgotten it: gives back what it holds. What it has counted stays.
    void end();
    bool run_slice(Nanos until) override;
    std::uint64_t handled() const override { return handler_->handled.load(std::memory_order_relaxed); }
    bool filled() override { return registration_->queue->filled(); }

    struct Calls;

   protected:
    // Hands messages of the current run to the handler until the run or the slice ends.
    virtual void handle(Nanos until);
    // What was done of the current run, from where `before` were left.
    void account(std::uint32_t before, std::uint32_t left, std::uint64_t calls, std::uint64_t failed);
    void leave_rest();

   private:
    void answer_request(const Calls& handler, PyObject* source, const char* data, std::size_t size,
                        std::uint64_t& failed);

   protected:
    std::shared_ptr<Node> node_;
    std::shared_ptr<Registration> registration_;
    std::shared_ptr<Handler> handler_;
    Run run_;  // begun and not finished
    RunCursor cursor_;
    bool begun_ = false;
    std::atomic<bool> ended_{false};  // by whoever is the first to call end(), which may be several
    TaskQueue::Slice slice_;
};

// What one turn calls. Its own references: a handler may close its registration while it runs.
struct HandlerTask::Calls {
    explicit Calls(const Handler& handler)
        : call(Reference::share(handler.call.get())),
          decode(Reference::share(handler.decode.get())),
          on_error(Reference::share(handler.on_error.get())),
          kind_of(Reference::share(handler.kind_of.get())),
          encode(Reference::share(handler.encode.get())),
          ended(Reference::share(handler.ended.get())),
          kind(handler.kind) {}

    // Logs the exception that is set; `told` gets what the one who asked is told of it.
    void report(std::uint16_t source, std::string* told = nullptr) const;

    Reference call, decode, on_error, kind_of, encode, ended;
    std::uint16_t kind;
};

// Connections that came and went, in order, one at a time.
class EventTask : public Task {
   public:
    explicit EventTask(std::weak_ptr<Node> node) : node_(std::move(node)) {}
    void push(Event event);
    bool run_slice(Nanos until) override;
    void set_call(Reference call);  // with the interpreter's lock; null drops it
    // How many nobody was told, as too many waited.
    std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

   private:
    bool next(Event& event);  // with mutex_: false when there is none

    std::weak_ptr<Node> node_;
    std::mutex mutex_;
    std::deque<Event> events_;
    std::atomic<std::uint64_t> lost_{0};  // written with mutex_
    std::uint64_t told_lost_ = 0;         // of those, how many a warning has counted
    Nanos tell_after_ = 0;                // when the next warning may come, while events are lost all the time
    Reference call_;  // with the interpreter's lock
};

}  // namespace antiphon::python

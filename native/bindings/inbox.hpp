// An inbox: messages are pulled by the caller's own thread.
#pragma once

#include <memory>
#include <tuple>

#include "bindings/event_reader.hpp"
#include "bindings/python.hpp"
#include "requests/completions.hpp"

namespace antiphon::python {

class Inbox {
   public:
    Inbox(std::shared_ptr<Node> node, std::shared_ptr<Registration> registration, Reference decode);
    ~Inbox();

    // New references; null with an exception set. A negative timeout waits for ever.
    PyObject* receive(double timeout);
    PyObject* receive_many(Py_ssize_t most, double timeout);
    // A message, or None; raises Closed once the inbox is closed.
    PyObject* try_receive();
    // Waits until there may be something to take, the inbox is closed, or it was nudged since `nudges`
    // was read. False with an exception set. Whoever waits for one thing of several: a message, or to be
    // told that nobody wants it any more.
    bool wait(std::uint64_t nudges, double timeout);
    void nudge();
    std::uint64_t nudges() const { return registration_->queue->nudges(); }
    void tell(std::shared_ptr<Completions> completions, std::uint64_t number);
    PyObject* next();  // for iteration: null without an exception once the inbox is closed
    void close();
    // Its events are acknowledged from now on: each when the next one is taken, or by the program.
    void acknowledge(bool manual);
    // From now on what was taken counts as handled when done() says so, or another is taken: for handlers that are
    // coroutines. One thread takes at a time.
    void hold() { holds_ = true; }
    void done();
    // May block: until all that was acknowledged is on its way, or for so many seconds; then false.
    bool wait_acknowledged(double timeout);
    // Of each recorded topic: the sequence that comes next, and of which store.
    std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> positions() const;

    std::uint64_t pending() const;
    // To a policy, and to close().
    std::uint64_t dropped() const {
        return registration_->queue->dropped() + let_go_.load(std::memory_order_relaxed);
    }
    std::uint64_t failed() const { return failed_.load(std::memory_order_relaxed); }
    std::uint64_t expired() const { return expired_.load(std::memory_order_relaxed); }
    std::uint64_t malformed() const { return malformed_.load(std::memory_order_relaxed); }
    std::uint64_t missed() const { return missed_.load(std::memory_order_relaxed); }
    std::uint64_t received() const { return received_.load(std::memory_order_relaxed); }
    std::uint16_t kind() const { return registration_->kind; }
    const Registration& registration() const { return *registration_; }
    bool closed() const { return registration_->queue->closed(); }

   private:
    // Takes the consumer's side; false when the interpreter's lock had to be given up for it.
    class Turn;
    Reference take(Reference& source);  // with the turn: the next payload, or null
    void settle();                      // with the turn: what was taken of the run has been handled
    void drop_rest();                   // with the turn: nobody is to see what is left of the run
    Reference event(const char* data, std::size_t size);
    PyObject* pair(Reference source, Reference data);
    PyObject* refused(PyObject* source);
    PyObject* wait_and_take(double timeout, bool raise_when_closed, bool wait = true,
                            const char* call = "receive()");
    bool wait_until(Nanos deadline, Nanos now, std::uint64_t nudges);

    std::shared_ptr<Node> node_;
    std::shared_ptr<Registration> registration_;
    Reference decode_;
    // Of a subscription: what makes events of messages, with the turn.
    Handler names_;
    std::unique_ptr<EventReader> reader_;
    std::shared_ptr<Acks> acks_;  // null: of none
    bool manual_ = false;
    AckOf taken_out_;             // the one that was taken last, and is done with when another is; with the turn
    // The consumer's lock. Held for a few instructions and one allocation, never while anything
    // waits: a thread that finds it taken lets the interpreter's lock go before it tries again.
    std::atomic<bool> taken_{false};
    Run run_;
    RunCursor cursor_;
    std::uint32_t per_credit_ = 1;
    bool begun_ = false;
    bool holds_ = false;    // with the interpreter's lock
    bool holding_ = false;  // the one that was taken last is not handled; with the turn
    TaskQueue::Slice slice_;
    Reference source_;  // of the current run
    std::atomic<std::uint64_t> received_{0}, failed_{0}, expired_{0}, malformed_{0}, missed_{0};
    std::atomic<std::uint64_t> let_go_{0};  // by close()
    std::atomic<std::uint32_t> in_hand_{0};  // what is left of the current run; written with the turn
    Reference failure_;  // of a message behind ones that receive_many had to hand out first
};

}  // namespace antiphon::python

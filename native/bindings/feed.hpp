// Messages for handlers that are coroutines: taken by the event loop's thread, and handled when their
// coroutine ends. Everything here happens with the interpreter's lock.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bindings/answer.hpp"
#include "bindings/python.hpp"
#include "requests/completions.hpp"

namespace antiphon::python {

class Feed;

// One run of messages that were handed out.
struct HeldRun {
    HeldRun(std::shared_ptr<Feed> feed_, Run run_) : feed(std::move(feed_)), run(std::move(run_)) {}
    ~HeldRun();

    std::shared_ptr<Feed> feed;
    Run run;
    std::uint32_t handled = 0;
    std::vector<std::shared_ptr<Barrier>> barriers;  // flushes that came behind it
};

// One message that was handed out. Without a word before it goes, its handling has failed.
class Held {
   public:
    Held(std::shared_ptr<HeldRun> run, std::uint64_t id) : run_(std::move(run)), id_(id) {}
    ~Held();
    // False when the answer would have to wait: deliver() then, on a thread that may. Nothing, with an
    // exception set, when the result is no answer: it is still to be ended then.
    std::optional<bool> finish(Reference result);
    bool fail(PyObject* exception);
    void deliver();
    // The same, never waiting: tried again when the bell rings, or at `until`; or it needs deliver() after all.
    Waits::Next attempt(Bell& bell);
    void drop();  // its answer is lost
    Nanos until() const { return until_; }

   private:
    std::unique_ptr<Answer> new_answer() const;  // null where none is wanted
    bool fail(std::string told);
    bool end(std::unique_ptr<Answer> answer);
    void handled();
    std::shared_ptr<HeldRun> run_;
    const std::uint64_t id_;
    std::unique_ptr<Answer> unsent_;
    Nanos until_ = kNever;
};

// A Python object that owns it.
PyObject* wrap_held(std::unique_ptr<Held> held);

class Feed : public std::enable_shared_from_this<Feed> {
   public:
    Feed(std::shared_ptr<Node> node, std::shared_ptr<Registration> registration, Reference decode, Reference kind_of,
         Reference encode);
    ~Feed();

    // Pushes `number` whenever there is something to take, or it was closed.
    void tell(std::shared_ptr<Completions> completions, std::uint64_t number);
    // A list of (source, data, held, error); the data is None where decoding failed.
    PyObject* take(Py_ssize_t most);
    void close();
    bool closed() const { return registration_->queue->closed(); }
    // Something waits here, or its coroutine has not ended.
    bool busy() const { return current_ || !out_.empty() || (!closed() && !registration_->queue->empty()); }
    const Registration& registration() const { return *registration_; }
    std::uint64_t handled() const { return handled_; }
    std::uint64_t failed() const { return failed_; }

   private:
    friend struct HeldRun;
    friend class Held;
    void hold(const std::vector<std::shared_ptr<Barrier>>& barriers);
    void pass_barriers();
    void drop_rest();

    std::shared_ptr<Node> node_;
    std::shared_ptr<Registration> registration_;
    Reference decode_, kind_of_, encode_;
    TaskQueue::Slice slice_;
    std::shared_ptr<HeldRun> current_;
    RunCursor cursor_;
    std::vector<HeldRun*> out_;  // handed out and not handled
    std::uint64_t handled_ = 0, failed_ = 0;
};

}  // namespace antiphon::python

// A request as Python sees it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/bell.hpp"
#include "bindings/python.hpp"
#include "requests/completions.hpp"

namespace antiphon::python {

class Request {
   public:
    Request(std::shared_ptr<Node> node, std::shared_ptr<Pending> pending)
        : node_(std::move(node)), pending_(std::move(pending)), began_(now_ns()) {}
    ~Request();

    // True when it went out; false, without `wait`, when it would have to wait. -1 with an exception.
    int send(PyObject* data, bool wait, Nanos deadline) {
        std::optional<Lead> none;
        return send(data, wait, deadline, none);
    }
    // What attempt() is to send, and until when.
    void keep(Reference data, Nanos deadline) {
        data_ = std::move(data);
        deadline_ = deadline;
    }
    // Sends it without waiting, tried again when the bell rings or at until(). `failed`: with an exception.
    Waits::Next attempt(Bell& bell);
    // It is not tried again. By whoever calls attempt().
    void drop() {
        waits_.reset();
        data_ = {};
    }
    Nanos until() const { return waits_ ? waits_->until() : kNever; }
    // Sends it, and waits for the answer.
    PyObject* ask(PyObject* data, Nanos deadline);
    // True when it is done. -1 with an exception, of a signal handler.
    int wait(Nanos until) {
        std::optional<Lead> none;
        return wait(until, none);
    }
    // (kind, bytes) or null with an exception; only when it is done.
    PyObject* result();
    // Gives up and raises RequestTimeout, unless the answer came at the last moment: then that.
    PyObject* time_out();
    bool cancel();
    bool done() const { return pending_->done(); }
    void tell(std::shared_ptr<Completions> completions) { pending_->tell(std::move(completions)); }
    void forget(const Completions& completions) { pending_->forget(completions); }
    std::uint64_t id() const { return pending_->id; }
    bool forked() const { return node_->forked(); }

   private:
    int send(PyObject* data, bool wait, Nanos deadline, std::optional<Lead>& lead);  // without it if it has to wait
    int wait(Nanos until, std::optional<Lead>& lead);                                // gives it up
    void fail(const Outcome& outcome, Nanos deadline);  // gives it up, and raises what it failed with
    PyObject* raise_timeout();
    std::pair<std::string, std::string> last_failure();  // of the connection: why, and the address
    bool give_up(Pending::State state);  // false: it is done

    std::shared_ptr<Node> node_;
    std::shared_ptr<Pending> pending_;
    Nanos began_;
    Reference data_;  // bytes
    Nanos deadline_ = kNever;
    std::optional<Waits> waits_;  // while it is tried again and again
};

}  // namespace antiphon::python

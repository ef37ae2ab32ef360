// A request as Python sees it.
#pragma once

#include <memory>
#include <string>
#include <utility>

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
    PyObject* raise_timeout();
    std::pair<std::string, std::string> last_failure();  // of the connection: why, and the address
    bool give_up(Pending::State state);  // false: it is done

    std::shared_ptr<Node> node_;
    std::shared_ptr<Pending> pending_;
    Nanos began_;
};

}  // namespace antiphon::python

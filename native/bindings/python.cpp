#include "bindings/python.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>

namespace antiphon::python {

namespace {

unsigned long main_thread = 0;
thread_local PyThreadState* own_state = nullptr;

}  // namespace

std::string seconds_text(Nanos ns) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(ns) / kSecond);
    return text;
}

// What unwinds a thread by force is caught as a reference to nothing, of which UBSan would complain.
[[gnu::no_sanitize("null")]] void take_lock(PyThreadState* state) {
    try {
        PyEval_RestoreThread(state);
    } catch (abi::__forced_unwind&) {
        for (;;) pause();
    }
}

[[gnu::no_sanitize("null")]] PyObject* call_python(PyObject* callable, PyObject* const* arguments, std::size_t flags) {
    try {
        return PyObject_Vectorcall(callable, arguments, flags, nullptr);
    } catch (abi::__forced_unwind&) {
        for (;;) pause();
    }
}

void remember_main_thread() {
    // The module may be imported by another thread; only `threading` knows which one is the main.
    Reference module = Reference::steal(PyImport_ImportModule("threading"));
    if (!module) return PyErr_Clear();
    Reference main = Reference::steal(PyObject_CallMethod(module.get(), "main_thread", nullptr));
    Reference ident = Reference::steal(main ? PyObject_GetAttrString(main.get(), "ident") : nullptr);
    if (ident) main_thread = PyLong_AsUnsignedLong(ident.get());
    PyErr_Clear();
}

bool on_main_thread() { return PyThread_get_thread_ident() == main_thread; }

Released::Released() : main_(on_main_thread()), state_(nullptr) {
    ask_ = [this] {
        take_lock(state_);
        const bool raised = PyErr_CheckSignals() != 0;
        state_ = PyEval_SaveThread();
        return raised;
    };
    state_ = PyEval_SaveThread();
}

Released::~Released() { take_lock(state_); }

Entered::Entered() {
    if (own_state == nullptr) own_state = PyThreadState_New(PyInterpreterState_Main());
    state_ = own_state;
    take_lock(state_);
}

Entered::~Entered() { PyEval_SaveThread(); }

void forget_thread_state() {
    if (own_state == nullptr) return;
    take_lock(own_state);
    PyThreadState_Clear(own_state);
    PyThreadState_DeleteCurrent();
    own_state = nullptr;
}

Reference facts(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Reference made = Reference::steal(Py_VaBuildValue(format, arguments));
    va_end(arguments);
    return made;
}

namespace {

// What a peer says may be anything.
PyObject* to_text(const std::string& text) {
    return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

// None: it is not known.
PyObject* known_text(const std::string& text) {
    return text.empty() ? Reference::share(Py_None).release() : to_text(text);
}

}  // namespace

PyObject* raise(const char* name, const std::string& text, Reference facts) {
    Reference errors = Reference::steal(PyImport_ImportModule("antiphon.errors"));
    if (!errors) return nullptr;
    Reference type = Reference::steal(PyObject_GetAttrString(errors.get(), name));
    Reference arguments = Reference::steal(Py_BuildValue("(N)", to_text(text)));
    if (!type || !arguments) return nullptr;
    Reference error = Reference::steal(PyObject_Call(type.get(), arguments.get(), facts.get()));
    if (error) PyErr_SetObject(type.get(), error.get());
    return nullptr;
}

bool may_wait(const char* call, const char* twin) {
    if (Scheduler::on_scheduler_thread()) return true;
    Reference module = Reference::steal(PyImport_ImportModule("antiphon.node.loops"));
    if (!module) return false;
    return static_cast<bool>(
        Reference::steal(PyObject_CallMethod(module.get(), "refuse_to_block", "ss", call, twin)));
}

bool may_wait(const Call& call, std::size_t gone) {
    if (may_wait(call.name, call.twin)) return true;
    if (gone == 0) return false;
    PyErr_Clear();
    raise("WouldBlock",
          std::string(call.name) + " would wait and stop the event loop of this thread; its first " +
              std::to_string(gone) + " events have gone, publish the others with " + call.twin,
          facts("{sssn}", "twin", call.twin, "sent", static_cast<Py_ssize_t>(gone)));
    return false;
}

bool read_timeout(PyObject* value, double& timeout) {
    if (value == nullptr || value == Py_None) {
        timeout = -1;
        return true;
    }
    timeout = PyFloat_AsDouble(value);
    if (timeout == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {  // more seconds than there are, as infinity
            PyErr_Clear();
            timeout = PyObject_IsTrue(value) == 1 ? std::numeric_limits<double>::infinity() : 0.0;
            return true;
        }
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
        PyErr_Format(PyExc_TypeError, "timeout is a number of seconds or None, not %.100s", Py_TYPE(value)->tp_name);
        return false;
    }
    if (std::isnan(timeout)) {
        raise("ConfigError", "timeout is NaN; give a number of seconds, or None", facts("{sssd}", "setting", "timeout", "value", timeout));
        return false;
    }
    timeout = std::max(0.0, timeout);
    return true;
}

PyObject* raise_forked() {
    return raise("Closed",
                 "this node belongs to the process that this one was forked from; make a node of your own "
                 "after the fork, or use the 'spawn' start method",
                 facts("{ss}", "what", "node"));
}

PyObject* raise_not_started() {
    return raise("Closed", "this node has not been started; use 'with node:' or node.start() first",
                 facts("{ss}", "what", "node"));
}

std::string way_to_reach(const std::string& address) {
    return address.empty() ? "see that it runs, and give its address in peers= or with add_peer(), or let it connect first"
                           : "see that it runs and listens there, or correct its address (peers=, add_peer)";
}

PyObject* raise_outcome(const Outcome& outcome, std::uint16_t peer, int kind, Nanos waited, std::size_t sent) {
    const std::string where = peer != 0 ? "node " + std::to_string(peer) : "the node";
    const std::string at = outcome.address.empty() ? where : where + " at " + outcome.address;
    const double seconds = static_cast<double>(waited) / kSecond;
    switch (outcome.code) {
        case Outcome::Code::ok: break;
        case Outcome::Code::forbidden: break;  // the group has words of its own for it
        case Outcome::Code::interrupted: return nullptr;  // the signal handler's exception is set
        case Outcome::Code::timeout:
            return raise("SendTimeout",
                         where + " took nothing more in " + seconds_text(waited) +
                             ": its handler or inbox is behind, or hangs; send less, wait longer "
                             "(send_timeout), or use try_send",
                         facts("{sisisdsn}", "peer", peer, "kind", kind, "waited", seconds, "sent",
                               static_cast<Py_ssize_t>(sent)));
        case Outcome::Code::unreachable:
            return raise("PeerUnreachable",
                         at + " cannot be reached: " + outcome.text + "; " + way_to_reach(outcome.address),
                         facts("{sisNsN}", "peer", peer, "address", known_text(outcome.address), "reason",
                               to_text(outcome.text)));
        case Outcome::Code::authentication:
            return raise("AuthenticationFailed", at + ": " + outcome.text + "; give both nodes the same secret, or certificates of one authority",
                         facts("{sisNsN}", "peer", peer, "address", to_text(outcome.address), "reason",
                               to_text(outcome.text)));
        case Outcome::Code::duplicate:
            return raise("DuplicateNode", outcome.text + "; give one of them another id",
                         facts("{sisNsN}", "id", outcome.id, "address", to_text(outcome.address), "other",
                               to_text(outcome.other)));
        case Outcome::Code::protocol:
            return raise("ProtocolError", at + ": " + outcome.text + "; use versions that overlap",
                         facts("{si}", "peer", peer));
        case Outcome::Code::unknown_peer:
            return raise("UnknownPeer",
                         where + " is not known; give its address in peers= or with add_peer(), or let it "
                                 "connect first",
                         facts("{si}", "peer", peer));
        case Outcome::Code::too_large:
            return raise("MessageTooLarge", outcome.text,
                         facts("{sKsK}", "size", static_cast<unsigned long long>(outcome.size), "limit",
                               static_cast<unsigned long long>(outcome.limit)));
        case Outcome::Code::closed:
            return raise("Closed", "this node is closed, or closing; nothing can be sent any more",
                         facts("{ss}", "what", "node"));
    }
    return nullptr;
}

Reference take_exception() {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != nullptr && value != nullptr) PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return Reference::steal(value);
}

}  // namespace antiphon::python

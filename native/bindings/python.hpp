// What the bindings share: the interpreter's lock, errors, and references.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>

#include "node/node.hpp"

namespace antiphon::python {

// A strong reference. Every use holds the interpreter's lock.
class Reference {
   public:
    Reference() = default;
    static Reference steal(PyObject* object) {
        Reference reference;
        reference.object_ = object;
        return reference;
    }
    static Reference share(PyObject* object) { return steal(Py_XNewRef(object)); }
    Reference(Reference&& other) noexcept : object_(other.release()) {}
    Reference& operator=(Reference&& other) noexcept {
        PyObject* old = object_;
        object_ = other.release();
        Py_XDECREF(old);
        return *this;
    }
    ~Reference() { Py_XDECREF(object_); }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

   private:
    PyObject* object_ = nullptr;
};

// Takes the interpreter's lock. While the interpreter ends, CPython up to 3.13 makes any other thread
// that asks for the lock exit on the spot, by unwinding its stack: through destructors that must not
// throw and that would touch Python without the lock. Such a thread is parked for good instead.
void take_lock(PyThreadState* state);

// PyObject_Vectorcall for threads of ours, which CPython may make exit inside the call for the same
// reason: they are parked as well.
PyObject* call_python(PyObject* callable, PyObject* const* arguments, std::size_t flags);

inline Reference call_one(PyObject* callable, PyObject* argument) {
    PyObject* arguments[] = {nullptr, argument};
    return Reference::steal(call_python(callable, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET));
}

// Lets go of the interpreter's lock while it lives. On the main thread, interrupted() takes it back
// for a moment to run signal handlers; true when one of them raised.
class Released {
   public:
    Released();
    ~Released();
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;

    // What a wait is to ask; null off the main thread, where Python runs no signal handlers.
    const Interrupted* interrupted() const { return main_ ? &ask_ : nullptr; }

   private:
    bool main_;
    PyThreadState* state_;
    Interrupted ask_;
};

bool on_main_thread();
void remember_main_thread();

// A scheduler thread's own thread state: made on first use, kept until the thread ends.
class Entered {
   public:
    Entered();
    ~Entered();

   private:
    PyThreadState* state_;
};
void forget_thread_state();  // the thread ends

// Raises `antiphon.errors.<name>(text, **facts)`; takes the facts. Always returns null.
PyObject* raise(const char* name, const std::string& text, Reference facts = {});
// A dict of facts; null entries of the format are as in Py_BuildValue("{...}").
Reference facts(const char* format, ...);
// What to do about a peer that cannot be reached at this address, which may be empty: unknown.
std::string way_to_reach(const std::string& address);
PyObject* raise_outcome(const Outcome& outcome, std::uint16_t peer, int kind, Nanos waited, std::size_t sent);
// False, with WouldBlock raised, on a thread whose event loop is running.
bool may_wait(const char* call, const char* twin);
// What somebody called, and what to call instead where it must not wait.
struct Call {
    const char *name, *twin;
};
inline constexpr Call kPublish{"publish()", "publish_async()"};
inline constexpr Call kPublishMany{"publish_many()", "await asyncio.to_thread(publisher.publish_many, ...)"};
inline constexpr Call kPublishPacked{"publish_packed()", "await asyncio.to_thread(publisher.publish_packed, ...)"};
// As above; so many events of the call have gone already, and the error says so.
bool may_wait(const Call& call, std::size_t gone);
// Reads a time to wait: seconds, below zero for None (or when it was not given), 0 for what is past. False with
// an exception set, which names the argument, for what is no number or NaN.
bool read_timeout(PyObject* value, double& timeout);
// For people: 0.25 s.
std::string seconds_text(Nanos ns);
PyObject* raise_forked();
// The exception that is set, with its traceback, which is then set no longer; null if there is none.
Reference take_exception();
PyObject* raise_not_started();

}  // namespace antiphon::python

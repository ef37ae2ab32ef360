// From what a handler returned to the response that goes over the wire.
#pragma once

#include <optional>
#include <string>

#include "bindings/bell.hpp"
#include "bindings/python.hpp"

namespace antiphon::python {

// The class of an exception, a zero, its text: the body of an error response.
std::string describe(PyObject* exception);

// The answer to one request of a run. With the interpreter's lock.
class Answer {
   public:
    Answer(Node& node, const Run& run, std::uint16_t kind, std::uint64_t id);
    // It is what the handler returned: bytes, a Message or None. False, with an exception set, when that
    // is anything else, cannot be encoded, or is too large for the one who asked.
    bool encode(Reference result, PyObject* kind_of, PyObject* encode);
    // It is an error: `told` is its description.
    void fail(std::string told);
    // False when it would have to wait. `urgent`: nothing else is about to be sent.
    bool try_send(bool urgent);
    // Lets go of the interpreter's lock and waits. An answer that is lost is counted.
    void send();
    // The same without waiting, again and again: `until` is when it is to be tried again at the latest.
    Waits::Next attempt(Bell& bell, Nanos& until);

   private:
    Node& node_;
    Peer* const peer_;
    const std::uint32_t session_;
    const std::uint16_t kind_;
    ResponseHead head_;
    Reference encoded_;
    std::string told_;
    Message body_{nullptr, 0};
    std::optional<Waits> waits_;
};

}  // namespace antiphon::python

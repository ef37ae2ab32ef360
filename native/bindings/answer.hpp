// From what a handler returned to the response that goes over the wire.
#pragma once

#include <string>

#include "bindings/python.hpp"

namespace antiphon::python {

// The class of an exception, a zero, its text: the body of an error response.
std::string describe(PyObject* exception);

// The answer to one request of a run: what its handler returned, bytes, a Message or None. Without a
// result `told` says what went wrong. With the interpreter's lock.
class Answer {
   public:
    Answer(Node& node, const Run& run, std::uint16_t kind, std::uint64_t id, Reference result, std::string told,
           PyObject* kind_of, PyObject* encode);
    // False when it would have to wait. `urgent`: nothing else is about to be sent.
    bool try_send(bool urgent);
    // Lets go of the interpreter's lock and waits. An answer that is lost is counted.
    void send();

   private:
    Node& node_;
    Peer* const peer_;
    const std::uint32_t session_;
    const std::uint16_t kind_;
    ResponseHead head_;
    Reference encoded_;
    std::string told_;
    Message body_{nullptr, 0};
};

}  // namespace antiphon::python

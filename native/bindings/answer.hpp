// From what a handler returned to the response that goes over the wire.
#pragma once

#include <string>

#include "bindings/python.hpp"

namespace antiphon::python {

// The class of an exception, a zero, its text: the body of an error response.
std::string describe(PyObject* exception);

// Answers one request of a run with what its handler returned: bytes, a Message, or None. Without a
// result `told` says what went wrong. With the interpreter's lock, which it lets go if it must wait.
void respond(Node& node, const Run& run, std::uint16_t kind, std::uint64_t id, Reference result, std::string told,
             PyObject* kind_of, PyObject* encode, bool urgent);

}  // namespace antiphon::python

// Batches: many messages as one buffer and offsets, without an object per message.
#pragma once

#include <Python.h>

#include "scheduler/run.hpp"

namespace antiphon::python {

bool add_batch_types(PyObject* module);

// A batch of what is left of a run. Packed frames are handed out as they lie in the receive buffer,
// which the batch then holds; if the pool cannot spare it, and for single frames, they are copied.
// Null with an exception set.
PyObject* make_batch(const Run& run, RunCursor cursor);

// For batches that know more of their messages.
struct BatchObject {
    PyObject_HEAD
    PyObject* data;     // exports bytes
    PyObject* offsets;  // exports int32
};
PyTypeObject* batch_base();
void dealloc_batch(PyObject* self);
// Memory of its own, to be written once, exported as so many items of that format (null: bytes). Null
// with an exception set.
PyObject* new_memory(std::size_t bytes, std::size_t items, const char* format, char*& at);

}  // namespace antiphon::python

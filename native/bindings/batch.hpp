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

}  // namespace antiphon::python

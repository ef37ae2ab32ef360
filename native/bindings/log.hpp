// The log for Python: stores, those who append to them and those who read, for tests and tools.
#pragma once

#include <nanobind/nanobind.h>

namespace antiphon::python {

void add_log(nanobind::module_& m);

}  // namespace antiphon::python

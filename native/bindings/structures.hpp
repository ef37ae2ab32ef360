// The core's structures as Python objects, so that tests can hold them against models.
#pragma once

#include <nanobind/nanobind.h>

namespace antiphon::python {

void add_structures(nanobind::module_& module);

}  // namespace antiphon::python

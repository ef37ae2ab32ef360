// Filters over properties, and the index of many, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

namespace antiphon::python {

void add_match(nanobind::module_& module);

}  // namespace antiphon::python

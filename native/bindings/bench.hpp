// The bare loops of the benchmark, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace antiphon::python {

void add_bench(nanobind::module_& module);

}  // namespace antiphon::python

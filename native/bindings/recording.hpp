// Recorded topics for Python: publishers that keep what is not recorded yet, and a broker's ways into its
// logs and out of them.
#pragma once

#include <nanobind/nanobind.h>

namespace antiphon::python {

void add_recording(nanobind::module_& m);

}  // namespace antiphon::python

// What antiphon.groups has of the core.
#pragma once

#include <nanobind/nanobind.h>

namespace antiphon::python {

void add_group_types(nanobind::module_& m);

}  // namespace antiphon::python

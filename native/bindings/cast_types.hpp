// The settings of a group by datagrams as Python gives them, and its windows by themselves.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/group.hpp"

namespace antiphon::python {

// Out of a dictionary, all of whose keys Group gives (groups/datagrams.py).
GroupCore::Options::Datagrams read_datagrams(const nanobind::dict& from);
void add_cast_types(nanobind::module_& m);

}  // namespace antiphon::python

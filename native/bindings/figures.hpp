// Counters and measurements of the core as Python's dictionaries.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "bindings/node.hpp"
#include "base/histogram.hpp"

namespace antiphon::python {

// Held while objects are made: that may let other threads run, and one of them close the registration.
using Tasks = std::vector<std::shared_ptr<const Task>>;

nanobind::list peer_list(NodeCore& core);
nanobind::dict counter_dict(NodeCore& core);
nanobind::list handle_list(NodeCore& core);
// How the scheduler's threads have spent their time, in seconds.
nanobind::dict usage_dict(NodeCore& core);
// Of a registration that no scheduler thread serves if there is no handler.
nanobind::dict registration_dict(const Registration& registration, const Handler* handler);
nanobind::dict handle_dict(const Handle& handle);
// How often tasks had their turn, and overran it.
void add_slices(nanobind::dict& d, const Tasks& tasks);
// What the schedule has made of a registration; of all its tasks together.
nanobind::dict meter_dict(const Tasks& tasks);
nanobind::dict registration_meter_dict(const Handle& handle);
// Classes that are empty are left out: {upper bound in ns: count}.
nanobind::dict class_dict(const Histogram& histogram);
// Of a subscription: its response times.
nanobind::dict delay_dict(const Handle& handle);

}  // namespace antiphon::python

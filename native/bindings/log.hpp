// The log for Python: stores, those who append to them and those who read, for tests and tools.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "log/reader.hpp"
#include "log/store.hpp"

namespace antiphon::python {

// What a Python object of a store holds.
std::shared_ptr<log::Store> store_in(nanobind::handle object);
// The log of a topic; raises what opening it raises.
std::shared_ptr<log::Log> open_log(const std::shared_ptr<log::Store>& store, const std::string& topic);
log::Start read_start(const std::string& at, std::int64_t value);

void add_log(nanobind::module_& m);

}  // namespace antiphon::python

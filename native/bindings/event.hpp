// Events as Python sees them: one at a time, or many of one topic in a batch.
#pragma once

#include <vector>

#include "bindings/python.hpp"
#include "topics/event_head.hpp"

namespace antiphon::python {

bool add_event_types(PyObject* module);

// What the Python side does for events: decode_properties(bytes) -> dict, decode(type, bytes) -> message,
// and what a topic that has no name of its own is: topic(text) -> number or tag.
void set_event_hooks(Reference properties, Reference message, Reference topic);

// Null with an exception set. `topic` is a str.
PyObject* make_event(const EventView& view, PyObject* topic, std::uint16_t source, std::uint32_t missed);
// What a timer's function gets.
PyObject* make_timer_event(std::int64_t time_ns, std::uint64_t number, std::uint32_t missed, double late);
// Events of one topic and one source, gathered by one copy.
PyObject* make_event_batch(const std::vector<EventView>& views, PyObject* topic, std::uint16_t source,
                           std::uint32_t missed);

}  // namespace antiphon::python

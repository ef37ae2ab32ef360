// Events as Python sees them: one at a time, or many of one topic in a batch.
#pragma once

#include <vector>

#include "bindings/acks.hpp"
#include "bindings/python.hpp"
#include "topics/event_head.hpp"

namespace antiphon::python {

bool add_event_types(PyObject* module);

// What the Python side does for events: decode_properties(bytes) -> dict, decode(type, bytes) -> message,
// and what a topic that has no name of its own is: topic(text) -> number or tag.
void set_event_hooks(Reference properties, Reference message, Reference topic);

// Null with an exception set. `topic` is a str.
// `acks`: where the program acknowledges it by itself; null: it need not, or cannot.
PyObject* make_event(const EventView& view, PyObject* topic, std::uint16_t source, std::uint32_t missed,
                     std::uint8_t attempt = 0, const std::shared_ptr<Acks>& acks = nullptr, const AckOf& ack = {});
// What a timer's function gets.
PyObject* make_timer_event(std::int64_t time_ns, std::uint64_t number, std::uint32_t missed, double late);
// Events of one topic, and whose each is, gathered by one copy.
PyObject* make_event_batch(const std::vector<EventView>& views, const std::vector<std::uint16_t>& from, PyObject* topic,
                           std::uint32_t missed, std::uint8_t attempt);

}  // namespace antiphon::python

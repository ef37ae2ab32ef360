#include "bindings/group_types.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/group.hpp"
#include "bindings/node.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace antiphon::python {

namespace {

using window::Lane;
using window::PartHead;
using window::ReceiveWindow;
using window::Tag;

Reference shared(nb::handle object) {
    return object.is_none() ? Reference{} : Reference::share(object.ptr());
}

nb::object checked(PyObject* object) {
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
}

nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// (member, node, incarnation of the node, flow, least charge, flow of acknowledgements, their least charge, object)
GroupCore::Member read_member(nb::handle from) {
    const nb::tuple fields = nb::cast<nb::tuple>(from);
    const auto member = nb::cast<std::uint64_t>(fields[0]);
    const auto node = nb::cast<std::uint16_t>(fields[1]);
    const auto incarnation = nb::cast<std::uint64_t>(fields[2]);
    return {{member, node, incarnation, nb::cast<std::uint32_t>(fields[3]), nb::cast<std::uint32_t>(fields[4])},
            {member, node, incarnation, nb::cast<std::uint32_t>(fields[5]), nb::cast<std::uint32_t>(fields[6])},
            Reference::share(fields[7].ptr())};
}

nb::dict lane_dict(const groups::Outgoing::Counts& counts) {
    nb::dict d;
    d["sent"] = counts.sent;
    d["bytes"] = counts.bytes;
    d["repeated"] = counts.repeated;
    d["waits"] = counts.waits;
    d["batches"] = counts.batches;
    d["probes"] = counts.probes;
    d["window_used"] = counts.used;
    d["window_bytes"] = counts.capacity;
    d["window_messages"] = counts.messages;
    d["receivers"] = counts.receivers;
    return d;
}

nb::dict statistics(GroupCore& self) {
    nb::dict d;
    d["all"] = lane_dict(self.all().counts());
    nb::dict singles;
    for (const auto& [member, counts] : self.singles()) singles[nb::cast(member)] = lane_dict(counts);
    d["one"] = singles;
    const GroupDelivery::Counts counts = self.delivery().counts();
    d["delivered"] = counts.delivered;
    d["delivered_bytes"] = counts.bytes;
    d["failed"] = counts.failed;
    d["duplicates"] = counts.duplicates;
    d["gaps"] = counts.gaps;
    d["malformed"] = counts.malformed;
    d["strangers"] = counts.strangers;
    d["acknowledgements"] = counts.acknowledgements;
    d["early"] = counts.early;
    d["unfinished"] = counts.unfinished;
    d["pending"] = self.data().queue->pending();
    return d;
}

// What a member does with a batch: the messages that it delivers, and whether something was missing.
nb::tuple receive(ReceiveWindow& self, std::uint64_t base, std::uint64_t first, const nb::list& batch) {
    nb::list delivered;
    const auto taken = self.accept(base, first, nb::len(batch));
    if (!taken.gap) {
        for (std::size_t i = taken.skip; i < nb::len(batch); ++i) {
            std::string_view message;
            const nb::bytes raw = nb::cast<nb::bytes>(batch[i]);
            if (self.put_together(view_of(raw), message)) delivered.append(to_bytes(message));
            self.advance();
        }
    }
    return nb::make_tuple(delivered, taken.gap);
}

// As Outgoing does it, with the window's own bound: false when not all of it fits now.
bool append(Lane& self, const nb::bytes& message, std::size_t part_bytes, std::uint32_t stream) {
    const std::string_view all = view_of(message);
    if (all.size() <= part_bytes) {
        const char tag = static_cast<char>(Tag::whole);
        return self.window().append({&tag, 1}, all);
    }
    const std::size_t parts = (all.size() + part_bytes - 1) / part_bytes;
    if (!self.window().fits(all.size() + parts * (1 + sizeof(PartHead)))) return false;
    for (std::size_t done = 0; done < all.size(); done += part_bytes) {
        const bool last = done + part_bytes >= all.size();
        const PartHead head{stream, all.size()};
        std::string begin(1, static_cast<char>(last ? Tag::last : Tag::part));
        begin.append(reinterpret_cast<const char*>(&head), sizeof head);
        self.window().append(begin, all.substr(done, part_bytes));
    }
    return true;
}

// (first, base, messages) of what a member is to be sent in this session, or None.
nb::object batch(Lane& self, std::uint64_t member, std::uint64_t session, std::uint64_t most) {
    Lane::Receiver* receiver = self.find(member);
    if (receiver == nullptr || !self.ready(*receiver, session)) return nb::none();
    const std::uint64_t end = std::min(self.next(), receiver->next + most);
    nb::list messages;
    for (std::uint64_t number = receiver->next; number < end; ++number) {
        const auto pieces = self.window().bytes(number, number + 1);
        messages.append(to_bytes(std::string(pieces.first).append(pieces.second)));
    }
    nb::object made = nb::make_tuple(receiver->next, receiver->base, messages);
    self.sent(*receiver, end - receiver->next);
    return made;
}

}  // namespace

void add_group_types(nb::module_& m) {
    nb::class_<GroupCore>(m, "GroupCore", nb::is_weak_referenceable())
        .def(
            "__init__",
            [](GroupCore* self, NodeCore& node, std::size_t window_bytes, std::size_t window_messages,
               std::size_t unicast_bytes, std::uint64_t capacity, bool whole, nb::handle on_error) {
                new (self) GroupCore(node.node(),
                                     {window_bytes, window_messages, unicast_bytes, capacity,
                                      whole ? std::min<std::uint64_t>(groups::Outgoing::kPartBytes,
                                                                      node.node()->options().max_message_bytes)
                                            : node.node()->options().max_message_bytes},
                                     shared(on_error));
            },
            "node"_a, "window_bytes"_a, "window_messages"_a, "unicast_bytes"_a, "capacity"_a,
            "whole"_a, "on_error"_a)
        .def("send", [](GroupCore& self, nb::handle data, std::uint64_t to, double timeout) {
            return checked(self.send(data.ptr(), to, timeout));
        }, "data"_a, "to"_a, "timeout"_a)
        .def("try_send", [](GroupCore& self, nb::handle data, std::uint64_t to) {
            const bool sent = self.try_send(data.ptr(), to);
            if (PyErr_Occurred()) throw nb::python_error();
            return sent;
        }, "data"_a, "to"_a)
        .def("set_handler", [](GroupCore& self, nb::handle call) { self.set_handler(shared(call)); }, "handler"_a.none())
        .def("expect", &GroupCore::expect, "self_member"_a)
        .def("install", [](GroupCore& self, std::uint64_t member, const nb::list& members, nb::handle call) {
            std::vector<GroupCore::Member> read;
            for (nb::handle one : members) read.push_back(read_member(one));
            self.install(member, std::move(read), shared(call));
        }, "self_member"_a, "members"_a, "call"_a.none())
        .def("leave", &GroupCore::leave)
        .def("pause", &GroupCore::pause, "paused"_a)
        .def("tick", &GroupCore::tick)
        .def("settle", [](GroupCore& self, double timeout) {
            const bool settled = self.settle(timeout);
            if (PyErr_Occurred()) throw nb::python_error();
            return settled;
        }, "timeout"_a)
        .def("close", &GroupCore::close, "patience"_a)
        .def("heard", [](GroupCore& self) {
            nb::dict d;
            for (const auto& [member, when] : self.delivery().heard()) {
                d[nb::cast(member)] = static_cast<double>(now_ns() - when) / 1e9;
            }
            return d;
        })
        .def("held_up", [](GroupCore& self) {
            nb::dict d;
            for (const auto& [member, since] : self.all().held_up()) {
                d[nb::cast(member)] = static_cast<double>(since) / 1e9;
            }
            return d;
        })
        .def("busy", [](GroupCore& self) { return static_cast<double>(self.busy()) / 1e9; })
        .def_prop_ro("flow", [](GroupCore& self) { return self.data().flow; })
        .def_prop_ro("least_charge", [](GroupCore& self) { return self.data().least_charge; })
        .def_prop_ro("acknowledgement_flow", [](GroupCore& self) { return self.acknowledgements().flow; })
        .def_prop_ro("acknowledgement_charge", [](GroupCore& self) { return self.acknowledgements().least_charge; })
        .def("statistics", &statistics);

    // The same windows by themselves, for simulations: no node, no clock.
    nb::class_<Lane>(m, "LaneCore")
        .def(nb::init<std::size_t, std::size_t>(), "bytes"_a, "messages"_a)
        .def("append", &append, "message"_a, "part_bytes"_a, "stream"_a)
        .def("add", &Lane::add, "member"_a)
        .def("remove", &Lane::remove, "member"_a)
        .def("batch", &batch, "member"_a, "session"_a, "most"_a)
        .def("acknowledge", &Lane::acknowledge, "member"_a, "upto"_a, "resume"_a)
        .def("quiet", [](Lane& self, std::uint64_t member) {
            Lane::Receiver* receiver = self.find(member);
            return receiver != nullptr && self.quiet(*receiver);
        }, "member"_a)
        .def("probe", [](Lane& self, std::uint64_t member) -> nb::object {
            const Lane::Receiver* receiver = self.find(member);
            if (receiver == nullptr) return nb::none();
            return nb::make_tuple(receiver->next, receiver->base, nb::list());
        }, "member"_a)
        .def_prop_ro("settled", &Lane::settled)
        .def_prop_ro("used", [](const Lane& self) { return self.window().used(); })
        .def_prop_ro("capacity", [](const Lane& self) { return self.window().capacity(); })
        .def_prop_ro("first", [](const Lane& self) { return self.window().first(); })
        .def_prop_ro("next", &Lane::next)
        .def_prop_ro("repeated", &Lane::repeated);

    nb::class_<ReceiveWindow>(m, "ReceiveCore")
        .def(nb::init<std::uint64_t>(), "most_bytes"_a)
        .def("receive", &receive, "base"_a, "first"_a, "batch"_a)
        .def_prop_ro("expected", &ReceiveWindow::expected)
        .def_prop_ro("duplicates", &ReceiveWindow::duplicates)
        .def_prop_ro("malformed", &ReceiveWindow::malformed);
}

}  // namespace antiphon::python

#include "bindings/group_types.hpp"

#include <arpa/inet.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/cast_types.hpp"
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

// As text, host:port; nothing where it goes over nodes.
sockaddr_in address_of(const std::string& text) {
    sockaddr_in made{};
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos) return made;
    made.sin_family = AF_INET;
    if (inet_pton(AF_INET, text.substr(0, colon).c_str(), &made.sin_addr) != 1) return {};
    made.sin_port = htons(static_cast<std::uint16_t>(std::strtoul(text.c_str() + colon + 1, nullptr, 10)));
    return made;
}

std::string text_of(const sockaddr_in& address) {
    char host[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
    return std::string(host) + ":" + std::to_string(ntohs(address.sin_port));
}

// (member, node, incarnation of the node, flow, least charge, flow of acknowledgements, their least charge, object,
//  address of datagrams, bytes of their buffer)
GroupCore::Member read_member(nb::handle from) {
    const nb::tuple fields = nb::cast<nb::tuple>(from);
    const auto member = nb::cast<std::uint64_t>(fields[0]);
    const auto node = nb::cast<std::uint16_t>(fields[1]);
    const auto incarnation = nb::cast<std::uint64_t>(fields[2]);
    return {{member, node, incarnation, nb::cast<std::uint32_t>(fields[3]), nb::cast<std::uint32_t>(fields[4]),
             address_of(nb::cast<std::string>(fields[8])), nb::cast<std::size_t>(fields[9])},
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
    d["flight"] = counts.flight;
    d["held"] = counts.held;
    d["cuts"] = counts.cuts;
    return d;
}

nb::dict datagram_dict(groups::DatagramPort& port) {
    const auto counts = port.counts();
    const groups::DatagramSocket& socket = port.socket();
    const auto get = [](const std::atomic<std::uint64_t>& one) { return one.load(std::memory_order_relaxed); };
    nb::dict d;
    d["sent"] = get(socket.sent);
    d["sent_bytes"] = get(socket.sent_bytes);
    d["received"] = get(socket.came);
    d["received_bytes"] = get(socket.came_bytes);
    d["failed"] = get(socket.failed);
    d["gaps"] = counts.gaps;
    d["asked"] = counts.asked;
    d["relayed"] = counts.relayed;
    d["refused"] = counts.refused;
    d["duplicates"] = counts.duplicates;
    d["malformed"] = counts.malformed;
    d["foreign"] = counts.foreign;
    d["strangers"] = counts.strangers;
    d["acknowledgements"] = counts.acknowledgements;
    d["dropped"] = counts.dropped;
    d["held_bytes"] = counts.held_bytes;
    d["kept"] = counts.kept;
    d["mtu"] = port.mtu();
    d["receive_buffer"] = socket.receive_buffer();
    const groups::Opener::Counts opened = port.opened();
    d["sealed"] = port.sealed_count();
    d["opened"] = opened.opened;
    d["unknown_key"] = opened.unknown_key;
    d["forged"] = opened.forged + opened.malformed;
    d["replayed"] = opened.replayed + opened.too_old;
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
    d["datagrams"] = self.port() == nullptr ? nb::none() : nb::object(datagram_dict(*self.port()));
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
               std::size_t unicast_bytes, std::uint64_t capacity, bool whole, const std::string& name,
               nb::handle on_error, nb::handle datagrams) {
                GroupCore::Options options{window_bytes, window_messages, unicast_bytes, capacity,
                                           node.node()->options().max_message_bytes, whole, name, {}};
                if (!datagrams.is_none()) options.datagrams = read_datagrams(nb::cast<nb::dict>(datagrams));
                new (self) GroupCore(node.node(), std::move(options), shared(on_error));
            },
            "node"_a, "window_bytes"_a, "window_messages"_a, "unicast_bytes"_a, "capacity"_a,
            "whole"_a, "name"_a, "on_error"_a, "datagrams"_a.none())
        .def("send", [](GroupCore& self, nb::handle data, std::uint64_t to, double timeout) {
            return checked(self.send(data.ptr(), to, timeout));
        }, "data"_a.none(), "to"_a, "timeout"_a)
        .def("try_send", [](GroupCore& self, nb::handle data, std::uint64_t to) {
            const bool sent = self.try_send(data.ptr(), to);
            if (PyErr_Occurred()) throw nb::python_error();
            return sent;
        }, "data"_a.none(), "to"_a)
        .def("set_handler", [](GroupCore& self, nb::handle call) { self.set_handler(shared(call)); }, "handler"_a.none())
        .def("expect", &GroupCore::expect, "self_member"_a)
        .def("install", [](GroupCore& self, std::uint64_t member, const nb::list& members, const nb::bytes& key,
                           bool primary, nb::handle call) {
            std::vector<GroupCore::Member> read;
            for (nb::handle one : members) read.push_back(read_member(one));
            self.install(member, std::move(read), view_of(key), primary, shared(call));
        }, "self_member"_a, "members"_a, "key"_a, "primary"_a, "call"_a.none())
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
        .def("cut", [](GroupCore& self, const std::vector<std::uint16_t>& nodes) {
            if (self.port() != nullptr) self.port()->cut({nodes.begin(), nodes.end()});
        }, "nodes"_a)
        .def("held_up", [](GroupCore& self) { return self.all().held_up(); })
        .def("busy", [](GroupCore& self) { return static_cast<double>(self.busy()) / 1e9; })
        .def_prop_ro("datagram_address", [](GroupCore& self) {
            return self.port() == nullptr ? std::string() : text_of(self.port()->socket().local());
        })
        .def_prop_ro("datagram_buffer", [](GroupCore& self) {
            return self.port() == nullptr ? std::size_t{0} : self.port()->socket().receive_buffer();
        })
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

    add_cast_types(m);
    nb::class_<ReceiveWindow>(m, "ReceiveCore")
        .def(nb::init<std::uint64_t>(), "most_bytes"_a)
        .def("receive", &receive, "base"_a, "first"_a, "batch"_a)
        .def_prop_ro("expected", &ReceiveWindow::expected)
        .def_prop_ro("duplicates", &ReceiveWindow::duplicates)
        .def_prop_ro("malformed", &ReceiveWindow::malformed);
}

}  // namespace antiphon::python

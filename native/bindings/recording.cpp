#include "bindings/recording.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bindings/delivery.hpp"
#include "bindings/log.hpp"
#include "bindings/node.hpp"
#include "bindings/outbox.hpp"
#include "bindings/recorder.hpp"
#include "bindings/replay.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace antiphon::python {

namespace {

Reference shared(nb::handle object) { return Reference::share(object.is_none() ? nullptr : object.ptr()); }

nb::object checked(PyObject* object) {
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
}

void refuse_ttl(nb::handle ttl) {
    if (ttl.is_none()) return;
    raise("ConfigError", "ttl= has no meaning for a recorded topic: the broker keeps its events as long as it is told to",
          facts("{ss}", "setting", "ttl"));
    throw nb::python_error();
}

std::shared_ptr<Outbox> make_outbox(NodeCore& node, std::uint32_t topic, const std::string& name, std::uint64_t producer,
                                    std::size_t events, std::size_t bytes, nb::handle encode) {
    return std::make_shared<Outbox>(node.node(), Outbox::Options{topic, name, producer, events, bytes}, shared(encode),
                                    node.encode());
}

std::shared_ptr<Recorder> make_recorder(NodeCore& node, nb::handle store, const std::string& name, std::uint16_t source,
                                        std::uint32_t number, std::uint64_t producer) {
    const auto opened = store_in(store);
    return std::make_shared<Recorder>(node.node(), opened, open_log(opened, name), source, number, producer);
}

std::shared_ptr<Replay> make_replay(NodeCore& node, nb::handle store, const std::string& name, std::uint32_t topic,
                                    std::uint16_t peer_id, std::uint64_t incarnation, std::uint32_t flow,
                                    std::uint32_t least_charge, std::shared_ptr<match::Filter> where,
                                    const std::string& at, std::int64_t value, double speed, nb::handle judge) {
    const auto opened = store_in(store);
    const auto log = open_log(opened, name);
    Peer* peer = node.node()->find_peer(peer_id);
    if (peer == nullptr) return nullptr;
    auto target = std::make_shared<Target>(*peer, node.node()->subscription_flow(*peer, incarnation, flow, least_charge),
                                           incarnation, static_cast<std::uint32_t>(random_u64()), std::move(where), 0, false);
    auto replay = std::make_shared<Replay>(node.node(), opened, log, std::move(target),
                                           Replay::Options{topic, name, read_start(at, value), speed}, shared(judge));
    replay->start();
    return replay;
}

std::shared_ptr<Delivery> make_delivery(NodeCore& node, nb::handle store, const std::string& dead,
                                        std::shared_ptr<match::Filter> where, double ack_timeout, unsigned attempts,
                                        std::size_t waiting, nb::handle judge) {
    std::shared_ptr<log::Store> opened;
    std::shared_ptr<log::Log> letters;
    if (!store.is_none()) opened = store_in(store);
    if (opened && !dead.empty()) letters = open_log(opened, dead);
    return std::make_shared<Delivery>(node.node(), opened, letters, std::move(where),
                                      Delivery::Options{seconds_to_ns(ack_timeout), attempts, waiting}, shared(judge));
}

void add_log_to(Delivery& self, nb::handle store, const std::string& name, std::uint32_t topic, const std::string& at,
                std::int64_t value, std::uint64_t next, Delivery::Ranges pending) {
    const auto opened = store_in(store);
    auto log = open_log(opened, name);
    Released released;
    self.add_log(topic, name, std::move(log), read_start(at, value), next, std::move(pending));
}

bool join(Delivery& self, NodeCore& node, std::uint16_t peer_id, std::uint64_t incarnation, std::uint32_t flow,
          std::uint32_t least_charge, std::size_t capacity) {
    Peer* peer = node.node()->find_peer(peer_id);
    if (peer == nullptr) return false;
    Released released;
    self.join(*peer, incarnation, flow, least_charge, capacity);
    return true;
}

// What one subscription has said, as it came.
void acknowledge(Delivery& self, std::uint16_t peer, const nb::bytes& said) {
    const std::string_view bytes(said.c_str(), said.size());
    Released released;
    for (std::size_t at = 0; at + sizeof(AckRange) <= bytes.size(); at += sizeof(AckRange)) {
        AckRange range;
        std::memcpy(&range, bytes.data() + at, sizeof range);
        self.acknowledge(peer, range);
    }
}

nb::list positions(Delivery& self) {
    std::vector<Delivery::Position> found;
    {
        Released released;
        found = self.positions();
    }
    nb::list all;
    for (const Delivery::Position& one : found) all.append(nb::make_tuple(one.topic, one.next, one.pending));
    return all;
}

nb::dict counts(Delivery& self) {
    Delivery::Counts found;
    {
        Released released;
        found = self.counts();
    }
    nb::dict d;
    d["delivered"] = found.delivered;
    d["acknowledged"] = found.acknowledged;
    d["again"] = found.again;
    d["dead"] = found.dead;
    d["dropped"] = found.dropped;
    d["missed"] = found.missed;
    d["members"] = found.members;
    d["out"] = found.out;
    d["waiting"] = found.waiting;
    return d;
}

template <typename Core>
void close_apart(Core& core) {
    Released released;
    core.close();
}

}  // namespace

void add_recording(nb::module_& m) {
    nb::class_<Outbox>(m, "OutboxCore", nb::is_weak_referenceable())
        .def("publish", [](Outbox& self, nb::handle data, nb::handle properties, nb::handle ttl) {
            refuse_ttl(ttl);
            return checked(self.publish(data.ptr(), properties.is_none() ? nullptr : properties.ptr()));
        }, "data"_a.none(), "properties"_a.none() = nb::none(), "ttl"_a.none() = nb::none())
        .def("publish_many", [](Outbox& self, nb::handle events, nb::handle ttl) {
            refuse_ttl(ttl);
            return checked(self.publish_many(events.ptr()));
        }, "events"_a.none(), "ttl"_a.none() = nb::none())
        .def("publish_packed", [](Outbox& self, nb::handle data, nb::handle offsets, nb::handle ttl) {
            refuse_ttl(ttl);
            return checked(self.publish_packed(data.ptr(), offsets.ptr()));
        }, "data"_a.none(), "offsets"_a.none(), "ttl"_a.none() = nb::none())
        .def("flush", [](Outbox& self, nb::handle timeout) {
            double seconds;
            if (!read_timeout(timeout.ptr(), seconds)) throw nb::python_error();
            checked(self.flush(seconds));
        }, "timeout"_a.none())
        .def("serve", &Outbox::serve, "peer"_a, "incarnation"_a, "flow"_a, "least_charge"_a)
        .def("leave", &Outbox::leave, "peer"_a, "flow"_a)
        .def("acknowledge", &Outbox::acknowledge, "producer"_a, "upto"_a, "status"_a, "error"_a)
        .def("refuse", &Outbox::refuse, "error"_a, "text"_a)
        .def("retry", &Outbox::retry)
        .def("close", [](Outbox& self, double drain) {
            if (!self.close(seconds_to_ns(drain))) throw nb::python_error();
        }, "drain"_a = 0.0)
        .def_prop_ro("targets", &Outbox::targets)
        .def_prop_ro("active", &Outbox::active)
        .def("statistics", [](Outbox& self) {
            nb::dict d;
            d["published"] = self.published();
            d["acknowledged"] = self.acknowledged();
            d["pending"] = self.pending();
            d["dropped"] = 0;
            d["lost"] = 0;
            d["waits"] = self.waits();
            d["targets"] = self.targets();
            return d;
        });
    m.def("make_outbox", &make_outbox, "node"_a, "topic"_a, "name"_a, "producer"_a, "events"_a, "bytes"_a, "encode"_a);

    nb::class_<Recorder, Route>(m, "RecorderCore", nb::is_weak_referenceable())
        .def("close", &close_apart<Recorder>)
        .def("limit", &Recorder::limit, "quota"_a.none())
        .def_prop_ro("sequence", &Recorder::received)
        .def("statistics", [](Recorder& self) {
            nb::dict d;
            d["published"] = self.received();
            d["dropped"] = self.dropped();
            d["lost"] = 0;
            return d;
        });
    m.def("make_recorder", &make_recorder, "node"_a, "store"_a, "name"_a, "source"_a, "number"_a, "producer"_a);

    nb::class_<Replay>(m, "ReplayCore", nb::is_weak_referenceable())
        .def("close", [](Replay& self) {
            self.forget_judge();
            close_apart(self);
        })
        .def_prop_ro("sent", &Replay::sent)
        .def_prop_ro("missed", &Replay::missed)
        .def_prop_ro("position", &Replay::position);
    m.def("make_replay", &make_replay, "node"_a, "store"_a, "name"_a, "topic"_a, "peer"_a, "incarnation"_a, "flow"_a,
          "least_charge"_a, "where"_a.none(), "at"_a, "value"_a, "speed"_a, "judge"_a.none());

    nb::class_<Delivery>(m, "DeliveryCore", nb::is_weak_referenceable())
        .def("add_log", &add_log_to, "store"_a, "name"_a, "topic"_a, "at"_a, "value"_a, "next"_a, "pending"_a)
        .def("join", &join, "node"_a, "peer"_a, "incarnation"_a, "flow"_a, "least_charge"_a, "capacity"_a)
        .def("leave", [](Delivery& self, std::uint16_t peer, std::uint32_t flow, bool blame) {
            Released released;
            self.leave(peer, flow, blame);
        }, "peer"_a, "flow"_a, "blame"_a)
        .def("dismiss", [](Delivery& self, std::uint16_t peer, std::uint32_t flow) {
            Released released;
            return self.dismiss(peer, flow);
        }, "peer"_a, "flow"_a)
        .def("acknowledge", &acknowledge, "peer"_a, "said"_a)
        .def("positions", &positions)
        .def_prop_ro("version", &Delivery::version)
        .def("counts", &counts)
        .def("judge_by", [](Delivery& self, nb::handle judge) { self.judge_by(shared(judge)); }, "judge"_a.none())
        .def("close", [](Delivery& self) {
            self.judge_by({});
            close_apart(self);
        });
    m.def("make_delivery", &make_delivery, "node"_a, "store"_a.none(), "dead"_a, "where"_a.none(), "ack_timeout"_a,
          "attempts"_a, "waiting"_a, "judge"_a.none());
    nb::class_<GroupRoute, Route>(m, "GroupRouteCore");
    nb::class_<ForkedRoute, Route>(m, "ForkedRouteCore");
    m.def("make_group_route", [](std::shared_ptr<Delivery> to, const std::string& name, std::uint16_t source) {
        return std::make_shared<GroupRoute>(std::move(to), name, source);
    }, "to"_a, "name"_a, "source"_a);
    m.def("fork_route", [](std::vector<std::shared_ptr<Route>> to, std::shared_ptr<Quota> quota) {
        return std::make_shared<ForkedRoute>(std::move(to), std::move(quota));
    }, "to"_a, "quota"_a.none());
}

}  // namespace antiphon::python

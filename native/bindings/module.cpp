// The module antiphon._core.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <system_error>

#include "bindings/arguments.hpp"
#include "bindings/batch.hpp"
#include "bindings/bench.hpp"
#include "bindings/feed.hpp"
#include "bindings/inbox.hpp"
#include "bindings/log.hpp"
#include "bindings/recording.hpp"
#include "bindings/match.hpp"
#include "bindings/event.hpp"
#include "bindings/figures.hpp"
#include "bindings/group_types.hpp"
#include "bindings/node.hpp"
#include "bindings/publisher.hpp"
#include "bindings/request.hpp"
#include "bindings/structures.hpp"
#include "bindings/subscription.hpp"
#include "bindings/texts.hpp"
#include "bindings/timer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace antiphon::python {

// What an event loop holds. The core's threads share the list in it and not this object: to let go of
// that, they would have to wait for the interpreter's lock.
struct Door {
    const std::shared_ptr<Completions> completions = std::make_shared<Completions>();
};

PyObject* wrap_held(std::unique_ptr<Held> held) {
    return nb::cast(std::shared_ptr<Held>(std::move(held))).release().ptr();
}

namespace {

Reference shared(nb::handle object) {
    return object.is_none() ? Reference{} : Reference::share(object.ptr());
}

// As src/antiphon/node/later.py reads it: it went, it is to be tried again, it needs a thread.
int next_of(Waits::Next next) {
    if (next == Waits::Next::failed) throw nb::python_error();
    return next == Waits::Next::went ? 0 : next == Waits::Next::later ? 1 : 2;
}

double to_seconds(Nanos ns) { return static_cast<double>(ns) / kSecond; }

WhenFull when_full(const std::string& text) {
    if (text == "block") return WhenFull::block;
    if (text == "drop_oldest") return WhenFull::drop_oldest;
    if (text == "drop_newest") return WhenFull::drop_newest;
    throw nb::value_error("when_full is 'block', 'drop_oldest' or 'drop_newest'");
}

NodeOptions read_options(const nb::dict& from) {
    NodeOptions o;
    auto get = [&](const char* name) { return from[name]; };
    o.id = nb::cast<std::uint16_t>(get("id"));
    o.listen = nb::cast<std::string>(get("listen"));
    o.advertise = nb::cast<std::string>(get("advertise"));
    const nb::bytes secret = nb::cast<nb::bytes>(get("secret"));
    o.secret = std::string(secret.c_str(), secret.size());
    const auto files = nb::cast<std::vector<std::string>>(get("tls"));
    if (files.size() == 3) o.tls = {files[0], files[1], files[2]};
    o.ring_bytes = nb::cast<std::size_t>(get("ring_bytes"));
    o.flow_window_bytes = nb::cast<std::uint32_t>(get("flow_window_bytes"));
    o.flow_threshold = nb::cast<double>(get("flow_threshold"));
    o.socket_buffer_bytes = nb::cast<std::size_t>(get("socket_buffer_bytes"));
    o.buffer_pool = nb::cast<std::vector<std::pair<std::size_t, std::size_t>>>(get("buffer_pool"));
    o.receive_bytes = nb::cast<std::uint64_t>(get("receive_bytes"));
    o.large_message_bytes = nb::cast<std::uint64_t>(get("large_message_bytes"));
    o.max_message_bytes = nb::cast<std::uint64_t>(get("max_message_bytes"));
    o.connect_timeout = seconds_to_ns(nb::cast<double>(get("connect_timeout")));
    o.request_timeout = seconds_to_ns(nb::cast<double>(get("request_timeout")));
    o.send_timeout = seconds_to_ns(nb::cast<double>(get("send_timeout")));
    o.heartbeat = seconds_to_ns(nb::cast<double>(get("heartbeat")));
    o.max_connections = nb::cast<std::size_t>(get("max_connections"));
    o.spin = static_cast<Nanos>(nb::cast<double>(get("spin_us")) * kMicrosecond);
    o.threads = nb::cast<int>(get("threads"));
    o.schedule.period = seconds_to_ns(nb::cast<double>(get("period")));
    o.schedule.buckets = nb::cast<int>(get("buckets"));
    o.schedule.penalty = nb::cast<bool>(get("penalty"));
    o.schedule.fifo_priority = nb::cast<int>(get("fifo_priority"));
    o.schedule.cpus = nb::cast<std::vector<int>>(get("cpus"));
    return o;
}

nb::object checked(PyObject* object) {
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
}

double timeout_of(nb::handle timeout) {
    double seconds;
    if (!read_timeout(timeout.ptr(), seconds)) nb::raise_python_error();
    return seconds;
}

// The calls on the fast path take their arguments straight from the interpreter.
NodeCore& core_of(PyObject* self) { return *nb::inst_ptr<NodeCore>(nb::handle(self)); }
Inbox& inbox_of(PyObject* self) { return *nb::inst_ptr<Inbox>(nb::handle(self)); }

template <typename Call>
PyObject* guarded(Call&& call) {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

PyObject* send(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    // A list of targets is for the Python side.
    if (count >= 1 && !PyLong_Check(arguments[0])) {
        PyObject* other = PyObject_GetAttrString(self, "_send_to_all");
        if (other == nullptr) return nullptr;
        PyObject* result = PyObject_Vectorcall(other, arguments, static_cast<std::size_t>(count), names);
        Py_DECREF(other);
        return result;
    }
    return guarded([&] { return core_of(self).send(arguments, count, names, true); });
}

PyObject* try_send(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    return guarded([&] { return core_of(self).send(arguments, count, names, false); });
}

PyObject* send_many(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    return guarded([&] { return core_of(self).send_many(arguments, count, names); });
}

PyObject* send_packed(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    return guarded([&] { return core_of(self).send_packed(arguments, count, names); });
}

PyObject* receive(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    PyObject* value = count > 0 ? arguments[0] : nullptr;
    const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (count + named > 1 ||
        (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout") != 0)) {
        PyErr_SetString(PyExc_TypeError, "receive() takes one argument, timeout");
        return nullptr;
    }
    if (named == 1) value = arguments[0];
    double timeout;
    if (!read_timeout(value, timeout)) return nullptr;
    return guarded([&] { return inbox_of(self).receive(timeout); });
}

PyObject* receive_many(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    static const char* const expected[] = {"most", "timeout"};
    PyObject* values[2] = {};
    if (!read_arguments("receive_many", arguments, count, names, expected, 2, 2, values)) return nullptr;
    if (values[0] == nullptr) {
        PyErr_SetString(PyExc_TypeError, "receive_many() needs how many at the most");
        return nullptr;
    }
    const Py_ssize_t most = PyNumber_AsSsize_t(values[0], nullptr);
    double timeout;
    if ((most == -1 && PyErr_Occurred()) || !read_timeout(values[1], timeout)) return nullptr;
    if (most < 0) {
        return raise("ConfigError", "most is " + std::to_string(most) + "; it must be a number of messages",
                     facts("{sssn}", "setting", "most", "value", most));
    }
    return guarded([&] { return inbox_of(self).receive_many(most, timeout); });
}

PyObject* inbox_next(PyObject* self) {
    return guarded([&] { return inbox_of(self).next(); });
}

PyObject* same(PyObject* self) { return Py_NewRef(self); }

// The interpreter looks at the flags before it calls; the type in the table is only the common one.
PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef node_methods[] = {
    {"send", fast(send), METH_FASTCALL | METH_KEYWORDS, kSendText},
    {"try_send", fast(try_send), METH_FASTCALL | METH_KEYWORDS, kTrySendText},
    {"send_many", fast(send_many), METH_FASTCALL | METH_KEYWORDS, kSendManyText},
    {"send_packed", fast(send_packed), METH_FASTCALL | METH_KEYWORDS, kSendPackedText},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot node_slots[] = {{Py_tp_methods, node_methods}, {0, nullptr}};

PyMethodDef inbox_methods[] = {
    {"receive", fast(receive), METH_FASTCALL | METH_KEYWORDS, kReceiveText},
    {"receive_many", fast(receive_many), METH_FASTCALL | METH_KEYWORDS, kReceiveManyText},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot inbox_slots[] = {
    {Py_tp_methods, inbox_methods},
    {Py_tp_iter, reinterpret_cast<void*>(same)},
    {Py_tp_iternext, reinterpret_cast<void*>(inbox_next)},
    {0, nullptr},
};

Publisher& publisher_of(PyObject* self) { return *nb::inst_ptr<Publisher>(nb::handle(self)); }

PyObject* publish(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    static const char* const expected[] = {"data", "properties", "ttl"};
    PyObject* values[3] = {};
    if (count == 1 && names == nullptr) {
        values[0] = arguments[0];
    } else if (!read_arguments("publish", arguments, count, names, expected, 3, 3, values)) {
        return nullptr;
    }
    if (values[0] == nullptr) {
        PyErr_SetString(PyExc_TypeError, "publish() needs the data");
        return nullptr;
    }
    return guarded([&] { return publisher_of(self).publish(values[0], values[1], values[2]); });
}

PyObject* publish_many(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    static const char* const expected[] = {"events", "ttl"};
    PyObject* values[2] = {};
    if (!read_arguments("publish_many", arguments, count, names, expected, 2, 2, values)) return nullptr;
    if (values[0] == nullptr) {
        PyErr_SetString(PyExc_TypeError, "publish_many() needs the events");
        return nullptr;
    }
    return guarded([&] { return publisher_of(self).publish_many(values[0], values[1]); });
}

PyObject* publish_packed(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    static const char* const expected[] = {"data", "offsets", "ttl"};
    PyObject* values[3] = {};
    if (!read_arguments("publish_packed", arguments, count, names, expected, 3, 3, values)) return nullptr;
    if (values[0] == nullptr || values[1] == nullptr) {
        PyErr_SetString(PyExc_TypeError, "publish_packed() needs the data and the offsets");
        return nullptr;
    }
    return guarded([&] { return publisher_of(self).publish_packed(values[0], values[1], values[2]); });
}

PyMethodDef publisher_methods[] = {
    {"publish", fast(publish), METH_FASTCALL | METH_KEYWORDS, kPublishText},
    {"publish_many", fast(publish_many), METH_FASTCALL | METH_KEYWORDS, kPublishManyText},
    {"publish_packed", fast(publish_packed), METH_FASTCALL | METH_KEYWORDS, kPublishPackedText},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot publisher_slots[] = {{Py_tp_methods, publisher_methods}, {0, nullptr}};

nb::dict build_info() {
    nb::dict d;
    d["compiler"] = __VERSION__;
    d["openssl"] = tls::openssl() != nullptr;
    d["mirrored_rings"] = RingMemory::mirrored;
#if defined(ANTIPHON_SANITIZE)
    d["sanitizers"] = ANTIPHON_SANITIZE;
#else
    d["sanitizers"] = "";
#endif
    return d;
}

}  // namespace

}  // namespace antiphon::python

NB_MODULE(_core, m) {
    using namespace antiphon;
    using namespace antiphon::python;
    m.doc() = "The native core of antiphon. Use the package, not this module.";
    // Nodes are closed by an exit hook while the interpreter still stands; what is left then is
    // deliberately kept (forked children, handlers that never returned), and no leak to report.
    nb::set_leak_warnings(false);
    remember_main_thread();
    if (!add_batch_types(m.ptr()) || !add_event_types(m.ptr())) throw nb::python_error();

    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const std::system_error& error) {
            PyObject* value = Py_BuildValue("(is)", error.code().value(), error.what());
            PyErr_SetObject(PyExc_OSError, value);
            Py_XDECREF(value);
        }
    });

    nb::class_<Handle>(m, "Handle", nb::is_weak_referenceable())
        .def("close", [](Handle& self) {
            if (!self.close()) throw nb::python_error();
        })
        .def_prop_ro("active", &Handle::active)
        .def_prop_ro("flow", [](const Handle& self) { return self.registration().flow; })
        .def_prop_ro("least_charge", [](const Handle& self) { return self.registration().least_charge; })
        .def("set_share", &Handle::set_share, "share"_a)
        .def("route", &Handle::route, "source"_a, "number"_a, "to"_a.none())
        .def("acknowledge", &Handle::acknowledge, "manual"_a)
        .def("wait_acknowledged", &Handle::wait_acknowledged, "timeout"_a)
        .def("positions", &Handle::positions)
        .def("meter", &registration_meter_dict)
        .def("delays", &delay_dict)
        .def("statistics", &handle_dict);

    nb::class_<Inbox>(m, "InboxCore", nb::type_slots(inbox_slots), nb::is_weak_referenceable())
        .def("try_receive", [](Inbox& self) { return checked(self.try_receive()); })
        .def(
            "wait",
            [](Inbox& self, std::uint64_t nudges, nb::handle timeout) {
                if (!self.wait(nudges, timeout_of(timeout))) throw nb::python_error();
            },
            "nudges"_a, "timeout"_a.none())
        .def("nudge", &Inbox::nudge)
        .def("acknowledge", &Inbox::acknowledge, "manual"_a)
        .def("hold", &Inbox::hold)
        .def("done", &Inbox::done)
        .def("wait_acknowledged", &Inbox::wait_acknowledged, "timeout"_a)
        .def("positions", &Inbox::positions)
        .def_prop_ro("nudges", &Inbox::nudges)
        .def("tell", [](Inbox& self, const Door& door, std::uint64_t number) { self.tell(door.completions, number); },
             "door"_a, "number"_a)
        .def("close", &Inbox::close)
        .def_prop_ro("kind", &Inbox::kind)
        .def_prop_ro("flow", [](const Inbox& self) { return self.registration().flow; })
        .def_prop_ro("least_charge", [](const Inbox& self) { return self.registration().least_charge; })
        .def_prop_ro("pending", &Inbox::pending)
        .def_prop_ro("dropped", &Inbox::dropped)
        .def_prop_ro("received", &Inbox::received)
        .def_prop_ro("closed", &Inbox::closed)
        .def("statistics", [](const Inbox& self) {
            nb::dict d = registration_dict(self.registration(), nullptr);
            d["pending"] = self.pending();
            d["failed"] = self.failed();
            d["active"] = self.registration().active.load(std::memory_order_relaxed);
            if (self.registration().topics) {
                d["handled"] = self.received();
                d["expired"] = self.expired();
                d["malformed"] = self.malformed();
                d["missed"] = self.missed();
            }
            return d;
        });

    nb::class_<Door>(m, "DoorCore")
        .def(nb::init<>())
        .def("fileno", [](const Door& self) { return self.completions->fd(); })
        .def("take", [](const Door& self) { return self.completions->take(); })
        .def("push", [](const Door& self, std::uint64_t number) { self.completions->push_once(number); }, "number"_a)
        .def("bell", [](const Door& self, std::uint64_t number) {
            return std::make_shared<Bell>(self.completions, number);
        }, "number"_a);

    nb::class_<Bell>(m, "BellCore");

    nb::class_<Soon>(m, "SoonCore")
        .def("drop", &Soon::drop)
        .def("attempt", [](Soon& self, Bell& bell) { return next_of(self.attempt(bell)); }, "bell"_a)
        .def_prop_ro("until", [](const Soon& self) { return to_seconds(self.until()); });

    nb::class_<Held>(m, "HeldCore")
        .def("finish",
             [](Held& self, nb::handle result) {
                 const std::optional<bool> sent = self.finish(Reference::share(result.ptr()));
                 if (!sent) throw nb::python_error();
                 return *sent;
             },
             "result"_a.none())
        .def("fail", [](Held& self, nb::handle exception) { return self.fail(exception.ptr()); }, "exception"_a)
        .def("deliver", &Held::deliver)
        .def("drop", &Held::drop)
        .def("attempt", [](Held& self, Bell& bell) { return next_of(self.attempt(bell)); }, "bell"_a)
        .def_prop_ro("until", [](const Held& self) { return to_seconds(self.until()); });

    nb::class_<Feed>(m, "FeedCore")
        .def("tell", [](Feed& self, const Door& door, std::uint64_t number) { self.tell(door.completions, number); },
             "door"_a, "number"_a)
        .def("take", [](Feed& self, Py_ssize_t most) { return checked(self.take(most)); }, "most"_a)
        .def("close", &Feed::close)
        .def_prop_ro("closed", &Feed::closed)
        .def_prop_ro("busy", &Feed::busy)
        .def("statistics", [](const Feed& self) {
            nb::dict d = registration_dict(self.registration(), nullptr);
            d["handled"] = d["calls"] = self.handled();
            d["failed"] = self.failed();
            d["active"] = self.registration().active.load(std::memory_order_relaxed);
            return d;
        });

    nb::class_<Request>(m, "RequestCore")
        .def_prop_ro("id", &Request::id)
        .def_prop_ro("done", &Request::done)
        .def("send", [](Request& self, nb::handle data, bool wait, double timeout) {
            const int sent = self.send(data.ptr(), wait, now_ns() + seconds_to_ns(timeout));
            if (sent < 0) throw nb::python_error();
            return sent == 1;
        }, "data"_a, "wait"_a, "timeout"_a)
        .def("keep", [](Request& self, nb::bytes data, double timeout) {
            self.keep(shared(data), now_ns() + seconds_to_ns(timeout));
        }, "data"_a, "timeout"_a)
        .def("drop", &Request::drop)
        .def("attempt", [](Request& self, Bell& bell) { return next_of(self.attempt(bell)); }, "bell"_a)
        .def_prop_ro("until", [](const Request& self) { return to_seconds(self.until()); })
        .def("wait", [](Request& self, nb::handle timeout) {
            const double seconds = timeout_of(timeout);
            const int done = self.wait(seconds < 0 ? kNever : now_ns() + seconds_to_ns(seconds));
            if (done < 0) throw nb::python_error();
            return done == 1;
        }, "timeout"_a.none())
        .def("result", [](Request& self) { return checked(self.result()); })
        .def("time_out", [](Request& self) { return checked(self.time_out()); })
        .def("cancel", &Request::cancel)
        .def("tell", [](Request& self, const Door& door) { self.tell(door.completions); }, "door"_a)
        .def("forget", [](Request& self, const Door& door) { self.forget(*door.completions); }, "door"_a);

    nb::class_<NodeCore>(m, "NodeCore", nb::type_slots(node_slots), nb::is_weak_referenceable())
        .def(
            "__init__",
            [](NodeCore* self, const nb::dict& options, nb::handle kind_of, nb::handle encode) {
                new (self) NodeCore(read_options(options), shared(kind_of), shared(encode));
            },
            "options"_a, "kind_of"_a, "encode"_a)
        .def("_start", &NodeCore::start)
        .def("_close", [](NodeCore& self, double drain) {
            const bool clean = self.close(drain);
            if (PyErr_Occurred()) throw nb::python_error();
            return clean;
        }, "drain"_a)
        .def(
            "_on",
            [](NodeCore& self, std::uint16_t kind, nb::handle call, nb::handle decode, nb::handle on_error, bool batch,
               int tasks, std::uint64_t capacity, const std::string& full) {
                return self.on(kind, shared(call), shared(decode), shared(on_error), batch, tasks, capacity,
                               when_full(full));
            },
            "kind"_a, "call"_a, "decode"_a.none(), "on_error"_a, "batch"_a, "tasks"_a, "capacity"_a, "when_full"_a)
        .def(
            "_inbox",
            [](NodeCore& self, std::uint16_t kind, nb::handle decode, std::uint64_t capacity, const std::string& full) {
                return self.inbox(kind, shared(decode), capacity, when_full(full));
            },
            "kind"_a, "decode"_a.none(), "capacity"_a, "when_full"_a)
        .def(
            "_feed",
            [](NodeCore& self, std::uint16_t kind, nb::handle decode, std::uint64_t capacity, const std::string& full) {
                return self.feed(kind, shared(decode), capacity, when_full(full));
            },
            "kind"_a, "decode"_a.none(), "capacity"_a, "when_full"_a)
        .def(
            "_subscribe",
            [](NodeCore& self, nb::handle call, nb::handle on_error, bool batch, std::uint64_t capacity,
               const std::string& full) {
                return self.subscribe(shared(call), shared(on_error), batch, capacity, when_full(full));
            },
            "call"_a, "on_error"_a, "batch"_a, "capacity"_a, "when_full"_a)
        .def(
            "_relay",
            [](NodeCore& self, nb::handle call, nb::handle on_error, nb::handle ended, std::uint64_t capacity,
               double patience) {
                return self.relay(shared(call), shared(on_error), shared(ended), capacity, seconds_to_ns(patience));
            },
            "call"_a, "on_error"_a, "ended"_a, "capacity"_a, "patience"_a)
        .def("_is_connected", [](NodeCore& self, std::uint16_t id) {
            const Peer* peer = self.node()->find_peer(id);
            // The number of what comes in is odd while something may.
            return peer != nullptr && (peer->session.load(std::memory_order_seq_cst) != 0 ||
                                       peer->in_session.load(std::memory_order_seq_cst) % 2 == 1);
        }, "id"_a)
        .def("_settle_id", [](NodeCore& self) { self.node()->settle_id(); })
        .def("_set_broker", [](NodeCore& self, std::uint16_t id) { self.node()->set_broker(id); }, "id"_a)
        .def(
            "_identify",
            [](NodeCore& self, const std::string& address, double timeout) {
                const auto found = self.identify(address, timeout);
                if (PyErr_Occurred()) throw nb::python_error();
                return found;
            },
            "address"_a, "timeout"_a)
        .def(
            "_subscribe_inbox",
            [](NodeCore& self, std::uint64_t capacity, const std::string& full) {
                return self.subscribe_inbox(capacity, when_full(full));
            },
            "capacity"_a, "when_full"_a)
        .def(
            "_publisher",
            [](NodeCore& self, std::uint32_t topic, const std::string& name, const std::string& full, bool retains,
               std::size_t capacity, nb::handle encode, std::uint16_t origin) {
                return std::make_shared<Publisher>(
                    self.node(), Publisher::Options{topic, name, when_full(full), retains, capacity, origin},
                    shared(encode),
                    self.encode());
            },
            "topic"_a, "name"_a, "when_full"_a, "retains"_a, "capacity"_a, "encode"_a, "origin"_a = 0)
        .def(
            "_tell",
            [](NodeCore& self, long target, nb::handle data, bool blocking, std::uint16_t kind) {
                return checked(self.tell(target, data.ptr(), blocking, kind));
            },
            "target"_a, "data"_a, "blocking"_a, "kind"_a = kBusKind)
        .def(
            "_timer",
            [](NodeCore& self, double period, nb::handle call, nb::handle on_error, bool wants_event) {
                return std::make_shared<Timer>(self.node(), period, shared(call), shared(on_error), wants_event);
            },
            "period"_a, "call"_a, "on_error"_a, "wants_event"_a)
        .def(
            "_soon",
            [](NodeCore& self, long target, nb::bytes data, std::uint16_t kind) {
                auto soon = self.soon(target, shared(data), kind);
                if (!soon) throw nb::python_error();
                return soon;
            },
            "target"_a, "data"_a, "kind"_a)
        .def("_share_sum", [](NodeCore& self) { return self.node()->scheduler().shares(); })
        .def("_renewals", [](NodeCore& self) { return self.node()->scheduler().renewals(); })
        .def("_schedule_usage", &usage_dict)
        .def("_schedule_refusal", [](NodeCore& self) { return self.node()->scheduler().refusal(); })
        .def("_set_on_event", [](NodeCore& self, nb::handle call) { self.set_on_event(shared(call)); },
             "call"_a.none())
        .def(
            "_request",
            [](NodeCore& self, long target, nb::handle data, int kind, nb::handle timeout) {
                return checked(self.request(target, data.ptr(), kind, timeout_of(timeout)));
            },
            "target"_a, "data"_a, "kind"_a, "timeout"_a.none())
        .def(
            "_prepare",
            [](NodeCore& self, long target, int kind) {
                auto request = self.prepare(target, kind);
                if (!request) throw nb::python_error();
                return request;
            },
            "target"_a, "kind"_a)
        .def(
            "_flush",
            [](NodeCore& self, int peer, nb::handle timeout) {
                if (!self.flush(peer, timeout_of(timeout))) throw nb::python_error();
            },
            "peer"_a, "timeout"_a.none())
        .def("_add_peer", [](NodeCore& self, std::uint16_t id, const std::string& address) {
            self.node()->add_peer(id, address);
        }, "id"_a, "address"_a)
        .def("_remove_peer", [](NodeCore& self, std::uint16_t id) { return self.node()->remove_peer(id); }, "id"_a)
        .def("_peers", &peer_list)
        .def("_counters", &counter_dict)
        .def("_handles", &handle_list)
        .def_prop_ro("_id", [](NodeCore& self) { return self.node()->id(); })
        .def_prop_ro("_incarnation", [](NodeCore& self) { return self.node()->incarnation(); })
        .def_prop_ro("_address", [](NodeCore& self) { return self.node()->address(); })
        .def_prop_ro("_closed", [](NodeCore& self) { return self.node()->closed(); })
        .def_prop_ro("_forked", [](NodeCore& self) { return self.node()->forked(); });

    nb::class_<Timer>(m, "TimerCore", nb::is_weak_referenceable())
        .def("start", &Timer::start)
        .def("close", [](Timer& self) {
            if (!self.close()) throw nb::python_error();
        })
        .def("set_share", &Timer::set_share, "share"_a)
        .def_prop_ro("active", &Timer::active)
        .def_prop_ro("period", &Timer::period)
        .def("meter", [](const Timer& self) { return meter_dict({self.held_task()}); })
        .def("statistics", [](const Timer& self) {
            const TimerTask& task = self.task();
            nb::dict d;
            d["calls"] = task.calls.load(std::memory_order_relaxed);
            d["failed"] = task.failed.load(std::memory_order_relaxed);
            d["late"] = task.late.load(std::memory_order_relaxed);
            d["missed"] = task.missed.load(std::memory_order_relaxed);
            d["longest_lateness"] = static_cast<double>(task.lateness.longest()) / 1e9;
            d["lateness"] = class_dict(task.lateness);
            add_slices(d, {self.held_task()});
            return d;
        });

    nb::class_<Quota>(m, "Quota")
        .def(nb::init<double, double>(), "events_per_s"_a, "bytes_per_s"_a)
        .def("set", &Quota::set, "events_per_s"_a, "bytes_per_s"_a)
        .def_prop_ro("dropped", &Quota::dropped);

    nb::class_<Route>(m, "RouteCore");
    nb::class_<Publisher, Route>(m, "PublisherCore", nb::type_slots(publisher_slots), nb::is_weak_referenceable())
        .def(
            "serve",
            [](Publisher& self, std::uint16_t peer, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least,
               std::shared_ptr<match::Filter> where, std::uint64_t content, bool ends) {
                return self.serve(peer, incarnation, flow, least, std::move(where), content, ends);
            },
            "peer"_a, "incarnation"_a, "flow"_a, "least_charge"_a, "where"_a.none(), "content"_a = 0, "ends"_a = false)
        .def("judge_by", [](Publisher& self, nb::handle planner) { self.judge_by(shared(planner)); }, "planner"_a)
        .def("limit", &Publisher::limit, "quota"_a.none())
        .def("settle", &Publisher::settle)
        .def("settle_waiting", &Publisher::settle_waiting)
        .def_prop_ro("owes_large", &Publisher::owes_large)
        .def("leave", &Publisher::leave, "peer"_a, "flow"_a)
        .def("close", [](Publisher& self, double drain) {
            if (!self.close(seconds_to_ns(drain))) throw nb::python_error();
        }, "drain"_a = 0.0)
        .def("set_share", &Publisher::set_share, "share"_a)
        .def_prop_ro("active", &Publisher::active)
        .def("check_open", [](const Publisher& self) {
            if (!self.open()) throw nb::python_error();
        })
        .def("set_started", &Publisher::set_started, "started"_a)
        .def("flush_queue", [](Publisher& self, nb::handle timeout) {
            if (!self.flush_queue(timeout_of(timeout))) throw nb::python_error();
        }, "timeout"_a.none())
        .def("meter", [](const Publisher& self) {
            return meter_dict(self.task() ? Tasks{self.task()} : Tasks{});
        })
        .def_prop_ro("targets", &Publisher::targets)
        .def_prop_ro("sequence", &Publisher::sequence)
        .def("missed_by", [](Publisher& self) {
            nb::dict all;
            for (const auto& [peer, missed] : self.missed_by()) {
                all[nb::int_(peer)] = nb::make_tuple(missed.dropped, missed.lost);
            }
            return all;
        })
        .def("statistics", [](Publisher& self) {
            nb::dict d;
            d["published"] = self.sequence();
            d["pending"] = self.pending();
            d["dropped"] = self.dropped();
            d["lost"] = self.lost();
            d["waits"] = self.waits();
            d["targets"] = self.targets();
            add_slices(d, self.task() ? Tasks{self.task()} : Tasks{});
            return d;
        });

    add_group_types(m);
    m.def("set_event_hooks", [](nb::handle properties, nb::handle message, nb::handle topic) {
        set_event_hooks(shared(properties), shared(message), shared(topic));
    }, "properties"_a, "message"_a, "topic"_a);
    m.attr("JUDGED_BYTES") = kMostJudged;
    m.def("on_scheduler_thread", [] { return Scheduler::on_scheduler_thread(); });
    m.def("build_info", &build_info);
    m.def(
        "check_tls",
        [](const std::string& certificate, const std::string& key, const std::string& authority) -> std::string {
            try {
                tls::Context::with_certificates({certificate, key, authority});
                return {};
            } catch (const std::exception& error) {
                return error.what();
            }
        },
        "certificate"_a, "key"_a, "authority"_a);
    add_bench(m);
    add_match(m);
    add_structures(m);
    add_log(m);
    add_recording(m);
}

#include "bindings/cast_types.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace antiphon::python {

namespace {

using window::CastReceiver;
using window::CastSender;
using window::Flow;
using window::Lane;

template <typename Value>
Value get(const nb::dict& from, const char* key) {
    return nb::cast<Value>(from[key]);
}

Nanos nanos(const nb::dict& from, const char* key) { return seconds_to_ns(get<double>(from, key)); }

Nanos nanos(double seconds) { return seconds_to_ns(seconds); }

double seconds(Nanos when) { return when >= kNever ? std::numeric_limits<double>::infinity() : static_cast<double>(when) / kSecond; }

groups::DatagramFaults::Options read_faults(const nb::dict& from) {
    groups::DatagramFaults::Options faults;
    faults.drop = get<double>(from, "drop");
    faults.drop_kinds = get<std::uint32_t>(from, "drop_kinds");
    faults.drop_first = get<std::uint64_t>(from, "drop_first");
    faults.drop_every = get<std::uint64_t>(from, "drop_every");
    faults.duplicate = get<double>(from, "duplicate");
    faults.delay_least = nanos(from, "delay_least");
    faults.delay_most = nanos(from, "delay_most");
    faults.shuffle = get<std::uint32_t>(from, "shuffle");
    faults.seed = get<std::uint64_t>(from, "seed");
    return faults;
}

// A stream of one member by itself, for simulations: what it holds is its own.
class CastSenderCore {
   public:
    CastSenderCore(std::size_t bytes, std::size_t messages, std::size_t datagram_bytes, double quiet,
                   const std::string& flow, std::size_t credits)
        : lane(bytes, messages),
          cast(lane, {.datagram_bytes = datagram_bytes, .quiet = nanos(quiet)},
               {.kind = flow == "reactive" ? Flow::Kind::reactive
                        : flow == "credit" ? Flow::Kind::credit
                                           : Flow::Kind::share,
                .most = bytes,
                .least = 2 * datagram_bytes,
                .credits = credits}) {}

    nb::object piece(const CastSender::Piece& one) const {
        nb::list messages;
        for (std::uint64_t number = one.first; number < one.end; ++number) {
            const auto pieces = lane.window().bytes(number, number + 1);
            const std::string text = std::string(pieces.first).append(pieces.second);
            messages.append(nb::bytes(text.data(), text.size()));
        }
        return nb::make_tuple(one.to, one.first, messages, cast.stable(), cast.acknowledge_every(), one.ask);
    }

    Lane lane;
    CastSender cast;
};

nb::object or_none(bool there, const std::function<nb::object()>& make) { return there ? make() : nb::none(); }

// (first, messages) of everything that is next in order.
nb::list take(CastReceiver& self) {
    nb::list all;
    CastReceiver::Ready ready;
    while (self.take(ready)) {
        std::size_t at = 0;
        for (std::size_t i = 0; i < ready.chunk->lengths.size(); ++i) {
            if (i >= ready.begin) all.append(nb::bytes(ready.chunk->bytes.data() + at, ready.chunk->lengths[i]));
            at += ready.chunk->lengths[i];
        }
    }
    return all;
}

bool data(CastReceiver& self, std::uint64_t first, const nb::list& messages, std::uint64_t stable, std::uint32_t every,
          bool ask, double now) {
    auto chunk = std::make_shared<window::Chunk>();
    chunk->first = first;
    for (nb::handle one : messages) {
        const nb::bytes message = nb::cast<nb::bytes>(one);
        chunk->lengths.push_back(static_cast<std::uint16_t>(message.size()));
        chunk->bytes.append(message.c_str(), message.size());
    }
    return self.data(std::move(chunk), stable, every, ask, nanos(now));
}

// (first, messages) of what others may be given.
nb::list find(const CastReceiver& self, std::uint64_t first, std::uint64_t end) {
    std::vector<std::shared_ptr<const window::Chunk>> chunks;
    self.find({first, end}, chunks, 16);
    nb::list all;
    for (const auto& chunk : chunks) {
        nb::list messages;
        std::size_t at = 0;
        for (const std::uint16_t length : chunk->lengths) {
            messages.append(nb::bytes(chunk->bytes.data() + at, length));
            at += length;
        }
        all.append(nb::make_tuple(chunk->first, messages));
    }
    return all;
}

}  // namespace

GroupCore::Options::Datagrams read_datagrams(const nb::dict& from) {
    GroupCore::Options::Datagrams made;
    auto& socket = made.port.socket;
    socket.address = get<std::string>(from, "address");
    socket.port = get<std::uint16_t>(from, "port");
    socket.interface = get<std::string>(from, "interface");
    socket.ttl = get<int>(from, "ttl");
    socket.mtu = get<std::size_t>(from, "mtu");
    socket.receive_buffer = get<std::size_t>(from, "receive_buffer");
    made.port.group = get<std::uint64_t>(from, "group");
    made.port.sealed = get<bool>(from, "sealed");
    made.port.faults = read_faults(get<nb::dict>(from, "faults"));
    Flow::Options flow;
    flow.kind = static_cast<Flow::Kind>(get<int>(from, "flow"));
    flow.credits = get<std::size_t>(from, "credits");
    flow.credits_least = get<std::size_t>(from, "credits_least");
    const Nanos quiet = nanos(from, "quiet");
    const auto window = [&](const char* bytes, const char* messages) {
        groups::DatagramLane::Options lane{get<std::size_t>(from, bytes), get<std::size_t>(from, messages), {}, flow};
        lane.flow.most = lane.bytes;
        lane.cast.quiet = quiet;
        lane.cast.repair_fraction = get<double>(from, "repair_fraction");
        return lane;
    };
    made.all = window("window_bytes", "window_messages");
    made.one = window("unicast_bytes", "unicast_messages");
    // As much as a sender may have there, whose settings are the same.
    const auto receiving = [&](const groups::DatagramLane::Options& lane, const char* first) {
        return CastReceiver::Options{lane.bytes + window::SendWindow::kReservedBytes,
                                     window::SendWindow::most_messages(lane.messages),
                                     nanos(from, first),
                                     std::max(nanos(from, "ask_again"), nanos(from, first)),
                                     std::max(nanos(from, "ask_most"), nanos(from, first)),
                                     std::max<Nanos>(kMillisecond, quiet / 2)};
    };
    made.port.receivers = {receiving(made.all, "ask_first"), receiving(made.one, "ask_first_one")};
    return made;
}

void add_cast_types(nb::module_& m) {
    nb::class_<CastSenderCore>(m, "CastSenderCore")
        .def(nb::init<std::size_t, std::size_t, std::size_t, double, const std::string&, std::size_t>(), "bytes"_a,
             "messages"_a, "datagram_bytes"_a, "quiet"_a, "flow"_a, "credits"_a)
        .def("append", [](CastSenderCore& self, const nb::bytes& message) {
            return self.lane.window().append({}, {message.c_str(), message.size()});
        }, "message"_a)
        .def("add", [](CastSenderCore& self, std::uint64_t member, std::size_t buffer, double now) {
            self.lane.add(member);
            self.cast.add(member, buffer, nanos(now));
        }, "member"_a, "buffer"_a, "now"_a)
        .def("remove", [](CastSenderCore& self, std::uint64_t member) {
            self.lane.remove(member);
            self.cast.remove(member);
        }, "member"_a)
        .def("next", [](CastSenderCore& self, double now) {
            CastSender::Piece piece;
            return or_none(self.cast.next(nanos(now), piece), [&] { return self.piece(piece); });
        }, "now"_a)
        .def("repair", [](CastSenderCore& self, double now) {
            CastSender::Piece piece;
            return or_none(self.cast.repair(nanos(now), piece), [&] { return self.piece(piece); });
        }, "now"_a)
        .def("head", [](CastSenderCore& self, double now) {
            bool ask = false;
            return or_none(self.cast.head(nanos(now), ask), [&]() -> nb::object {
                return nb::make_tuple(self.cast.sent(), self.cast.stable(), ask);
            });
        }, "now"_a)
        .def("base", [](CastSenderCore& self, double now) {
            std::uint64_t member, base;
            return or_none(self.cast.base(nanos(now), member, base),
                           [&]() -> nb::object { return nb::make_tuple(member, base); });
        }, "now"_a)
        .def("asks_base", [](CastSenderCore& self, std::uint64_t member, double now) {
            self.cast.asks_base(member, nanos(now));
        }, "member"_a, "now"_a)
        .def("acknowledge", [](CastSenderCore& self, std::uint64_t member, std::uint64_t received,
                               std::uint64_t handled, bool slow, double now) {
            return self.cast.acknowledge(member, received, handled, slow, nanos(now));
        }, "member"_a, "received"_a, "handled"_a, "slow"_a, "now"_a)
        .def("asked", [](CastSenderCore& self, std::uint64_t member, std::uint64_t first, std::uint64_t end,
                         double now) { self.cast.asked(member, {first, end}, nanos(now)); },
             "member"_a, "first"_a, "end"_a, "now"_a)
        .def("next_time", [](CastSenderCore& self) { return seconds(self.cast.next_time()); })
        .def_prop_ro("settled", [](CastSenderCore& self) { return self.lane.settled(); })
        .def_prop_ro("used", [](CastSenderCore& self) { return self.lane.window().used(); })
        .def_prop_ro("capacity", [](CastSenderCore& self) { return self.lane.window().capacity(); })
        .def_prop_ro("sent", [](CastSenderCore& self) { return self.cast.sent(); })
        .def_prop_ro("flight", [](CastSenderCore& self) { return self.cast.flight(); })
        .def_prop_ro("heads", [](CastSenderCore& self) { return self.cast.heads(); })
        .def_prop_ro("cuts", [](CastSenderCore& self) { return self.cast.cuts(); })
        .def_prop_ro("repeated", [](CastSenderCore& self) { return self.cast.repeated(); });

    nb::class_<CastReceiver>(m, "CastReceiverCore")
        .def("__init__", [](CastReceiver* self, std::size_t most_bytes, std::size_t most_messages, double ask_first,
                            std::uint64_t seed) {
            new (self) CastReceiver({.most_bytes = most_bytes, .most_messages = most_messages,
                                     .ask_first = nanos(ask_first)}, seed);
        }, "most_bytes"_a, "most_messages"_a, "ask_first"_a, "seed"_a)
        .def("begin", [](CastReceiver& self, std::uint64_t base, double now) { self.begin(base, nanos(now)); },
             "base"_a, "now"_a)
        .def("data", &data, "first"_a, "messages"_a, "stable"_a, "every"_a, "ask"_a, "now"_a)
        .def("head", [](CastReceiver& self, std::uint64_t next, std::uint64_t stable, bool ask, double now) {
            self.head(next, stable, ask, nanos(now));
        }, "next"_a, "stable"_a, "ask"_a, "now"_a)
        .def("take", &take)
        .def("handled", [](CastReceiver& self, std::uint64_t upto, std::size_t bytes, double now) {
            self.handled(upto, bytes, nanos(now));
        }, "upto"_a, "bytes"_a, "now"_a)
        .def("acknowledge", [](CastReceiver& self, double now) {
            return or_none(self.acknowledge(nanos(now)), [&]() -> nb::object {
                return nb::make_tuple(self.received(), self.handled(), self.slow());
            });
        }, "now"_a)
        .def("ask", [](CastReceiver& self, double now) {
            std::vector<window::Range> ranges;
            std::uint32_t attempt;
            return or_none(self.ask(nanos(now), ranges, attempt), [&]() -> nb::object {
                nb::list all;
                for (const window::Range& one : ranges) all.append(nb::make_tuple(one.first, one.end));
                return nb::make_tuple(all, attempt);
            });
        }, "now"_a)
        .def("ask_base", [](CastReceiver& self, double now) { return self.ask_base(nanos(now)); }, "now"_a)
        .def("find", &find, "first"_a, "end"_a)
        .def("next_time", [](CastReceiver& self) { return seconds(self.next_time()); })
        .def_prop_ro("received", &CastReceiver::received)
        .def_prop_ro("held_bytes", &CastReceiver::held_bytes)
        .def_prop_ro("kept", &CastReceiver::kept)
        .def_prop_ro("duplicates", &CastReceiver::duplicates)
        .def_prop_ro("refused", &CastReceiver::refused)
        .def_prop_ro("asked", &CastReceiver::asked);
}

}  // namespace antiphon::python

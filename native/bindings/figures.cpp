#include "bindings/figures.hpp"

#include <algorithm>

#include "bindings/subscription.hpp"

namespace nb = nanobind;

namespace antiphon::python {

namespace {

nb::dict flow_dict(const FlowStatistics& flow) {
    nb::dict d;
    d["kind"] = flow.kind;
    d["flow"] = flow.flow;
    d["messages"] = flow.messages;
    d["bytes"] = flow.bytes;
    d["waits"] = flow.waits;
    d["window"] = flow.window;
    d["in_flight"] = flow.in_flight;
    return d;
}

}  // namespace

nb::list peer_list(NodeCore& core) {
    std::vector<PeerStatistics> all;
    {
        Released released;
        all = core.node()->statistics();
    }
    nb::list list;
    for (const PeerStatistics& s : all) {
        nb::dict d;
        d["id"] = s.id;
        d["address"] = nb::steal(PyUnicode_DecodeUTF8(s.address.data(), static_cast<Py_ssize_t>(s.address.size()), "replace"));
        d["incarnation"] = s.incarnation;
        d["sending"] = s.sending;
        d["receiving"] = s.receiving;
        d["messages_out"] = s.messages_out;
        d["bytes_out"] = s.bytes_out;
        d["messages_in"] = s.messages_in;
        d["bytes_in"] = s.bytes_in;
        d["ring_used"] = s.ring_used;
        d["ring_bytes"] = s.ring_bytes;
        d["ring_waits"] = s.ring_waits;
        d["credit_waits"] = s.credit_waits;
        d["writes"] = s.writes;
        d["inline_writes"] = s.inline_writes;
        d["reads"] = s.reads;
        d["connects"] = s.connects;
        d["losses"] = s.losses;
        d["dropped_bytes"] = s.dropped_bytes;
        d["unconfirmed_messages"] = s.unconfirmed_messages;
        d["large_out"] = s.large_out;
        d["large_in"] = s.large_in;
        d["oldest_work"] = s.remote_age_ms / 1000.0;
        nb::list out, in;
        for (const auto& flow : s.flows_out) out.append(flow_dict(flow));
        for (const auto& flow : s.flows_in) in.append(flow_dict(flow));
        d["flows_out"] = out;
        d["flows_in"] = in;
        list.append(d);
    }
    return list;
}

nb::dict counter_dict(NodeCore& core) {
    const NodeCounters c = core.node()->counters();
    nb::dict d;
    d["unknown_kind"] = c.unknown_kind;
    d["refused_connections"] = c.refused;
    d["protocol_errors"] = c.protocol_errors;
    d["buffer_waits"] = c.starved;
    d["buffer_bytes"] = c.buffers_out;
    d["buffer_bytes_bound"] = c.buffers_bound;
    d["pinned_bytes"] = c.pinned;
    d["selector_turns"] = c.turns;
    d["slices"] = c.slices;
    d["scheduler_threads"] = c.threads;
    d["window_bytes_granted"] = c.granted;
    d["large_bytes_in_use"] = c.large_in_use;
    d["requests"] = c.requests;
    d["requests_open"] = c.requests_open;
    d["late_responses"] = c.late_responses;
    d["dismissed_connections"] = c.dismissed;
    d["answers"] = c.answers;
    d["lost_answers"] = c.lost_answers;
    d["lost_events"] = core.lost_events();
    d["forgotten_failed"] = core.forgotten_failed();
    d["forgotten_dropped"] = core.forgotten_dropped() + c.events_dropped;
    return d;
}

nb::dict registration_dict(const Registration& registration, const Handler* handler) {
    nb::dict d;
    d["kind"] = registration.kind;
    d["messages"] = registration.messages.load(std::memory_order_relaxed);
    d["bytes"] = registration.bytes.load(std::memory_order_relaxed);
    d["pending"] = registration.queue->pending();
    d["pending_bytes"] = registration.queue->pending_bytes();
    d["capacity"] = registration.queue->capacity();
    d["dropped"] = registration.queue->dropped();
    d["handled"] = handler ? handler->handled.load(std::memory_order_relaxed) : 0;
    d["failed"] = handler ? handler->failed.load(std::memory_order_relaxed) : 0;
    d["calls"] = handler ? handler->calls.load(std::memory_order_relaxed) : 0;
    d["handler_ns"] = handler ? handler->busy_ns.load(std::memory_order_relaxed) : 0;
    add_slices(d, {});
    return d;
}

nb::dict handle_dict(const Handle& handle) {
    nb::dict d = registration_dict(handle.registration(), &handle.handler());
    add_slices(d, handle.tasks());
    return d;
}

void add_slices(nb::dict& d, const Tasks& tasks) {
    std::uint64_t slices = 0, overruns = 0;
    for (const auto& task : tasks) {
        slices += task->meter.slices.load(std::memory_order_relaxed);
        overruns += task->meter.overruns.load(std::memory_order_relaxed);
    }
    d["slices"] = slices;
    d["overruns"] = overruns;
}

nb::dict usage_dict(NodeCore& core) {
    Scheduler& scheduler = core.node()->scheduler();
    const Scheduler::Usage usage = scheduler.usage();
    nb::dict d;
    d["threads"] = scheduler.thread_count();
    d["worked"] = static_cast<double>(usage.worked) / 1e9;
    d["engaged"] = static_cast<double>(usage.engaged) / 1e9;
    d["thread_lasted"] = static_cast<double>(usage.lasted) / 1e9;
    d["thread_used"] = static_cast<double>(usage.used) / 1e9;
    return d;
}

nb::dict meter_dict(const Tasks& tasks) {
    double slices = 0, busy = 0, events = 0, full = 0, overruns = 0, longest = 0;
    double resumed = 0, resumed_sum = 0, resumed_squares = 0;
    double waited = 0, waited_squares = 0, lasted = 0, used = 0, service = 0, service_squares = 0;
    for (const auto& task : tasks) {
        const Meter& m = task->meter;
        auto get = [](const auto& number) { return static_cast<double>(number.load(std::memory_order_relaxed)); };
        slices += get(m.slices);
        busy += get(m.busy_slices);
        events += get(m.events);
        full += get(m.full_slices);
        overruns += get(m.overruns);
        longest = std::max(longest, get(m.longest_overrun));
        resumed += get(m.resumed_slices);
        resumed_sum += get(m.resumed_sum);
        resumed_squares += get(m.resumed_squares);
        waited += get(m.wait_sum);
        waited_squares += get(m.wait_squares);
        lasted += get(m.lasted_sum);
        used += get(m.used_sum);
        service += get(m.service_sum);
        service_squares += get(m.service_squares);
    }
    nb::dict d;
    d["time"] = static_cast<double>(now_ns()) / 1e9;
    d["slices"] = slices;
    d["busy_slices"] = busy;
    d["events"] = events;
    d["full_slices"] = full;
    d["overruns"] = overruns;
    d["longest_overrun"] = longest / 1e9;
    d["resumed_slices"] = resumed;
    d["resumed"] = resumed_sum / 1e9;
    d["resumed_squares"] = resumed_squares / 1e18;
    d["waited"] = waited / 1e9;
    d["waited_squares"] = waited_squares / 1e18;
    d["lasted"] = lasted / 1e9;
    d["used"] = used / 1e9;
    d["service"] = service / 1e9;
    d["service_squares"] = service_squares / 1e18;
    return d;
}

nb::dict registration_meter_dict(const Handle& handle) {
    nb::dict d = meter_dict(handle.tasks());
    const Registration& registration = handle.registration();
    d["pending"] = registration.queue->pending();
    d["found"] = registration.queue->found();
    d["arrived"] = registration.messages.load(std::memory_order_relaxed);
    d["dropped"] = registration.queue->dropped();
    d["capacity"] = registration.queue->capacity();
    return d;
}

nb::dict class_dict(const Histogram& histogram) {
    nb::dict classes;
    for (std::size_t i = 0; i < Histogram::kClasses; ++i) {
        if (const std::uint64_t count = histogram.count(i)) classes[nb::int_(Histogram::upper(i))] = count;
    }
    return classes;
}

nb::dict delay_dict(const Handle& handle) {
    nb::dict d, classes;
    double sum = 0;
    std::uint64_t events = 0, expired = 0, malformed = 0, missed = 0;
    Nanos longest = 0;
    for (const auto& task : handle.tasks()) {
        const auto* subscription = dynamic_cast<const SubscriptionTask*>(task.get());
        const Delays* delays = subscription ? subscription->delays() : nullptr;
        if (delays == nullptr) continue;
        classes = class_dict(delays->response);
        longest = std::max(longest, delays->response.longest());
        sum += delays->sum.load(std::memory_order_relaxed);
        events += delays->events.load(std::memory_order_relaxed);
        expired += delays->expired.load(std::memory_order_relaxed);
        malformed += delays->malformed.load(std::memory_order_relaxed);
        missed += delays->missed.load(std::memory_order_relaxed);
    }
    d["classes"] = classes;
    d["longest"] = static_cast<double>(longest) / 1e9;
    d["sum"] = sum / 1e9;
    d["events"] = events;
    d["expired"] = expired;
    d["malformed"] = malformed;
    d["missed"] = missed;
    return d;
}

nb::list handle_list(NodeCore& core) {
    nb::list list;
    for (const auto& handle : core.handles()) {
        nb::dict d = handle_dict(*handle);
        d["active"] = handle->active();
        list.append(d);
    }
    return list;
}

}  // namespace antiphon::python

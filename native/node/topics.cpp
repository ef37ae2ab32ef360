// Events of topics: a flow for every subscription, and names before the first event.
#include <algorithm>

#include "node/put.hpp"

namespace antiphon {

namespace {

constexpr std::size_t kMostNameBytes = 1024;
constexpr std::uint8_t kRetains = 1;
constexpr std::uint8_t kRecorded = 2;  // its events come out of a log
constexpr std::uint8_t kProducer = 4;  // its events are to be recorded: a number follows

}  // namespace

// --- the subscriber ----------------------------------------------------------------------------------

std::shared_ptr<Registration> Node::add_subscription(
    std::uint64_t capacity, WhenFull when_full,
    const std::function<void(const std::shared_ptr<Registration>&)>& prepare) {
    std::shared_ptr<Registration> registration;
    {
        std::lock_guard lock(mutex_);
        registration = make_registration(kEventKind, capacity, when_full);
        registration->told = true;
        registration->topics = std::make_shared<TopicNames>();
        prepare(registration);
    }
    if (phase_.load(std::memory_order_acquire) == Phase::running) {
        selector_.post([this, registration] { announce(*registration); });
    }
    return registration;
}

// On the selector thread.
bool Node::got_bind(Peer& peer, std::uint32_t flow, std::string_view payload) {
    ByteReader reader(payload);
    const auto topic = reader.get<std::uint32_t>();
    const auto epoch = reader.get<std::uint32_t>();
    std::string name = reader.text();
    auto origin = reader.left() != 0 ? reader.get<std::uint16_t>() : std::uint16_t{0};
    if (peer.id != broker_.load(std::memory_order_relaxed)) origin = 0;  // nobody else's word counts
    auto flags = reader.left() != 0 ? reader.get<std::uint8_t>() : std::uint8_t{0};
    const auto producer = (flags & kProducer) != 0 ? reader.get<std::uint64_t>() : std::uint64_t{0};
    const auto first = (flags & (kProducer | kRecorded)) != 0 ? reader.get<std::uint64_t>() : std::uint64_t{0};
    const auto store = (flags & kRecorded) != 0 && reader.left() != 0 ? reader.get<std::uint64_t>() : std::uint64_t{0};
    if (peer.id != broker_.load(std::memory_order_relaxed)) flags &= static_cast<std::uint8_t>(~kRecorded);
    if (!reader.ok() || name.size() > kMostNameBytes) return false;
    Registration* registration = flow_of(flow);
    // It was closed meanwhile, or was meant for another life of this node: its events go nowhere.
    if (registration == nullptr || !registration->topics || !registration->active.load(std::memory_order_acquire)) {
        return true;
    }
    if (name.empty()) {
        // What came before it needs the name until it is handled.
        Run mark;
        mark.barrier = std::make_shared<Barrier>([this, topics = registration->topics, source = peer.id, topic, epoch] {
            if (!forked()) topics->unbind(source, topic, epoch);
        });
        registration->queue->push(std::move(mark));
        return true;
    }
    registration->topics->bind(peer.id, topic,
                               {std::move(name), origin, (flags & kRetains) != 0, epoch, peer.in_session,
                                (flags & kRecorded) != 0, producer, first, store});
    return true;
}

// A registration by its flow. One that is quite new may not have reached the selector's own list yet.
Registration* Node::flow_of(std::uint32_t id) {
    if (const auto found = flows_.find(id); found != flows_.end()) return found->second;
    std::lock_guard lock(mutex_);
    const auto found = registrations_.find(id);
    if (found == registrations_.end()) return nullptr;
    flows_.emplace(id, found->second.get());
    return found->second.get();
}

// --- the publisher -----------------------------------------------------------------------------------

std::shared_ptr<OutFlow> Node::subscription_flow(Peer& peer, std::uint64_t incarnation, std::uint32_t id,
                                                 std::uint32_t least_charge, std::uint16_t kind) {
    std::lock_guard lock(peer.mutex);
    auto& flow = peer.subscription_flows[{incarnation, id}];
    if (!flow) {
        flow = std::make_shared<OutFlow>(kind);
        flow->id.store(id, std::memory_order_relaxed);
        flow->least_charge.store(least_charge, std::memory_order_relaxed);
        // A session that begins at this moment comes to the same after us.
        begin_session(*flow, peer.session.load(std::memory_order_seq_cst));
    }
    return flow;
}

Attempt Node::try_bind(Peer& peer, OutFlow& flow, std::uint32_t session, const Binding& binding) {
    if (!sends_allowed()) return {Attempt::Status::closed};
    const auto flags = static_cast<std::uint8_t>((binding.retains ? kRetains : 0) | (binding.recorded ? kRecorded : 0) |
                                                 (binding.producer != 0 ? kProducer : 0));
    ByteWriter writer;
    writer.put(binding.topic).put(binding.epoch).text(binding.name).put(binding.origin).put(flags);
    if (binding.producer != 0) writer.put(binding.producer);
    if (binding.producer != 0 || binding.recorded) writer.put(binding.first);
    if (binding.recorded) writer.put(binding.store);
    const std::string payload = writer.bytes();
    auto copy = [&](Ring& ring, std::uint64_t position) { ring.write(position, payload.data(), payload.size()); };
    const Header header{static_cast<std::uint32_t>(payload.size()), static_cast<std::uint16_t>(Control::bind), 0,
                        flow.id.load(std::memory_order_relaxed)};
    return put_uncharged(peer, header, session, Fill<decltype(copy)&>{nullptr, 0, 0, copy}, Haste::gather);
}

// As many as one frame takes: events.size(i) bytes each, written by events.write(ring, position, i).
template <typename Events>
Attempt Node::put_events(Peer& peer, OutFlow& flow, std::uint32_t session, const Events& events, std::size_t count,
                         std::size_t& taken) {
    taken = 0;
    if (!sends_allowed()) return {Attempt::Status::closed};
    if (peer.held.load(std::memory_order_seq_cst)) return {Attempt::Status::not_connected};
    if (peer.session.load(std::memory_order_seq_cst) != session) return {Attempt::Status::again};
    const std::uint32_t window = flow.window.load(std::memory_order_acquire);
    const std::uint32_t least = flow.least_charge.load(std::memory_order_relaxed);
    std::size_t fits = 1;
    std::uint64_t payload = 4;
    if (count > 1) {
        // As with packed messages: a window holds several frames.
        const std::uint32_t max_frame = peer.max_frame.load(std::memory_order_relaxed);
        std::uint64_t most_bytes = max_frame > kHeaderBytes ? max_frame - kHeaderBytes : 0;
        std::uint64_t most_count = count;
        if (window != 0) {
            // And no more than there is credit for, or the last part of it would not be used.
            const std::uint64_t used = flow.in_flight.count(session);
            const std::uint64_t room = std::min<std::uint64_t>(window / 4, window - std::min<std::uint64_t>(used, window));
            most_bytes = std::min<std::uint64_t>(most_bytes, room > kHeaderBytes ? room - kHeaderBytes : 0);
            if (least != 0) most_count = std::min<std::uint64_t>(most_count, std::max<std::uint64_t>(1, room / least));
        }
        for (fits = 0; fits < most_count && payload + 4 + events.size(fits) <= most_bytes; ++fits) {
            payload += 4 + events.size(fits);
        }
    }
    Attempt attempt;
    if (fits <= 1) {
        fits = 1;
        attempt = put_on(peer, flow, session, kEventKind, 0, events.size(0), 1,
                         [&](Ring& ring, std::uint64_t position) { events.write(ring, position, 0); }, Haste::usual);
    } else {
        const auto many = static_cast<std::uint32_t>(fits);
        attempt = put_on(peer, flow, session, kEventKind, kPacked, payload, many,
                         [&](Ring& ring, std::uint64_t position) {
                             ring.write(position, &many, 4);
                             std::uint64_t at = position + 4;
                             for (std::size_t i = 0; i < fits; ++i, at += 4) {
                                 const auto size = static_cast<std::uint32_t>(events.size(i));
                                 ring.write(at, &size, 4);
                             }
                             for (std::size_t i = 0; i < fits; ++i) {
                                 events.write(ring, at, i);
                                 at += events.size(i);
                             }
                         },
                         Haste::usual);
    }
    if (attempt.status == Attempt::Status::sent) taken = fits;
    return attempt;
}

// --- before anything is sent -------------------------------------------------------------------------

EventSizes::EventSizes(std::size_t properties, const Message* messages_, std::size_t count_)
    : prefix(kHeaderBytes + kEventHead + properties), messages(messages_), count(count_) {
    smallest = UINT64_MAX;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t size = prefix + messages[i].size;
        bytes += size;
        smallest = std::min(smallest, size);
        largest = std::max(largest, size);
    }
}

std::uint64_t EventSizes::charge(std::uint32_t least) const {
    if (least <= smallest) return bytes;
    if (least >= largest) return std::uint64_t{least} * count;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += std::max<std::uint64_t>(least, prefix + messages[i].size);
    return sum;
}

Attempt Node::look_at_events(Peer& peer, OutFlow& flow, const EventSizes& sizes) const {
    if (!sends_allowed()) return {Attempt::Status::closed};
    const std::uint32_t session = peer.session.load(std::memory_order_seq_cst);
    if (session == 0 || peer.held.load(std::memory_order_seq_cst)) return {Attempt::Status::not_connected};
    const std::uint32_t window = flow.window.load(std::memory_order_acquire);
    const std::uint32_t least = flow.least_charge.load(std::memory_order_relaxed);
    if (goes_in_fragments(peer, window, least, 0, sizes.largest)) return {Attempt::Status::large, &flow, 0, session};
    if (flow.in_flight.count(session) + sizes.charge(least) > window) {
        return {Attempt::Status::no_credit, &flow, 0, session, window};
    }
    return {Attempt::Status::sent, &flow, 0, session, window};
}

Attempt Node::try_events(Peer& peer, OutFlow& flow, std::uint32_t session, EventHead head, Message properties,
                         const Message* messages, std::size_t count, std::size_t& taken) {
    head.properties = static_cast<std::uint32_t>(properties.size);
    struct {
        EventHead head;
        Message properties;
        const Message* messages;

        std::size_t size(std::size_t i) const { return kEventHead + properties.size + messages[i].size; }
        void write(Ring& ring, std::uint64_t at, std::size_t i) const {
            EventHead own = head;
            own.number += static_cast<std::uint32_t>(i);
            own.sequence += i;
            ring.write(at, &own, kEventHead);
            at += kEventHead;
            if (properties.size != 0) ring.write(at, properties.data, properties.size);
            if (messages[i].size != 0) ring.write(at + properties.size, messages[i].data, messages[i].size);
        }
    } const events{head, properties, messages};
    return put_events(peer, flow, session, events, count, taken);
}

Attempt Node::try_views(Peer& peer, OutFlow& flow, std::uint32_t session, const Passing& passing,
                        const EventView* views, std::size_t count, std::size_t& taken) {
    struct {
        const Passing& passing;
        const EventView* views;

        std::size_t size(std::size_t i) const { return kEventHead + views[i].head.properties + views[i].size; }
        void write(Ring& ring, std::uint64_t at, std::size_t i) const {
            const EventHead own = passing.head(views[i], static_cast<std::uint32_t>(i));
            ring.write(at, &own, kEventHead);
            // The data lies behind the properties, as it came.
            if (size(i) != kEventHead) ring.write(at + kEventHead, views[i].properties, size(i) - kEventHead);
        }
    } const events{passing, views};
    return put_events(peer, flow, session, events, count, taken);
}

}  // namespace antiphon

// Large messages, as they come in: reserved, put together from fragments, parked. On the selector
// thread.
#include <algorithm>
#include <cstring>
#include <utility>

#include "node/node.hpp"

namespace antiphon {

namespace {

// More than a sender of ours ever has at once; a peer that asks for more wants our memory.
constexpr std::size_t kMostReservations = 1024;

}  // namespace

// On whose part of the budget it goes: a flow that has gone has none.
std::uint32_t Node::account_of(Peer& peer, std::uint32_t flow) { return known_flow(peer, flow) ? flow : 0; }

void Node::reserve(Peer& peer, std::uint64_t id, std::uint64_t size, std::uint16_t kind, std::uint32_t flow) {
    auto answer = [&](std::uint8_t granted) {
        peer.send_back(Control::reserved, ByteWriter().put(id).put(granted).bytes());
        add_interest(peer, kWriteBack);
    };
    const std::uint32_t account = account_of(peer, flow);
    const auto asked = static_cast<std::size_t>(
        std::count_if(waiting_reservations_.begin(), waiting_reservations_.end(),
                      [&](const auto& waiting) { return waiting.peer == &peer; }));
    // What is around a user's bytes is not theirs.
    const std::uint64_t around = kind == kEventKind ? kEventHead + kFreeProperties : kResponsePrefix;
    if (size > options_.max_message_bytes + around || peer.assemblies.count(id) != 0 ||
        peer.assemblies.size() + asked >= kMostReservations) {
        return answer(0);
    }
    if (!large_fits(account, size)) {
        waiting_reservations_.push_back({&peer, id, size, kind, flow, peer.in_session});
        return;
    }
    use_large(account, static_cast<std::int64_t>(size));
    peer.assemblies[id] = {nullptr, size, 0, kind, flow, account, selector_.now()};
    answer(1);
}

// Within the budget, of which one flow may have half: messages for an inbox that nobody reads must not
// keep out those for others. One message always fits. Answers, which come on no flow, have their half
// beside the budget: several such inboxes must not keep out what callers wait for.
bool Node::large_fits(std::uint32_t flow, std::uint64_t size) const {
    const auto used_by = [this](std::uint32_t one) {
        const auto found = large_by_flow_.find(one);
        return found == large_by_flow_.end() ? 0 : found->second;
    };
    const std::uint64_t own = used_by(flow);
    if (own != 0 && own + size > options_.large_message_bytes / 2) return false;
    const std::uint64_t all = large_used_ - used_by(0);
    return flow == 0 || all == 0 || all + size <= options_.large_message_bytes;
}

void Node::use_large(std::uint32_t flow, std::int64_t bytes) {
    std::uint64_t& used = large_by_flow_[flow];
    used += static_cast<std::uint64_t>(bytes);
    if (used == 0) large_by_flow_.erase(flow);
    large_used_ += static_cast<std::uint64_t>(bytes);
    large_now_.store(large_used_, std::memory_order_relaxed);
}

void Node::retry_reservations() {
    // In order within a flow: a small one does not overtake a large one for ever.
    auto waiting = std::exchange(waiting_reservations_, {});
    std::vector<std::uint32_t> held;
    for (const WaitingReservation& next : waiting) {
        if (next.peer->in == nullptr || next.session != next.peer->in_session) continue;
        const std::uint32_t account = account_of(*next.peer, next.flow);
        if (std::find(held.begin(), held.end(), account) == held.end() && large_fits(account, next.size)) {
            reserve(*next.peer, next.id, next.size, next.kind, next.flow);
        } else {
            held.push_back(account);
            waiting_reservations_.push_back(next);
        }
    }
}

// Whether others wait for what a large message of this peer holds, and nothing of that comes.
bool Node::hoards(const Peer& peer, Nanos patience) const {
    if (waiting_reservations_.empty()) return false;
    return std::any_of(peer.assemblies.begin(), peer.assemblies.end(), [&](const auto& entry) {
        return selector_.now() - std::max(entry.second.touched, peer.excused) > patience;
    });
}

bool Node::got_fragment(Peer& peer, const Header& header, std::uint64_t id, std::string_view part) {
    const auto found = peer.assemblies.find(id);
    if (found == peer.assemblies.end()) return true;  // it was cancelled meanwhile
    Peer::Assembly& assembly = found->second;
    const bool last = (header.flags & kLast) != 0;
    if (part.size() > assembly.size - assembly.filled || header.kind != assembly.kind ||
        header.flow != assembly.asked_for ||
        last != (assembly.filled + part.size() == assembly.size)) {
        return false;
    }
    // Gone, while a message on it came in for long: what is left of its account is that of flow 0.
    InFlow* const known = known_flow(peer, assembly.flow);
    InFlow& flow = known ? *known : in_flow(peer, 0);
    flow.bytes.store(flow.bytes.load(std::memory_order_relaxed) + kHeaderBytes + 8 + part.size(),
                     std::memory_order_relaxed);
    // Allocated by the first fragment, not by the promise of one.
    if (assembly.buffer == nullptr) assembly.buffer = Buffer::standalone(assembly.size);
    std::memcpy(assembly.buffer->data() + assembly.filled, part.data(), part.size());
    assembly.filled += part.size();
    assembly.touched = selector_.now();
    if (!last) return true;

    if ((header.flags & kResponse) != 0) {
        ResponseHead head;
        Buffer* buffer = assembly.buffer;
        use_large(assembly.flow, -static_cast<std::int64_t>(assembly.size));
        peer.assemblies.erase(found);
        retry_reservations();
        if (buffer->capacity() < kResponsePrefix) {
            buffer->release();
            return false;
        }
        std::memcpy(static_cast<void*>(&head), buffer->data(), kResponsePrefix);
        peer.large_in.fetch_add(1, std::memory_order_relaxed);
        requests_.answer(peer, head, {}, buffer, kResponsePrefix);
        return true;
    }
    if (phase_.load(std::memory_order_acquire) != Phase::running) {
        // As park(): a node that closes takes nothing in, and its senders count that as not confirmed.
        assembly.buffer->release();
        use_large(assembly.flow, -static_cast<std::int64_t>(assembly.size));
        peer.assemblies.erase(found);
        retry_reservations();
        return true;
    }
    Registration* registration = registration_for(header.kind, header.flow);
    flow.messages.store(flow.messages.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    peer.large_in.fetch_add(1, std::memory_order_relaxed);
    Run run;
    run.shape = Run::Shape::message;
    run.request = (header.flags & kRequest) != 0;
    run.source = peer.id;
    run.session = peer.in_session;
    run.bytes = static_cast<std::uint32_t>(assembly.size);
    run.count = run.last = 1;
    if (known) {  // flow 0 was not charged for it
        run.charge = std::max(1u, least_charge(header.kind, header.flow));
        overdrawn(peer, flow, run.charge);
    }
    run.pin(flow);
    run.buffer = assembly.buffer;
    run.large_bytes = assembly.size;
    run.large_flow = assembly.flow;
    const bool moved = run.large_flow == 0 && registration != nullptr;
    if (moved) {
        // Its kind was announced meanwhile: until it is handled it is no matter of the answers.
        use_large(0, -static_cast<std::int64_t>(assembly.size));
        run.large_flow = registration->flow;
        use_large(run.large_flow, static_cast<std::int64_t>(assembly.size));
    }
    run.arrived = selector_.now();
    peer.assemblies.erase(found);
    if (moved) retry_reservations();
    // The reservation did not say whether it would be a request, and left room for what is around one.
    const std::uint64_t own = run.bytes - std::min<std::uint64_t>(run.bytes, run.request ? kRequestPrefix : 0);
    if ((run.request && run.bytes < kRequestPrefix) ||
        (header.kind >= kFirstUserKind && own > options_.max_message_bytes)) {
        run.request = false;
        return finish(run), false;
    }
    if (registration == nullptr || (run.request && !registration->answers)) {
        if (registration == nullptr) unknown_kind_.fetch_add(1, std::memory_order_relaxed);
        if (run.request) refuse_requests(run, header.kind, registration == nullptr);
        run.request = false;
        finish(run);
    } else {
        park_run(*registration, std::move(run));
    }
    return true;
}

}  // namespace antiphon

// The life of a node, its registrations, its peers and its statistics.
#include "node/node.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/wait.hpp"

namespace antiphon {

namespace {

constexpr int kMostThreads = 32;  // scheduler threads, spares for blocked ones included

template <typename T>
std::unique_ptr<T[], void (*)(T*)> zeroed_table(std::size_t entries) {
    // calloc of this size is fresh pages: they cost nothing until they are touched.
    return {static_cast<T*>(std::calloc(entries, sizeof(T))), [](T* table) { std::free(table); }};
}

}  // namespace

Node::Node(NodeOptions options)
    : options_(std::move(options)),
      incarnation_(random_u64()),
      pool_(std::make_shared<BufferPool>(options_.buffer_pool)),
      scheduler_(std::max(1, options_.threads), kMostThreads, scheduler_hooks(), options_.schedule),
      peers_(zeroed_table<std::atomic<Peer*>>(65536)),
      by_kind_(zeroed_table<std::atomic<Registration*>>(65536)) {
    if (!peers_ || !by_kind_) throw std::bad_alloc();
    // Made here, where Python forks from no other thread: a fork in the middle of that would leave it half made.
    transport_for({});
    if (options_.id != 0) {
        id_.store(options_.id, std::memory_order_release);
    } else {
        draw_id();
    }
    pool_->set_on_return([this] {
        buffer_returned_.store(true, std::memory_order_seq_cst);
        selector_.wake();
    });
}

Node::~Node() {
    close(0);
    pool_->set_on_return(nullptr);
    for (auto& peer : peer_list_) delete peer->ring.load(std::memory_order_relaxed);
}

Scheduler::Hooks Node::scheduler_hooks() {
    Scheduler::Hooks hooks = options_.hooks;
    hooks.lead = [this](const std::function<bool()>& done) { return lead_asker(done); };
    hooks.leads = [this] { return led_.load(std::memory_order_seq_cst) != nullptr; };
    hooks.wake_leader = [this] {
        if (Peer* peer = led_.load(std::memory_order_seq_cst)) peer->wake_leader();
    };
    // Not warn(): that one counts, on the selector's thread.
    hooks.refused = [this](const std::string& what) {
        if (!on_event_) return;
        on_event_({Event::Type::warning, 0, "the schedule of node " + std::to_string(id()) + ": " + what});
    };
    return hooks;
}

void Node::draw_id() {
    id_.store(static_cast<std::uint16_t>(kFirstDrawnId + random_u64() % (65536 - kFirstDrawnId)), std::memory_order_release);
}

void Node::start() {
    if (!options_.tls.empty()) {
        tls_times_ = tls::changed_at(options_.tls);
        tls_ = tls::Context::with_certificates(options_.tls);
    } else if (!options_.secret.empty() && tls::openssl() != nullptr) {
        tls_ = tls::Context::with_secret(options_.secret);
    }
    if (!options_.listen.empty()) {
        listen_address_ = Address::parse(options_.listen);
        listener_ = transport_for(listen_address_).listen(listen_address_);
        std::lock_guard lock(mutex_);
        bound_address_ = listen_address_.text();
        address_ = options_.advertise.empty() ? bound_address_ : options_.advertise;
    }
    phase_.store(Phase::running, std::memory_order_release);
    selector_.post([this] {
        {
            std::lock_guard lock(mutex_);
            for (auto& [flow, registration] : registrations_) {
                flows_.emplace(flow, registration.get());
                registration->announced = true;
                if (!registration->active.load(std::memory_order_acquire)) retired_.push_back({flow, selector_.now(), {}});
            }
        }
        if (listener_ >= 0) selector_.watch(listener_, EPOLLIN, &door_);
        tick_due_ = selector_.now() + options_.heartbeat;
        selector_.at(tick_due_, [this] { tick(); });
    });
    selector_.start([this] { return apply_interests(); },
                    [this](const char* what) { warn(0, std::string("an operation failed: ") + what); });
}

std::string Node::address() {
    std::lock_guard lock(mutex_);
    return bound_address_.empty() ? options_.listen : bound_address_;
}

bool Node::close(Nanos drain, const Interrupted* interrupted) {
    Nanos until = now_ns() + drain;
    bool hurried = false;
    // Calls wait(point) until it is true, the deadline has passed, or somebody is out of patience.
    auto patiently = [&](Nanos& deadline, const std::function<bool(Nanos)>& wait) {
        for (;;) {
            const Nanos now = now_ns();
            if (wait(interrupted ? std::min(deadline, now + 100 * kMillisecond) : deadline)) return true;
            if (interrupted && (*interrupted)()) {
                hurried = true;
                deadline = until = 0;
            }
            if (now_ns() >= deadline) return false;
        }
    };
    Phase phase = Phase::running;
    if (!phase_.compare_exchange_strong(phase, Phase::draining)) {
        if (phase == Phase::fresh && phase_.compare_exchange_strong(phase, Phase::closed)) {
            std::lock_guard lock(mutex_);
            for (auto& [flow, registration] : registrations_) registration->queue->close();
            return true;
        }
        // Somebody else closes: wait for that.
        Nanos forever = kNever;
        patiently(forever, [this](Nanos point) {
            std::unique_lock lock(close_mutex_);
            while (phase_.load(std::memory_order_acquire) != Phase::closed) {
                if (!wait_until(drained_, lock, point)) return false;
            }
            return true;
        });
        return !stuck_handler_;
    }
    auto wake_everyone = [this] {
        std::lock_guard lock(mutex_);
        for (auto& peer : peer_list_) {
            peer->wake();
        }
        unknown_.wake();
    };
    wake_everyone();
    timers_.stop();
    if (drain > 0) {
        // No more data is taken in; what is here is handled, and handlers may still send. Here is also
        // what somebody who reads was just about to put into a queue.
        if (!selector_.has_turn()) Selector::Turn{selector_};
        patiently(until, [this](Nanos point) { return scheduler_.wait_idle(point); });
        // What handlers have said and had no room yet: the credit for it may be on its way. One that hangs has
        // half of the time: the other half is for the farewells to all others.
        const Nanos now = now_ns();
        Nanos half = until > now ? now + (until - now) / 2 : until;
        patiently(half, [this](Nanos point) {
            std::unique_lock lock(close_mutex_);
            while (words_.load(std::memory_order_acquire) != 0) {
                if (!wait_until(drained_, lock, point)) return false;
            }
            return true;
        });
    }
    phase_.store(Phase::closing, std::memory_order_seq_cst);
    requests_.end_all(nullptr, Pending::State::closed, {});
    wake_everyone();
    {
        std::lock_guard lock(mutex_);
        for (auto& [flow, registration] : registrations_) registration->queue->close();
    }
    if (drain > 0) {
        selector_.post([this] {
            finishing_ = true;
            std::vector<Peer*> peers;
            {
                std::lock_guard lock(mutex_);
                for (auto& peer : peer_list_) peers.push_back(peer.get());
            }
            for (Peer* peer : peers) {
                // Read again, though nobody takes it any more: the other side may be closing too, and
                // its farewell is somewhere behind its data.
                if (peer->in) {
                    peer->in->paused = false;
                    add_interest(*peer, kRead);
                }
                if (peer->out) write_out(*peer);
            }
            check_drained();
        });
        patiently(until, [this](Nanos point) {
            std::unique_lock lock(close_mutex_);
            while (!is_drained_ && wait_until(drained_, lock, point)) {
            }
            return is_drained_;
        });
    }
    selector_.stop();
    helper_.stop();

    // The selector is gone; this thread has its things now, apart from those that still wait.
    {
        Selector::Turn turn(selector_);
        take_everything_down();
    }
    wake_everyone();

    Nanos grace = hurried ? 0 : std::max(until, now_ns() + kSecond);
    stuck_handler_ = !patiently(grace, [this](Nanos point) { return scheduler_.stop(point); });
    if (stuck_handler_) scheduler_.leave();
    {
        std::lock_guard lock(mutex_);
        for (auto& [flow, registration] : registrations_) registration->queue->clear();
    }
    {
        std::lock_guard lock(close_mutex_);
        phase_.store(Phase::closed, std::memory_order_release);
        drained_.notify_all();
    }
    return !stuck_handler_;
}

void Node::end_word() {
    if (words_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    std::lock_guard lock(close_mutex_);
    drained_.notify_all();
}

// With the selector's turn, after its thread has ended.
void Node::take_everything_down() {
    if (listener_ >= 0) {
        transport_for(listen_address_).unlisten(listen_address_, listener_);
        close_descriptor(listener_);
    }
    listener_ = -1;
    finishing_ = false;
    std::vector<Peer*> peers;
    {
        std::lock_guard lock(mutex_);
        for (auto& peer : peer_list_) peers.push_back(peer.get());
    }
    for (Peer* peer : peers) {
        peer->up = false;  // closing is no loss to report
        take_down(*peer, "the node was closed");
    }
    while (!channels_.empty()) close_channel(*channels_.begin());
}

// --- registrations ---------------------------------------------------------------------------------

// With mutex_ held.
std::shared_ptr<Registration> Node::make_registration(std::uint16_t kind, std::uint64_t capacity, WhenFull when_full) {
    auto registration = std::make_shared<Registration>();
    registration->kind = kind;
    // More than a largest frame for each place would never be used, and be missing from the budget: a
    // window cannot be less than what one message costs.
    registration->window = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(options_.flow_window_bytes, capacity * largest_frame()));
    registration->least_charge =
        static_cast<std::uint32_t>(std::max<std::uint64_t>(1, registration->window / capacity));
    registration->queue = std::make_shared<TaskQueue>(when_full, capacity, options_.flow_window_bytes,
                                                      [this](Run& run) { finish(run); });
    registration->flow = next_flow_++;
    registrations_.emplace(registration->flow, registration);
    return registration;
}

std::shared_ptr<Registration> Node::add_registration(
    std::uint16_t kind, std::uint64_t capacity, WhenFull when_full,
    const std::function<void(const std::shared_ptr<Registration>&)>& prepare) {
    std::shared_ptr<Registration> registration;
    {
        std::lock_guard lock(mutex_);
        if (by_kind_[kind].load(std::memory_order_acquire) != nullptr) return nullptr;
        registration = make_registration(kind, capacity, when_full);
        if (prepare) prepare(registration);
        by_kind_[kind].store(registration.get(), std::memory_order_release);
    }
    if (phase_.load(std::memory_order_acquire) == Phase::running) {
        selector_.post([this, registration] { announce(*registration); });
    }
    return registration;
}

std::uint64_t Node::remove_registration(const std::shared_ptr<Registration>& registration) {
    {
        std::lock_guard lock(mutex_);
        if (!registration->active.exchange(false)) return 0;
        if (!registration->told) by_kind_[registration->kind].store(nullptr, std::memory_order_release);
    }
    registration->queue->close();
    const std::uint64_t dropped = registration->queue->clear();
    if (registration->topics) registration->topics->clear();
    if (phase_.load(std::memory_order_acquire) == Phase::running) {
        selector_.post([this, registration] { announce(*registration); });
    }
    return dropped;
}

// --- peers -----------------------------------------------------------------------------------------

Peer& Node::peer_for(std::uint16_t id) {
    if (Peer* peer = find_peer(id)) return *peer;
    std::lock_guard lock(mutex_);
    if (Peer* peer = find_peer(id)) return *peer;
    Peer* peer = peer_list_.emplace_back(std::make_unique<Peer>(id)).get();
    peers_[id].store(peer, std::memory_order_release);
    return *peer;
}

void Node::add_peer(std::uint16_t id, const std::string& address) {
    Peer& peer = peer_for(id);
    std::lock_guard lock(peer.mutex);
    peer.explicit_address = address;
    peer.known = true;
}

bool Node::remove_peer(std::uint16_t id) {
    Peer* peer = find_peer(id);
    if (peer == nullptr) return false;
    {
        std::lock_guard lock(peer->mutex);
        if (!peer->known) return false;
        peer->known = false;
        peer->removing = true;
        peer->explicit_address.clear();
    }
    add_interest(*peer, kClose);
    return true;
}

std::vector<PeerStatistics> Node::statistics() {
    std::vector<Peer*> peers;
    {
        std::lock_guard lock(mutex_);
        for (auto& peer : peer_list_) peers.push_back(peer.get());
    }
    std::vector<PeerStatistics> all;
    Selector::Turn turn(selector_);
    {
        for (Peer* peer : peers) {
            PeerStatistics s{};
            s.id = peer->id;
            {
                std::lock_guard lock(peer->mutex);
                s.address = peer->explicit_address.empty() ? peer->learned_address : peer->explicit_address;
                s.losses = peer->losses;
            }
            s.incarnation = peer->incarnation;
            const std::uint32_t session = peer->session.load(std::memory_order_acquire);
            s.sending = session != 0;
            s.receiving = peer->in != nullptr;
            s.connects = peer->connects;
            s.remote_age_ms = peer->remote_age_ms;
            auto add_out = [&](const OutFlow& flow) {
                const std::uint64_t messages = flow.messages.load(std::memory_order_relaxed);
                const std::uint64_t bytes = flow.bytes.load(std::memory_order_relaxed);
                const std::uint64_t waits = flow.waits.load(std::memory_order_relaxed);
                s.messages_out += messages;
                s.bytes_out += bytes;
                s.credit_waits += waits;
                if (messages == 0 && flow.id.load(std::memory_order_relaxed) == 0) return;
                s.flows_out.push_back({flow.kind, flow.id.load(std::memory_order_relaxed), messages, bytes, waits,
                                       flow.window.load(std::memory_order_relaxed), flow.in_flight.count(session)});
            };
            for (auto& [kind, flow] : peer->out_flows) add_out(*flow);
            for (auto& old : peer->old_flows) add_out(*old.flow);
            {
                std::lock_guard lock(peer->mutex);
                for (auto& [key, flow] : peer->subscription_flows) add_out(*flow);
            }
            add_out(peer->unannounced);
            s.messages_out += peer->past_out.messages;
            s.bytes_out += peer->past_out.bytes;
            s.credit_waits += peer->past_out.waits;
            s.messages_in += peer->past_in.messages;
            s.bytes_in += peer->past_in.bytes;
            for (const auto& [id, known] : peer->in_flows) {
                const InFlow& flow = *known;
                const std::uint64_t messages = flow.messages.load(std::memory_order_relaxed);
                const std::uint64_t bytes = flow.bytes.load(std::memory_order_relaxed);
                s.messages_in += messages;
                s.bytes_in += bytes;
                if (messages == 0) continue;
                s.flows_in.push_back({flow.registration ? flow.registration->kind : std::uint16_t{0}, id, messages,
                                      bytes, 0, flow.window, 0});
            }
            if (const Ring* ring = peer->ring.load(std::memory_order_acquire)) {
                s.ring_bytes = ring->capacity();
                if (session != 0) s.ring_used = ring->capacity() - ring->free_bytes();
            }
            s.ring_waits = peer->ring_waits.load(std::memory_order_relaxed);
            s.writes = peer->writes.load(std::memory_order_relaxed);
            s.inline_writes = peer->inline_writes.load(std::memory_order_relaxed);
            s.reads = peer->reads.load(std::memory_order_relaxed);
            s.dropped_bytes = peer->dropped_bytes.load(std::memory_order_relaxed);
            s.unconfirmed_messages = peer->unconfirmed_messages.load(std::memory_order_relaxed);
            s.large_out = peer->large_out.load(std::memory_order_relaxed);
            s.large_in = peer->large_in.load(std::memory_order_relaxed);
            all.push_back(std::move(s));
        }
    };
    return all;
}

NodeCounters Node::counters() {
    NodeCounters c;
    c.unknown_kind = unknown_kind_.load(std::memory_order_relaxed);
    c.refused = refused_.load(std::memory_order_relaxed);
    c.protocol_errors = protocol_errors_.load(std::memory_order_relaxed);
    c.starved = starvations_.load(std::memory_order_relaxed);
    c.buffers_out = pool_->out_bytes();
    c.buffers_bound = pool_->bound_bytes();
    c.pinned = pool_->pinned_bytes();
    c.turns = selector_.turns();
    c.slices = scheduler_.slices();
    c.threads = scheduler_.thread_count();
    c.granted = granted_now_.load(std::memory_order_relaxed);
    c.large_in_use = large_now_.load(std::memory_order_relaxed);
    c.dismissed = dismissed_.load(std::memory_order_relaxed);
    c.requests = requests_made_.load(std::memory_order_relaxed);
    c.requests_open = requests_.open();
    c.late_responses = requests_.late();
    c.answers = answers_.load(std::memory_order_relaxed);
    c.lost_answers = lost_answers_.load(std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    c.registrations = registrations_.size();
    c.events_dropped = events_dropped_;
    for (const auto& [flow, registration] : registrations_) {
        if (registration->topics) c.events_dropped += registration->queue->dropped();
    }
    return c;
}

}  // namespace antiphon

#include "bindings/publisher.hpp"

#include <algorithm>
#include <ctime>

#include "bindings/packed.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

constexpr std::size_t kSpansPerTurn = 8192;

std::int64_t wall_clock_ns() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return static_cast<std::int64_t>(t.tv_sec) * kSecond + t.tv_nsec;
}

// What is left of its life, as the wire says it; 1 when it is about to end, since 0 means for ever.
std::uint32_t remaining_us(Nanos expires, Nanos now) {
    const Nanos left = (expires - now) / kMicrosecond;
    return left > UINT32_MAX ? 0 : static_cast<std::uint32_t>(std::max<Nanos>(1, left));
}

}  // namespace

// A thread that finds another one waiting in here lets go of the interpreter's lock before it waits too.
class Publisher::Turn {
   public:
    explicit Turn(std::mutex& mutex) : mutex_(mutex) {
        if (mutex_.try_lock()) return;
        Released released;
        mutex_.lock();
    }
    ~Turn() { mutex_.unlock(); }

   private:
    std::mutex& mutex_;
};

Publisher::~Publisher() {
    if (node_->forked()) new std::shared_ptr<Node>(std::move(node_));
}

bool Publisher::serve(std::uint16_t id, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge,
                      Reference where) {
    if (id == node_->id() && node_->find_peer(id) == nullptr) node_->add_peer(id, "");
    Peer* peer = node_->find_peer(id);
    if (peer == nullptr) return false;
    for (const auto& target : targets_) {
        if (target->peer.id == id && target->flow.id.load(std::memory_order_relaxed) == flow &&
            target->incarnation == incarnation) {
            return true;
        }
    }
    targets_.push_back(std::make_shared<Target>(*peer, node_->subscription_flow(*peer, flow, least_charge), incarnation,
                                                static_cast<std::uint32_t>(random_u64()), std::move(where), retains_));
    if (peer->session.load(std::memory_order_seq_cst) == 0) node_->want_connection(*peer);
    return true;
}

void Publisher::leave(std::uint16_t id, std::uint32_t flow) {
    std::erase_if(targets_, [&](const auto& target) {
        if (target->peer.id != id || target->flow.id.load(std::memory_order_relaxed) != flow) return false;
        target->left.store(true, std::memory_order_seq_cst);
        target->peer.wake();
        return true;
    });
}

void Publisher::close() {
    closed_ = true;
    for (const auto& target : targets_) {
        target->left.store(true, std::memory_order_seq_cst);
        target->peer.wake();
    }
    targets_.clear();
}

bool Publisher::gone(const Target& target) const {
    return target.left.load(std::memory_order_seq_cst) || target.flow.withdrawn.load(std::memory_order_seq_cst);
}

// Those whose filter lets it pass. A filter that fails lets nothing pass.
bool Publisher::wanted(const Targets& targets, PyObject* properties, Chosen& chosen) {
    Reference none;
    for (const auto& target : targets) {
        if (target->where) {
            if (properties == nullptr || properties == Py_None) {
                if (!none) none = Reference::steal(PyDict_New());
                if (!none) return false;
                properties = none.get();
            }
            Reference verdict = Reference::steal(PyObject_CallOneArg(target->where.get(), properties));
            if (!verdict) return false;
            const int truth = PyObject_IsTrue(verdict.get());
            if (truth < 0) return false;
            if (truth == 0) continue;
        }
        chosen.push_back(target);
    }
    return true;
}

bool Publisher::read_ttl(PyObject* ttl, Nanos& expires) {
    expires = 0;
    if (ttl == nullptr || ttl == Py_None) return true;
    const double seconds = PyFloat_AsDouble(ttl);
    if (seconds == -1.0 && PyErr_Occurred()) return false;
    if (!(seconds > 0)) {
        raise("ConfigError", "ttl is " + std::to_string(seconds) + "; it must be a number of seconds above 0",
              facts("{sssd}", "setting", "ttl", "value", seconds));
        return false;
    }
    expires = now_ns() + seconds_to_ns(seconds);
    return true;
}

PyObject* Publisher::publish(PyObject* data, PyObject* properties, PyObject* ttl) {
    if (!open()) return nullptr;
    Nanos expires;
    if (!read_ttl(ttl, expires)) return nullptr;
    Reference message_bytes;
    if (!PyObject_CheckBuffer(data)) {
        message_bytes = Reference::steal(PyObject_CallOneArg(encode_message_.get(), data));
        if (!message_bytes) return nullptr;
        data = message_bytes.get();
    }
    View view;
    if (!view.take(data, PyBUF_SIMPLE)) return nullptr;
    Reference encoded;
    Message said{nullptr, 0};
    if (properties != nullptr && properties != Py_None) {
        encoded = Reference::steal(PyObject_CallOneArg(encode_.get(), properties));
        if (!encoded) return nullptr;
        said = {PyBytes_AS_STRING(encoded.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded.get()))};
    }
    // A filter is Python, and may change what we look at: our own list.
    Chosen chosen;
    if (!wanted(Targets(targets_), properties, chosen)) return nullptr;
    const Message message{static_cast<const char*>(view->buf), static_cast<std::size_t>(view->len)};
    return send(chosen, {{topic_, 0, 0, 0, 0, 0}, said, &message, 1, expires});
}

// False with an exception set.
bool Publisher::open() const {
    if (node_->forked()) {
        raise_forked();
        return false;
    }
    if (!closed_) return true;
    raise("Closed", "this publisher is closed; make another with bus.publisher()", facts("{ss}", "what", "publisher"));
    return false;
}

bool Publisher::send_spans(const std::vector<Message>& spans, Nanos expires) {
    Chosen chosen;
    if (!wanted(Targets(targets_), nullptr, chosen)) return false;
    return Reference::steal(
               send(chosen, {{topic_, 0, 0, 0, 0, 0}, {nullptr, 0}, spans.data(), spans.size(), expires}))
        .get() != nullptr;
}

PyObject* Publisher::publish_many(PyObject* events, PyObject* ttl) {
    Nanos expires;
    if (!open() || !read_ttl(ttl, expires)) return nullptr;
    // A tuple of our own: nobody can change it while we wait.
    Reference items = Reference::steal(PySequence_Tuple(events));
    if (!items) return nullptr;
    std::vector<Message> spans;
    std::vector<Reference> encoded;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
        PyObject* item = PyTuple_GET_ITEM(items.get(), i);
        if (!PyBytes_Check(item)) {
            encoded.push_back(Reference::steal(PyObject_CallOneArg(encode_message_.get(), item)));
            item = encoded.back().get();
            if (item == nullptr) return nullptr;
        }
        spans.push_back({PyBytes_AS_STRING(item), static_cast<std::size_t>(PyBytes_GET_SIZE(item))});
    }
    if (!spans.empty() && !send_spans(spans, expires)) return nullptr;
    Py_RETURN_NONE;
}

PyObject* Publisher::publish_packed(PyObject* data, PyObject* offsets, PyObject* ttl) {
    Nanos expires;
    if (!open() || !read_ttl(ttl, expires)) return nullptr;
    Packed packed;
    if (!packed.take(data, offsets)) return nullptr;
    std::vector<Message> spans;
    for (std::size_t at = 0; at < packed.count(); at += spans.size()) {
        if (!packed.read(at, kSpansPerTurn, spans) || !send_spans(spans, expires)) return nullptr;
    }
    Py_RETURN_NONE;
}

// From the event `done` on. The name comes first, once in every session.
Attempt Publisher::attempt(Target& target, const Load& load, std::size_t done, std::size_t& taken) {
    taken = 0;
    const std::uint32_t session = target.peer.session.load(std::memory_order_seq_cst);
    if (session == 0) return {Status::not_connected};
    if (target.bound != session) {
        const Attempt bound = node_->try_bind(target.peer, target.flow, session, {topic_, target.epoch, target.number, name_});
        if (bound.status != Status::sent) return bound;
        target.bound = session;
    }
    EventHead head = load.head;
    head.number = target.number;
    head.sequence += done;
    if (load.expires != 0) head.ttl_us = remaining_us(load.expires, now_ns());
    const Attempt attempt = node_->try_events(target.peer, target.flow, head, load.properties, load.events + done,
                                              load.count - done, taken);
    target.number += static_cast<std::uint32_t>(taken);
    return attempt;
}

// Everything that goes at once; what does not is left in `rest`. With the mutex.
void Publisher::send_what_goes(const Chosen& targets, const Load& load, std::vector<Rest>& rest) {
    for (const auto& target : targets) {
        if (gone(*target)) continue;
        target->owed = false;  // this is newer than what it has not seen yet
        std::size_t done = 0, taken = 0;
        Attempt tried;
        do {
            tried = attempt(*target, load, done, taken);
            done += taken;
        } while (done < load.count && (tried.status == Status::sent || tried.status == Status::again));
        if (done < load.count) rest.push_back({target.get(), done, tried});
    }
}

// Whoever drops rather than waits leaves out those that have no room; they see it in the numbers.
void Publisher::drop(const Load& load, std::vector<Rest>& rest) {
    std::erase_if(rest, [&](Rest& one) {
        if (one.attempt.status == Status::large || one.attempt.status == Status::closed) return false;
        if (one.attempt.status == Status::not_connected) node_->want_connection(one.target->peer);
        if (one.attempt.status == Status::no_credit) node_->want_credit(one.target->peer, one.attempt);
        one.target->number += static_cast<std::uint32_t>(load.count - one.done);
        dropped_.fetch_add(load.count - one.done, std::memory_order_relaxed);
        return true;
    });
}

// May block; without the interpreter's lock, with the mutex. The first failure that is the publisher's
// concern; the others still get theirs, unless the node is closed or somebody is out of patience.
Outcome Publisher::send_rest(const Load& load, std::vector<Rest>& rest, Nanos deadline, Nanos began,
                             const Interrupted* signalled, std::uint16_t& at, std::size_t& left_over) {
    Outcome outcome;
    waits_.fetch_add(1, std::memory_order_relaxed);
    for (Rest& one : rest) {
        Target& target = *one.target;
        const Interrupted interrupted = [&] { return (signalled && (*signalled)()) || gone(target); };
        Node::Sending sending{target.peer, deadline, began};
        Attempt tried = one.attempt;
        std::size_t taken = 0;
        while (one.done < load.count && !gone(target)) {
            Outcome ended;
            if (tried.status == Status::large) {
                EventHead head = load.head;
                head.number = target.number;
                head.sequence += one.done;
                head.properties = static_cast<std::uint32_t>(load.properties.size);
                if (load.expires != 0) head.ttl_us = remaining_us(load.expires, now_ns());
                std::string prefix(reinterpret_cast<const char*>(&head), kEventHead);
                if (load.properties.size != 0) prefix.append(load.properties.data, load.properties.size);
                sending.went = false;
                ended = node_->send_large(sending, kEventKind, load.events[one.done], &interrupted, 0,
                                          {prefix.data(), prefix.size()}, &target.flow);
                if (ended.ok() && sending.went) {
                    ++target.number;
                    ++one.done;
                }
            } else {
                ended = node_->wait(sending, tried, &interrupted);
            }
            if (!ended.ok()) {
                if (gone(target)) break;
                // One that cannot be reached is not the publisher's trouble: it will say so itself when
                // it is back, and its state here expires otherwise.
                if (ended.code == Outcome::Code::unreachable) {
                    lost_.fetch_add(load.count - one.done, std::memory_order_relaxed);
                } else if (outcome.ok()) {
                    outcome = ended;
                    at = target.peer.id;
                    left_over = one.done;
                }
                target.number += static_cast<std::uint32_t>(load.count - one.done);
                break;
            }
            if (one.done == load.count) break;
            tried = attempt(target, load, one.done, taken);
            one.done += taken;
        }
        if (outcome.code == Outcome::Code::interrupted || outcome.code == Outcome::Code::closed) break;
    }
    return outcome;
}

void Publisher::retain(const Load& load) {
    const Message& last = load.events[load.count - 1];
    Retained kept{load.head, {}, {}, load.expires};
    kept.head.sequence += load.count - 1;
    if (load.properties.size != 0) kept.properties.assign(load.properties.data, load.properties.size);
    if (last.size != 0) kept.data.assign(last.data, last.size);
    retained_ = std::move(kept);
}

bool Publisher::settle() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;  // somebody publishes: that is newer
    bool all = true;
    if (!retained_) return true;
    const Message data{retained_->data.data(), retained_->data.size()};
    const Load load{retained_->head,
                    {retained_->properties.data(), retained_->properties.size()},
                    &data,
                    1,
                    retained_->expires};
    for (const auto& target : targets_) {
        if (!target->owed || gone(*target)) continue;
        if (load.expires != 0 && now_ns() >= load.expires) {
            target->owed = false;
            continue;
        }
        std::size_t taken = 0;
        const Attempt tried = attempt(*target, load, 0, taken);
        if (tried.status == Status::no_credit) node_->want_credit(target->peer, tried);
        if (tried.status == Status::not_connected) node_->want_connection(target->peer);
        if (taken != 0) {
            target->owed = false;
        } else {
            all = false;
        }
    }
    return all;
}

PyObject* Publisher::send(const Chosen& targets, Load load) {
    const NodeOptions& options = node_->options();
    const Nanos began = now_ns();
    const Nanos deadline = began + (Scheduler::on_scheduler_thread() ? options.request_timeout : options.send_timeout);
    if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
        // A signal handler, while this very thread waits for room.
        return raise("WouldBlock", "publish() inside a publish() of the same publisher that waits; use another thread");
    }
    Turn turn(mutex_);
    struct Owned {
        ~Owned() { owner.store({}, std::memory_order_relaxed); }
        std::atomic<std::thread::id>& owner;
    } owned{owner_};
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    load.head.sequence = sequence_.load(std::memory_order_relaxed) + 1;
    load.head.time_ns = wall_clock_ns();
    sequence_.store(load.head.sequence + load.count - 1, std::memory_order_relaxed);
    if (retains_) retain(load);
    std::vector<Rest> rest;
    send_what_goes(targets, load, rest);
    if (rest.empty()) Py_RETURN_NONE;
    if (node_->fresh()) return raise_not_started();
    if (drops_) drop(load, rest);
    if (rest.empty()) Py_RETURN_NONE;
    if (!may_wait("publish()", "publish_async()")) return nullptr;
    Outcome outcome;
    std::uint16_t at = 0;
    std::size_t left_over = 0;
    {
        Released released;
        outcome = send_rest(load, rest, deadline, began, released.interrupted(), at, left_over);
    }
    if (outcome.ok()) Py_RETURN_NONE;
    return raise_outcome(outcome, at, kEventKind, now_ns() - began, left_over);
}

}  // namespace antiphon::python

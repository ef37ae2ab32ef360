#include "bindings/publisher.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/wait.hpp"
#include "bindings/packed.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

constexpr std::size_t kSpansPerTurn = 8192;
constexpr Nanos kBriefly = 20 * kMillisecond;
constexpr std::uint64_t kMostBindBytes = 64;  // beside the name
// For a connection or a first window, of a publisher that waits for nothing else. Some milliseconds will do on
// a machine that is not overloaded.
constexpr Nanos kOpening = 200 * kMillisecond;

// No connection, or a flow without a window, as one is that was not used for a while: nothing is known then of
// the queue at the other end, which may be empty.
bool unopened(const Attempt& attempt) {
    return attempt.status == Status::not_connected ||
           (attempt.status == Status::no_credit && attempt.flow->window.load(std::memory_order_seq_cst) == 0);
}

// What is left of its life, as the wire says it; 1 when it is about to end, since 0 means for ever.
std::uint32_t remaining_us(Nanos expires, Nanos now) {
    const Nanos left = (expires - now) / kMicrosecond;
    return left > UINT32_MAX ? 0 : static_cast<std::uint32_t>(std::max<Nanos>(1, left));
}

}  // namespace

bool Publisher::try_take() {
    std::lock_guard lock(mutex_);
    if (taken_) return false;
    taken_ = true;
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
}

// May block, without the interpreter's lock.
bool Publisher::take(Nanos deadline, const Interrupted* interrupted, Outcome& outcome) {
    std::unique_lock lock(mutex_);
    while (taken_) {
        const Nanos now = now_ns();
        // Whoever waits for ever sends what was accepted before the end.
        if (closed_.load(std::memory_order_relaxed) && deadline != kNever) outcome.code = Outcome::Code::closed;
        else if (now >= deadline) outcome.code = Outcome::Code::timeout;
        if (!outcome.ok()) return false;
        wait_until(passed_, lock, std::min(deadline, now + kLook));
        if (interrupted == nullptr || !taken_) continue;
        lock.unlock();
        if ((*interrupted)()) outcome.code = Outcome::Code::interrupted;
        lock.lock();
        if (!outcome.ok()) return false;
    }
    taken_ = true;
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
}

void Publisher::pass() {
    bool sends;
    {
        std::lock_guard lock(mutex_);
        owner_.store({}, std::memory_order_relaxed);
        taken_ = false;
        sends = std::exchange(sender_waits_, false);
        passed_.notify_one();
    }
    if (sends) sender_->nudge();
}

Publisher::~Publisher() {
    if (node_->forked()) {
        new std::shared_ptr<Node>(std::move(node_));
        new std::shared_ptr<Sender>(std::move(sender_));
        return;
    }
    close();  // raises nothing: there is nothing to wait for
}

bool Publisher::serve(std::uint16_t id, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge,
                      std::shared_ptr<const match::Filter> where, std::uint64_t content, bool ends) {
    if (id == node_->id() && node_->find_peer(id) == nullptr) node_->add_peer(id, "");
    Peer* peer = node_->find_peer(id);
    if (peer == nullptr) return false;
    if (targets_.has(id, flow, incarnation)) return true;
    auto target = std::make_shared<Target>(*peer, node_->subscription_flow(*peer, incarnation, flow, least_charge),
                                           incarnation, static_cast<std::uint32_t>(random_u64()), std::move(where),
                                           content, ends);
    target->owed = retains_;
    targets_.add(std::move(target));
    if (peer->session.load(std::memory_order_seq_cst) == 0) node_->want_connection(*peer);
    return true;
}

void Publisher::leave(std::uint16_t id, std::uint32_t flow) {
    if (node_->forked()) return;
    for (const auto& target : targets_.remove(id, flow)) {
        target->left.store(true, std::memory_order_seq_cst);
        target->peer.wake();
    }
}

bool Publisher::close(Nanos drain) {
    if (node_->forked() || closed_.exchange(true)) return true;
    bool raised = false;
    if (sender_ && drain > 0) {
        Released released;
        Scheduler::Blocked blocked;
        const Nanos until = now_ns() + drain;
        std::unique_lock lock(queue_mutex_);
        while ((!queue_.empty() || sending_) && !raised && now_ns() < until) {
            wait_until(room_, lock, std::min(until, now_ns() + kLook));
            if (released.interrupted() == nullptr) continue;
            lock.unlock();
            raised = (*released.interrupted())();
            lock.lock();
        }
    }
    const Chosen served = targets_.clear();
    for (const auto& target : served) {
        target->left.store(true, std::memory_order_seq_cst);
        target->peer.wake();
    }
    Released released;
    if (sender_) sender_->end();
    if (hand_) let_go();  // those it waits for have left
    unbind(served);
    return !raised;
}

// Those who know its number may forget it. One that has no room now keeps it until its connection ends: that is not
// worth waiting for.
void Publisher::unbind(const Chosen& targets) {
    Outcome outcome;
    if (!take(now_ns() + kLook, nullptr, outcome)) return;  // somebody publishes, and will find them gone
    const Passed passed{*this};
    for (const auto& target : targets) {
        const std::uint32_t session = target->peer.session.load(std::memory_order_seq_cst);
        if (session == 0 || target->bound != session || target->flow.withdrawn.load(std::memory_order_relaxed)) continue;
        if ((target->peer.features.load(std::memory_order_relaxed) & kUnbindFeature) == 0) continue;
        node_->try_bind(target->peer, target->flow, session, {topic_, target->epoch, {}, 0, false});
    }
}

std::size_t Publisher::pending() {
    std::lock_guard lock(queue_mutex_);
    return queue_.size();
}

// Those whose filter lets it pass. With the interpreter's lock.
Chosen Publisher::wanted(const Message& properties, const Verdict& verdict) {
    if (!targets_.filters()) return targets_.unfiltered();
    Chosen chosen;
    targets_.choose({properties.data, properties.size}, verdict, chosen);
    return chosen;
}

Reference Publisher::encoded(PyObject* message) {
    const auto found = PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(message)), "__struct_fields__");
    if (found != 1) {
        PyErr_Format(PyExc_TypeError, "an event is bytes, another buffer or a Message, not %.100s",
                     Py_TYPE(message)->tp_name);
        return {};
    }
    return Reference::steal(PyObject_CallOneArg(encode_message_.get(), message));
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
        message_bytes = encoded(data);
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
    const Message message{static_cast<const char*>(view->buf), static_cast<std::size_t>(view->len)};
    Verdict verdict;
    if (targets_.contents()) {
        std::vector<Verdict> verdicts;
        // Others may have run meanwhile, and closed it.
        if (!content_.judge(targets_, {{said, message}}, verdicts) || !open()) return nullptr;
        verdict = std::move(verdicts[0]);
    }
    const Chosen chosen = wanted(said, verdict);
    return send(chosen, {{topic_, 0, 0, 0, 0, 0}, said, &message, 1, expires});
}

// False with an exception set.
bool Publisher::open() const {
    if (node_->forked()) {
        raise_forked();
        return false;
    }
    if (closed_) {
        raise("Closed", "this publisher is closed; make another with bus.publisher()",
              facts("{ss}", "what", "publisher"));
        return false;
    }
    if (node_->closed()) {
        raise("Closed", "the node of this publisher is closed; make a new one, and a bus on it",
              facts("{ss}", "what", "node"));
        return false;
    }
    // One that keeps its last event has it for those who come.
    if (started_ || retains_) return true;
    raise("Closed", "this bus has not been started; use 'with bus:' or bus.start() first", facts("{ss}", "what", "bus"));
    return false;
}

bool Publisher::send_some(const Chosen& targets, const Message* first, std::size_t count, Nanos expires,
                          std::size_t before, Call call) {
    const Load load{{topic_, 0, 0, 0, 0, 0}, {nullptr, 0}, first, count, expires, before, nullptr, 0, call};
    return Reference::steal(send(targets, load)).get() != nullptr;
}

bool Publisher::send_spans(const std::vector<Message>& spans, Nanos expires, std::size_t before, Call call) {
    if (targets_.contents()) return send_judged(spans, expires, before, call);
    return send_some(wanted({nullptr, 0}), spans.data(), spans.size(), expires, before, call);
}

PyObject* Publisher::publish_many(PyObject* events, PyObject* ttl) {
    Nanos expires;
    if (!open() || !read_ttl(ttl, expires)) return nullptr;
    // A tuple of our own: nobody can change it while we wait.
    Reference items = Reference::steal(PySequence_Tuple(events));
    if (!items) return nullptr;
    std::vector<Message> spans;
    std::vector<Reference> made;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
        PyObject* item = PyTuple_GET_ITEM(items.get(), i);
        if (!PyBytes_Check(item)) {
            made.push_back(PyObject_CheckBuffer(item) ? Reference::steal(PyBytes_FromObject(item)) : encoded(item));
            item = made.back().get();
            if (item == nullptr) return nullptr;
        }
        spans.push_back({PyBytes_AS_STRING(item), static_cast<std::size_t>(PyBytes_GET_SIZE(item))});
    }
    if (!spans.empty() && !send_spans(spans, expires, 0, kPublishMany)) return nullptr;
    Py_RETURN_NONE;
}

PyObject* Publisher::publish_packed(PyObject* data, PyObject* offsets, PyObject* ttl) {
    Nanos expires;
    if (!open() || !read_ttl(ttl, expires)) return nullptr;
    Packed packed;
    if (!packed.take(data, offsets)) return nullptr;
    std::vector<Message> spans;
    for (std::size_t at = 0; at < packed.count(); at += spans.size()) {
        if (!packed.read(at, kSpansPerTurn, spans) || !send_spans(spans, expires, at, kPublishPacked)) return nullptr;
    }
    Py_RETURN_NONE;
}

// From the event `done` on. The name comes first, once in every session.
Attempt Publisher::attempt(Target& target, const Load& load, std::size_t done, std::size_t& taken) {
    taken = 0;
    const std::uint32_t session = target.peer.session.load(std::memory_order_seq_cst);
    if (session == 0) return {Status::not_connected};
    if (target.bound != session) {
        const Attempt bound = node_->try_bind(target.peer, target.flow, session, {topic_, target.epoch, name_, origin_, retains_});
        if (bound.status != Status::sent) return bound;
        target.bound = session;
    }
    const Attempt attempt =
        load.views != nullptr
            ? node_->try_views(target.peer, target.flow, session, passing(load, target.number), load.views + done,
                               load.count - done, taken)
            : node_->try_events(target.peer, target.flow, session, head_at(load, done, target.number), load.properties,
                                load.events + done, load.count - done, taken);
    target.number += static_cast<std::uint32_t>(taken);
    if (taken != 0) target.in_vain = false;
    return attempt;
}

// As many as go at once, and why no more do.
Attempt Publisher::attempt_all(Target& target, const Load& load, std::size_t& done) {
    Attempt tried;
    do {
        std::size_t taken = 0;
        tried = attempt(target, load, done, taken);
        done += taken;
    } while (done < load.count && (tried.status == Status::sent || tried.status == Status::again) && !target.gone());
    return tried;
}

// True with an exception set: nobody is given any of it, and no number is used up. Properties are paid for by
// the receiver up to a bound, and count behind it.
bool Publisher::too_large(const Load& load) const {
    const std::uint64_t limit = node_->options().max_message_bytes;
    const std::size_t more = load.properties.size > kFreeProperties ? load.properties.size : 0;
    for (std::size_t i = 0; i < load.count; ++i) {
        const std::uint64_t size = load.events[i].size + more;
        if (size <= limit) continue;
        raise("MessageTooLarge",
              "an event of " + std::to_string(size) + " bytes on " + name_ + " is over the limit of " +
                  std::to_string(limit) + "; raise max_message_bytes on all nodes, or publish parts",
              facts("{sKsK}", "size", static_cast<unsigned long long>(size), "limit",
                    static_cast<unsigned long long>(limit)));
        return true;
    }
    return false;
}

Passing Publisher::passing(const Load& load, std::uint32_t number) const {
    return {topic_, number, (now_ns() - load.arrived) / kMicrosecond};
}

EventHead Publisher::head_at(const Load& load, std::size_t i, std::uint32_t number) const {
    if (load.views != nullptr) return passing(load, number).head(load.views[i], 0);
    EventHead head = load.head;
    head.number = number;
    head.sequence += i;
    head.properties = static_cast<std::uint32_t>(load.properties.size);
    if (load.expires != 0) head.ttl_us = remaining_us(load.expires, now_ns());
    return head;
}

Message Publisher::properties_at(const Load& load, std::size_t i) {
    return load.views != nullptr ? Message{load.views[i].properties, load.views[i].head.properties} : load.properties;
}

Message Publisher::data_at(const Load& load, std::size_t i) {
    return load.views != nullptr ? Message{load.views[i].data, load.views[i].size} : load.events[i];
}

// Whether all of it would go to everyone at once. A look and no promise: others send on the same flows and rings. Of a
// publisher that drops, only what goes in fragments cannot be had at once. With the turn.
bool Publisher::all_have_room(const Chosen& targets, const Load& load) const {
    const EventSizes sizes(load.properties.size, load.events, load.count);
    const bool drops = when_full_ == WhenFull::drop_newest;
    const std::uint64_t name = kHeaderBytes + kMostBindBytes + name_.size();
    std::uint64_t wanted = 0, least_free = UINT64_MAX;
    for (const auto& target : targets) {
        if (target->gone()) continue;
        const Attempt seen = node_->look_at_events(target->peer, target->flow, sizes);
        if (drops ? seen.status == Status::large : seen.status != Status::sent && seen.status != Status::closed) {
            return false;
        }
        if (drops || seen.status != Status::sent) continue;
        wanted += sizes.bytes + (target->bound != seen.session ? name : 0);
        least_free = std::min<std::uint64_t>(least_free, target->peer.ring.load(std::memory_order_acquire)->free_bytes());
    }
    if (wanted <= least_free) return true;
    // Many, or there is little room: ring by ring.
    std::unordered_map<const Peer*, std::uint64_t> of;
    for (const auto& target : targets) {
        if (target->gone()) continue;
        const std::uint32_t session = target->peer.session.load(std::memory_order_seq_cst);
        if (session == 0) continue;
        std::uint64_t& bytes = of[&target->peer];
        bytes += sizes.bytes + (target->bound != session ? name : 0);
        if (bytes > target->peer.ring.load(std::memory_order_acquire)->free_bytes()) return false;
    }
    return true;
}

// So that there may be some when it is tried again.
void Publisher::ask_for_room(const Chosen& targets, const Load& load) {
    const EventSizes sizes(load.properties.size, load.events, load.count);
    for (const auto& target : targets) {
        if (target->gone()) continue;
        const Attempt seen = node_->look_at_events(target->peer, target->flow, sizes);
        if (seen.status == Status::not_connected) node_->want_connection(target->peer);
        if (seen.status == Status::no_credit) node_->want_credit(target->peer, seen);
    }
}

// Everything that goes at once; what does not is left in `rest`. With the mutex.
void Publisher::send_what_goes(const Chosen& targets, const Load& load, std::vector<Rest>& rest) {
    for (const auto& target : targets) {
        if (target->gone()) continue;
        target->owed = false;  // this is newer than what it has not seen yet
        std::size_t done = 0;
        const Attempt tried = attempt_all(*target, load, done);
        if (done != 0 && origin_ != 0) {
            target->flow.stalled.store(false, std::memory_order_relaxed);
            target->full_since = 0;
        }
        if (done < load.count && !target->gone()) rest.push_back({target.get(), done, tried});
    }
}

// Of a publisher that drops: to whom the way is not open, for them it is opened, once and not for long. What is
// not room is not a full queue: an event a minute would be lost every time, since an idle flow gives its window
// back. Leaves in `rest` who has not got everything. False with an exception set. With the turn.
bool Publisher::open_up(const Load& load, std::vector<Rest>& rest) {
    const auto shut = [](const Rest& one) { return unopened(one.attempt) && !one.target->in_vain; };
    if (std::none_of(rest.begin(), rest.end(), shut)) return true;
    if (!may_wait("publish()", "publish_async()")) {
        PyErr_Clear();  // it must not wait here: they miss it, and have a window for longer next time
        for (const Rest& one : rest) {
            if (one.attempt.status == Status::no_credit) one.target->flow.hasty.store(true, std::memory_order_relaxed);
        }
        return true;
    }
    bool raised = false;
    {
        Released released;
        const Interrupted* signalled = released.interrupted();
        const Nanos began = now_ns(), deadline = began + kOpening;
        for (Rest& one : rest) {
            if (!shut(one) || raised) continue;
            Target& target = *one.target;
            const Interrupted interrupted = [&] {
                raised = raised || (signalled && (*signalled)());
                return raised || target.gone();
            };
            Node::Sending sending{target.peer, deadline, began};
            while (unopened(one.attempt) && one.done < load.count && !target.gone()) {
                if (!node_->wait(sending, one.attempt, &interrupted).ok()) break;
                one.attempt = attempt_all(target, load, one.done);
            }
            target.in_vain = one.done < load.count && unopened(one.attempt);
        }
    }
    std::erase_if(rest, [&](const Rest& one) { return one.done == load.count || one.target->gone(); });
    return !raised;
}

void Publisher::pass_over(const Load& load, std::vector<Rest>& rest) {
    for (Rest& one : rest) {
        if (one.attempt.status == Status::not_connected) node_->want_connection(one.target->peer);
        if (one.attempt.status == Status::no_credit) node_->want_credit(one.target->peer, one.attempt);
        one.target->number += static_cast<std::uint32_t>(load.count - one.done);
        dropped_.fetch_add(load.count - one.done, std::memory_order_relaxed);
        missed(*one.target, load.count - one.done, 0);
    }
    rest.clear();
}

// May block; without the interpreter's lock, with the turn. The first failure that is the publisher's
// concern; the others still get theirs, unless the node is closed or somebody is out of patience.
Outcome Publisher::send_rest(const Load& load, std::vector<Rest>& rest, Nanos deadline, Nanos began,
                             const Interrupted* signalled, std::uint16_t& at, std::size_t& left_over) {
    Outcome outcome;
    bool raised = false;
    waits_.fetch_add(1, std::memory_order_relaxed);
    for (Rest& one : rest) {
        Target& target = *one.target;
        const auto lose_rest = [&] { target.number += static_cast<std::uint32_t>(load.count - one.done); };
        if (raised || outcome.code == Outcome::Code::closed) {
            lose_rest();
            continue;
        }
        const Interrupted interrupted = [&] {
            raised = raised || (signalled && (*signalled)());
            return raised || target.gone();
        };
        Node::Sending sending{target.peer, deadline, began};
        // It may have got room while others were waited for.
        std::size_t taken = 0;
        Attempt tried = attempt(target, load, one.done, taken);
        one.done += taken;
        while (one.done < load.count && !target.gone()) {
            Outcome ended;
            if (tried.status == Status::large) {
                const EventHead head = head_at(load, one.done, target.number);
                const Message properties = properties_at(load, one.done);
                std::string prefix(reinterpret_cast<const char*>(&head), kEventHead);
                if (properties.size != 0) prefix.append(properties.data, properties.size);
                sending.went = false;
                sending.only_in = target.bound;
                ended = node_->send_large(sending, kEventKind, data_at(load, one.done), &interrupted, 0,
                                          {prefix.data(), prefix.size()}, &target.flow);
                if (ended.ok() && sending.went) {
                    ++target.number;
                    ++one.done;
                }
            } else if (tried.status != Status::sent) {
                ended = node_->wait(sending, tried, &interrupted);
            }
            if (!ended.ok()) {
                if (raised) {
                    outcome = ended;
                } else if (target.gone()) {
                    break;
                } else if (ended.code == Outcome::Code::unreachable) {
                    // One that cannot be reached is not the publisher's trouble: it will say so itself
                    // when it is back, and its state here expires otherwise.
                    lost_.fetch_add(load.count - one.done, std::memory_order_relaxed);
                    missed(target, 0, load.count - one.done);
                } else if (outcome.ok()) {
                    outcome = ended;
                    at = target.peer.id;
                    left_over = one.done;
                }
                break;
            }
            if (one.done == load.count) break;
            tried = attempt(target, load, one.done, taken);
            one.done += taken;
        }
        if (one.done < load.count) lose_rest();
    }
    if (raised) outcome.code = Outcome::Code::interrupted;
    return outcome;
}

void Publisher::retain(const Load& load) {
    const std::size_t last = load.count - 1;
    const EventHead head = head_at(load, last, 0);
    const Message properties = properties_at(load, last), data = data_at(load, last);
    const bool ends = load.views != nullptr && head.ttl_us != 0;
    Retained kept{head, {}, {}, ends ? now_ns() + Nanos{head.ttl_us} * kMicrosecond : load.expires};
    if (properties.size != 0) kept.properties.assign(properties.data, properties.size);
    if (data.size != 0) kept.data.assign(data.data, data.size);
    retained_ = std::move(kept);
}

bool Publisher::settle() {
    if (node_->forked()) return true;
    if (!try_take()) return false;  // somebody publishes: that is newer
    const Passed passed{*this};
    bool all = true;
    if (!retained_) return true;
    if (pending() != 0) return false;  // a newer one will be kept in a moment
    const Message data{retained_->data.data(), retained_->data.size()};
    const Load load{retained_->head,
                    {retained_->properties.data(), retained_->properties.size()},
                    &data,
                    1,
                    retained_->expires};
    targets_.each([&](const std::shared_ptr<Target>& target) {
        if (!target->owed || target->gone()) return;
        if ((load.expires != 0 && now_ns() >= load.expires) || !target->wants(retained_->properties)) {
            target->owed = false;
            return;
        }
        if (target->content != 0) {  // judging takes time, and the interpreter's lock: not with the turn
            owes_large_.store(true, std::memory_order_relaxed);
            all = false;
            return;
        }
        std::size_t taken = 0;
        const Attempt tried = attempt(*target, load, 0, taken);
        if (tried.status == Status::no_credit) node_->want_credit(target->peer, tried);
        if (tried.status == Status::not_connected) node_->want_connection(target->peer);
        // What goes in fragments has to wait for each of them.
        if (tried.status == Status::large) owes_large_.store(true, std::memory_order_relaxed);
        if (taken != 0 || tried.status == Status::closed) {
            target->owed = false;
        } else {
            all = false;
        }
    });
    return all;
}

void Publisher::settle_waiting() {
    if (node_->forked() || closed_.load()) return;
    owes_large_.store(false, std::memory_order_relaxed);
    Chosen owed;
    targets_.each([&](const std::shared_ptr<Target>& target) {
        if (target->owed && !target->gone()) owed.push_back(target);
    });
    if (owed.empty()) return;
    // A relay has others to serve meanwhile.
    const Nanos patience = origin_ != 0 ? kLook : node_->options().send_timeout;
    Verdict verdict;
    std::uint64_t judged = 0;
    const bool asked = std::any_of(owed.begin(), owed.end(), [](const auto& target) { return target->content != 0; });
    if (asked && !judge_retained(now_ns() + patience, verdict, judged)) return;
    Released released;
    const Nanos began = now_ns(), deadline = began + patience;
    Outcome outcome;
    if (!take(deadline, nullptr, outcome)) return;
    const Passed passed{*this};
    if (!retained_) return;
    const Retained kept = *retained_;
    if ((asked && kept.head.sequence != judged) || pending() != 0) {  // there is a newer one: the next time
        owes_large_.store(true, std::memory_order_relaxed);
        return;
    }
    const Message data{kept.data.data(), kept.data.size()};
    const Load load{kept.head, {kept.properties.data(), kept.properties.size()}, &data, 1, kept.expires};
    std::vector<Rest> rest;
    for (const auto& target : owed) {
        if (!target->owed.exchange(false)) continue;
        if (target->wants(kept.properties) && target->content_in(verdict)) rest.push_back({target.get(), 0, {}});
    }
    std::uint16_t at = 0;
    std::size_t left_over = 0;
    send_rest(load, rest, deadline, began, nullptr, at, left_over);
    if (origin_ == 0) return;
    for (const Rest& one : rest) {
        if (one.done != 0 || one.target->gone()) continue;
        one.target->owed = true;  // the next time
        --one.target->number;     // so nothing is missed
        owes_large_.store(true, std::memory_order_relaxed);
    }
}

PyObject* Publisher::send(const Chosen& targets, Load load) {
    if (too_large(load)) return nullptr;
    if (sender_) return enqueue(targets, load);
    const NodeOptions& options = node_->options();
    const Nanos began = now_ns();
    Nanos deadline = began + (Scheduler::on_scheduler_thread() ? options.request_timeout : options.send_timeout);
    if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
        // A signal handler, while this very thread waits for room.
        return raise("WouldBlock", "publish() inside a publish() of the same publisher that waits; use another thread");
    }
    Outcome outcome;
    std::uint16_t at = 0;
    std::size_t left_over = 0;
    if (!try_take()) {
        if (!may_wait_for(load)) return nullptr;
        Released released;
        Scheduler::Blocked blocked;
        take(deadline, released.interrupted(), outcome);
    }
    if (!outcome.ok()) return raise_outcome(outcome, at, kEventKind, now_ns() - began, load.before + left_over);
    const Passed passed{*this};
    // Whoever may not wait is told before anybody has got it, or publishing it again would give it to some twice.
    if (!all_have_room(targets, load) && !may_wait_for(load)) {
        ask_for_room(targets, load);
        return nullptr;
    }
    load.head.sequence = sequence_.load(std::memory_order_relaxed) + 1;
    load.head.time_ns = wall_clock_ns();
    sequence_.store(load.head.sequence + load.count - 1, std::memory_order_relaxed);
    if (retains_) retain(load);
    std::vector<Rest> rest;
    send_what_goes(targets, load, rest);
    if (rest.empty()) Py_RETURN_NONE;
    if (node_->fresh()) return raise_not_started();
    if (when_full_ == WhenFull::drop_newest) {
        if (!open_up(load, rest)) {
            pass_over(load, rest);
            return nullptr;
        }
        if (rest.empty()) Py_RETURN_NONE;
        // What goes in fragments may wait for each of them, but not for long.
        std::vector<Rest> large;
        std::erase_if(rest, [&](const Rest& one) {
            const bool tried = one.attempt.status == Status::large || one.attempt.status == Status::closed;
            if (tried) large.push_back(one);
            return tried;
        });
        pass_over(load, rest);
        rest.swap(large);
        if (rest.empty()) Py_RETURN_NONE;
        deadline = now_ns() + kBriefly;
    }
    if (!may_wait_for(load)) {
        // There was room when it looked, and others were faster. Some have it by now.
        PyErr_Clear();
        deadline = std::min(deadline, now_ns() + kBriefly);
    }
    {
        Released released;
        outcome = send_rest(load, rest, deadline, began, released.interrupted(), at, left_over);
    }
    if (outcome.code == Outcome::Code::timeout && when_full_ == WhenFull::drop_newest) {
        dropped_.fetch_add(load.count - left_over, std::memory_order_relaxed);
        Py_RETURN_NONE;
    }
    if (outcome.ok()) Py_RETURN_NONE;
    return raise_outcome(outcome, at, kEventKind, now_ns() - began, load.before + left_over);
}

}  // namespace antiphon::python

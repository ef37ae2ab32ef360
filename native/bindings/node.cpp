#include "bindings/node.hpp"

#include "bindings/feed.hpp"
#include "bindings/request.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "bindings/arguments.hpp"
#include "bindings/inbox.hpp"
#include "bindings/packed.hpp"
#include "bindings/publisher.hpp"
#include "bindings/subscription.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

constexpr std::size_t kSpansPerTurn = 8192;

// False without an exception for what is no whole number, or one that is out of every range. Of those that say
// they are one, as NumPy's do, a truth value is none all the same.
bool read_whole(PyObject* number, long& value) {
    if (!PyIndex_Check(number) || PyBool_Check(number)) return false;
    int overflow = 0;
    value = PyLong_AsLongAndOverflow(number, &overflow);
    return overflow == 0 && !PyErr_Occurred();
}

bool read_target(PyObject* target, long& id) {
    if (read_whole(target, id)) return true;
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "a target is the id of a node, a number from 1 to 65535, not %R", target);
    }
    return false;
}

int read_kind(PyObject* kind) {
    long value;
    if (!read_whole(kind, value)) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "kind is %R; give a number from 64 to 65535", kind);
        return -1;
    }
    if (value < kFirstUserKind || value > 65535) {
        raise("ConfigError",
              "kind " + std::to_string(value) + " is not for users; give one from 64 to 65535",
              facts("{sssl}", "setting", "kind", "value", value));
        return -1;
    }
    return static_cast<int>(value);
}

}  // namespace

// --- handles ---------------------------------------------------------------------------------------

bool Handle::close() {
    if (node_->forked()) return true;  // it is the parent's
    const bool first = !tasks_.empty();
    // A handler does not wait for one that somebody else waits for already: that one may wait for it.
    if (!first && Scheduler::on_scheduler_thread()) return true;
    if (first) ended_.swap(tasks_);
    const std::vector<std::shared_ptr<HandlerTask>> tasks = ended_;
    bool raised = false;
    std::vector<std::shared_ptr<HandlerTask>> running;
    {
        Released released;
        if (first) {
            node_->remove_registration(registration_);
            registration_->queue->set_on_ready(nullptr);
        }
        for (const auto& task : tasks) {
            // Its own is in use until the handler returns, and gives back what it has by itself.
            if (wait_for(*task, released.interrupted(), raised) && !Scheduler::running_here(*task)) {
                task->end();
            } else {
                running.push_back(task);
            }
        }
    }
    for (const auto& task : running) node_->scheduler().keep_while_running(task);
    if (!first) return !raised;
    drop();
    closed_ = true;
    if (const auto among = among_.lock()) among->erase(this);  // the caller has it still
    return !raised;
}

// Until no other thread runs it. False when one still does: a signal handler has raised, or that one waits for the
// handler that this thread runs.
bool Handle::wait_for(HandlerTask& task, const Interrupted* interrupted, bool& raised) {
    Scheduler& scheduler = node_->scheduler();
    if (scheduler.forget(task, 0)) return true;
    Scheduler::Blocked blocked;
    for (bool in_a_ring = false; !raised && !in_a_ring;) {
        const Nanos point = interrupted ? now_ns() + 100 * kMillisecond : kNever;
        if (scheduler.forget(task, point, &in_a_ring)) return true;
        raised = interrupted && (*interrupted)();
    }
    return false;
}

std::vector<std::shared_ptr<const Task>> Handle::tasks() const {
    std::vector<std::shared_ptr<const Task>> all(tasks_.begin(), tasks_.end());
    all.insert(all.end(), ended_.begin(), ended_.end());
    return all;
}

bool Handle::set_share(double share) {
    const double each = tasks_.empty() ? 0 : share / static_cast<double>(tasks_.size());
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
        if (node_->scheduler().set_share(*tasks_[i], each)) continue;
        for (std::size_t j = 0; j < i; ++j) node_->scheduler().set_share(*tasks_[j], share_ / static_cast<double>(tasks_.size()));
        return false;
    }
    share_ = share;
    return true;
}

void Handle::route(std::uint16_t source, std::uint32_t number, std::shared_ptr<Route> to) {
    const std::uint64_t key = TopicNames::key(source, number);
    if (to == nullptr) {
        handler_->routes.erase(key);
    } else if (!tasks_.empty()) {  // or it is closed, and its last task may end without the interpreter's lock
        handler_->routes[key] = std::move(to);
    }
}

void Handle::acknowledge(bool manual) {
    handler_->acks = std::make_shared<Acks>(node_, registration_->flow);
    handler_->manual = manual;
}

bool Handle::wait_acknowledged(double timeout) {
    if (!handler_->acks || node_->forked()) return true;
    Released released;
    return handler_->acks->wait_sent(now_ns() + static_cast<Nanos>(timeout * kSecond));
}

std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> Handle::positions() const {
    std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> all;
    for (const auto& task : tasks_) {
        if (const auto* one = dynamic_cast<const SubscriptionTask*>(task.get())) {
            for (const auto& [topic, place] : one->reader().positions()) all.emplace_back(topic, place.sequence, place.store);
        }
    }
    return all;
}

void Handle::drop() {
    // A call that is running holds its own references.
    handler_->call = {};
    handler_->decode = {};
    handler_->on_error = {};
    handler_->ended = {};
    handler_->kind_of = {};
    handler_->encode = {};
    handler_->topics.clear();
    handler_->routes.clear();
}

// --- life ------------------------------------------------------------------------------------------

NodeCore::NodeCore(NodeOptions options, Reference kind_of, Reference encode)
    : kind_of_(std::move(kind_of)), encode_(std::move(encode)), kinds_(Reference::steal(PyDict_New())) {
    options.hooks.thread_ends = [] { forget_thread_state(); };
    node_ = std::make_shared<Node>(std::move(options));
    events_ = std::make_shared<EventTask>(node_);
    node_->set_on_event([events = events_](Event event) { events->push(std::move(event)); });
}

NodeCore::~NodeCore() {
    if (node_->forked()) {
        // Neither threads nor locks of the node are of this process: leave everything where it is.
        new std::shared_ptr<Node>(std::move(node_));
        new std::shared_ptr<EventTask>(std::move(events_));
        new std::vector<std::shared_ptr<Handle>>(std::move(handles_));
        new std::shared_ptr<Subscriptions>(std::move(subscriptions_));
        return;
    }
    close(0);
    Released released;
    node_.reset();
}

void NodeCore::start() {
    started_ = true;
    Released released;
    node_->start();
}

bool NodeCore::close(double drain) {
    bool clean;
    {
        Released released;
        clean = node_->close(seconds_to_ns(drain), released.interrupted());
    }
    events_->set_call({});
    if (!clean && !kept_) {
        // A handler is still running, on a thread that uses all of this.
        kept_ = true;
        new std::shared_ptr<Node>(node_);
        new std::shared_ptr<EventTask>(events_);
        new std::vector<std::shared_ptr<Handle>>(handles_);
        new Subscriptions(*subscriptions_);
    } else if (clean) {
        for (auto& handle : handles_) handle->drop();
        const Subscriptions open = *subscriptions_;  // what they let go may close others
        for (const auto& [raw, handle] : open) handle->drop();
    }
    return clean;
}

std::shared_ptr<Handle> NodeCore::on(std::uint16_t kind, Reference call, Reference decode, Reference on_error,
                                     bool batch, int tasks, std::uint64_t capacity, WhenFull when_full) {
    auto handler = std::make_shared<Handler>();
    handler->call = std::move(call);
    handler->decode = std::move(decode);
    handler->on_error = std::move(on_error);
    handler->kind_of = Reference::share(kind_of_.get());
    handler->encode = Reference::share(encode_.get());
    handler->batch = batch;
    handler->kind = kind;
    std::vector<std::shared_ptr<HandlerTask>> all;
    auto registration = node_->add_registration(kind, capacity, when_full, [&](const auto& made) {
        made->answers = !batch;
        std::vector<HandlerTask*> raw;
        for (int i = 0; i < tasks; ++i) {
            all.push_back(std::make_shared<HandlerTask>(node_, made, handler));
            raw.push_back(all.back().get());
        }
        made->queue->set_on_ready([node = node_.get(), raw] {
            for (HandlerTask* task : raw) node->scheduler().notify(*task);
        });
    });
    if (!registration) return nullptr;
    auto handle = std::make_shared<Handle>(node_, registration, handler, std::move(all));
    std::erase_if(handles_, [this](const auto& known) {
        if (!known->closed()) return false;
        forgotten_failed_ += known->handler().failed.load(std::memory_order_relaxed);
        forgotten_dropped_ += known->registration().queue->dropped();
        return true;
    });
    handles_.push_back(handle);
    return handle;
}

std::shared_ptr<Feed> NodeCore::feed(std::uint16_t kind, Reference decode, std::uint64_t capacity,
                                     WhenFull when_full) {
    auto registration = node_->add_registration(kind, capacity, when_full,
                                                [](const auto& made) { made->answers = true; });
    if (!registration) return nullptr;
    return std::make_shared<Feed>(node_, registration, std::move(decode), Reference::share(kind_of_.get()),
                                  Reference::share(encode_.get()));
}

std::shared_ptr<Inbox> NodeCore::inbox(std::uint16_t kind, Reference decode, std::uint64_t capacity,
                                       WhenFull when_full) {
    auto registration = node_->add_registration(kind, capacity, when_full);
    if (!registration) return nullptr;
    return std::make_shared<Inbox>(node_, registration, std::move(decode));
}

std::shared_ptr<Handle> NodeCore::subscribe(Reference call, Reference on_error, bool batch, std::uint64_t capacity,
                                            WhenFull when_full) {
    auto handler = std::make_shared<Handler>();
    handler->call = std::move(call);
    handler->on_error = std::move(on_error);
    handler->batch = batch;
    return add_subscription(std::move(handler), capacity, when_full);
}

std::shared_ptr<Handle> NodeCore::relay(Reference call, Reference on_error, Reference ended, std::uint64_t capacity,
                                        Nanos patience) {
    auto handler = std::make_shared<Handler>();
    handler->call = std::move(call);
    handler->on_error = std::move(on_error);
    handler->batch = handler->relays = true;
    handler->patience = patience;
    handler->ended = std::move(ended);
    return add_subscription(std::move(handler), capacity, WhenFull::block);
}

std::shared_ptr<Handle> NodeCore::add_subscription(std::shared_ptr<Handler> handler, std::uint64_t capacity,
                                                   WhenFull when_full) {
    handler->kind = kEventKind;
    std::shared_ptr<HandlerTask> task;
    auto registration = node_->add_subscription(capacity, when_full, [&](const auto& made) {
        task = std::make_shared<SubscriptionTask>(node_, made, handler);
        made->queue->set_on_ready([node = node_.get(), raw = task.get()] { node->scheduler().notify(*raw); });
    });
    auto handle = std::make_shared<Handle>(node_, registration, handler, std::vector{task}, subscriptions_);
    subscriptions_->emplace(handle.get(), handle);
    return handle;
}

std::shared_ptr<Inbox> NodeCore::subscribe_inbox(std::uint64_t capacity, WhenFull when_full) {
    auto registration = node_->add_subscription(capacity, when_full, [](const auto&) {});
    return std::make_shared<Inbox>(node_, registration, Reference{});
}

PyObject* NodeCore::tell(long target, PyObject* data, bool blocking, std::uint16_t kind) {
    if (node_->forked()) return raise_forked();
    Peer* peer = find(target);
    if (peer == nullptr) return nullptr;
    View view;
    if (!view.take(data, PyBUF_SIMPLE)) return nullptr;
    return send_bytes(*peer, kind, {static_cast<const char*>(view->buf), static_cast<std::size_t>(view->len)},
                      blocking);
}

std::pair<std::uint16_t, std::uint64_t> NodeCore::identify(const std::string& address, double timeout) {
    const Nanos began = now_ns();
    Node::Identity found;
    Outcome outcome;
    if (node_->forked()) {
        raise_forked();
        return {};
    }
    {
        Released released;
        outcome = node_->identify(address, seconds_to_ns(timeout), released.interrupted(), found);
    }
    if (!outcome.ok()) raise_outcome(outcome, 0, 0, now_ns() - began, 0);
    return {found.id, found.incarnation};
}

void NodeCore::set_on_event(Reference call) { events_->set_call(std::move(call)); }

// --- sending ---------------------------------------------------------------------------------------

Peer* NodeCore::find(long id) {
    if (id < 1 || id > 65535) {
        raise("UnknownPeer", "node ids are 1 to 65535, not " + std::to_string(id), facts("{sl}", "peer", id));
        return nullptr;
    }
    Peer* peer = node_->find_peer(static_cast<std::uint16_t>(id));
    if (peer == nullptr && id == node_->id()) {
        node_->add_peer(node_->id(), "");
        peer = node_->find_peer(static_cast<std::uint16_t>(id));
    }
    if (peer != nullptr) {
        if (peer->session.load(std::memory_order_acquire) != 0) return peer;
        std::lock_guard lock(peer->mutex);
        if (peer->known) return peer;
    }
    // Whom it knows does not matter to a node that cannot send.
    if (node_->forked()) {
        raise_forked();
    } else if (node_->fresh()) {
        raise_not_started();
    } else {
        const auto code = node_->closed() ? Outcome::Code::closed : Outcome::Code::unknown_peer;
        raise_outcome({code, {}, {}, {}}, static_cast<std::uint16_t>(id), 0, 0, 0);
    }
    return nullptr;
}

Nanos NodeCore::send_deadline() const {
    const NodeOptions& options = node_->options();
    return now_ns() + (Scheduler::on_scheduler_thread() ? options.request_timeout : options.send_timeout);
}

int NodeCore::kind_for(PyObject* message) {
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(message));
    PyObject* known = PyDict_GetItemWithError(kinds_.get(), type);
    if (known != nullptr) return static_cast<int>(PyLong_AsLong(known));
    if (PyErr_Occurred()) return -1;
    Reference kind = Reference::steal(PyObject_CallOneArg(kind_of_.get(), type));
    if (!kind || PyDict_SetItem(kinds_.get(), type, kind.get()) != 0) return -1;
    return static_cast<int>(PyLong_AsLong(kind.get()));
}

PyObject* NodeCore::send_bytes(Peer& peer, int kind, Message message, bool blocking) {
    if (message.size > node_->message_limit(peer)) {
        return raise_outcome(node_->too_large(peer, message.size), peer.id, kind, 0, 0);
    }
    const auto user_kind = static_cast<std::uint16_t>(kind);
    Attempt attempt = node_->try_message(peer, user_kind, message);
    if (attempt.status == Status::sent) return Py_NewRef(blocking ? Py_None : Py_True);
    if (node_->fresh()) return raise_not_started();
    if (!blocking) {
        if (attempt.status == Status::closed) {
            return raise_outcome({Outcome::Code::closed, {}, {}, {}}, peer.id, kind, 0, 0);
        }
        if (attempt.status == Status::not_connected) node_->want_connection(peer);
        if (attempt.status == Status::no_credit) {
            if (attempt.window == 0) attempt.flow->hasty.store(true, std::memory_order_relaxed);
            node_->want_credit(peer, attempt);
        }
        if (attempt.status == Status::large) {
            // A large message goes in steps that wait for each other; it is not for try_send.
            const std::uint32_t window = attempt.flow->window.load(std::memory_order_acquire);
            const std::uint32_t frame = std::min(peer.max_frame.load(std::memory_order_relaxed),
                                                 window == 0 ? UINT32_MAX : window / 4);
            Outcome outcome = node_->too_large(peer, message.size);
            outcome.limit = frame > kHeaderBytes ? frame - kHeaderBytes : 0;
            outcome.text = "try_send takes messages of up to " + std::to_string(outcome.limit) +
                           " bytes, a quarter of the ring and of the flow's window; use send";
            return raise_outcome(outcome, peer.id, kind, 0, 0);
        }
        return Py_NewRef(Py_False);
    }
    if (!may_wait("send()", "send_async()")) {
        // Asked for all the same, so that the next try may find it.
        if (attempt.status == Status::not_connected) node_->want_connection(peer);
        if (attempt.status == Status::no_credit) node_->want_credit(peer, attempt);
        return nullptr;
    }
    Node::Sending sending{peer, send_deadline(), now_ns()};
    Outcome outcome;
    {
        Released released;
        for (;;) {
            if (attempt.status == Status::large) {
                sending.went = false;
                outcome = node_->send_large(sending, user_kind, message, released.interrupted());
                if (!outcome.ok() || sending.went) break;
            } else {
                outcome = node_->wait(sending, attempt, released.interrupted());
                if (!outcome.ok()) break;
            }
            attempt = node_->try_message(peer, user_kind, message);
            if (attempt.status == Status::sent) break;
        }
    }
    if (outcome.ok()) Py_RETURN_NONE;
    return raise_outcome(outcome, peer.id, kind, now_ns() - sending.began, 0);
}

PyObject* NodeCore::send(PyObject* const* arguments, Py_ssize_t count, PyObject* names, bool blocking) {
    static const char* const expected[] = {"target", "message", "kind"};
    PyObject* values[3] = {};
    // The usual shape, send(id, bytes, kind=...). Names in calls are interned, so one comparison tells.
    static PyObject* const kind_name = PyUnicode_InternFromString("kind");
    if (count == 2 && names != nullptr && PyTuple_GET_SIZE(names) == 1 &&
        PyTuple_GET_ITEM(names, 0) == kind_name) {
        values[0] = arguments[0];
        values[1] = arguments[1];
        values[2] = arguments[2];
    } else if (!read_arguments(blocking ? "send" : "try_send", arguments, count, names, expected, 3, 2, values)) {
        return nullptr;
    }
    if (values[0] == nullptr || values[1] == nullptr) {
        PyErr_SetString(PyExc_TypeError, "send() needs a target and a message");
        return nullptr;
    }
    if (node_->forked()) return raise_forked();
    long id;
    if (!read_target(values[0], id)) return nullptr;
    Peer* peer = find(id);
    if (peer == nullptr) return nullptr;

    PyObject* message = values[1];
    if (values[2] != nullptr && values[2] != Py_None) {
        const int kind = read_kind(values[2]);
        if (kind < 0) return nullptr;
        if (PyBytes_CheckExact(message)) {
            return send_bytes(*peer, kind,
                              {PyBytes_AS_STRING(message), static_cast<std::size_t>(PyBytes_GET_SIZE(message))},
                              blocking);
        }
        View view;
        if (!PyObject_CheckBuffer(message)) {
            PyErr_Format(PyExc_TypeError, "a raw message is bytes or another buffer, not %.100s; a Message goes without kind=",
                         Py_TYPE(message)->tp_name);
            return nullptr;
        }
        if (!view.take(message, PyBUF_SIMPLE)) return nullptr;
        return send_bytes(*peer, kind, {static_cast<const char*>(view->buf), static_cast<std::size_t>(view->len)},
                          blocking);
    }
    if (PyObject_CheckBuffer(message)) {
        return raise("ConfigError", blocking ? "a raw message needs its kind: send(target, data, kind=...)"
                              : "a raw message needs its kind: try_send(target, data, kind=...)",
                     facts("{ss}", "setting", "kind"));
    }
    const int kind = kind_for(message);
    if (kind < 0) return nullptr;
    Reference bytes = Reference::steal(PyObject_CallOneArg(encode_.get(), message));
    if (!bytes) return nullptr;
    return send_bytes(*peer, kind,
                      {PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get()))},
                      blocking);
}

// Sends all of them, waiting as needed. False with an exception set; `before` were sent earlier by the
// same call.
bool NodeCore::send_spans(Peer& peer, int kind, const Message* messages, std::size_t count, std::size_t before,
                          Node::Sending& sending) {
    if (node_->fresh()) {
        raise_not_started();
        return false;
    }
    const auto user_kind = static_cast<std::uint16_t>(kind);
    // Before any is sent, as far as it can be known.
    const std::uint64_t limit = node_->message_limit(peer);
    for (std::size_t i = 0; i < count; ++i) {
        if (messages[i].size <= limit) continue;
        raise_outcome(node_->too_large(peer, messages[i].size), peer.id, kind, 0, before);
        return false;
    }
    // What came before has been taken, so that the first wait counts from now.
    std::size_t at = 0, at_wait = before == 0 ? 0 : SIZE_MAX;
    while (at < count) {
        std::size_t taken = 0;
        const Attempt attempt = node_->try_packed(peer, user_kind, messages + at, count - at, taken);
        at += taken;
        if (attempt.status == Status::sent) continue;
        if (at != at_wait) {
            // The patience is for a receiver that takes nothing, as with as many single sends.
            at_wait = at;
            sending.began = now_ns();
            sending.deadline = send_deadline();
        }
        if (!may_wait("send_many() and send_packed()", "send_async()")) return false;
        Outcome outcome;
        {
            Released released;
            if (attempt.status == Status::large) {
                sending.went = false;
                outcome = node_->send_large(sending, user_kind, messages[at], released.interrupted());
                if (outcome.ok() && sending.went) ++at;
            } else {
                outcome = node_->wait(sending, attempt, released.interrupted());
            }
        }
        if (!outcome.ok()) {
            raise_outcome(outcome, peer.id, kind, now_ns() - sending.began, before + at);
            return false;
        }
    }
    return true;
}

PyObject* NodeCore::send_many(PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    static const char* const expected[] = {"target", "messages", "kind"};
    PyObject* values[3] = {};
    if (!read_arguments("send_many", arguments, count, names, expected, 3, 2, values)) return nullptr;
    if (values[0] == nullptr || values[1] == nullptr) {
        PyErr_SetString(PyExc_TypeError, "send_many() needs a target and messages");
        return nullptr;
    }
    if (node_->forked()) return raise_forked();
    long id;
    if (!read_target(values[0], id)) return nullptr;
    Peer* peer = find(id);
    if (peer == nullptr) return nullptr;
    // A tuple of our own: nobody can change it while we wait.
    Reference items = Reference::steal(PySequence_Tuple(values[1]));
    if (!items) return nullptr;
    const Py_ssize_t total = PyTuple_GET_SIZE(items.get());
    if (total == 0) Py_RETURN_NONE;

    int kind = -1;
    std::vector<Reference> encoded;
    if (values[2] != nullptr && values[2] != Py_None) {
        kind = read_kind(values[2]);
        if (kind < 0) return nullptr;
    }
    std::vector<Message> spans(static_cast<std::size_t>(total));
    const bool typed = kind < 0;
    for (Py_ssize_t i = 0; i < total; ++i) {
        PyObject* item = PyTuple_GET_ITEM(items.get(), i);
        if (typed) {
            if (PyObject_CheckBuffer(item)) {
                return raise("ConfigError", "raw messages need their kind: send_many(target, messages, kind=...)",
                             facts("{ss}", "setting", "kind"));
            }
            const int own = kind_for(item);
            if (own < 0) return nullptr;
            if (kind >= 0 && own != kind) {
                PyErr_SetString(PyExc_TypeError, "send_many() takes messages of one kind");
                return nullptr;
            }
            kind = own;
            encoded.push_back(Reference::steal(PyObject_CallOneArg(encode_.get(), item)));
            item = encoded.back().get();
            if (item == nullptr) return nullptr;
        } else if (!PyBytes_Check(item)) {
            if (!PyObject_CheckBuffer(item)) {
                PyErr_Format(PyExc_TypeError, "send_many() takes bytes or other buffers; item %zd is %.100s", i,
                             Py_TYPE(item)->tp_name);
                return nullptr;
            }
            encoded.push_back(Reference::steal(PyBytes_FromObject(item)));
            item = encoded.back().get();
            if (item == nullptr) return nullptr;
        }
        spans[static_cast<std::size_t>(i)] = {PyBytes_AS_STRING(item), static_cast<std::size_t>(PyBytes_GET_SIZE(item))};
    }
    Node::Sending sending{*peer, send_deadline(), now_ns()};
    if (!send_spans(*peer, kind, spans.data(), spans.size(), 0, sending)) return nullptr;
    Py_RETURN_NONE;
}

PyObject* NodeCore::send_packed(PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    static const char* const expected[] = {"target", "data", "offsets", "kind"};
    PyObject* values[4] = {};
    if (!read_arguments("send_packed", arguments, count, names, expected, 4, 3, values)) return nullptr;
    if (values[0] == nullptr || values[1] == nullptr || values[2] == nullptr || values[3] == nullptr) {
        PyErr_SetString(PyExc_TypeError, "send_packed() needs a target, data, offsets and kind=");
        return nullptr;
    }
    if (node_->forked()) return raise_forked();
    long id;
    if (!read_target(values[0], id)) return nullptr;
    Peer* peer = find(id);
    const int kind = peer ? read_kind(values[3]) : -1;
    if (kind < 0) return nullptr;
    Packed packed;
    if (!packed.take(values[1], values[2])) return nullptr;
    if (packed.longest() > node_->message_limit(*peer)) {
        return raise_outcome(node_->too_large(*peer, packed.longest()), peer->id, kind, 0, 0);
    }
    Node::Sending sending{*peer, send_deadline(), now_ns()};
    std::vector<Message> spans;
    for (std::size_t at = 0; at < packed.count(); at += spans.size()) {
        if (!packed.read(at, kSpansPerTurn, spans)) return nullptr;
        if (!send_spans(*peer, kind, spans.data(), spans.size(), at, sending)) return nullptr;
    }
    Py_RETURN_NONE;
}

std::shared_ptr<Soon> NodeCore::soon(long target, Reference data, std::uint16_t kind) {
    if (node_->forked()) {
        raise_forked();
        return nullptr;
    }
    Peer* peer = find(target);
    return peer ? std::make_shared<Soon>(node_, *peer, kind, std::move(data)) : nullptr;
}

Waits::Next Soon::attempt(Bell& bell) {
    using Next = Waits::Next;
    if (node_->forked()) {
        raise_forked();
        return Next::failed;
    }
    const Message message{PyBytes_AS_STRING(data_.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(data_.get()))};
    if (message.size > node_->message_limit(peer_)) {
        raise_outcome(node_->too_large(peer_, message.size), peer_.id, kind_, 0, 0);
        return Next::failed;
    }
    if (!waits_) waits_.emplace(peer_, now_ns() + node_->options().send_timeout);
    const Next next = waits_->attempt(*node_, bell, [&] { return node_->try_message(peer_, kind_, message); });
    if (next == Next::failed) {
        const Outcome outcome = waits_->outcome();
        const Nanos waited = waits_->waited();
        drop();
        raise_outcome(outcome, peer_.id, kind_, waited, 0);
    } else if (next == Next::went || next == Next::steps) {
        drop();
    }
    return next;
}

std::shared_ptr<Request> NodeCore::prepare(long target, int kind) {
    if (node_->forked()) {
        raise_forked();
        return nullptr;
    }
    Peer* peer = find(target);
    if (peer == nullptr) return nullptr;
    return std::make_shared<Request>(node_, node_->add_request(*peer, static_cast<std::uint16_t>(kind)));
}

PyObject* NodeCore::request(long target, PyObject* data, int kind, double timeout) {
    const Nanos deadline = timeout < 0 ? now_ns() + node_->options().request_timeout : now_ns() + seconds_to_ns(timeout);
    const auto request = prepare(target, kind);
    return request ? request->ask(data, deadline) : nullptr;
}

bool NodeCore::flush(int only, double timeout) {
    if (node_->forked()) {
        raise_forked();
        return false;
    }
    const Nanos began = now_ns();
    const Nanos deadline = timeout < 0 ? kNever : began + seconds_to_ns(timeout);
    Outcome outcome;
    std::uint16_t at = 0;
    {
        Released released;
        outcome = node_->flush_peers(static_cast<std::uint16_t>(only), deadline, released.interrupted(), at);
    }
    if (outcome.ok()) return true;
    if (outcome.code == Outcome::Code::timeout) {
        raise("SendTimeout",
              "node " + std::to_string(at) + " has not handled everything in " + seconds_text(seconds_to_ns(timeout)) +
                  "; wait longer, or look at what its handlers do",
              facts("{sisd}", "peer", at, "waited", static_cast<double>(now_ns() - began) / kSecond));
    } else {
        raise_outcome(outcome, at, 0, now_ns() - began, 0);
    }
    return false;
}

}  // namespace antiphon::python

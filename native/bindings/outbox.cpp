#include "bindings/outbox.hpp"

#include <algorithm>
#include <cstring>

#include "base/wait.hpp"
#include "bindings/packed.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

constexpr std::size_t kAtOnce = 1024;           // events of one attempt
constexpr std::size_t kSpans = 8192;            // of a packed call that are looked at together
constexpr Nanos kLook = 100 * kMillisecond;     // for signals, and for the end of the node
constexpr Nanos kAlone = 2 * kSecond;           // at the end, for a broker that is not there
constexpr std::size_t kSome = 4;                // behind the first that a broker takes which had no space
constexpr Nanos kPause = 250 * kMillisecond, kLongestPause = 4 * kSecond;  // while the broker has no space
constexpr std::size_t kEach = 64;               // what an event costs beside its bytes

}  // namespace

Outbox::Outbox(std::shared_ptr<Node> node, Options options, Reference encode, Reference encode_message)
    : Pump(std::move(node)),
      topic_(options.topic),
      name_(std::move(options.name)),
      producer_(options.producer),
      most_events_(options.events),
      most_bytes_(options.bytes),
      encode_(std::move(encode)),
      encode_message_(std::move(encode_message)) {}

Outbox::~Outbox() {
    // The last one to hold it may be the selector, which has no interpreter's lock.
    if (!PyGILState_Check()) {
        (void)encode_.release();
        (void)encode_message_.release();
    }
    if (node_->forked()) {
        (void)changed_.release();  // somebody may wait for it, in the process that this one was forked from
        return;
    }
    if (!closed_.exchange(true)) retire();
}

// --- who gets them --------------------------------------------------------------------------------

bool Outbox::serve(std::uint16_t id, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge) {
    Peer* peer = node_->find_peer(id);
    if (peer == nullptr) return false;
    std::lock_guard lock(mutex_);
    auto way = node_->subscription_flow(*peer, incarnation, flow, least_charge);
    if (target_ && target_->way == way && !target_->gone()) return true;
    begin(*peer, std::move(way), incarnation);
    send();
    return true;
}

// Anew, and from the first event that has no receipt. With the mutex.
void Outbox::begin(Peer& peer, std::shared_ptr<OutFlow> way, std::uint64_t incarnation) {
    if (target_) target_->left.store(true, std::memory_order_seq_cst);
    target_ = std::make_shared<Target>(peer, std::move(way), incarnation, static_cast<std::uint32_t>(random_u64()), nullptr,
                                       0, false);
    go_back();
}

void Outbox::leave(std::uint16_t id, std::uint32_t flow) {
    if (node_->forked()) return;
    std::lock_guard lock(mutex_);
    if (!target_ || target_->peer.id != id || target_->flow.id.load(std::memory_order_relaxed) != flow) return;
    target_->left.store(true, std::memory_order_seq_cst);
    target_->peer.wake();
    target_.reset();
}

void Outbox::acknowledge(std::uint64_t producer, std::uint64_t upto, std::uint32_t status, int error) {
    if (producer != producer_) return;  // of a life of this node that has ended
    std::lock_guard lock(mutex_);
    upto = std::min(upto, acked_ + kept_.size());
    const std::uint64_t before = acked_;
    for (; acked_ < upto; ++acked_) {
        bytes_ -= kept_.front().bytes.size() + kEach;
        kept_.pop_front();
    }
    next_ = std::max(next_, acked_ + 1);
    const auto said = static_cast<log::Status>(status);
    // The broker says that it has no space until the last that it refused is in its log. That it took what was
    // sent since says more: some may follow, and then all; not all at once, for little space is soon used up.
    // Word that brings nothing new says nothing: one may come for each time that the same event was sent.
    if (said == log::Status::ok) {
        probing_ = 0;
    } else if (probing_ != 0 && acked_ > before) {
        probing_ = probing_ == 1 ? kSome : most_events_;
    }
    if (said == log::Status::out_of_order) {
        if (status_ == log::Status::ok) status_ = said;  // retry() goes back
    } else if (said != log::Status::ok || status_ != log::Status::out_of_order) {
        status_ = said;
        error_ = error;
    }
    if (kept_.empty()) status_ = log::Status::ok;
    if (status_ == log::Status::ok) pause_ = 0, probing_ = 0;
    changed_->notify_all();
    if (!troubled()) send();
}

void Outbox::refuse(std::string error, std::string text) {
    std::lock_guard lock(mutex_);
    refused_ = std::move(error);
    refusal_ = std::move(text);
    changed_->notify_all();
    if (refused_.empty()) send();
}

bool Outbox::retry() {
    std::lock_guard lock(mutex_);
    if (status_ == log::Status::ok) return false;
    if (status_ == log::Status::out_of_order) {
        status_ = log::Status::ok;
    } else {
        // A disk that is full stays so for a while, and everybody's events sent again would not help it.
        const Nanos now = now_ns();
        if (now < retry_at_) return true;
        if (acked_ != tried_from_) {
            // What was sent is being taken. To begin again would hold that up where syncs are far apart.
            tried_from_ = acked_;
            retry_at_ = now + std::max(pause_, kPause);
            return true;
        }
        pause_ = pause_ == 0 ? kPause : std::min(2 * pause_, kLongestPause);
        retry_at_ = now + pause_;
        probing_ = 1;
    }
    // Where it begins is said again: the broker may not know that what was before is recorded.
    if (target_) begin(target_->peer, target_->way, target_->incarnation);
    send();
    return true;
}

// --- sending --------------------------------------------------------------------------------------

EventView Outbox::view(std::uint64_t number) const {
    const Kept& kept = kept_[number - acked_ - 1];
    const EventHead head{topic_, 0, number, kept.time_ns, 0, kept.properties};
    return {head, kept.bytes.data(), kept.bytes.data() + kept.properties, kept.bytes.size() - kept.properties};
}

// As much as goes; for the rest it is parked. With the mutex.
void Outbox::send() {
    std::vector<EventView> views;
    for (bool parked = false;;) {
        if (!target_ || large_ || troubled() || kept_.empty() || target_->gone()) return;
        const std::uint32_t session = target_->peer.session.load(std::memory_order_seq_cst);
        Attempt tried{session == 0 ? Status::not_connected : Status::sent};
        if (session != 0 && target_->bound != session) {
            go_back();  // what was on its way is lost, or comes twice
            tried = node_->try_bind(target_->peer, target_->flow, session,
                                    {topic_, target_->epoch, name_, 0, false, false, producer_, acked_ + 1});
            if (tried.status == Status::sent) target_->bound = session;
        }
        const std::uint64_t behind = end();
        if (tried.status == Status::sent && next_ < behind) {
            const std::size_t count = std::min<std::uint64_t>(kAtOnce, behind - next_);
            views.clear();
            for (std::size_t i = 0; i < count; ++i) views.push_back(view(next_ + i));
            std::size_t taken = 0;
            tried = node_->try_views(target_->peer, target_->flow, session, {topic_, target_->number, 0}, views.data(),
                                     count, taken);
            target_->number += static_cast<std::uint32_t>(taken);
            next_ += taken;
        }
        if (tried.status == Status::closed) return;
        if (tried.status == Status::large) return nudge();
        if (tried.status == Status::again) continue;
        if (tried.status == Status::sent && next_ < behind) continue;
        // All is sent: another session would mean that it is sent again.
        if (tried.status == Status::sent) {
            park(target_->peer);
        } else {
            wait_for(target_->peer, tried);
        }
        if (std::exchange(parked, true)) return;
    }
}

bool Outbox::run_slice(Nanos) {
    std::unique_lock lock(mutex_);
    send();
    while (send_large(lock)) send();
    return false;
}

// The next one, if that is why nothing goes. It waits for each fragment, so without the mutex.
bool Outbox::send_large(std::unique_lock<std::mutex>& lock) {
    if (closed_ || !target_ || large_ || troubled() || next_ >= end() || target_->gone()) return false;
    const std::shared_ptr<Target> target = target_;
    const std::uint32_t session = target->peer.session.load(std::memory_order_seq_cst);
    if (session == 0 || target->bound != session) return false;
    const std::uint64_t number = next_;
    const EventView event = view(number);
    std::size_t taken = 0;
    const Attempt tried =
        node_->try_views(target->peer, target->flow, session, {topic_, target->number, 0}, &event, 1, taken);
    if (taken != 0) {
        ++target->number;
        ++next_;
        return true;
    }
    if (tried.status != Status::large) return false;
    const EventHead head = Passing{topic_, target->number, 0}.head(event, 0);
    std::string prefix(reinterpret_cast<const char*>(&head), kEventHead);
    prefix.append(event.properties, event.head.properties);
    const std::string data(event.data, event.size);
    large_ = true;
    lock.unlock();
    Outcome outcome;
    bool went = false;
    {
        Scheduler::Blocked blocked;
        const Nanos began = now_ns();
        Node::Sending sending{target->peer, began + std::max(node_->options().send_timeout, large_patience(data.size())), began};
        sending.only_in = session;
        const Interrupted interrupted = [&] { return closed_.load() || target->gone(); };
        outcome = node_->send_large(sending, kEventKind, {data.data(), data.size()}, &interrupted, 0,
                                    {prefix.data(), prefix.size()}, &target->flow);
        went = outcome.ok() && sending.went;
    }
    lock.lock();
    large_ = false;
    if (!went && outcome.code == Outcome::Code::too_large && target == target_) {
        // The broker is another than the one that was there when it was published. Whoever publishes hears of it.
        refused_ = "MessageTooLarge";
        refusal_ = outcome.text;
        changed_->notify_all();
        return false;
    }
    if (!went) {
        park(target->peer);
        send();  // what it waits for may have come before it was parked
        return false;
    }
    ++target->number;
    if (target == target_ && target->bound == session && next_ == number) ++next_;
    return true;
}

// --- publishing -----------------------------------------------------------------------------------

bool Outbox::open() const {
    if (node_->forked()) {
        raise_forked();
        return false;
    }
    if (!closing_) return true;
    raise("Closed", "this publisher is closed; make another with bus.publisher()", facts("{ss}", "what", "publisher"));
    return false;
}

Reference Outbox::encoded(PyObject* message) {
    if (PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(message)), "__struct_fields__") != 1) {
        PyErr_Format(PyExc_TypeError, "an event is bytes, another buffer or a Message, not %.100s",
                     Py_TYPE(message)->tp_name);
        return {};
    }
    return Reference::steal(PyObject_CallOneArg(encode_message_.get(), message));
}

PyObject* Outbox::publish(PyObject* data, PyObject* properties) {
    if (!open()) return nullptr;
    Reference made, said;
    if (!PyObject_CheckBuffer(data)) {
        made = encoded(data);
        if (!made) return nullptr;
        data = made.get();
    }
    View bytes;
    if (!bytes.take(data, PyBUF_SIMPLE)) return nullptr;
    Message about{nullptr, 0};
    if (properties != nullptr && properties != Py_None) {
        said = Reference::steal(PyObject_CallOneArg(encode_.get(), properties));
        if (!said) return nullptr;
        about = {PyBytes_AS_STRING(said.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(said.get()))};
    }
    return add({{static_cast<const char*>(bytes->buf), static_cast<std::size_t>(bytes->len)}}, about);
}

PyObject* Outbox::publish_many(PyObject* events) {
    if (!open()) return nullptr;
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
    return add(spans, {nullptr, 0}, kPublishMany);
}

PyObject* Outbox::publish_packed(PyObject* data, PyObject* offsets) {
    if (!open()) return nullptr;
    Packed packed;
    if (!packed.take(data, offsets)) return nullptr;
    std::vector<Message> spans;
    for (std::size_t at = 0; at < packed.count(); at += spans.size()) {
        if (!packed.read(at, kSpans, spans)) return nullptr;
        if (!Reference::steal(add(spans, {nullptr, 0}, kPublishPacked, at))) return nullptr;
    }
    Py_RETURN_NONE;
}

// What an event may have, so that it fits with its head: it could never be sent, and all behind it wait.
std::uint64_t Outbox::largest() {
    std::uint64_t limit = node_->options().max_message_bytes;
    std::lock_guard lock(mutex_);
    const std::uint64_t theirs = target_ ? target_->peer.max_message.load(std::memory_order_acquire) : 0;
    if (theirs != 0) limit = std::min(limit, theirs);
    return limit - std::min<std::uint64_t>(limit, kEventHead);
}

PyObject* Outbox::add(const std::vector<Message>& events, Message properties, Call call, std::size_t before) {
    if (node_->fresh()) return raise_not_started();
    const std::uint64_t limit = largest();
    for (const Message& event : events) {
        const std::size_t size = event.size + properties.size;
        if (size > limit) {
            return raise("MessageTooLarge",
                         "an event of " + std::to_string(size) + " bytes is above max_message_bytes, here or of the broker",
                         facts("{sKsK}", "size", static_cast<unsigned long long>(size), "limit",
                               static_cast<unsigned long long>(limit)));
        }
    }
    const NodeOptions& options = node_->options();
    const Nanos began = now_ns();
    const Nanos deadline = began + (Scheduler::on_scheduler_thread() ? options.request_timeout : options.send_timeout);
    std::size_t done = 0;
    while (done < events.size()) {
        std::unique_lock lock(mutex_);
        if (closing_) {  // by another thread, which waits for what it has found, and no more
            lock.unlock();
            open();
            return nullptr;
        }
        if (stuck()) return raise_trouble(lock);
        if (full()) {
            lock.unlock();
            if (!may_wait(call, before + done)) return nullptr;
            waits_.fetch_add(1, std::memory_order_relaxed);
            Outcome outcome;
            {
                Released released;
                Scheduler::Blocked blocked;
                std::unique_lock waiting(mutex_);
                make_room(waiting, deadline, released.interrupted(), outcome);
            }
            if (!outcome.ok()) return raise_outcome(outcome, 0, kEventKind, now_ns() - began, before + done);
            if (!open()) return nullptr;
            continue;
        }
        const std::int64_t now = wall_clock_ns();
        while (done < events.size() && !full()) {
            Kept kept{now, static_cast<std::uint32_t>(properties.size), {}};
            kept.bytes.reserve(properties.size + events[done].size);
            if (properties.size != 0) kept.bytes.append(properties.data, properties.size);
            if (events[done].size != 0) kept.bytes.append(events[done].data, events[done].size);
            bytes_ += kept.bytes.size() + kEach;
            kept_.push_back(std::move(kept));
            ++done;
        }
        send();
    }
    Py_RETURN_NONE;
}

// Without the interpreter's lock. Ends early when there is something to be raised.
bool Outbox::make_room(std::unique_lock<std::mutex>& lock, Nanos deadline, const Interrupted* interrupted,
                       Outcome& outcome) {
    while (full() && !stuck()) {
        const Nanos now = now_ns();
        if (closed_ || node_->closed()) {
            outcome.code = Outcome::Code::closed;
        } else if (now >= deadline) {
            const bool reached = target_ && target_->peer.session.load(std::memory_order_seq_cst) != 0;
            outcome.code = reached ? Outcome::Code::timeout : Outcome::Code::unreachable;
            if (!reached) outcome.text = "the broker is not there, and what it has not recorded yet fills the buffer";
        }
        if (!outcome.ok()) return false;
        wait_until(*changed_, lock, std::min(deadline, now + kLook));
        if (interrupted == nullptr) continue;
        lock.unlock();
        if ((*interrupted)()) outcome.code = Outcome::Code::interrupted;
        lock.lock();
        if (!outcome.ok()) return false;
    }
    return true;
}

PyObject* Outbox::raise_trouble(std::unique_lock<std::mutex>& lock) {
    const std::string refused = refused_, refusal = refusal_;
    const log::Status status = status_;
    const std::string why = std::strerror(error_);
    lock.unlock();
    if (!refused.empty()) return raise(refused.c_str(), refusal);
    if (status == log::Status::full) {
        return raise("StoreFull", "the broker has no space left for " + name_ + " (" + why +
                                      "); free some, or let it keep less. What was not recorded is kept here and tried again");
    }
    return raise("AntiphonError", "the broker's disk failed (" + why + "); what was not recorded is kept here and tried again");
}

PyObject* Outbox::flush(double timeout) {
    if (node_->forked()) return raise_forked();
    const Nanos began = now_ns(), deadline = timeout < 0 ? kNever : began + seconds_to_ns(timeout);
    std::unique_lock lock(mutex_);
    const std::uint64_t last = acked_ + kept_.size();
    if (acked_ < last) {
        lock.unlock();
        if (!may_wait("flush()", "flush_async()")) return nullptr;
        lock.lock();
    }
    while (acked_ < last) {
        if (stuck()) return raise_trouble(lock);
        Outcome outcome;
        const bool reached = target_ && target_->peer.session.load(std::memory_order_seq_cst) != 0;
        if (closed_ || node_->closed()) outcome.code = Outcome::Code::closed;
        else if (now_ns() >= deadline) outcome.code = reached ? Outcome::Code::timeout : Outcome::Code::unreachable;
        if (!outcome.ok()) {
            const std::size_t left = last - acked_;
            lock.unlock();
            if (outcome.code == Outcome::Code::closed) {
                return raise("Closed", "this publisher was closed before everything was recorded",
                             facts("{ss}", "what", "publisher"));
            }
            const std::string what = std::to_string(left) + " events of " + name_ + " were not acknowledged in " +
                                     std::to_string(timeout) + " s; they are kept, and sent again";
            if (!reached) return raise("PeerUnreachable", "the broker is not there: " + what);
            return raise("SendTimeout", what, facts("{sd}", "waited", static_cast<double>(now_ns() - began) / kSecond));
        }
        lock.unlock();
        bool raised = false;
        {
            Released released;
            Scheduler::Blocked blocked;
            std::unique_lock waiting(mutex_);
            if (acked_ < last && !stuck()) {
                wait_until(*changed_, waiting, std::min(deadline, now_ns() + kLook));
            }
            waiting.unlock();
            if (released.interrupted() != nullptr) raised = (*released.interrupted())();
        }
        if (raised) return nullptr;
        lock.lock();
    }
    lock.unlock();
    Py_RETURN_NONE;
}

bool Outbox::close(Nanos drain) {
    if (node_->forked() || closed_) return true;
    bool raised = false;
    Released released;
    {
        // A broker that is not there may have been found a moment ago.
        const Nanos began = now_ns(), until = began + drain, alone = began + std::min(drain, kAlone);
        std::unique_lock lock(mutex_);
        closing_ = true;
        while (!kept_.empty() && !stuck() && !raised && !node_->closed() && now_ns() < (target_ ? until : alone)) {
            wait_until(*changed_, lock, std::min(until, now_ns() + kLook));
            if (released.interrupted() == nullptr) continue;
            lock.unlock();
            raised = (*released.interrupted())();
            lock.lock();
        }
        closed_ = true;
        changed_->notify_all();
        if (target_) {
            target_->left.store(true, std::memory_order_seq_cst);
            target_->peer.wake();
        }
    }
    retire();
    return !raised;
}

std::size_t Outbox::targets() {
    std::lock_guard lock(mutex_);
    return target_ && !target_->gone() ? 1 : 0;
}

std::size_t Outbox::pending() {
    std::lock_guard lock(mutex_);
    return kept_.size();
}

std::uint64_t Outbox::published() {
    std::lock_guard lock(mutex_);
    return acked_ + kept_.size();
}

std::uint64_t Outbox::acknowledged() {
    std::lock_guard lock(mutex_);
    return acked_;
}

}  // namespace antiphon::python

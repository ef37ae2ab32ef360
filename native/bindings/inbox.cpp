#include "bindings/inbox.hpp"

#include "base/spin.hpp"

namespace antiphon::python {

namespace {

// Credit goes back at least this often, however long the run is.
constexpr std::uint32_t kMessagesPerCredit = 256;

}  // namespace

class Inbox::Turn {
   public:
    explicit Turn(Inbox& inbox) : inbox_(inbox) {
        while (inbox_.taken_.exchange(true, std::memory_order_acquire)) {
            Released released;
            for (Spin spin; inbox_.taken_.load(std::memory_order_relaxed);) spin.once();
        }
    }
    ~Turn() { inbox_.taken_.store(false, std::memory_order_release); }

   private:
    Inbox& inbox_;
};

Inbox::Inbox(std::shared_ptr<Node> node, std::shared_ptr<Registration> registration, Reference decode)
    : node_(std::move(node)), registration_(std::move(registration)), decode_(std::move(decode)) {
    registration_->queue->begin(slice_);
    if (registration_->topics) reader_ = std::make_unique<EventReader>(*registration_, names_);
}

Inbox::~Inbox() {
    if (node_->forked()) {
        // The node's locks may be held by threads that do not exist here.
        new std::shared_ptr<Node>(std::move(node_));
        new std::shared_ptr<Registration>(std::move(registration_));
        return;
    }
    if (begun_) node_->finish(run_);
    registration_->queue->end(slice_);
}

std::uint64_t Inbox::pending() const {
    return registration_->queue->pending() + in_hand_.load(std::memory_order_relaxed);
}

void Inbox::acknowledge(bool manual) {
    acks_ = std::make_shared<Acks>(node_, registration_->flow);
    manual_ = manual;
}

std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> Inbox::positions() const {
    std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> all;
    if (!reader_) return all;
    for (const auto& [topic, place] : reader_->positions()) all.emplace_back(topic, place.sequence, place.store);
    return all;
}

Reference Inbox::take(Reference& source) {
    if (taken_out_.broker != 0) {
        if (acks_->add(std::exchange(taken_out_, {}), AckRange::done)) acks_->nudge();
    }
    if (std::exchange(holding_, false)) settle();
    for (;;) {
        while (!begun_) {
            if (!registration_->queue->pop(run_, slice_)) return {};
            cursor_ = RunCursor(run_);
            begun_ = true;
            source_ = {};
            per_credit_ = std::min(kMessagesPerCredit, Node::messages_per_credit(run_));
        }
        if (!source_) source_ = Reference::steal(PyLong_FromLong(run_.source));
        if (!source_) return {};
        const char* data;
        std::size_t size;
        cursor_.next(data, size);
        Reference payload = reader_ ? event(data, size)
                                    : Reference::steal(PyBytes_FromStringAndSize(data, static_cast<Py_ssize_t>(size)));
        source = Reference::share(source_.get());
        received_.store(received_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        in_hand_.store(cursor_.left(), std::memory_order_relaxed);
        holding_ = holds_ && payload;
        if (!holding_) settle();
        if (payload || PyErr_Occurred() || !reader_) return payload;
    }
}

void Inbox::settle() {
    const std::uint32_t left = cursor_.left();
    if (left == 0) {
        node_->finish(run_);
        begun_ = false;
        registration_->queue->done(slice_);
    } else if (run_.size() - left - run_.done >= per_credit_) {
        node_->progress(run_, run_.size() - left);
    }
}

// What was taken last may be held by a coroutine: the run is finished when that says it is done.
void Inbox::drop_rest() {
    if (!begun_) return;
    let_go_.fetch_add(cursor_.left(), std::memory_order_relaxed);
    cursor_ = {};
    in_hand_.store(0, std::memory_order_relaxed);
    if (!holding_) settle();
}

void Inbox::done() {
    if (node_->forked()) return;
    Turn turn(*this);
    if (std::exchange(holding_, false)) settle();
}

// Null without an exception: it is none, or of no use any more.
Reference Inbox::event(const char* data, std::size_t size) {
    EventView view;
    EventReader::Topic* topic = nullptr;
    if (!view.read(data, size) || (topic = reader_->topic(run_.source, view.head.topic, run_.session)) == nullptr) {
        malformed_.fetch_add(1, std::memory_order_relaxed);
        return {};
    }
    const EventReader::Told told = reader_->told(*topic, view, run_.source, now_ns() - run_.arrived);
    if (told.state == EventReader::Told::expired) {
        expired_.fetch_add(1, std::memory_order_relaxed);
        return {};
    }
    const std::uint32_t missed = EventReader::missed(*topic, view.head.number);
    if (told.state == EventReader::Told::repeated) return {};
    if (missed != 0) missed_.fetch_add(missed, std::memory_order_relaxed);
    const AckOf ack = told.attempt != 0 ? reader_->ack_of(*topic, view, run_.source) : AckOf{};
    if (acks_ && !manual_) taken_out_ = ack;
    return Reference::steal(
        make_event(view, topic->name, told.source, missed, told.attempt, manual_ ? acks_ : nullptr, ack));
}

// What the decoder raised, in the library's own terms. Always returns null.
PyObject* Inbox::refused(PyObject* source) {
    const Reference error = take_exception();
    const Reference wire = Reference::steal(PyImport_ImportModule("antiphon.wire.message"));
    if (!wire) return nullptr;
    const Reference meant = Reference::steal(
        PyObject_CallMethod(wire.get(), "undecodable", "OOiO", decode_.get(), source, kind(), error.get()));
    if (meant) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(meant.get())), meant.get());
    return nullptr;
}

PyObject* Inbox::pair(Reference source, Reference data) {
    if (!data) return nullptr;
    if (reader_) return data.release();
    if (decode_) {
        PyObject* raw = data.get();
        data = Reference::steal(PyObject_CallOneArg(decode_.get(), raw));
        if (!data) {
            failed_.fetch_add(1, std::memory_order_relaxed);
            return refused(source.get());
        }
    }
    PyObject* both = PyTuple_New(2);
    if (both == nullptr) return nullptr;
    PyTuple_SET_ITEM(both, 0, source.release());
    PyTuple_SET_ITEM(both, 1, data.release());
    return both;
}

// Null without an exception: closed, or, if it is not to wait, empty.
PyObject* Inbox::wait_and_take(double timeout, bool raise_when_closed, bool wait, const char* call) {
    if (node_->forked()) return raise_forked();
    if (failure_) {
        Reference failure = std::move(failure_);
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(failure.get())), failure.get());
        return nullptr;
    }
    Nanos began = 0;
    for (std::uint64_t nudges = 0;;) {
        Reference source, data;
        // Before looking: what another thread takes in hand afterwards ends the wait.
        if (began != 0) nudges = registration_->queue->nudges();
        {
            Turn turn(*this);
            data = take(source);
        }
        if (data || PyErr_Occurred()) return pair(std::move(source), std::move(data));
        if (closed()) {
            if (raise_when_closed) {
                raise("Closed",
                      reader_ ? "this subscription is closed; its bus was closed, or the subscription itself"
                              : "this inbox is closed; its node was closed, or the inbox itself",
                      facts("{ss}", "what", reader_ ? "subscription" : "inbox"));
            }
            return nullptr;
        }
        if (!wait) return nullptr;
        const Nanos now = now_ns();
        if (began == 0) {
            began = now;
            if (timeout != 0 && !may_wait(call, "receive_async() or 'async for'")) return nullptr;
            if (timeout != 0) continue;  // looks again, knowing the nudges
        }
        const Nanos deadline = timeout < 0 ? kNever : began + seconds_to_ns(timeout);
        if (now >= deadline) {
            return raise("ReceiveTimeout",
                         "nothing came for " + (reader_ ? "this subscription" : "kind " + std::to_string(kind())) + " in " + seconds_text(seconds_to_ns(timeout)) +
                             "; wait longer, or look whether anybody sends",
                         facts("{sd}", "waited", static_cast<double>(now - began) / kSecond));
        }
        if (!wait_until(deadline, now, nudges)) return nullptr;
    }
}

// For a moment on the main thread, where signals are to be seen. False with an exception set.
bool Inbox::wait_until(Nanos deadline, Nanos now, std::uint64_t nudges) {
    Released released;
    Scheduler::Blocked blocked;
    const Interrupted* interrupted = released.interrupted();
    const Nanos until = interrupted ? std::min(deadline, now + 100 * kMillisecond) : deadline;
    return registration_->queue->wait(until, &nudges) || !interrupted || !(*interrupted)();
}

bool Inbox::wait(std::uint64_t nudges, double timeout) {
    if (node_->forked()) {
        raise_forked();
        return false;
    }
    const Nanos now = now_ns();
    return wait_until(timeout < 0 ? kNever : now + seconds_to_ns(timeout), now, nudges);
}

void Inbox::nudge() {
    if (node_->forked()) return;  // nobody waits here, and the queue's lock may be held for ever
    Released released;
    registration_->queue->nudge();
}

PyObject* Inbox::try_receive() {
    PyObject* item = wait_and_take(0, true, false);
    if (item != nullptr || PyErr_Occurred()) return item;
    Py_RETURN_NONE;
}

void Inbox::tell(std::shared_ptr<Completions> completions, std::uint64_t number) {
    const auto push = [completions, number] { completions->push_once(number); };
    registration_->queue->set_on_ready(push, true);
    push();
}

PyObject* Inbox::receive(double timeout) { return wait_and_take(timeout, true); }

PyObject* Inbox::next() { return wait_and_take(-1, false); }

PyObject* Inbox::receive_many(Py_ssize_t most, double timeout) {
    Reference list = Reference::steal(PyList_New(0));
    if (!list || most <= 0) return list.release();
    Reference first = Reference::steal(wait_and_take(timeout, true, true, "receive_many()"));
    if (!first || PyList_Append(list.get(), first.get()) != 0) return nullptr;
    while (PyList_GET_SIZE(list.get()) < most) {
        Reference source, data;
        {
            Turn turn(*this);
            data = take(source);
        }
        if (!data && !PyErr_Occurred()) break;
        Reference both = Reference::steal(pair(std::move(source), std::move(data)));
        if (!both && PyErr_Occurred()) {
            // One bad message takes no good one with it: these first, the error with the next call.
            failure_ = take_exception();
            break;
        }
        if (PyList_Append(list.get(), both.get()) != 0) return nullptr;
    }
    return list.release();
}

bool Inbox::wait_acknowledged(double timeout) {
    if (!acks_ || node_->forked()) return true;
    Released released;
    return acks_->wait_sent(now_ns() + static_cast<Nanos>(timeout * kSecond));
}

void Inbox::close() {
    if (node_->forked()) return;  // it is the parent's
    {
        Released released;
        let_go_.fetch_add(node_->remove_registration(registration_), std::memory_order_relaxed);
    }
    {
        // The queue is closed: whoever takes after this begins no other run.
        Turn turn(*this);
        drop_rest();
    }
    if (!acks_) return;
    Released released;
    acks_->send();
}

}  // namespace antiphon::python

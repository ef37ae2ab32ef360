#include "bindings/request.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;
using State = Pending::State;

}  // namespace

Request::~Request() {
    if (node_->forked()) {
        new std::shared_ptr<Node>(std::move(node_));
        new std::shared_ptr<Pending>(std::move(pending_));
        return;
    }
    // Nobody can ask for the answer any more.
    if (!pending_->done()) node_->give_up(*pending_, State::cancelled);
}

int Request::send(PyObject* data, bool wait, Nanos deadline, std::optional<Lead>& lead) {
    if (node_->forked()) {
        raise_forked();
        return -1;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) != 0) return -1;
    struct Release {
        ~Release() { PyBuffer_Release(&view); }
        Py_buffer& view;
    } release{view};
    const Message message{static_cast<const char*>(view.buf), static_cast<std::size_t>(view.len)};
    Peer& peer = pending_->peer;
    auto failed = [&](const Outcome& outcome) {
        if (outcome.code == Outcome::Code::interrupted && !PyErr_Occurred()) return 1;  // it is done
        fail(outcome, deadline);
        return -1;
    };
    if (pending_->done()) return 1;
    if (message.size > node_->message_limit(peer)) return failed(node_->too_large(peer, message.size));
    Attempt attempt = node_->try_request(*pending_, message);
    if (attempt.status == Status::sent) return 1;
    lead.reset();
    if (node_->fresh()) {
        node_->give_up(*pending_, State::cancelled);
        raise_not_started();
        return -1;
    }
    if (attempt.status == Status::closed) return failed({Outcome::Code::closed, {}, {}, {}});
    if (!wait) return 0;
    Node::Sending sending{peer, deadline, now_ns()};
    Outcome outcome;
    {
        Released released;
        const Interrupted* signalled = released.interrupted();
        const Interrupted interrupted = [&] { return (signalled && (*signalled)()) || pending_->done(); };
        for (;;) {
            if (attempt.status == Status::large) {
                outcome = node_->send_large_request(sending, *pending_, message, &interrupted);
                if (!outcome.ok() || sending.went) break;
            } else {
                outcome = node_->wait(sending, attempt, &interrupted);
                if (!outcome.ok()) break;
            }
            if (pending_->done()) {  // it was cancelled meanwhile
                outcome.code = Outcome::Code::interrupted;
                break;
            }
            attempt = node_->try_request(*pending_, message);
            if (attempt.status == Status::sent) break;
        }
    }
    return outcome.ok() ? 1 : failed(outcome);
}

void Request::fail(const Outcome& outcome, Nanos deadline) {
    // Its time ended before that of the connection did.
    const Nanos now = now_ns();
    const bool early = outcome.code == Outcome::Code::unreachable && now >= deadline &&
                       now - began_ < node_->options().connect_timeout;
    const bool timed_out = outcome.code == Outcome::Code::timeout || early;
    node_->give_up(*pending_, timed_out ? State::timed_out : State::cancelled);
    if (timed_out) {
        raise_timeout();
    } else {
        raise_outcome(outcome, pending_->peer.id, pending_->kind, now - began_, 0);
    }
}

Waits::Next Request::attempt(Bell& bell) {
    using Next = Waits::Next;
    if (node_->forked()) {
        raise_forked();
        return Next::failed;
    }
    Next next = Next::went;  // or it is done already
    if (!pending_->done()) {
        Peer& peer = pending_->peer;
        const Message message{PyBytes_AS_STRING(data_.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(data_.get()))};
        if (message.size > node_->message_limit(peer)) {
            fail(node_->too_large(peer, message.size), deadline_);
            next = Next::failed;
        } else {
            if (!waits_) waits_.emplace(peer, deadline_);
            next = waits_->attempt(*node_, bell, [&] { return node_->try_request(*pending_, message); });
            if (next == Next::failed) {
                const Outcome outcome = waits_->outcome();
                drop();
                fail(outcome, deadline_);
            }
        }
    }
    if (next != Next::later) drop();
    return next;
}

int Request::wait(Nanos until, std::optional<Lead>& lead) {
    if (node_->forked()) {
        raise_forked();
        return -1;
    }
    if (pending_->done()) {
        lead.reset();
        return 1;
    }
    Outcome outcome;
    {
        Released released;
        outcome = node_->await(*pending_, until, released.interrupted(), lead);
    }
    if (outcome.code == Outcome::Code::interrupted) return -1;
    return pending_->done() ? 1 : 0;
}

PyObject* Request::ask(PyObject* data, Nanos deadline) {
    if (node_->forked()) return raise_forked();
    std::optional<Lead> lead;
    if (!node_->fresh()) node_->lead_answers(pending_->peer, lead);
    if (send(data, true, deadline, lead) != 1) return nullptr;
    switch (wait(deadline, lead)) {
        case 1: return result();
        case 0: return time_out();
        default: return nullptr;
    }
}

bool Request::give_up(State state) {
    if (node_->give_up(*pending_, state)) return true;
    // Whoever took it out of the table is about to say how it ended.
    if (!pending_->done()) {
        Released released;
        pending_->wait(now_ns() + kSecond);
    }
    return false;
}

bool Request::cancel() { return !node_->forked() && give_up(State::cancelled); }

PyObject* Request::time_out() {
    if (node_->forked()) return raise_forked();
    return give_up(State::timed_out) ? raise_timeout() : result();
}

PyObject* Request::raise_timeout() {
    const double waited = static_cast<double>(now_ns() - began_) / kSecond;
    char text[32];
    std::snprintf(text, sizeof text, "%.3g s", waited);
    Peer& peer = pending_->peer;
    const std::string request = "a request of kind " + std::to_string(pending_->kind);
    std::string what = "node " + std::to_string(peer.id);
    if (pending_->sent.load(std::memory_order_seq_cst)) {
        what += " has not answered " + request + " in " + text +
                "; wait longer (timeout=), or look at what its handler does";
        // Asked by a handler of ours: it may be the very one that the other side waits for.
        if (Scheduler::on_scheduler_thread()) {
            what += ". Where handlers ask each other, register them with ordered=False, or for different kinds: one "
                    "that waits for its answer handles no other message of its kind";
        }
    } else if (peer.session.load(std::memory_order_seq_cst) != 0) {
        what = request + " to " + what + " could not be sent in " + text +
               "; wait longer (timeout=), or look at what its handler does";
    } else {
        // It has not left this node: nobody's handler is to blame.
        const auto [reason, address] = last_failure();
        what = "no connection with " + what + (address.empty() ? "" : " at " + address) + " in " + text + " for " +
               request + (reason.empty() ? "" : ": " + reason) + "; " + way_to_reach(address) +
               ", or wait longer (timeout=)";
    }
    return raise("RequestTimeout", what,
                 facts("{sisisd}", "peer", peer.id, "kind", pending_->kind, "waited", waited));
}

std::pair<std::string, std::string> Request::last_failure() {
    Peer& peer = pending_->peer;
    std::lock_guard lock(peer.mutex);
    const Failure& last = peer.failure;
    return {last.text, last.address.empty() ? peer.explicit_address : last.address};
}

PyObject* Request::result() {
    const int peer = pending_->peer.id, kind = pending_->kind;
    const std::string where = "node " + std::to_string(peer);
    const std::string_view body = pending_->body();
    switch (pending_->state()) {
        case State::answered:
            return Py_BuildValue("(iy#)", pending_->reply_kind(), body.data() ? body.data() : "",
                                 static_cast<Py_ssize_t>(body.size()));
        case State::failed: {
            const auto zero = std::min(body.find('\0'), body.size());
            const std::string name(body.substr(0, zero));
            const std::string text(body.substr(std::min(zero + 1, body.size())));
            return raise("RemoteError",
                         "the handler of kind " + std::to_string(kind) + " on " + where + " raised " + name +
                             (text.empty() ? "" : ": " + text) + "; see the log there",
                         facts("{sisisN}", "peer", peer, "kind", kind, "exception",
                               PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace")));
        }
        case State::unknown_kind:
            return raise("UnknownKind",
                         where + " has no handler for kind " + std::to_string(kind) + "; register one there with on()",
                         facts("{sisi}", "peer", peer, "kind", kind));
        case State::cannot:
            return raise("RemoteError",
                         where + " cannot answer a request of kind " + std::to_string(kind) + ": " + std::string(body),
                         facts("{sisi}", "peer", peer, "kind", kind));
        case State::lost:
            return raise_outcome({Outcome::Code::unreachable, std::string(body), last_failure().second, {}}, pending_->peer.id,
                                 kind, 0, 0);
        case State::cancelled:
            return raise("RequestCancelled",
                         "the request of kind " + std::to_string(kind) + " to " + where + " was cancelled",
                         facts("{sisi}", "peer", peer, "kind", kind));
        case State::timed_out: return raise_timeout();  // as whoever found that first was told
        default: return raise_outcome({Outcome::Code::closed, {}, {}, {}}, pending_->peer.id, kind, 0, 0);
    }
}

}  // namespace antiphon::python

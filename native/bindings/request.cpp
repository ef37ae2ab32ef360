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

int Request::send(Message message, bool wait, Nanos deadline) {
    Peer& peer = pending_->peer;
    const std::uint16_t kind = pending_->kind;
    auto failed = [&](const Outcome& outcome) {
        node_->give_up(*pending_, State::cancelled);
        if (outcome.code == Outcome::Code::timeout) {
            time_out();
        } else {
            raise_outcome(outcome, peer.id, kind, now_ns() - began_, 0);
        }
        return -1;
    };
    if (message.size > node_->message_limit(peer)) return failed(node_->too_large(peer, message.size));
    Attempt attempt = node_->try_request(*pending_, message);
    if (attempt.status == Status::sent) return 1;
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
        const Message prefix{reinterpret_cast<const char*>(&pending_->id), kRequestPrefix};
        for (;;) {
            if (attempt.status == Status::large) {
                sending.went = false;
                outcome = node_->send_large(sending, kind, message, released.interrupted(), kRequest, prefix);
                if (!outcome.ok() || sending.went) break;
            } else {
                outcome = node_->wait(sending, attempt, released.interrupted());
                if (!outcome.ok()) break;
            }
            attempt = node_->try_request(*pending_, message);
            if (attempt.status == Status::sent) break;
        }
    }
    return outcome.ok() ? 1 : failed(outcome);
}

int Request::wait(Nanos until) {
    if (pending_->done()) return 1;
    Outcome outcome;
    {
        Released released;
        outcome = node_->await(*pending_, until, released.interrupted());
    }
    if (outcome.code == Outcome::Code::interrupted) return -1;
    return pending_->done() ? 1 : 0;
}

PyObject* Request::time_out() {
    const double waited = static_cast<double>(now_ns() - began_) / kSecond;
    node_->give_up(*pending_, State::cancelled);
    char text[32];
    std::snprintf(text, sizeof text, "%.3g s", waited);
    return raise("RequestTimeout",
                 "node " + std::to_string(pending_->peer.id) + " has not answered a request of kind " +
                     std::to_string(pending_->kind) + " in " + text +
                     "; wait longer (timeout=), or look at what its handler does",
                 facts("{sisisd}", "peer", pending_->peer.id, "kind", pending_->kind, "waited", waited));
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
            return raise_outcome({Outcome::Code::unreachable, std::string(body), {}, {}}, pending_->peer.id, kind, 0, 0);
        case State::cancelled:
            return raise("RequestCancelled",
                         "the request of kind " + std::to_string(kind) + " to " + where + " was cancelled",
                         facts("{sisi}", "peer", peer, "kind", kind));
        default: return raise_outcome({Outcome::Code::closed, {}, {}, {}}, pending_->peer.id, kind, 0, 0);
    }
}

}  // namespace antiphon::python

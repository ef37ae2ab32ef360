// Requests and answers: sent like messages, completed by whoever reads the channel.
#include <algorithm>
#include <cstring>
#include <optional>

#include "node/lead.hpp"
#include "node/put.hpp"

namespace antiphon {

namespace {

using Status = Attempt::Status;

// Up to so many under way, requests are written one by one. With many, an event loop makes them: it has
// more to send before it looks for an answer.
constexpr std::uint64_t kFew = 2, kMany = 64;
constexpr Nanos kInterruptEvery = 100 * kMillisecond;
constexpr Nanos kCallersFirst = 100 * kMillisecond;
constexpr Nanos kSilent = kMillisecond;

bool silent(const Peer& peer) { return now_ns() - peer.used.load(std::memory_order_relaxed) > kSilent; }

}  // namespace

// --- the caller ------------------------------------------------------------------------------------

Attempt Node::try_request(Pending& pending, Message message) {
    pending.sent.store(true, std::memory_order_seq_cst);
    const std::uint64_t open = requests_.open();
    const Attempt attempt = put(pending.peer, pending.kind, kRequest, kRequestPrefix + message.size, 1,
                                [&](Ring& ring, std::uint64_t position) {
                                    // Before it can be read: whoever has its answer finds it counted.
                                    requests_made_.fetch_add(1, std::memory_order_relaxed);
                                    ring.write(position, &pending.id, kRequestPrefix);
                                    if (message.size == 0) return;
                                    ring.write(position + kRequestPrefix, message.data, message.size);
                                },
                                open <= kFew ? Haste::at_once : open > kMany ? Haste::gather : Haste::usual);
    if (attempt.status != Status::sent) pending.sent.store(false, std::memory_order_seq_cst);
    return attempt;
}

Outcome Node::send_large_request(Sending& sending, Pending& pending, Message message, const Interrupted* interrupted) {
    const Message prefix{reinterpret_cast<const char*>(&pending.id), kRequestPrefix};
    sending.went = false;
    pending.sent.store(true, std::memory_order_seq_cst);
    const Outcome outcome = send_large(sending, pending.kind, message, interrupted, kRequest, prefix);
    if (!sending.went) pending.sent.store(false, std::memory_order_seq_cst);
    return outcome;
}

void Node::lead_answers(Peer& peer, std::optional<Lead>& lead) {
    peer.callers_until.store(now_ns() + kCallersFirst, std::memory_order_seq_cst);
    lead.emplace(*this, peer, &Peer::in);
}

Outcome Node::await(Pending& pending, Nanos deadline, const Interrupted* interrupted, std::optional<Lead>& lead) {
    struct GiveBack {
        ~GiveBack() { lead.reset(); }
        std::optional<Lead>& lead;
    } give_back{lead};
    Scheduler::Blocked blocked;  // ends before the lead does: the thread does not count as waiting any more then
    if (!pending.done() && !(lead && *lead)) lead_answers(pending.peer, lead);
    // This time it is the one that reads for us.
    if (led_.load(std::memory_order_seq_cst) == &pending.peer) pending.peer.wake_leader();
    if (lead && *lead) {
        pending.leads.store(true, std::memory_order_seq_cst);
        // Not for a look in passing, and no longer than there is time.
        if (options_.spin > 0 && deadline - now_ns() > options_.spin) {
            const Scheduler::Unpaid unpaid;
            int looks = 0;
            spin_.look(
                [&] {
                    if (*lead) lead->wait(0);
                    ++looks;
                    if (!pending.done()) return Patience::Look::again;
                    return looks == 1 ? Patience::Look::over : Patience::Look::helped;
                },
                [] {}, options_.spin);
            if (!*lead) pending.leads.store(false, std::memory_order_seq_cst);
        }
    }
    Outcome outcome;
    Nanos look = now_ns() + kInterruptEvery;  // for signals, next
    while (!pending.done()) {
        const Nanos now = now_ns();
        if (now >= deadline) {
            outcome.code = Outcome::Code::timeout;
            break;
        }
        const Nanos until = interrupted ? std::min(deadline, look) : deadline;
        if (lead && *lead) {
            lead->wait(until);
            if (!*lead) pending.leads.store(false, std::memory_order_seq_cst);  // it was lost
        } else {
            pending.wait(until);
        }
        if (interrupted && now_ns() >= look && !pending.done()) {
            if (lead && *lead) pending.leads.store(false, std::memory_order_seq_cst);
            lead.reset();  // signal handlers may send and ask, and what is led is read by nobody else
            if ((*interrupted)()) outcome.code = Outcome::Code::interrupted;
            if (forked()) return {Outcome::Code::closed, {}, {}, {}};
            if (!outcome.ok()) break;
            look = now_ns() + kInterruptEvery;
            lead_answers(pending.peer, lead);
            if (*lead) pending.leads.store(true, std::memory_order_seq_cst);
        }
    }
    if (lead && *lead) pending.leads.store(false, std::memory_order_seq_cst);
    return outcome;
}

bool Node::got_response(Peer& peer, const Header&, std::string_view payload) {
    if (payload.size() < kResponsePrefix) return false;
    ResponseHead head;
    std::memcpy(static_cast<void*>(&head), payload.data(), kResponsePrefix);
    if (head.status == ResponseHead::Status::answer && payload.size() - kResponsePrefix > options_.max_message_bytes) return false;
    peer.use(now_ns());  // the selector's own time stands still while others read
    requests_.answer(peer, head, payload.substr(kResponsePrefix));
    return true;
}

// --- the one who answers -----------------------------------------------------------------------------

Attempt Node::try_answer(Peer& peer, std::uint32_t session, std::uint16_t kind, const ResponseHead& head,
                         Message body, bool urgent) {
    if (!sends_allowed()) return {Status::closed};
    // The one who asked is gone, and with it whoever waits for this.
    if (peer.in_session.load(std::memory_order_seq_cst) != session) return {Status::closed};
    const std::uint32_t out = peer.session.load(std::memory_order_seq_cst);
    if (out == 0) return {Status::not_connected};
    const std::size_t payload = kResponsePrefix + body.size;
    if (kHeaderBytes + payload > peer.max_frame.load(std::memory_order_relaxed)) return {Status::large, nullptr, 0, out};
    auto copy = [&](Ring& ring, std::uint64_t position) {
        ring.write(position, &head, kResponsePrefix);
        if (body.size != 0) ring.write(position + kResponsePrefix, body.data, body.size);  // None has no data
    };
    struct Filled {
        decltype(copy)& fill;
        std::atomic<std::uint64_t>& answers;
        void operator()(Ring& ring, std::uint64_t position) const { fill(ring, position); }
        // Before it can be read: whoever has the answer finds it counted.
        void count() const { answers.fetch_add(1, std::memory_order_relaxed); }
    };
    const Attempt attempt = put_uncharged(peer, {static_cast<std::uint32_t>(payload), kind, kResponse, 0}, out,
                                          Filled{copy, answers_}, urgent ? Haste::at_once : Haste::usual);
    if (attempt.status == Status::sent) {
        asker_.store(&peer, std::memory_order_seq_cst);
        // Somebody else asks now: whoever waits for one that has fallen silent is told.
        if (Peer* led = led_.load(std::memory_order_seq_cst); led != nullptr && led != &peer && silent(*led)) {
            led->wake_leader();
        }
    }
    return attempt;
}

bool Node::lead_asker(const std::function<bool()>& done) {
    Peer* peer = asker_.load(std::memory_order_seq_cst);
    if (peer == nullptr) return false;
    const auto wanted = [&] {
        return done() || now_ns() < peer->callers_until.load(std::memory_order_seq_cst) ||
               (asker_.load(std::memory_order_seq_cst) != peer && silent(*peer)) ||
               phase_.load(std::memory_order_seq_cst) != Phase::running;
    };
    if (wanted()) return false;
    Lead lead(*this, *peer, &Peer::in);
    if (!lead) return false;
    led_.store(peer, std::memory_order_seq_cst);
    if (options_.spin > 0 && !silent(*peer)) {
        int looks = 0;
        bool came = false;  // at this look, from the one for whom it is
        serving_spin_.look(
            [&] {
                came = lead.wait(0);
                ++looks;
                if (lead && !wanted()) return Patience::Look::again;
                return came && looks > 1 ? Patience::Look::helped : Patience::Look::over;
            },
            [] {}, options_.spin);
    }
    while (lead && !wanted()) lead.wait(kNever);
    led_.store(nullptr, std::memory_order_seq_cst);
    return true;
}

Outcome Node::send_answer(Sending& sending, std::uint32_t session, std::uint16_t kind, const ResponseHead& head,
                          Message body) {
    Peer& peer = sending.peer;
    sending.asked_in = session;
    for (;;) {
        const Attempt attempt = try_answer(peer, session, kind, head, body, true);
        if (attempt.status == Status::sent) return {};
        Outcome outcome;
        if (attempt.status == Status::large) {
            sending.went = false;
            const Message prefix{reinterpret_cast<const char*>(&head), kResponsePrefix};
            outcome = send_large(sending, kind, body, nullptr, kResponse, prefix);
            if (outcome.ok() && sending.went) return {};
        } else {
            outcome = wait(sending, attempt, nullptr);
        }
        if (!outcome.ok()) {
            lost_answer();
            return outcome;
        }
    }
}

// Answers that nobody has to think about: the kind is unknown, or its registration does not answer. Any
// thread; through the control lane, which never waits.
void Node::refuse_requests(Run& run, std::uint16_t kind, bool unknown) {
    Peer& peer = *run.flow->peer;
    const std::string text = unknown      ? ""
                             : kind != 0 ? "an inbox or a batch handler cannot answer; register a plain handler"
                                         : "it was dropped before a handler saw it";
    RunCursor cursor(run);
    std::string frames;
    while (cursor.left() != 0) {
        const char* data;
        std::size_t size;
        cursor.next(data, size);
        if (size < kRequestPrefix) continue;
        ResponseHead head{0, unknown ? ResponseHead::Status::unknown_kind : ResponseHead::Status::cannot, 0,
                          ResponseHead::kBytes};
        std::memcpy(&head.id, data, kRequestPrefix);
        const Header header{static_cast<std::uint32_t>(kResponsePrefix + text.size()),
                            kind != 0 ? kind : kFirstUserKind, kResponse, 0};
        frames.append(reinterpret_cast<const char*>(&header), kHeaderBytes);
        frames.append(reinterpret_cast<const char*>(&head), kResponsePrefix);
        frames.append(text);
    }
    {
        std::lock_guard lock(peer.mutex);
        if (peer.in_session.load(std::memory_order_seq_cst) != run.session) return;
        if (peer.forward.size() > kMaxLane) return;  // it is about to be cut off for that
        peer.forward += frames;
    }
    if (peer.session.load(std::memory_order_seq_cst) == 0) want_connection(peer);
    add_interest(peer, kWrite);
}

}  // namespace antiphon

// Nodes, handlers and senders for the tests: the little that stands in for the bindings.
//
// A sender here does what `send` does in Python: attempts, and waits where an attempt says so. A
// handler is a task that pops runs and finishes them; an inbox is a thread that does. A request here is
// what one is in Python: sent like a message, waited for, given up.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "check.hpp"
#include "node/node.hpp"

namespace antiphon::tests {

using Code = Outcome::Code;
using State = Pending::State;
using Status = Attempt::Status;

inline constexpr std::uint16_t kKind = 100;

// A directory of this process alone, for its sockets; gone when the process ends well.
class Directory {
public:
    Directory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "antiphon-test-XXXXXX").string();
        CHECK(mkdtemp(pattern.data()) != nullptr);
        path_ = pattern;
    }
    ~Directory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Directory(const Directory&) = delete;
    Directory& operator=(const Directory&) = delete;

    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

// An address of this scheme that nobody uses. TCP gets its port from the kernel.
inline std::string fresh_address(const std::string& scheme) {
    static std::atomic<int> next{0};
    const std::string name = std::to_string(next.fetch_add(1));
    if (scheme == "tcp") return "tcp://127.0.0.1:0";
    if (scheme == "tcp6") return "tcp://[::1]:0";
    if (scheme == "unix") {
        static const Directory directory;
        return "unix://" + (directory.path() / name).string();
    }
    return "inproc://antiphon-test-" + name;
}

inline NodeOptions options(std::uint16_t id, const std::string& scheme = "tcp") {
    NodeOptions options;
    options.id = id;
    if (!scheme.empty()) options.listen = fresh_address(scheme);
    // A hung test is to fail by its own check, before the clock of the whole test strikes.
    options.send_timeout = check::patience(20 * kSecond);
    options.request_timeout = check::patience(20 * kSecond);
    options.connect_timeout = check::patience(5 * kSecond);
    options.heartbeat = check::patience(kSecond);
    return options;
}

inline std::unique_ptr<Node> make_node(NodeOptions options, bool start = true) {
    auto node = std::make_unique<Node>(std::move(options));
    if (start) node->start();
    return node;
}

inline void introduce(Node& a, Node& b) {
    if (!b.address().empty()) a.add_peer(b.id(), b.address());
    if (!a.address().empty()) b.add_peer(a.id(), a.address());
}

// --- receiving -------------------------------------------------------------------------------------

inline Outcome failed(Code code) {
    Outcome outcome;
    outcome.code = code;
    return outcome;
}

// A request that came, and who asked. It may be kept, and answered later by any thread.
struct Question {
    Node* node;
    Peer* peer;
    std::uint32_t session;
    std::uint16_t kind;
    std::uint64_t id;
    std::string text;

    // `closed` when the one who asked is gone, or this node is.
    Outcome answer(std::string_view body, ResponseHead::Status status = ResponseHead::Status::answer) const {
        const ResponseHead head{id, status, 0, ResponseHead::kBytes};
        const Message message{body.data(), body.size()};
        const Attempt attempt = node->try_answer(*peer, session, kind, head, message, true);
        if (attempt.status == Status::sent) return {};
        if (attempt.status == Status::closed) return failed(Code::closed);
        Node::Sending sending{*peer, now_ns() + node->options().request_timeout, now_ns()};
        return node->send_answer(sending, session, kind, head, message);
    }
};

using OnMessage = std::function<void(std::uint16_t source, const char* data, std::size_t size)>;
using OnRequest = std::function<void(Question question)>;

// A handler: a task on the node's scheduler. Lives until close(); the node must outlive it.
class Handler : public Task {
   public:
    Handler(Node& node, std::uint16_t kind, OnMessage call, std::uint64_t capacity = 4096,
            WhenFull when_full = WhenFull::block)
        : Handler(node, kind, std::move(call), nullptr, capacity, when_full) {}
    // One that answers; messages that are no requests go to `call`.
    Handler(Node& node, std::uint16_t kind, OnRequest ask, OnMessage call = nullptr)
        : Handler(node, kind, std::move(call), std::move(ask), 4096, WhenFull::block) {}
    Handler(Node& node, std::uint16_t kind, OnMessage call, OnRequest ask, std::uint64_t capacity,
            WhenFull when_full)
        : node_(node), call_(std::move(call)), ask_(std::move(ask)) {
        const auto prepare = [this](const std::shared_ptr<Registration>& made) {
            registration_ = made;  // a slice may begin before add_registration returns
            made->answers = ask_ != nullptr;
            made->queue->begin(slice_);
            made->queue->set_on_ready([this] { node_.scheduler().notify(*this); });
        };
        CHECK(node.add_registration(kind, capacity, when_full, prepare) != nullptr);
    }
    ~Handler() override { close(); }

    void close() {
        if (!registration_->active.load()) return;
        node_.remove_registration(registration_);
        registration_->queue->set_on_ready(nullptr);
        CHECK(node_.scheduler().forget(*this, kNever));
        registration_->queue->end(slice_);
    }

    bool run_slice(Nanos until) override {
        TaskQueue& queue = *registration_->queue;
        Run run;
        while (now_ns() < until && queue.pop(run, slice_)) {
            RunCursor cursor(run);
            run.begun = true;  // whoever asked is answered here, and not told that nobody did
            while (cursor.left() != 0) {
                const char* data;
                std::size_t size;
                cursor.next(data, size);
                if (run.request) {
                    ask_(question(run, data, size));
                } else {
                    call_(run.source, data, size);
                }
                // Credit for a part of a long run, as the bindings give it at the end of a slice.
                if (cursor.left() % 64 == 0) node_.progress(run, run.size() - cursor.left());
            }
            node_.finish(run);
            queue.done(slice_);
        }
        return !queue.empty();
    }

    Registration& registration() { return *registration_; }
    TaskQueue& queue() { return *registration_->queue; }

   private:
    Question question(const Run& run, const char* data, std::size_t size) const {
        CHECK(size >= kRequestPrefix);
        Question made{&node_, node_.find_peer(run.source), run.session, registration_->kind, 0,
                      std::string(data + kRequestPrefix, size - kRequestPrefix)};
        std::memcpy(&made.id, data, kRequestPrefix);
        CHECK(made.peer != nullptr);
        return made;
    }

    Node& node_;
    const OnMessage call_;
    const OnRequest ask_;
    TaskQueue::Slice slice_;
    std::shared_ptr<Registration> registration_;
};

// An inbox: messages are pulled by whoever calls take().
class Pull {
   public:
    Pull(Node& node, std::uint16_t kind, std::uint64_t capacity = 65536, WhenFull when_full = WhenFull::block)
        : node_(node), registration_(node.add_registration(kind, capacity, when_full)) {
        CHECK(registration_ != nullptr);
        registration_->queue->begin(slice_);
    }
    ~Pull() {
        if (begun_) node_.finish(run_);
        registration_->queue->end(slice_);
        node_.remove_registration(registration_);
    }
    // The next message, if one comes in time. One thread at a time.
    std::optional<std::string> take(Nanos wait) {
        const Nanos until = now_ns() + wait;
        while (!begun_) {
            if (registration_->queue->pop(run_, slice_)) {
                cursor_ = RunCursor(run_);
                begun_ = true;
            } else if (registration_->queue->closed() || now_ns() >= until) {
                return std::nullopt;
            } else {
                registration_->queue->wait(until);
            }
        }
        const char* data;
        std::size_t size;
        cursor_.next(data, size);
        std::string message(data, size);
        if (cursor_.left() == 0) {
            node_.finish(run_);
            begun_ = false;
            registration_->queue->done(slice_);
        }
        return message;
    }
    TaskQueue& queue() { return *registration_->queue; }

   private:
    Node& node_;
    const std::shared_ptr<Registration> registration_;
    TaskQueue::Slice slice_;
    Run run_;
    RunCursor cursor_;
    bool begun_ = false;
};

// --- sending ---------------------------------------------------------------------------------------

inline Outcome send(Node& node, std::uint16_t to, std::uint16_t kind, std::string_view bytes, Nanos timeout = 0) {
    Peer* peer = node.find_peer(to);
    if (peer == nullptr) return failed(Code::unknown_peer);
    const Message message{bytes.data(), bytes.size()};
    Attempt attempt = node.try_message(*peer, kind, message);
    if (attempt.status == Status::sent) return {};
    if (message.size > node.message_limit(*peer)) return node.too_large(*peer, message.size);
    Node::Sending sending{*peer, now_ns() + (timeout ? timeout : node.options().send_timeout), now_ns()};
    for (;;) {
        Outcome outcome;
        if (attempt.status == Status::large) {
            sending.went = false;
            outcome = node.send_large(sending, kind, message, nullptr);
            if (!outcome.ok() || sending.went) return outcome;
        } else {
            outcome = node.wait(sending, attempt, nullptr);
            if (!outcome.ok()) return outcome;
        }
        attempt = node.try_message(*peer, kind, message);
        if (attempt.status == Status::sent) return {};
    }
}

// As many of the messages as go before something is wrong; `sent` says how many.
inline Outcome send_many(Node& node, std::uint16_t to, std::uint16_t kind, const std::vector<Message>& messages,
                         std::size_t& sent, Nanos timeout = 0) {
    sent = 0;
    Peer* peer = node.find_peer(to);
    if (peer == nullptr) return failed(Code::unknown_peer);
    Node::Sending sending{*peer, now_ns() + (timeout ? timeout : node.options().send_timeout), now_ns()};
    while (sent < messages.size()) {
        std::size_t taken = 0;
        const Attempt attempt = node.try_packed(*peer, kind, messages.data() + sent, messages.size() - sent, taken);
        sent += taken;
        if (attempt.status == Status::sent) continue;
        Outcome outcome;
        if (attempt.status == Status::large) {
            sending.went = false;
            outcome = node.send_large(sending, kind, messages[sent], nullptr);
            if (outcome.ok() && sending.went) ++sent;
        } else {
            outcome = node.wait(sending, attempt, nullptr);
        }
        if (!outcome.ok()) return outcome;
    }
    return {};
}

// One request of one thread; others may cancel it. Does what the bindings do.
class Request {
   public:
    Request(Node& node, std::uint16_t to, std::uint16_t kind)
        : node_(node), pending_(node.add_request(*node.find_peer(to), kind)) {}
    ~Request() {
        if (!pending_->done()) node_.give_up(*pending_, State::cancelled);
    }
    Request(const Request&) = delete;

    // Until it is on its way. `interrupted`: it was done before. It is given up when it did not go.
    Outcome send(std::string_view bytes, Nanos deadline) {
        const Outcome outcome = go({bytes.data(), bytes.size()}, deadline);
        if (!outcome.ok()) cancel();
        return outcome;
    }
    // True when it is done. This thread reads the answer by itself if it may.
    bool wait(Nanos deadline, const Interrupted* interrupted = nullptr) {
        std::optional<Lead> lead;
        const Outcome outcome = node_.await(*pending_, deadline, interrupted, lead);
        CHECK(outcome.ok() || outcome.code == Code::timeout || outcome.code == Code::interrupted);
        CHECK(!outcome.ok() || pending_->done());
        return pending_->done();
    }
    // As above, but somebody else has to read it.
    bool follow(Nanos deadline) { return pending_->wait(deadline); }
    // True unless it has ended in another way. It is done in any case.
    bool cancel() { return cancel(node_, *pending_); }
    static bool cancel(Node& node, Pending& pending) {
        if (node.give_up(pending, State::cancelled)) return true;
        // Whoever took it out of the table is about to say how it ended.
        CHECK(pending.wait(now_ns() + check::patience(20 * kSecond)));
        return false;
    }

    const std::shared_ptr<Pending>& pending() const { return pending_; }
    State state() const {
        CHECK(pending_->done());
        return pending_->state();
    }
    std::string_view body() const { return pending_->body(); }

   private:
    Outcome go(Message message, Nanos deadline) {
        Peer& peer = pending_->peer;
        if (pending_->done()) return failed(Code::interrupted);
        if (message.size > node_.message_limit(peer)) return node_.too_large(peer, message.size);
        Attempt attempt = node_.try_request(*pending_, message);
        Node::Sending sending{peer, deadline, now_ns()};
        const Interrupted done = [this] { return pending_->done(); };
        while (attempt.status != Status::sent) {
            Outcome outcome;
            if (attempt.status == Status::large) {
                outcome = node_.send_large_request(sending, *pending_, message, &done);
                if (!outcome.ok() || sending.went) return outcome;
            } else {
                outcome = node_.wait(sending, attempt, &done);
                if (!outcome.ok()) return outcome;
            }
            if (pending_->done()) return failed(Code::interrupted);
            attempt = node_.try_request(*pending_, message);
        }
        return {};
    }

    Node& node_;
    const std::shared_ptr<Pending> pending_;
};

inline Outcome flush(Node& node, std::uint16_t to = 0, Nanos timeout = 20 * kSecond) {
    std::uint16_t at;
    return node.flush_peers(to, now_ns() + check::patience(timeout), nullptr, at);
}

inline std::string explain(const Outcome& outcome) {
    static const char* const names[] = {"ok",           "timeout",   "unreachable", "authentication", "duplicate",
                                        "protocol",     "unknown_peer", "too_large", "closed",        "interrupted"};
    return std::string(names[static_cast<std::size_t>(outcome.code)]) + " (" + outcome.text + ")";
}

#define CHECK_OK(call)                                                        \
    do {                                                                      \
        const ::antiphon::Outcome check_outcome = (call);                     \
        CHECK_SAYS(check_outcome.ok(), #call ": " + ::antiphon::tests::explain(check_outcome)); \
    } while (false)

// The statistics of one peer, if the node knows it.
inline std::optional<PeerStatistics> about(Node& node, std::uint16_t peer) {
    for (PeerStatistics& s : node.statistics()) {
        if (s.id == peer) return std::move(s);
    }
    return std::nullopt;
}

// --- messages that can be checked --------------------------------------------------------------------

// Who sent it, and as what number; behind it bytes that follow from both.
struct Stamp {
    std::uint32_t thread;
    std::uint32_t size;
    std::uint64_t sequence;
};

inline char filling(const Stamp& stamp, std::size_t at) {
    return static_cast<char>(stamp.thread * 31 + stamp.sequence * 7 + at);
}

inline std::string stamped(std::uint32_t thread, std::uint64_t sequence, std::size_t size) {
    size = std::max(size, sizeof(Stamp));
    const Stamp stamp{thread, static_cast<std::uint32_t>(size), sequence};
    std::string bytes(size, 0);
    std::memcpy(bytes.data(), &stamp, sizeof stamp);
    for (std::size_t i = sizeof stamp; i < size; ++i) bytes[i] = filling(stamp, i);
    return bytes;
}

// Checks each message against those before it of the same node and thread.
class Ledger {
   public:
    enum class Gaps { forbidden, allowed };
    explicit Ledger(Gaps gaps = Gaps::forbidden) : gaps_(gaps) {}

    void take(std::uint16_t source, const char* data, std::size_t size) {
        Stamp stamp;
        CHECK(size >= sizeof stamp);
        std::memcpy(&stamp, data, sizeof stamp);
        CHECK_EQUAL(stamp.size, size);
        // All of a small message; of a large one enough to see it put together wrongly.
        const std::size_t step = size <= 4096 ? 1 : 61;
        for (std::size_t i = sizeof stamp; i < size; i += step) {
            if (data[i] != filling(stamp, i)) CHECK_SAYS(false, "byte " + std::to_string(i) + " of " + std::to_string(size));
        }
        std::lock_guard lock(mutex_);
        std::uint64_t& next = next_.try_emplace({source, stamp.thread}, 0).first->second;
        if (gaps_ == Gaps::forbidden ? stamp.sequence != next : stamp.sequence < next) {
            CHECK_SAYS(false, "node " + std::to_string(source) + ", thread " + std::to_string(stamp.thread) + ": " +
                                  std::to_string(stamp.sequence) + " came, " + std::to_string(next) + " was next");
        }
        next = stamp.sequence + 1;
        ++total_;
    }
    OnMessage on_message() {
        return [this](std::uint16_t source, const char* data, std::size_t size) { take(source, data, size); };
    }
    std::uint64_t total() const {
        std::lock_guard lock(mutex_);
        return total_;
    }
    // One past the last number that came from there.
    std::uint64_t next(std::uint16_t source, std::uint32_t thread) const {
        std::lock_guard lock(mutex_);
        const auto found = next_.find({source, thread});
        return found == next_.end() ? 0 : found->second;
    }

   private:
    const Gaps gaps_;
    mutable std::mutex mutex_;
    std::map<std::pair<std::uint16_t, std::uint32_t>, std::uint64_t> next_;
    std::uint64_t total_ = 0;
};

}  // namespace antiphon::tests

// Requests that wait for their responses.
//
// An id is given once in the life of a node, from a random start, so that no response of an earlier
// life can be taken for one of this. A request belongs to one connection of one peer: when that is
// lost, the request has failed, and a response that comes later finds nobody.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/latch.hpp"
#include "buffers/pool.hpp"

namespace antiphon {

class Completions;
class Peer;

// How a response begins, behind the frame's header. Fields may only be appended.
struct ResponseHead {
    enum class Status : std::uint8_t {
        answer = 0,
        error = 1,         // the handler failed: the name of the exception's class, a zero, its text
        unknown_kind = 2,  // nobody is registered for it
        cannot = 3,        // its registration does not answer; the text says why
    };
    // What an answer is: the kind of a typed message, or one of these.
    static constexpr std::uint16_t kBytes = 0, kNone = 1;

    std::uint64_t id;
    Status status;
    std::uint8_t reserved;
    std::uint16_t kind;
};
inline constexpr std::size_t kRequestPrefix = 8, kResponsePrefix = 12;

class Pending {
   public:
    enum class State : std::uint8_t { waiting, answered, failed, unknown_kind, cannot, lost, cancelled, timed_out, closed };

    Pending(std::uint64_t id_, Peer& peer_, std::uint16_t kind_) : id(id_), peer(peer_), kind(kind_) {}
    ~Pending() {
        if (buffer_) buffer_->release();
    }
    Pending(const Pending&) = delete;

    bool done() const { return done_.is_set(); }
    // Until then; false when it is not done. Not for a thread that leads.
    bool wait(Nanos until) { return done_.wait(until); }
    // Pushes its id as soon as it is done, or at once; to each whom it was given.
    void tell(std::shared_ptr<Completions> completions);
    void forget(const Completions& completions);  // this one is told no more

    // Once it is done:
    State state() const { return state_; }
    std::uint16_t reply_kind() const { return reply_kind_; }
    std::string_view body() const {
        if (buffer_) return {buffer_->data() + offset_, buffer_->capacity() - offset_};
        return small_ != 0 ? std::string_view(inside_, small_) : std::string_view(text_);
    }

    const std::uint64_t id;
    Peer& peer;
    const std::uint16_t kind;
    // It may be on its way: only then can it be answered, or lost with its connection.
    std::atomic<bool> sent{false};
    // True while its thread leads (node/lead.hpp): then it waits for the eventfd that the peer names.
    std::atomic<bool> leads{false};

   private:
    friend class Requests;
    using Table = std::unordered_map<std::uint64_t, std::shared_ptr<Pending>>;
    void end(State state, std::uint16_t reply_kind, std::string_view text, Buffer* buffer, std::size_t offset);

    std::mutex mutex_;
    std::shared_ptr<Completions> completions_;  // as a rule there is one
    std::vector<std::shared_ptr<Completions>> others_;
    State state_ = State::waiting;
    std::uint16_t reply_kind_ = 0;
    // A short answer lies in here. Memory that one thread allocates and another one frees makes both of them wait for
    // the allocator, as soon as many threads ask.
    static constexpr std::size_t kInside = 256;
    std::size_t small_ = 0;
    char inside_[kInside];
    std::string text_;
    Buffer* buffer_ = nullptr;  // a large answer, from offset_ on
    std::size_t offset_ = 0;
    Table::node_type place_;  // in the table, once it was taken out: it goes with the request, to whoever asked
    // Set last, with the mutex, which whoever waits for it does not take.
    Latch done_;
};

class Requests {
   public:
    Requests();

    std::shared_ptr<Pending> add(Peer& peer, std::uint16_t kind);
    // A response of this peer. Takes the buffer, if there is one. False: nobody waits for it (any more).
    bool answer(Peer& peer, const ResponseHead& head, std::string_view body, Buffer* buffer = nullptr,
                std::size_t offset = 0);
    // Nobody wants the response any more; true unless it was done already.
    bool give_up(Pending& pending, Pending::State state);
    // All requests that were sent to this peer, or all there are (null), end like this.
    void end_all(Peer* peer, Pending::State state, const std::string& text);

    std::uint64_t open() const { return open_.load(std::memory_order_relaxed); }
    std::uint64_t late() const { return late_.load(std::memory_order_relaxed); }

   private:
    std::shared_ptr<Pending> take(std::uint64_t id, const Peer* peer, bool sent);

    std::mutex mutex_;
    Pending::Table pending_;
    std::uint64_t next_;
    std::atomic<std::uint64_t> open_{0}, late_{0};
};

}  // namespace antiphon

// The subscriptions that a publisher serves, and which of them want an event. No Python in it: the last
// one to hold a target may be a thread without the interpreter's lock.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "match/filter.hpp"
#include "match/index.hpp"
#include "node/node.hpp"

namespace antiphon::python {

// How long one event may take that goes in fragments: a slow line carries 1 MiB in a second.
inline Nanos large_patience(std::size_t bytes) { return (5 + static_cast<Nanos>(bytes >> 20)) * kSecond; }

struct Target : std::enable_shared_from_this<Target> {
    Target(Peer& peer_, OutFlow& flow_, std::uint64_t incarnation_, std::uint32_t epoch_,
           std::shared_ptr<const match::Filter> where_)
        : peer(peer_), flow(flow_), incarnation(incarnation_), epoch(epoch_), where(std::move(where_)) {}
    // It is served no longer, or that node has begun another life.
    bool gone() const;
    // Whether its filter lets an event with these properties pass.
    bool wants(std::string_view properties) const { return !where || where->matches(match::Properties(properties)); }

    Peer& peer;
    OutFlow& flow;
    const std::uint64_t incarnation;
    const std::uint32_t epoch;
    const std::shared_ptr<const match::Filter> where;  // null: it wants everything
    std::atomic<bool> left{false};                     // it is served no longer
    std::size_t place = 0;                             // in the list that it is in
    // With the publisher's turn:
    std::uint32_t number = 1;        // of the next event
    std::uint32_t bound = 0;         // the session in which the name was said
    std::atomic<bool> owed{false};   // it has not seen the last value yet, and may want it
};

using Chosen = std::vector<std::shared_ptr<Target>>;

// Changed with the interpreter's lock and the mutex, so whoever has either may look.
class Targets {
   public:
    // With the interpreter's lock:
    bool has(std::uint16_t peer, std::uint32_t flow, std::uint64_t incarnation) const;
    void add(std::shared_ptr<Target> target);
    // Those of that flow, whichever life of the peer they are of.
    Chosen remove(std::uint16_t peer, std::uint32_t flow);
    Chosen clear();
    bool filters() const { return !filtered_.empty(); }
    std::size_t alive() const;
    const Chosen& unfiltered() const { return open_; }
    template <typename Visit>
    void each(Visit&& visit) const {
        for (const auto& target : open_) visit(target);
        for (const auto& target : filtered_) visit(target);
    }

    // With any lock, or none:
    Chosen everyone() const;
    // Those that want an event with these properties, as it carries them.
    void choose(std::string_view properties, Chosen& chosen);

   private:
    // Fewer are asked one by one: the index looks up names and values before it knows anything.
    static constexpr std::size_t kMany = 16;

    static std::uint64_t key(std::uint16_t peer, std::uint32_t flow) { return std::uint64_t{peer} << 32 | flow; }
    static std::uint64_t id(const Target& target) { return reinterpret_cast<std::uintptr_t>(&target); }
    void take_out(Target& target);

    mutable std::mutex mutex_;
    Chosen open_, filtered_;  // in no order
    std::unordered_multimap<std::uint64_t, std::shared_ptr<Target>> by_flow_;
    std::unique_ptr<match::FilterIndex> index_;  // of all that are filtered, once they are many
    std::vector<std::uint64_t> found_;
};

}  // namespace antiphon::python

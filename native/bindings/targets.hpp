// The subscriptions that a publisher serves, and which of them want an event. No Python in it: the last
// one to hold a target may be a thread without the interpreter's lock.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "match/filter.hpp"
#include "match/index.hpp"
#include "node/node.hpp"

namespace antiphon::python {

// Numbers of the filters on content that let a body pass, in order.
using Verdict = std::vector<std::uint64_t>;
// How long one event may take that goes in fragments: a slow line carries 1 MiB in a second.
inline Nanos large_patience(std::size_t bytes) { return (5 + static_cast<Nanos>(bytes >> 20)) * kSecond; }

// For whom a large event is tried again: a receiver that makes no room for it is not waited for again and again.
// Of one task.
class LargePause {
   public:
    bool over(Nanos now) const { return now >= at_; }
    Nanos at() const { return at_; }
    Nanos grant_by(Nanos now) const { return now + (pause_ == 0 ? kSecond : kSecond / 2); }
    void begin(Nanos now) {
        pause_ = pause_ == 0 ? kSecond / 4 : std::min(2 * pause_, 2 * kSecond);
        at_ = now + pause_;
    }
    void end() { pause_ = at_ = 0; }

   private:
    Nanos pause_ = 0, at_ = 0;
};

struct Target : std::enable_shared_from_this<Target> {
    Target(Peer& peer_, std::shared_ptr<OutFlow> way_, std::uint64_t incarnation_, std::uint32_t epoch_,
           std::shared_ptr<const match::Filter> where_, std::uint64_t content_, bool ends_)
        : peer(peer_),
          way(std::move(way_)),
          flow(*way),
          incarnation(incarnation_),
          epoch(epoch_),
          where(std::move(where_)),
          content(content_),
          ends(ends_) {}
    // It is served no longer, or that node has begun another life.
    bool gone() const;
    // Whether its filter on content, if it has one, is among those that let the body pass.
    bool content_in(const Verdict& verdict) const {
        return content == 0 || std::binary_search(verdict.begin(), verdict.end(), content);
    }
    // Whether its filter on properties lets an event with these pass.
    bool wants(std::string_view properties) const { return !where || where->matches(match::Properties(properties)); }

    Peer& peer;
    const std::shared_ptr<OutFlow> way;
    OutFlow& flow;  // the same
    const std::uint64_t incarnation;
    const std::uint32_t epoch;
    const std::shared_ptr<const match::Filter> where;  // null: whatever its properties
    const std::uint64_t content;                       // the number of its filter on content; 0: it has none
    const bool ends;                                   // when it has had no room for too long
    std::atomic<bool> left{false};                     // it is served no longer
    std::size_t place = 0;                             // in the list that it is in
    // With the publisher's turn:
    std::uint32_t number = 1;        // of the next event
    std::uint32_t bound = 0;         // the session in which the name was said
    Nanos full_since = 0;            // of one that ends: since when it has had no room; 0: it has
    bool in_vain = false;            // it was waited for, and has taken nothing since
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
    bool filters() const { return !filtered_.empty() || !judged_.empty(); }
    // Whether somebody asks what a body holds, and the numbers of those questions. They are others when
    // the version is another.
    bool contents() const { return !contents_.empty(); }
    std::uint64_t contents_version() const { return contents_version_; }
    std::vector<std::uint64_t> content_numbers() const;
    std::size_t alive() const;
    const Chosen& unfiltered() const { return open_; }
    template <typename Visit>
    void each(Visit&& visit) const {
        for (const auto& target : open_) visit(target);
        for (const auto& target : filtered_) visit(target);
        for (const auto& [number, those] : judged_) {
            for (const auto& target : those) visit(target);
        }
    }

    // With any lock, or none:
    Chosen everyone() const;
    // Whether one that wants an event with these properties asks for its content too.
    bool asks_content(std::string_view properties);
    // Those that want an event with these properties, as it carries them, and with a body of which this
    // is known.
    void choose(std::string_view properties, const Verdict& verdict, Chosen& chosen);

   private:
    // Fewer are asked one by one: the index looks up names and values before it knows anything.
    static constexpr std::size_t kMany = 16;

    static std::uint64_t key(std::uint16_t peer, std::uint32_t flow) { return std::uint64_t{peer} << 32 | flow; }
    static std::uint64_t id(const Target& target) { return reinterpret_cast<std::uintptr_t>(&target); }
    static Target* target_of(std::uint64_t id) { return reinterpret_cast<Target*>(static_cast<std::uintptr_t>(id)); }
    Chosen& list_of(const Target& target);
    void take_out(Target& target);

    mutable std::mutex mutex_;
    Chosen open_, filtered_;                           // in no order
    std::unordered_map<std::uint64_t, Chosen> judged_;  // by content alone, by its number
    std::map<std::uint64_t, std::size_t> contents_;    // how many ask each question, also beside others
    std::uint64_t contents_version_ = 0;
    std::unordered_multimap<std::uint64_t, std::shared_ptr<Target>> by_flow_;
    std::unique_ptr<match::FilterIndex> index_;  // of all that are filtered, once they are many
    std::vector<std::uint64_t> found_;
};

}  // namespace antiphon::python

// What a subscription knows of the topics that come to it: their names, and which event is next.
//
// A publisher binds its number of a topic to the name before the first event of every connection, on
// the same connection: an event never comes before its name. Events may lie in the queue while their
// publisher's node begins a new life, in which the number means something else; so a binding holds
// from its session on, until the next one's. A publisher that ends says so behind its last event.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace antiphon {

struct BoundTopic {
    std::string name;
    std::uint16_t origin;   // the node that published it, where a broker passes it on; else 0
    bool retains;           // its publisher keeps the last event for those who come later
    std::uint32_t epoch;    // drawn by the publisher for each subscription that it serves
    std::uint32_t session;  // the first one that it holds in
    bool recorded = false;       // a broker sends it out of a log: see LogMark
    std::uint64_t producer = 0;  // whose events are to be recorded, each once; 0: nobody asks for that
    // Of a producer: the first event that it does not know to be recorded. Out of a log: the place where its
    // broker began, if whoever begins there again would begin elsewhere; else 0.
    std::uint64_t first = 0;
    std::uint64_t store = 0;  // out of a log: which store that is in; a sequence means something there only
    // The number that comes next; only the thread that hands out this subscription's events looks at it.
    std::uint32_t next = 1;
};

class TopicNames {
   public:
    static constexpr std::size_t kMost = 1 << 20;  // a peer that binds more wants our memory

    // In that session the publisher says: my topic has this name. Ignored when there are too many.
    void bind(std::uint16_t source, std::uint32_t topic, BoundTopic bound) {
        std::lock_guard lock(mutex_);
        auto found = topics_.find(key(source, topic));
        if (found == topics_.end()) {
            if (topics_.size() >= kMost) return;
            found = topics_.emplace(key(source, topic), Bindings{}).first;
        }
        Bindings& bindings = found->second;
        // The same as before, on another connection: what was lost in between shows in the numbers.
        if (!bindings.empty() && bindings.back()->epoch == bound.epoch && bindings.back()->name == bound.name) return;
        if (bindings.size() >= kKept) bindings.erase(bindings.begin());
        bindings.push_back(std::make_shared<BoundTopic>(std::move(bound)));
        version_.fetch_add(1, std::memory_order_release);
    }
    // Whoever bound it so has ended, and nothing of it waits here any more.
    void unbind(std::uint16_t source, std::uint32_t topic, std::uint32_t epoch) {
        std::lock_guard lock(mutex_);
        const auto found = topics_.find(key(source, topic));
        if (found == topics_.end()) return;
        std::erase_if(found->second, [&](const auto& bound) { return bound->epoch == epoch; });
        if (found->second.empty()) topics_.erase(found);
        version_.fetch_add(1, std::memory_order_release);
    }
    bool knows(std::uint64_t key) {
        std::lock_guard lock(mutex_);
        return topics_.contains(key);
    }
    std::size_t size() {
        std::lock_guard lock(mutex_);
        return topics_.size();
    }
    void clear() {
        std::lock_guard lock(mutex_);
        topics_.clear();
        version_.fetch_add(1, std::memory_order_release);
    }
    // What it meant in that session; null: nothing.
    std::shared_ptr<BoundTopic> find(std::uint16_t source, std::uint32_t topic, std::uint32_t session) {
        std::lock_guard lock(mutex_);
        const auto found = topics_.find(key(source, topic));
        if (found == topics_.end()) return nullptr;
        for (auto at = found->second.rbegin(); at != found->second.rend(); ++at) {
            if ((*at)->session <= session) return *at;
        }
        return nullptr;
    }
    // Where brokers began with topics out of logs, as far as they said so; the last word for each.
    struct Begun {
        std::string name;
        std::uint64_t first, store;
    };
    std::vector<Begun> begun() {
        std::lock_guard lock(mutex_);
        std::vector<Begun> all;
        for (const auto& [key, bindings] : topics_) {
            const BoundTopic& last = *bindings.back();
            if (last.recorded && last.first != 0) all.push_back({last.name, last.first, last.store});
        }
        return all;
    }
    // Changes when a binding does: what was found before may be another now.
    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

    static std::uint64_t key(std::uint16_t source, std::uint32_t topic) { return std::uint64_t{source} << 32 | topic; }

   private:
    using Bindings = std::vector<std::shared_ptr<BoundTopic>>;
    static constexpr std::size_t kKept = 4;  // lives of a publisher of which events may wait here

    std::mutex mutex_;
    std::unordered_map<std::uint64_t, Bindings> topics_;
    std::atomic<std::uint64_t> version_{0};
};

}  // namespace antiphon

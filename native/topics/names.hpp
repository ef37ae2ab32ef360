// What a subscription knows of the topics that come to it: their names, and which event is next.
//
// A publisher binds its number of a topic to the name before the first event of every connection, on
// the same connection: an event never comes before its name.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace antiphon {

struct BoundTopic {
    std::string name;
    std::uint32_t epoch;  // drawn by the publisher for each subscription that it serves
    // The number that comes next; only the thread that hands out this subscription's events looks at it.
    std::uint32_t next;
};

class TopicNames {
   public:
    static constexpr std::size_t kMost = 1 << 20;  // a peer that binds more wants our memory

    // The publisher says: my topic has this name, and the next event this number. False: too many.
    bool bind(std::uint16_t source, std::uint32_t topic, std::uint32_t epoch, std::uint32_t number, std::string name) {
        std::lock_guard lock(mutex_);
        auto& bound = topics_[key(source, topic)];
        // The same as before, on another connection: what was lost in between shows in the numbers.
        if (bound && bound->epoch == epoch && bound->name == name) return true;
        bound = std::make_shared<BoundTopic>(BoundTopic{std::move(name), epoch, number});
        ++version_;
        return topics_.size() <= kMost;
    }
    void forget(std::uint16_t source) {
        std::lock_guard lock(mutex_);
        std::erase_if(topics_, [&](const auto& entry) { return entry.first >> 32 == source; });
        ++version_;
    }
    std::shared_ptr<BoundTopic> find(std::uint16_t source, std::uint32_t topic) {
        std::lock_guard lock(mutex_);
        const auto found = topics_.find(key(source, topic));
        return found == topics_.end() ? nullptr : found->second;
    }
    // Changes when a binding does: what was found before may be another now.
    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

    static std::uint64_t key(std::uint16_t source, std::uint32_t topic) { return std::uint64_t{source} << 32 | topic; }

   private:
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, std::shared_ptr<BoundTopic>> topics_;
    std::atomic<std::uint64_t> version_{0};
};

}  // namespace antiphon

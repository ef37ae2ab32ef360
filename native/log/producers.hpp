// Which records of which producer a log has: so that one who sends again, since the answer was lost,
// does not write twice.
//
// A producer numbers its records upwards, so its last number is enough. The producers are bounded: the
// one least recently heard of is forgotten, and could then write something twice.
//
// One last number has a trap: a block that failed, behind which a later one of the same producer was
// taken, would look like a duplicate when it is sent again. So a producer goes on where it failed.
// Numbers that were never sent at all are no concern of ours: gaps are allowed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "log/index.hpp"

namespace antiphon::log {

class Producers {
   public:
    explicit Producers(std::size_t most) : most_(most) {}
    Producers(const Producers&) = delete;

    // How many of these records, from the first on, are here.
    std::uint32_t known(std::uint64_t producer, std::uint64_t first, std::uint32_t count) const {
        if (producer == 0) return 0;
        const auto found = places_.find(producer);
        if (found == places_.end() || found->second->last < first) return 0;
        return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, found->second->last - first + 1));
    }

    // Whether a block that begins there would jump over one that failed.
    bool jumps(std::uint64_t producer, std::uint64_t first) const {
        const auto found = failed_.find(producer);
        return producer != 0 && found != failed_.end() && first > found->second;
    }
    // A block that began there was not taken.
    void failed(std::uint64_t producer, std::uint64_t first) {
        if (producer == 0) return;
        if (failed_.size() >= most_ && !failed_.contains(producer)) failed_.erase(failed_.begin());
        const auto [place, is_new] = failed_.emplace(producer, first);
        if (!is_new) place->second = std::min(place->second, first);
    }

    // It will not send that again, and goes on behind it.
    void forgive(std::uint64_t producer) { failed_.erase(producer); }

    // How it was before; 0: not known.
    struct Undo {
        std::uint64_t producer = 0, last = 0;
    };

    // Its last record is this one now.
    Undo accept(std::uint64_t producer, std::uint64_t last) {
        if (producer == 0) return {};
        failed_.erase(producer);
        const auto found = places_.find(producer);
        if (found != places_.end()) {
            const Undo undo{producer, found->second->last};
            found->second->last = last;
            order_.splice(order_.end(), order_, found->second);
            return undo;
        }
        if (most_ == 0) return {};
        if (places_.size() >= most_) {
            places_.erase(order_.front().producer);
            order_.pop_front();
        }
        order_.push_back({producer, last});
        places_.emplace(producer, std::prev(order_.end()));
        return {producer, 0};
    }

    // What was accepted did not come to be. In reverse order. Whoever was forgotten for it stays so.
    void undo(const Undo& undo) {
        const auto found = undo.producer == 0 ? places_.end() : places_.find(undo.producer);
        if (found == places_.end()) return;
        if (undo.last != 0) {
            found->second->last = undo.last;
        } else {
            order_.erase(found->second);
            places_.erase(found);
        }
    }

    std::vector<ProducerMark> marks() const { return {order_.begin(), order_.end()}; }
    void restore(const std::vector<ProducerMark>& marks) {
        order_.clear();
        places_.clear();
        for (const ProducerMark& mark : marks) accept(mark.producer, mark.last);
    }
    std::size_t size() const { return places_.size(); }

   private:
    const std::size_t most_;
    std::unordered_map<std::uint64_t, std::uint64_t> failed_;  // where they go on; few, and not for long
    std::list<ProducerMark> order_;  // least recently heard first
    std::unordered_map<std::uint64_t, std::list<ProducerMark>::iterator> places_;
};

}  // namespace antiphon::log

// Intervals of several properties at once, and which of these boxes hold a point.
//
// A tree of boxes: each place knows how far what lies below it reaches, so a point that lies outside sees
// none of it. Trees do not change but for what is struck out of them. What comes lies loose until it has
// become a leaf's worth; then it is made into a tree together with the trees that are as small, so that
// each box is moved a few times in all, and a point meets few trees. The rejected alternative, to count for
// each box how many of its intervals hold the point, walks through all that hold it in one of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "match/conditions.hpp"

namespace antiphon::match {

class Boxes {
   public:
    static constexpr std::size_t kMostSides = 4;
    using Box = std::array<Interval, kMostSides>;
    using Point = std::array<Edge, kMostSides>;

    explicit Boxes(std::size_t sides) : sides_(sides) {}

    void insert(const Box& box, std::uint32_t slot) {
        loose_.push_back({box, slot});
        if (loose_.size() < kLeaf) return;
        std::vector<Entry> entries = std::move(loose_);
        loose_.clear();
        std::size_t level = 0;
        for (; level < trees_.size() && trees_[level].alive != 0; ++level) take(trees_[level], entries);
        if (level == trees_.size()) trees_.emplace_back();
        plant(level, std::move(entries));
    }

    // False: there is none.
    bool erase(std::uint32_t slot) {
        for (auto entry = loose_.begin(); entry != loose_.end(); ++entry) {
            if (entry->slot != slot) continue;
            *entry = loose_.back();
            loose_.pop_back();
            return true;
        }
        const auto found = places_.find(slot);
        if (found == places_.end()) return false;
        Tree& tree = trees_[found->second.level];
        tree.entries[found->second.at].slot = kNone;
        --tree.alive;
        ++struck_;
        places_.erase(found);
        if (struck_ > places_.size() + kLeaf) rebuild();
        return true;
    }

    bool empty() const { return loose_.empty() && places_.empty(); }

    // The slots of all that hold the point.
    template <typename Visit>
    void each(const Point& point, Visit&& visit) const {
        for (const Entry& entry : loose_) {
            if (holds(entry, point)) visit(entry.slot);
        }
        for (const Tree& tree : trees_) {
            if (tree.alive != 0) look_in(tree, point, visit);
        }
    }

   private:
    static constexpr std::size_t kLeaf = 16;
    static constexpr std::uint32_t kNone = UINT32_MAX;

    struct Entry {
        Box box;
        std::uint32_t slot;  // kNone: it was struck out
    };
    // Ends without their fine part: further out rather than not far enough.
    struct Reach {
        double low, high;
    };
    struct Branch {
        std::uint32_t begin, end;  // of its entries
        std::uint32_t second;      // its children are the next one and this one; 0: it has none
        std::array<Reach, kMostSides> reach;
    };
    struct Tree {
        std::vector<Entry> entries;
        std::vector<Branch> branches;
        std::size_t alive = 0;
    };
    struct Place {
        std::uint32_t level, at;
    };

    bool holds(const Entry& entry, const Point& point) const {
        if (entry.slot == kNone) return false;
        for (std::size_t i = 0; i < sides_; ++i) {
            if (!entry.box[i].holds(point[i])) return false;
        }
        return true;
    }

    bool reaches(const Branch& branch, const Point& point) const {
        for (std::size_t i = 0; i < sides_; ++i) {
            if (point[i].nearest < branch.reach[i].low || branch.reach[i].high < point[i].nearest) return false;
        }
        return true;
    }

    template <typename Visit>
    void look_in(const Tree& tree, const Point& point, Visit&& visit) const {
        std::uint32_t waiting[64];  // halves of halves: never so many
        std::size_t count = 0;
        waiting[count++] = 0;
        while (count != 0) {
            std::uint32_t at = waiting[--count];
            while (reaches(tree.branches[at], point)) {
                const Branch& branch = tree.branches[at];
                if (branch.second == 0) {
                    for (std::uint32_t i = branch.begin; i < branch.end; ++i) {
                        if (holds(tree.entries[i], point)) visit(tree.entries[i].slot);
                    }
                    break;
                }
                waiting[count++] = branch.second;
                ++at;
            }
        }
    }

    // Leaves the tree empty.
    void take(Tree& tree, std::vector<Entry>& entries) {
        for (const Entry& entry : tree.entries) {
            if (entry.slot != kNone) entries.push_back(entry);
        }
        struck_ -= tree.entries.size() - tree.alive;
        tree = {};
    }

    void plant(std::size_t level, std::vector<Entry> entries) {
        Tree& tree = trees_[level];
        tree.entries = std::move(entries);
        tree.alive = tree.entries.size();
        grow(tree, 0, static_cast<std::uint32_t>(tree.entries.size()), 0);
        for (std::size_t i = 0; i < tree.entries.size(); ++i) {
            places_[tree.entries[i].slot] = {static_cast<std::uint32_t>(level), static_cast<std::uint32_t>(i)};
        }
    }

    void rebuild() {
        std::vector<Entry> entries;
        for (Tree& tree : trees_) take(tree, entries);
        std::size_t level = 0;
        while (kLeaf << level < entries.size()) ++level;
        trees_.resize(entries.empty() ? 0 : level + 1);
        if (!entries.empty()) plant(level, std::move(entries));
    }

    // One end of one side: the lower ones have even numbers.
    static double end_of(const Entry& entry, std::size_t number) {
        const Interval& interval = entry.box[number / 2];
        return number % 2 == 0 ? interval.low.nearest : interval.high.nearest;
    }

    // The branch of these entries and all below it, divided by one end after the other in turn.
    void grow(Tree& tree, std::uint32_t begin, std::uint32_t end, std::size_t turn) {
        const std::size_t own = tree.branches.size();
        Branch branch{begin, end, 0, {}};
        bool differ[2 * kMostSides] = {};
        for (std::size_t side = 0; side < sides_; ++side) {
            Reach& reach = branch.reach[side];
            const Entry& first = tree.entries[begin];
            reach = {end_of(first, 2 * side), end_of(first, 2 * side + 1)};
            for (std::uint32_t i = begin; i < end; ++i) {
                const Entry& entry = tree.entries[i];
                differ[2 * side] |= end_of(entry, 2 * side) != end_of(first, 2 * side);
                differ[2 * side + 1] |= end_of(entry, 2 * side + 1) != end_of(first, 2 * side + 1);
                reach.low = std::min(reach.low, end_of(entry, 2 * side));
                reach.high = std::max(reach.high, end_of(entry, 2 * side + 1));
            }
        }
        tree.branches.push_back(branch);
        if (end - begin <= kLeaf) return;
        std::size_t tried = 0;
        while (tried < 2 * sides_ && !differ[turn % (2 * sides_)]) ++turn, ++tried;
        if (tried == 2 * sides_) return;  // all of them hold the same points
        const std::size_t by = turn % (2 * sides_);
        const std::uint32_t middle = begin + (end - begin) / 2;
        std::nth_element(tree.entries.begin() + begin, tree.entries.begin() + middle, tree.entries.begin() + end,
                         [by](const Entry& a, const Entry& b) { return end_of(a, by) < end_of(b, by); });
        grow(tree, begin, middle, turn + 1);
        tree.branches[own].second = static_cast<std::uint32_t>(tree.branches.size());
        grow(tree, middle, end, turn + 1);
    }

    std::size_t sides_;
    std::vector<Entry> loose_;
    std::vector<Tree> trees_;
    std::unordered_map<std::uint32_t, Place> places_;  // of those in trees
    std::size_t struck_ = 0;                           // and not taken away yet
};

}  // namespace antiphon::match

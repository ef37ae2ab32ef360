// A sorted sequence in blocks: walked nearly as fast as one array, changed without moving all of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace antiphon::match {

template <typename Entry>
class Ordered {
   public:
    void insert(const Entry& entry) {
        ++size_;
        std::size_t at = block_of(entry);
        if (at == blocks_.size()) {
            if (at == 0) blocks_.emplace_back();
            at = blocks_.size() - 1;
        }
        std::vector<Entry>& block = blocks_[at];
        block.insert(std::lower_bound(block.begin(), block.end(), entry), entry);
        if (block.size() <= kBlock) return;
        std::vector<Entry> second(block.begin() + kBlock / 2, block.end());
        block.erase(block.begin() + kBlock / 2, block.end());
        blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(at) + 1, std::move(second));
    }

    void erase(const Entry& entry) {
        const std::size_t at = block_of(entry);
        if (at == blocks_.size()) return;
        std::vector<Entry>& block = blocks_[at];
        const auto found = std::lower_bound(block.begin(), block.end(), entry);
        if (found == block.end() || entry < *found) return;
        block.erase(found);
        --size_;
        if (block.empty()) {
            blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at));
        } else if (at + 1 < blocks_.size() && block.size() + blocks_[at + 1].size() <= kBlock / 2) {
            block.insert(block.end(), blocks_[at + 1].begin(), blocks_[at + 1].end());
            blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        }
    }

    // In order, from the first that is not before `from`, until `visit` says false.
    template <typename Visit>
    void each(const Entry& from, Visit&& visit) const {
        std::size_t at = block_of(from);
        if (at == blocks_.size()) return;
        auto entry = std::lower_bound(blocks_[at].begin(), blocks_[at].end(), from);
        for (;;) {
            for (const auto end = blocks_[at].end(); entry != end; ++entry) {
                if (!visit(*entry)) return;
            }
            if (++at == blocks_.size()) return;
            entry = blocks_[at].begin();
        }
    }

    bool empty() const { return size_ == 0; }
    std::size_t size() const { return size_; }

   private:
    static constexpr std::size_t kBlock = 256;

    // The first one that does not end before it.
    std::size_t block_of(const Entry& entry) const {
        const auto found = std::partition_point(blocks_.begin(), blocks_.end(),
                                                [&](const std::vector<Entry>& block) { return block.back() < entry; });
        return static_cast<std::size_t>(found - blocks_.begin());
    }

    std::vector<std::vector<Entry>> blocks_;  // none of them empty
    std::size_t size_ = 0;
};

}  // namespace antiphon::match

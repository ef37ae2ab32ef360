#include "bindings/targets.hpp"

#include <algorithm>
#include <utility>

namespace antiphon::python {

bool Target::gone() const {
    if (left.load(std::memory_order_seq_cst) || flow.withdrawn.load(std::memory_order_seq_cst)) return true;
    // Connected with another life of that node: the subscription was of the one before, or is not known
    // there yet.
    return peer.session.load(std::memory_order_seq_cst) != 0 &&
           peer.incarnation.load(std::memory_order_seq_cst) != incarnation;
}

bool Targets::has(std::uint16_t peer, std::uint32_t flow, std::uint64_t incarnation) const {
    const auto [begin, end] = by_flow_.equal_range(key(peer, flow));
    return std::any_of(begin, end, [&](const auto& one) { return one.second->incarnation == incarnation; });
}

void Targets::add(std::shared_ptr<Target> target) {
    std::lock_guard lock(mutex_);
    by_flow_.emplace(key(target->peer.id, target->flow.id.load(std::memory_order_relaxed)), target);
    Chosen& list = target->where ? filtered_ : open_;
    target->place = list.size();
    list.push_back(target);
    if (!target->where) return;
    if (index_) {
        index_->add(id(*target), target->where);
    } else if (filtered_.size() > kMany) {
        index_ = std::make_unique<match::FilterIndex>();
        for (const auto& one : filtered_) index_->add(id(*one), one->where);
    }
}

// With the mutex.
void Targets::take_out(Target& target) {
    Chosen& list = target.where ? filtered_ : open_;
    list.back()->place = target.place;
    std::swap(list[target.place], list.back());
    list.pop_back();
    if (!target.where || !index_) return;
    if (filtered_.size() < kMany / 2) {
        index_.reset();
    } else {
        index_->remove(id(target));
    }
}

Chosen Targets::remove(std::uint16_t peer, std::uint32_t flow) {
    Chosen removed;
    std::lock_guard lock(mutex_);
    const auto [begin, end] = by_flow_.equal_range(key(peer, flow));
    for (auto one = begin; one != end; ++one) removed.push_back(one->second);
    by_flow_.erase(begin, end);
    for (const auto& target : removed) take_out(*target);
    return removed;
}

Chosen Targets::clear() {
    Chosen removed = everyone();
    std::lock_guard lock(mutex_);
    open_.clear();
    filtered_.clear();
    by_flow_.clear();
    index_.reset();
    return removed;
}

std::size_t Targets::alive() const {
    std::size_t count = 0;
    each([&](const auto& target) { count += target->gone() ? 0 : 1; });
    return count;
}

Chosen Targets::everyone() const {
    std::lock_guard lock(mutex_);
    Chosen all = open_;
    all.insert(all.end(), filtered_.begin(), filtered_.end());
    return all;
}

void Targets::choose(std::string_view encoded, Chosen& chosen) {
    const match::Properties properties(encoded);
    const Chosen before = std::exchange(chosen, {});  // what nobody else holds any more goes without the lock
    std::lock_guard lock(mutex_);
    chosen = open_;
    if (index_) {
        found_.clear();
        index_->match(properties, found_);
        for (const std::uint64_t one : found_) {
            chosen.push_back(reinterpret_cast<Target*>(static_cast<std::uintptr_t>(one))->shared_from_this());
        }
    } else {
        for (const auto& target : filtered_) {
            if (target->where->matches(properties)) chosen.push_back(target);
        }
    }
}

}  // namespace antiphon::python

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

std::vector<std::uint64_t> Targets::content_numbers() const {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, count] : contents_) numbers.push_back(number);
    return numbers;
}

// With the mutex.
Chosen& Targets::list_of(const Target& target) {
    if (target.where) return filtered_;
    return target.content == 0 ? open_ : judged_[target.content];
}

void Targets::add(std::shared_ptr<Target> target) {
    std::lock_guard lock(mutex_);
    by_flow_.emplace(key(target->peer.id, target->flow.id.load(std::memory_order_relaxed)), target);
    if (target->content != 0 && contents_[target->content]++ == 0) ++contents_version_;
    Chosen& list = list_of(*target);
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
    Chosen& list = list_of(target);
    list.back()->place = target.place;
    std::swap(list[target.place], list.back());
    list.pop_back();
    if (target.content != 0) {
        if (!target.where && list.empty()) judged_.erase(target.content);
        const auto asked = contents_.find(target.content);
        if (--asked->second == 0) {
            contents_.erase(asked);
            ++contents_version_;
        }
    }
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
    judged_.clear();
    contents_.clear();
    ++contents_version_;
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
    Chosen all;
    each([&](const auto& target) { all.push_back(target); });
    return all;
}

bool Targets::asks_content(std::string_view encoded) {
    const match::Properties properties(encoded);
    std::lock_guard lock(mutex_);
    if (!judged_.empty()) return true;
    if (!index_) {
        return std::any_of(filtered_.begin(), filtered_.end(), [&](const auto& target) {
            return target->content != 0 && target->where->matches(properties);
        });
    }
    found_.clear();
    index_->match(properties, found_);
    return std::any_of(found_.begin(), found_.end(), [](std::uint64_t one) { return target_of(one)->content != 0; });
}

void Targets::choose(std::string_view encoded, const Verdict& verdict, Chosen& chosen) {
    const match::Properties properties(encoded);
    const Chosen before = std::exchange(chosen, {});  // what nobody else holds any more goes without the lock
    std::lock_guard lock(mutex_);
    chosen = open_;
    for (const std::uint64_t number : verdict) {
        const auto found = judged_.find(number);
        if (found != judged_.end()) chosen.insert(chosen.end(), found->second.begin(), found->second.end());
    }
    if (index_) {
        found_.clear();
        index_->match(properties, found_);
        for (const std::uint64_t one : found_) {
            Target* target = target_of(one);
            if (target->content_in(verdict)) chosen.push_back(target->shared_from_this());
        }
    } else {
        for (const auto& target : filtered_) {
            if (target->content_in(verdict) && target->where->matches(properties)) chosen.push_back(target);
        }
    }
}

}  // namespace antiphon::python

// Ways of events that go to one of several, or to several.
#include "bindings/delivery.hpp"

namespace antiphon::python {

void GroupRoute::relay(const std::vector<EventView>& views, std::uint32_t, Nanos, Nanos patience) {
    Released released;
    if (!views.empty()) to_->push(name_, source_, views, patience);
}

void ForkedRoute::relay(const std::vector<EventView>& views, std::uint32_t missed, Nanos arrived, Nanos patience) {
    const std::size_t passed = quota_ ? quota_->take(views.data(), views.size()) : views.size();
    if (passed == views.size()) {
        for (const auto& one : to_) one->relay(views, missed, arrived, patience);
        return;
    }
    const std::vector<EventView> some(views.begin(), views.begin() + static_cast<std::ptrdiff_t>(passed));
    const auto beyond = static_cast<std::uint32_t>(views.size() - passed);
    for (const auto& one : to_) {
        one->relay(some, missed, arrived, patience);
        one->relay({}, beyond, arrived, patience);  // whoever gets the next one is told
    }
}

Route::Ended ForkedRoute::take_ended() {
    Ended all;
    for (const auto& one : to_) {
        const Ended ended = one->take_ended();
        all.insert(all.end(), ended.begin(), ended.end());
    }
    return all;
}

}  // namespace antiphon::python

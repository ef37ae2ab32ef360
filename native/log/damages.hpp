// Places in the logs of a store that could not be read, for whoever tells people about them.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace antiphon::log {

class Damages {
   public:
    // Any thread. The same place is kept once, however many readers pass it.
    void add(const std::string& topic, const std::string& what) {
        std::lock_guard lock(mutex_);
        if (known_.size() >= kMost || !known_.insert(what).second) return;
        fresh_.emplace_back(topic, what);
    }
    // Those that were found since this was asked last.
    std::vector<std::pair<std::string, std::string>> take() {
        std::lock_guard lock(mutex_);
        return std::exchange(fresh_, {});
    }
    std::size_t count() const {
        std::lock_guard lock(mutex_);
        return known_.size();
    }

   private:
    static constexpr std::size_t kMost = 10'000;  // what comes after is more of the same

    mutable std::mutex mutex_;  // held for moments; takes no other
    std::set<std::string> known_;
    std::vector<std::pair<std::string, std::string>> fresh_;
};

}  // namespace antiphon::log

#include "log/files.hpp"

namespace antiphon::log {

std::shared_ptr<File> Files::get(const std::string& path, int& error) {
    error = 0;
    {
        std::lock_guard lock(mutex_);
        const auto found = places_.find(path);
        if (found != places_.end()) {
            order_.splice(order_.end(), order_, found->second);
            return found->second->file;
        }
    }
    // Opening may wait for the disk. Two threads may open one file at once; the first one's is kept.
    auto file = disk_.open(path, access_, error);
    if (!file) return nullptr;
    Order closing;  // after the lock was let go
    std::lock_guard lock(mutex_);
    return keep(path, std::move(file), closing);
}

void Files::put(const std::string& path, std::shared_ptr<File> file) {
    Order closing;
    std::lock_guard lock(mutex_);
    keep(path, std::move(file), closing);
}

std::shared_ptr<File> Files::keep(const std::string& path, std::shared_ptr<File> file, Order& closing) {
    const auto found = places_.find(path);
    if (found != places_.end()) return found->second->file;
    order_.push_back({path, file});
    places_.emplace(path, std::prev(order_.end()));
    for (auto at = order_.begin(); places_.size() > most_ && at != order_.end();) {
        const auto next = std::next(at);
        // Nobody can take a new share of it meanwhile: that takes the lock.
        if (at->file.use_count() == 1) {
            places_.erase(at->path);
            closing.splice(closing.end(), order_, at);
        }
        at = next;
    }
    return file;
}

void Files::forget(const std::string& path) {
    Order closing;
    std::lock_guard lock(mutex_);
    const auto found = places_.find(path);
    if (found == places_.end()) return;
    closing.splice(closing.end(), order_, found->second);
    places_.erase(found);
}

std::size_t Files::open() const {
    std::lock_guard lock(mutex_);
    return places_.size();
}

}  // namespace antiphon::log

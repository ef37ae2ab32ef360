#include "requests/completions.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace antiphon {

Completions::Completions() : fd_(open_descriptor([] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); })) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "cannot make an eventfd");
}

Completions::~Completions() {
    if (!forked()) close_descriptor(fd_);
}

void Completions::push_once(std::uint64_t id) {
    if (forked()) return;
    {
        std::lock_guard lock(mutex_);
        if (!once_.insert(id).second) return;
    }
    push(id);
}

void Completions::push(std::uint64_t id) {
    if (forked()) return;
    bool first;
    {
        std::lock_guard lock(mutex_);
        first = ids_.empty();
        ids_.push_back(id);
    }
    if (!first) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = write(fd_, &one, sizeof one);
}

std::vector<std::uint64_t> Completions::take() {
    if (forked()) return {};
    std::uint64_t drained;
    [[maybe_unused]] const ssize_t ignored = read(fd_, &drained, sizeof drained);
    std::vector<std::uint64_t> ids;
    std::lock_guard lock(mutex_);
    ids.swap(ids_);
    once_.clear();
    return ids;
}

}  // namespace antiphon

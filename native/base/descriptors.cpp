#include "base/descriptors.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <list>
#include <set>
#include <utility>

namespace antiphon {

namespace {

struct Shared {
    std::mutex* mutex;
    std::function<void()> child;
};

struct Descriptors {
    std::mutex shared_mutex;  // of the list below; a fork takes it first
    std::list<Shared> shared;
    std::mutex mutex;
    std::set<int> open;
    Descriptors();
};

Descriptors& descriptors() {
    static auto* all = new Descriptors;  // never destroyed: forks happen at exit, too
    return *all;
}

void let_go(Descriptors& all) {
    all.mutex.unlock();
    for (Shared& one : all.shared) one.mutex->unlock();
    all.shared_mutex.unlock();
}

Descriptors::Descriptors() {
    pthread_atfork(
        [] {
            Descriptors& all = descriptors();
            all.shared_mutex.lock();
            for (Shared& one : all.shared) one.mutex->lock();
            all.mutex.lock();
        },
        [] { let_go(descriptors()); },
        [] {
            Descriptors& all = descriptors();
            for (int fd : all.open) close(fd);
            all.open.clear();
            fork_count.fetch_add(1, std::memory_order_relaxed);
            for (Shared& one : all.shared) one.child();
            let_go(all);
        });
}

}  // namespace

void hold_over_fork(std::mutex& mutex, std::function<void()> child) {
    Descriptors& all = descriptors();
    std::lock_guard lock(all.shared_mutex);
    all.shared.push_back({&mutex, std::move(child)});
}

int open_descriptor(const std::function<int()>& make) {
    Descriptors& all = descriptors();
    std::lock_guard lock(all.mutex);
    const int fd = make();
    if (fd >= 0) {
        const int error = errno;  // a connect under way reports itself there
        all.open.insert(fd);
        errno = error;
    }
    return fd;
}

int open_socket_pair(int type, int (&pair)[2]) {
    Descriptors& all = descriptors();
    std::lock_guard lock(all.mutex);
    const int status = socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair);
    if (status == 0) all.open.insert({pair[0], pair[1]});
    return status;
}

int open_file(const char* path, int flags, int mode) {
    const int fd = ::open(path, flags | O_CLOEXEC, mode);
    if (fd < 0) return fd;
    Descriptors& all = descriptors();
    std::lock_guard lock(all.mutex);
    all.open.insert(fd);
    return fd;
}

void close_file(int fd) {
    {
        Descriptors& all = descriptors();
        std::lock_guard lock(all.mutex);
        all.open.erase(fd);
    }
    close(fd);
}

void close_descriptor(int fd) {
    Descriptors& all = descriptors();
    std::lock_guard lock(all.mutex);
    const int error = errno;
    all.open.erase(fd);
    close(fd);
    errno = error;
}

}  // namespace antiphon

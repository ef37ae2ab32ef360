#include "base/descriptors.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>

namespace antiphon {

namespace {

struct Descriptors {
    std::mutex mutex;
    std::set<int> open;
    Descriptors();
};

Descriptors& descriptors() {
    static auto* all = new Descriptors;  // never destroyed: forks happen at exit, too
    return *all;
}

Descriptors::Descriptors() {
    pthread_atfork([] { descriptors().mutex.lock(); }, [] { descriptors().mutex.unlock(); },
                   [] {
                       Descriptors& all = descriptors();
                       for (int fd : all.open) close(fd);
                       all.open.clear();
                       fork_count.fetch_add(1, std::memory_order_relaxed);
                       all.mutex.unlock();
                   });
}

}  // namespace

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

#include "ring/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace antiphon {

namespace {

[[noreturn]] void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

RingMemory::RingMemory(std::size_t bytes) : bytes_(bytes) { map(); }

void RingMemory::map() {
    // A private mapping would do for one view; two views of the same pages need a shared object.
    int fd = memfd_create("antiphon-ring", MFD_CLOEXEC);
    if (fd < 0) fail("memfd_create for a ring");
    const std::size_t span = mirrored ? 2 * bytes_ : bytes_;
    void* area = MAP_FAILED;
    if (ftruncate(fd, static_cast<off_t>(bytes_)) == 0) {
        area = mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (area == MAP_FAILED) {
        int error = errno;
        close(fd);
        errno = error;
        fail("reserve addresses for a ring");
    }
    char* const base = static_cast<char*>(area);
    for (std::size_t at = 0; at < span; at += bytes_) {
        if (mmap(base + at, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
            MAP_FAILED) {
            int error = errno;
            munmap(base, span);
            close(fd);
            errno = error;
            fail("map a ring");
        }
    }
    close(fd);
    // A forked child must not write into its parent's ring: the pages are shared, not copied.
    madvise(base, span, MADV_DONTFORK);
    base_ = base;
}

RingMemory::~RingMemory() { unmap(); }

void RingMemory::unmap() {
    if (base_ != nullptr) munmap(base_, mirrored ? 2 * bytes_ : bytes_);
    base_ = nullptr;
}

void RingMemory::forget() { madvise(base_, bytes_, MADV_REMOVE); }

}  // namespace antiphon

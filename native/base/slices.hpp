// Short turns on the processor for a thread that has little to do each time and is waited for.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace antiphon {

// The kernel's scheduler (6.12 and later) lets a thread with a shorter slice run before one with a
// longer slice; both still get the same share of the processor. Older kernels ignore it, and a failure
// only means the usual order.
inline void ask_for_short_slices() {
    struct {
        std::uint32_t size, policy;
        std::uint64_t flags;
        std::int32_t nice;
        std::uint32_t priority;
        std::uint64_t runtime, deadline, period;
    } attributes{};
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
    if (attributes.policy != 0) return;  // SCHED_OTHER: whoever chose another knows why
    attributes.size = sizeof attributes;
    attributes.runtime = 100'000;  // ns, the least there is
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace antiphon

// Something that comes true once, and can be waited for.
//
// A condition variable would do, but whoever sets it wakes the others while they need its mutex next: on a busy machine
// they take the processor over, find the mutex taken, and sleep again. This needs none.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

#include "base/clock.hpp"

namespace antiphon {

class Latch {
   public:
    bool is_set() const { return word_.load(std::memory_order_seq_cst) == kSet; }

    // Once. The latch must live until this returns.
    void set() {
        if (word_.exchange(kSet, std::memory_order_seq_cst) == kAwaited) {
            syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
        }
    }

    // False when the point has passed and it is not set.
    bool wait(Nanos until) {
        std::uint32_t seen = word_.load(std::memory_order_seq_cst);
        while (seen != kSet) {
            if (seen == kOpen && !word_.compare_exchange_strong(seen, kAwaited, std::memory_order_seq_cst)) continue;
            const timespec end{until / kSecond, until % kSecond};
            const long status = syscall(SYS_futex, &word_, FUTEX_WAIT_BITSET_PRIVATE, kAwaited,
                                        until >= kNever ? nullptr : &end, nullptr, FUTEX_BITSET_MATCH_ANY);
            seen = word_.load(std::memory_order_seq_cst);
            if (status != 0 && errno == ETIMEDOUT) return seen == kSet;
        }
        return true;
    }

   private:
    static constexpr std::uint32_t kOpen = 0, kAwaited = 1, kSet = 2;
    // Written by whoever waits, to be woken, and by whoever sets it. The load of a waiter pairs with the
    // exchange: what was written before set() is seen after it.
    std::atomic<std::uint32_t> word_{kOpen};
};

}  // namespace antiphon

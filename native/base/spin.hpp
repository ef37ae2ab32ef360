// A polite busy wait: pause a little, then give the core away.
#pragma once

#include <sched.h>

namespace antiphon {

class Spin {
   public:
    void once() {
        if (++turns_ < kPauses) {
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            asm volatile("yield");
#endif
        } else {
            sched_yield();
        }
    }

   private:
    // Past this many pauses the thread we wait for is probably not on a core.
    static constexpr int kPauses = 64;
    int turns_ = 0;
};

}  // namespace antiphon

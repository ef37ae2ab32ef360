// A short wait before a long one: in dense traffic what a thread waits for comes within microseconds,
// while a sleeping thread, and the sleeping core under it, take up to a hundred to come back.
//
// The wait is bounded, and calibrated by its own success: where it did not help it is left out, and
// tried again now and then.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/clock.hpp"

namespace antiphon {

class Patience {
   public:
    static constexpr Nanos kLongest = 100 * kMicrosecond;

    // True as soon as done() is; false when it was not worth waiting for any longer. Gives its core to
    // anybody else who wants it between two looks.
    template <typename Done>
    bool wait(Done&& done) {
        return wait(done, [] { sched_yield(); }, kLongest);
    }

    template <typename Done, typename Pause>
    bool wait(Done&& done, Pause&& pause, Nanos longest) {
        return look([&] { return done() ? Look::helped : Look::again; }, pause, longest);
    }

    // The same for who knows whether it was the waiting that helped: what was there at the first look would have
    // been there without, and so would what nobody waited for.
    enum class Look { again, helped, over };
    template <typename See, typename Pause>
    bool look(See&& see, Pause&& pause, Nanos longest) {
        int score = score_.load(std::memory_order_relaxed);
        if (score < kEnough) {
            score_.store(score + 1, std::memory_order_relaxed);
            if (score + 1 < kEnough) return see() != Look::again;
        }
        Nanos now = now_ns();
        const Nanos until = now + longest;
        for (Nanos before = now; now < until && now - before < kElsewhere;) {
            if (const Look seen = see(); seen != Look::again) {
                if (seen == Look::helped) score_.store(kBest, std::memory_order_relaxed);
                return true;
            }
            before = now;
            pause();
            now = now_ns();
        }
        // Each miss costs a point; the last one costs a round without.
        score = score_.load(std::memory_order_relaxed);
        score_.store(score <= kEnough ? kEnough - kRound : score - 1, std::memory_order_relaxed);
        return see() != Look::again;
    }

   private:
    static constexpr Nanos kElsewhere = 10 * kMicrosecond;  // somebody else had the core: it is wanted
    static constexpr int kEnough = 0, kBest = 4, kRound = 64;
    // Written by whoever waits; several may at once, and then a point is lost or won, which is no harm.
    std::atomic<int> score_{kBest};
};

}  // namespace antiphon

// How much a node sends, by the last few writes of its selector: whether it pays to gather more for each.
//
// Of the node, not of a connection: whoever sends to many in turn is busy, however rarely each is met.
// And by the clock: however long writes were put off, as many frames per second count as dense.
#pragma once

#include <algorithm>

#include "base/clock.hpp"

namespace antiphon {

class Traffic {
   public:
    void wrote(int frames, Nanos now) {
        const auto gap = static_cast<double>(std::min(now - last_, kLongest));
        last_ = now;
        frames_ += (frames - frames_) / kWrites;
        gap_ += (gap - gap_) / kWrites;
    }
    bool dense() const { return frames_ * kFrameTime >= gap_; }

   private:
    static constexpr double kWrites = 8;
    static constexpr double kFrameTime = 30 * kMicrosecond;  // of a frame, at which it begins to be dense
    static constexpr Nanos kLongest = 10 * kMillisecond;     // what came before a pause tells nothing

    Nanos last_ = 0;
    double frames_ = 0, gap_ = kLongest;
};

}  // namespace antiphon

// How much a sender may have under way to others that do not wait for each other: three kinds of flow control.
//
// Two bounds. What has been sent and has not come out of every receiver's socket buffer is the flight: beyond
// what that buffer has for this sender, the kernel drops it, and asking for it again only makes that worse.
// What has been sent and was not handled by every receiver is its credit.
//
// - share: the flight is this sender's part of the smallest buffer, were all others to send as much.
// - reactive: the flight grows while all goes well, and is cut when something is lost or somebody is slow.
// - credit: as share, and each receiver has given so many bytes of credit, which it renews by handling.
//
// No clock in here: the time is an argument.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace antiphon::window {

class Flow {
   public:
    enum class Kind : std::uint8_t { share = 0, reactive = 1, credit = 2 };
    struct Options {
        Kind kind = Kind::share;
        std::size_t most = 4 << 20;       // of the flight
        std::size_t least = 8 << 10;      // it never goes below
        std::size_t credits = 0;          // credit: what a receiver lets be sent before it has handled any
        std::size_t credits_least = 0;    // credit: it renews when so much is left
    };

    explicit Flow(Options options)
        : options_(options), flight_(std::clamp<std::size_t>(kFirst, options.least, options.most)) {}

    // What the smallest receive buffer has for this sender; SIZE_MAX: nobody gets anything.
    void room(std::size_t bytes) { room_ = std::max(bytes, options_.least); }
    std::size_t flight() const {
        return options_.kind == Kind::reactive ? flight_ : std::min(room_, options_.most);
    }
    std::size_t credits() const {
        return options_.kind == Kind::credit ? options_.credits : SIZE_MAX;
    }
    // How many bytes a receiver may leave without a word.
    std::size_t acknowledge_every() const {
        const std::size_t quarter = std::max<std::size_t>(1, flight() / 4);
        if (options_.kind != Kind::credit) return quarter;
        return std::min(quarter, std::max<std::size_t>(1, options_.credits - options_.credits_least));
    }

    // So much has come out of everybody's buffer. `used`: the flight was what held the sender up.
    void moved(std::size_t bytes, bool used) {
        if (options_.kind != Kind::reactive || !used) return;
        // Twice as fast with every flight until something is lost, then by one step with every flight.
        const std::size_t step = rising_ ? bytes : kStep * bytes / std::max<std::size_t>(1, flight_) + 1;
        flight_ = std::min(flight_ + step, options_.most);
    }
    // Something was lost; somebody is far behind with what it has got.
    void lost(Nanos now) { cut(now, 2, 4); }
    void slow(Nanos now) { cut(now, 3, 4); }
    std::uint64_t cuts() const { return cuts_; }

   private:
    static constexpr std::size_t kFirst = 128 << 10, kStep = 16 << 10;
    static constexpr Nanos kPatience = 10 * kMillisecond;  // what was under way at the last cut counts once

    void cut(Nanos now, std::size_t parts, std::size_t of) {
        if (options_.kind != Kind::reactive || (cuts_ != 0 && now - last_cut_ < kPatience)) return;
        last_cut_ = now;
        ++cuts_;
        rising_ = false;
        flight_ = std::max(options_.least, flight_ / of * parts);
    }

    const Options options_;
    std::size_t room_ = SIZE_MAX;
    std::size_t flight_;
    bool rising_ = true;
    Nanos last_cut_ = 0;
    std::uint64_t cuts_ = 0;
};

}  // namespace antiphon::window

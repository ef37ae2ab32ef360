// Faults for tests: datagrams that come are lost, doubled, held or mixed up, by chance from a seed.
//
// Where they come, not where they go: so each member loses others, as on a network.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "groups/datagram_socket.hpp"

namespace antiphon::groups {

class DatagramFaults {
   public:
    struct Options {
        double drop = 0, duplicate = 0;
        std::uint32_t drop_kinds = ~0u;  // bits of 1 << DatagramKind
        std::uint64_t drop_first = 0;    // so many of the first ones with data, of each sender
        std::uint64_t drop_every = 0;    // every so manieth with data, of each sender
        Nanos delay_least = 0, delay_most = 0;
        std::uint32_t shuffle = 0;  // so many are mixed up
        std::uint64_t seed = 0;
        bool any() const {
            return drop > 0 || duplicate > 0 || drop_first != 0 || drop_every != 0 || delay_most != 0 || shuffle > 1;
        }
    };
    explicit DatagramFaults(Options options) : options_(options), chance_(options.seed) {}

    bool any() const { return options_.any(); }
    // One comes; what is to be looked at now is put into `out`.
    void take(std::string_view bytes, const sockaddr_in& from, Nanos now, std::vector<Came>& out);
    // What has waited long enough.
    void due(Nanos now, std::vector<Came>& out);
    Nanos next_time() const;
    std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

   private:
    bool lose(std::string_view bytes);
    void pass(Came came, Nanos now, std::vector<Came>& out);
    bool chance(double fraction) {
        return fraction > 0 && std::uniform_real_distribution<double>(0, 1)(chance_) < fraction;
    }

    const Options options_;
    std::mt19937_64 chance_;
    std::map<std::uint64_t, std::uint64_t> seen_;  // datagrams with data, by their sender
    std::multimap<Nanos, Came> held_;
    std::vector<Came> mixed_;
    Nanos mixed_until_ = kNever;
    std::atomic<std::uint64_t> dropped_{0};  // written by the thread that takes them, read by anybody
};

}  // namespace antiphon::groups

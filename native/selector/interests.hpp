// The interest queue: what the selector has to do for which connection.
//
// One byte per connection holds its pending interests; the list names the connections whose byte
// went from empty to not empty, in that order. Interests that are already there cost one load. The
// selector takes the list in bulk and applies each connection's interests in a fixed order, so that
// nothing is lost by combining them.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace antiphon {

// In the order in which they are applied: a connection is opened before it is read, read before it is
// written, control goes before data, and nothing is done for one that was taken down.
enum Interest : std::uint8_t {
    kConnect = 1,   // open a channel to send on
    kReadBack = 2,  // look at the back direction of the channel we send on
    kRead = 4,      // read data again, after a pause
    kWriteBack = 8,  // credits and answers wait for the channel we receive on
    kWrite = 16,    // data waits in the ring
    kClose = 32,    // take the connection down
};

// Calls apply(interest) for each of a connection's interests, in their order.
template <typename Apply>
void in_order(std::uint8_t interests, Apply&& apply) {
    for (unsigned left = interests; left != 0; left &= left - 1) {
        apply(static_cast<Interest>(left & ~(left - 1)));
    }
}

template <typename Connection>
class InterestQueue {
   public:
    // True when the list was empty before: the caller wakes the selector.
    bool add(Connection& connection, std::uint8_t interests) {
        std::atomic<std::uint8_t>& byte = connection.interests;
        if ((byte.load(std::memory_order_seq_cst) & interests) == interests) return false;
        if (byte.fetch_or(interests, std::memory_order_seq_cst) != 0) return false;
        std::lock_guard lock(mutex_);
        list_.push_back(&connection);
        return list_.size() == 1;
    }

    // Calls apply(connection, interests) for all that had any. Selector thread.
    template <typename Apply>
    bool take(Apply&& apply) {
        {
            std::lock_guard lock(mutex_);
            taken_.swap(list_);
        }
        for (Connection* connection : taken_) {
            // Cleared before they are applied: an interest that comes meanwhile is listed again.
            apply(*connection, connection->interests.exchange(0, std::memory_order_seq_cst));
        }
        const bool any = !taken_.empty();
        taken_.clear();
        return any;
    }

   private:
    std::mutex mutex_;
    std::vector<Connection*> list_;
    std::vector<Connection*> taken_;
};

}  // namespace antiphon

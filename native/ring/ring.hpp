// The outgoing ring of one connection: several producers, one consumer.
//
// A producer claims a region (one compare-and-swap), fills it, and commits it. Commits become
// visible in the order of the claims: a producer whose predecessor is still copying waits its turn.
// That wait is a memcpy long; the alternative, a commit mark in every frame, makes the consumer
// clear every byte it sends before the space can be used again.
//
// The consumer sees one contiguous run of committed bytes that goes to the socket as it is. A
// producer that gives up after claiming commits a padding frame in place of its message, so that
// nobody waits for it and the receiver skips it.
//
// The consumer side belongs to whoever holds the connection's write token.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/spin.hpp"
#include "ring/memory.hpp"

namespace antiphon {

class Ring {
   public:
    // Capacity is a power of two and a multiple of the page size (RingMemory).
    explicit Ring(std::size_t capacity) : memory_(capacity), capacity_(capacity) {}

    std::size_t capacity() const { return capacity_; }

    // --- producers -----------------------------------------------------------------------------

    // Claims `bytes`; false when they are not free. Never blocks. The claim is sequentially
    // consistent: the caller looks at the session afterwards (node/peer.hpp).
    bool claim(std::size_t bytes, std::uint64_t& position) {
        std::uint64_t tail = tail_.load(std::memory_order_relaxed);
        do {
            while (tail + bytes - head_.load(std::memory_order_acquire) > capacity_) {
                if (full(tail, bytes)) return false;
            }
        } while (!tail_.compare_exchange_weak(tail, tail + bytes, std::memory_order_seq_cst,
                                              std::memory_order_relaxed));
        position = tail;
        return true;
    }

    // Copies into a claimed region.
    void write(std::uint64_t position, const void* from, std::size_t bytes) {
        char* to = memory_.data() + offset(position);
        if constexpr (RingMemory::mirrored) {
            std::memcpy(to, from, bytes);
        } else {
            const std::size_t first = std::min(bytes, capacity_ - offset(position));
            std::memcpy(to, from, first);
            std::memcpy(memory_.data(), static_cast<const char*>(from) + first, bytes - first);
        }
    }

    // Waits until every earlier claim is committed. Between this and publish() the caller is alone,
    // so counters that all producers share can be kept without atomic additions.
    void wait_turn(std::uint64_t position) const {
        if (committed_.load(std::memory_order_acquire) == position) return;
        for (Spin spin; committed_.load(std::memory_order_acquire) != position;) spin.once();
    }

    // Makes the region up to `end` visible. Sequentially consistent: the producer then looks whether
    // the consumer sleeps, while the consumer says that it will sleep and then looks here.
    void publish(std::uint64_t end) { committed_.store(end, std::memory_order_seq_cst); }

    std::size_t free_bytes() const {
        return capacity_ - static_cast<std::size_t>(tail_.load(std::memory_order_seq_cst) -
                                                    head_.load(std::memory_order_seq_cst));
    }

    // --- consumer ------------------------------------------------------------------------------

    // The committed bytes from the consumer's position on, as far as they are contiguous.
    std::size_t readable(const char*& data) const {
        const std::uint64_t head = head_.load(std::memory_order_relaxed);
        const std::uint64_t end = committed_.load(std::memory_order_seq_cst);
        data = memory_.data() + offset(head);
        std::size_t bytes = static_cast<std::size_t>(end - head);
        if constexpr (!RingMemory::mirrored) bytes = std::min(bytes, capacity_ - offset(head));
        return bytes;
    }

    bool empty() const {
        return head_.load(std::memory_order_relaxed) == committed_.load(std::memory_order_seq_cst);
    }

    void release(std::size_t bytes) {
        head_.store(head_.load(std::memory_order_relaxed) + bytes, std::memory_order_seq_cst);
    }

    std::uint64_t head() const { return head_.load(std::memory_order_acquire); }
    std::uint64_t tail() const { return tail_.load(std::memory_order_seq_cst); }
    std::uint64_t committed() const { return committed_.load(std::memory_order_acquire); }

    // Frees the pages, whatever is in them. Only while nobody needs it.
    void forget() { memory_.forget(); }
    // Gives the memory back, and its addresses, whatever is in it: for a ring without a connection. All that is free
    // is claimed and stays so, so that producers, who touch nothing that they have not claimed, find no room until
    // revive(). False, and nothing has changed, while one of them is between claim and commit.
    bool retire() {
        if (!memory_.mapped()) return true;
        std::uint64_t tail = tail_.load(std::memory_order_seq_cst);
        if (committed_.load(std::memory_order_seq_cst) != tail) return false;
        // The tail is where it was, so nobody has claimed since, and everything before it is committed.
        const std::uint64_t full = head_.load(std::memory_order_relaxed) + capacity_;
        if (!tail_.compare_exchange_strong(tail, full, std::memory_order_seq_cst)) return false;
        memory_.unmap();
        return true;
    }
    // Memory again, and all of it free. Throws when there is none; it is retired then, as before.
    void revive() {
        if (memory_.mapped()) return;
        memory_.map();
        const std::uint64_t tail = tail_.load(std::memory_order_seq_cst);
        committed_.store(tail, std::memory_order_seq_cst);
        // Pairs with the acquire in claim: whoever finds room finds the memory.
        head_.store(tail, std::memory_order_seq_cst);
    }
    bool retired() const { return !memory_.mapped(); }
    // Frees the pages of a ring that is empty; false, and nothing has changed, when it is not. All of it is claimed
    // meanwhile, and whoever wants some waits for that moment.
    bool vacate() {
        std::uint64_t tail = tail_.load(std::memory_order_seq_cst);
        if (head_.load(std::memory_order_relaxed) != tail || committed_.load(std::memory_order_seq_cst) != tail) {
            return false;
        }
        vacating_.store(true, std::memory_order_seq_cst);
        const bool alone = tail_.compare_exchange_strong(tail, tail + capacity_, std::memory_order_seq_cst);
        if (alone) {
            memory_.forget();
            committed_.store(tail + capacity_, std::memory_order_seq_cst);
            head_.store(tail + capacity_, std::memory_order_seq_cst);
        }
        vacating_.store(false, std::memory_order_seq_cst);
        return alone;
    }

   private:
    // Whether there is no room behind `tail`, which may be an old one: then it is the present one afterwards. A ring
    // whose pages are being freed is not full, and has room in a moment.
    bool full(std::uint64_t& tail, std::size_t bytes) const {
        for (Spin spin; vacating_.load(std::memory_order_seq_cst);) spin.once();
        const std::uint64_t now = tail_.load(std::memory_order_seq_cst);
        const bool same = now == tail;
        tail = now;
        return same && tail + bytes - head_.load(std::memory_order_seq_cst) > capacity_;
    }
    std::size_t offset(std::uint64_t position) const {
        return static_cast<std::size_t>(position) & (capacity_ - 1);
    }

    RingMemory memory_;
    const std::size_t capacity_;
    // Written by producers (compare-and-swap in claim), read by everybody.
    alignas(64) std::atomic<std::uint64_t> tail_{0};
    // Written by the producer whose turn it is; its release pairs with the acquire of the next
    // producer's wait_turn and of the consumer's readable.
    alignas(64) std::atomic<std::uint64_t> committed_{0};
    // Written by the consumer; its release pairs with the acquire in claim, so that a producer
    // never writes over bytes that the socket has not taken.
    alignas(64) std::atomic<std::uint64_t> head_{0};
    // By the consumer: all of it is claimed for a moment, but it is not full. Read only where no room is found.
    std::atomic<bool> vacating_{false};
};

}  // namespace antiphon

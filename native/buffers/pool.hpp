// Receive buffers: counted references into pooled memory.
//
// A buffer is filled by the thread that reads a socket, and stays alive while a task queue, a handler
// or a Python view refers to a part of it. Pooled sizes are a setting; the pool grows on demand up to
// the configured counts, then acquire() says no and the reader pauses. Frames and messages larger
// than the largest size live in buffers of their own, which the flow windows and the budget for
// large messages pay for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/descriptors.hpp"

namespace antiphon {

class BufferPool;

class alignas(16) Buffer {
   public:
    char* data() { return reinterpret_cast<char*>(this + 1); }
    const char* data() const { return reinterpret_cast<const char*>(this + 1); }
    std::size_t capacity() const { return capacity_; }

    void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release();
    // True when the caller's reference is the only one; then nobody else can make a second.
    bool sole() const { return references_.load(std::memory_order_acquire) == 1; }

    // A buffer of exactly this size outside the pool.
    static Buffer* standalone(std::size_t capacity);

    // Pins: a Python view may hold a buffer for as long as it likes, so pins are counted by capacity
    // against a bound of their own. False: the caller copies instead.
    bool pin();

   private:
    friend class BufferPool;
    explicit Buffer(std::size_t capacity) : capacity_(capacity) {}

    // Written by every holder; release() of the last one pairs with its acquire.
    std::atomic<std::uint32_t> references_{1};
    std::atomic<bool> pinned_{false};
    std::uint32_t size_index_ = 0;
    std::size_t capacity_;
    std::shared_ptr<BufferPool> pool_;  // set while the buffer is out; null for standalone ones
};
static_assert(sizeof(Buffer) % 16 == 0);

class BufferPool : public std::enable_shared_from_this<BufferPool> {
   public:
    struct Size {
        std::size_t bytes;
        std::size_t most;
        std::size_t made = 0;
        std::vector<Buffer*> idle{};
    };

    // Pairs of (bytes, how many at the most).
    explicit BufferPool(const std::vector<std::pair<std::size_t, std::size_t>>& sizes);
    ~BufferPool();

    // A buffer of at least `wanted` bytes if there is one, else the largest that is left that holds
    // `least`; null when none is. After null, `on_return` is called once, when a buffer comes back.
    Buffer* acquire(std::size_t wanted, std::size_t least);
    // Beyond the pool, when it is empty: channels in the middle of a frame may hold all of it, and each
    // might need one more to go on. Bounded as well; null and `on_return` as with acquire().
    Buffer* acquire_extra(std::size_t bytes);
    void set_on_return(std::function<void()> call);

    std::size_t largest() const { return largest_; }
    std::size_t smallest() const { return smallest_; }
    // Less than a quarter is left: parked runs are then copied out of their buffers.
    bool pressed() const {
        return out_bytes_.load(std::memory_order_relaxed) * 4 > bound_bytes_ * 3;
    }
    std::size_t out_bytes() const { return out_bytes_.load(std::memory_order_relaxed); }
    std::size_t bound_bytes() const { return bound_bytes_; }
    std::size_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }

   private:
    friend class Buffer;
    static constexpr std::uint32_t kExtra = UINT32_MAX;  // the size index of buffers beyond the pool
    static constexpr std::size_t kLeastExtra = 16 << 20;
    void give_back(Buffer* buffer);

    // In a forked child the lock may be held by a thread that is not there.
    const std::uint32_t generation_ = fork_generation();

    std::mutex mutex_;
    std::vector<Size> sizes_;  // ascending
    std::function<void()> on_return_;
    bool starved_ = false;
    std::size_t largest_ = 0, smallest_ = 0, bound_bytes_ = 0;
    // Written under mutex_, read by anybody for statistics and the pressure test.
    std::atomic<std::size_t> out_bytes_{0};
    std::atomic<std::size_t> pinned_bytes_{0};
    std::size_t extra_bytes_ = 0;
};

}  // namespace antiphon

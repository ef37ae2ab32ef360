#include "buffers/pool.hpp"

#include <algorithm>
#include <new>

namespace antiphon {

Buffer* Buffer::standalone(std::size_t capacity) {
    return new (::operator new(sizeof(Buffer) + capacity)) Buffer(capacity);
}

void Buffer::release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (std::shared_ptr<BufferPool> pool = std::move(pool_)) {
        pool->give_back(this);
        return;
    }
    this->~Buffer();
    ::operator delete(this);
}

bool Buffer::pin() {
    if (!pool_) return true;  // its own memory, already paid for by a window or a reservation
    if (pinned_.load(std::memory_order_relaxed)) return true;
    const std::size_t before = pool_->pinned_bytes_.fetch_add(capacity_, std::memory_order_relaxed);
    if ((before + capacity_) * 4 > pool_->bound_bytes_ || pool_->pressed()) {
        pool_->pinned_bytes_.fetch_sub(capacity_, std::memory_order_relaxed);
        return false;
    }
    // Two tasks may hold runs of one buffer and pin it at once: the second pays nothing.
    if (pinned_.exchange(true, std::memory_order_relaxed)) {
        pool_->pinned_bytes_.fetch_sub(capacity_, std::memory_order_relaxed);
    }
    return true;
}

BufferPool::BufferPool(const std::vector<std::pair<std::size_t, std::size_t>>& sizes) {
    for (auto [bytes, most] : sizes) {
        sizes_.push_back({bytes, most});
        bound_bytes_ += bytes * most;
    }
    std::sort(sizes_.begin(), sizes_.end(),
              [](const Size& a, const Size& b) { return a.bytes < b.bytes; });
    smallest_ = sizes_.front().bytes;
    largest_ = sizes_.back().bytes;
}

BufferPool::~BufferPool() {
    for (Size& size : sizes_) {
        for (Buffer* buffer : size.idle) {
            buffer->~Buffer();
            ::operator delete(buffer);
        }
    }
}

void BufferPool::set_on_return(std::function<void()> call) {
    std::lock_guard lock(mutex_);
    on_return_ = std::move(call);
}

Buffer* BufferPool::acquire(std::size_t wanted, std::size_t least) {
    std::lock_guard lock(mutex_);
    // First the smallest size that holds what is wanted, then larger ones, then the largest that
    // still holds the least.
    auto take = [&](Size& size, std::size_t index) -> Buffer* {
        Buffer* buffer = nullptr;
        if (!size.idle.empty()) {
            buffer = size.idle.back();
            size.idle.pop_back();
        } else if (size.made < size.most) {
            buffer = Buffer::standalone(size.bytes);
            buffer->size_index_ = static_cast<std::uint32_t>(index);
            ++size.made;
        } else {
            return nullptr;
        }
        buffer->references_.store(1, std::memory_order_relaxed);
        buffer->pool_ = shared_from_this();
        out_bytes_.fetch_add(size.bytes, std::memory_order_relaxed);
        return buffer;
    };
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
        if (sizes_[i].bytes < wanted) continue;
        if (Buffer* buffer = take(sizes_[i], i)) return buffer;
    }
    for (std::size_t i = sizes_.size(); i-- > 0;) {
        if (sizes_[i].bytes < least || sizes_[i].bytes >= wanted) continue;
        if (Buffer* buffer = take(sizes_[i], i)) return buffer;
    }
    starved_ = true;
    return nullptr;
}

Buffer* BufferPool::acquire_extra(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    if (extra_bytes_ + bytes > std::max(bound_bytes_, kLeastExtra)) {
        starved_ = true;
        return nullptr;
    }
    Buffer* buffer = Buffer::standalone(bytes);
    buffer->size_index_ = kExtra;
    buffer->pool_ = shared_from_this();
    extra_bytes_ += bytes;
    return buffer;
}

void BufferPool::give_back(Buffer* buffer) {
    if (fork_generation() != generation_) return;
    std::lock_guard lock(mutex_);
    if (buffer->pinned_.exchange(false, std::memory_order_relaxed)) {
        pinned_bytes_.fetch_sub(buffer->capacity_, std::memory_order_relaxed);
    }
    if (buffer->size_index_ == kExtra) {
        extra_bytes_ -= buffer->capacity_;
        buffer->~Buffer();
        ::operator delete(buffer);
    } else {
        out_bytes_.fetch_sub(buffer->capacity_, std::memory_order_relaxed);
        sizes_[buffer->size_index_].idle.push_back(buffer);
    }
    if (!starved_) return;
    starved_ = false;
    // With the lock: once set_on_return(nullptr) is back, nobody is inside the old call.
    if (on_return_) on_return_();
}

}  // namespace antiphon

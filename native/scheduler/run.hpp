// What a task queue holds: runs of messages that lie in receive buffers, and marks between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/clock.hpp"
#include "buffers/pool.hpp"
#include "flows/flow.hpp"
#include "frames/layout.hpp"

namespace antiphon {

// Completes when every part of it is dropped: a flush waits for all queues that held messages of its
// connection, and its mark in each of them holds one reference.
class Barrier {
   public:
    explicit Barrier(std::function<void()> done) : done_(std::move(done)) {}
    ~Barrier() { done_(); }

   private:
    std::function<void()> done_;
};

struct Run {
    enum class Shape : std::uint8_t {
        mark,     // no message: a barrier that is reached here
        frames,   // frames one behind the other
        packed,   // one packed frame
        message,  // one large message; the buffer is its payload
    };

    Shape shape = Shape::mark;
    bool request = false;  // every message begins with the id of a request that wants an answer
    bool begun = false;    // it was handed to somebody who answers
    std::uint16_t source = 0;
    std::uint32_t session = 0;
    std::uint32_t offset = 0, bytes = 0;
    std::uint32_t count = 0;             // messages to account for when it is finished
    std::uint32_t first = 0, last = 0;  // those of the frames that are to be handed out
    std::uint32_t charge = 0;
    std::uint32_t done = 0;      // messages handled so far, and
    std::uint32_t returned = 0;  // the part of the charge given back for them
    Buffer* buffer = nullptr;
    InFlow* flow = nullptr;
    std::uint64_t large_bytes = 0;  // what to give back to the budget for large messages, and
    std::uint32_t large_flow = 0;   // to which flow's part of it
    Nanos arrived = 0;
    std::shared_ptr<Barrier> barrier;

    std::uint32_t size() const { return last - first; }
    void pin(InFlow& from) {
        flow = &from;
        from.pins.fetch_add(1, std::memory_order_relaxed);
    }
    // Another run of the same messages, to be finished by itself.
    Run share() const {
        Run other = *this;
        if (buffer) buffer->retain();
        if (flow) flow->pins.fetch_add(1, std::memory_order_relaxed);
        return other;
    }
};

// Walks the messages of a run.
class RunCursor {
   public:
    RunCursor() = default;
    explicit RunCursor(const Run& run) {
        const char* at = run.buffer ? run.buffer->data() + run.offset : nullptr;
        left_ = run.last;
        shape_ = run.shape;
        if (shape_ == Run::Shape::packed) {
            std::uint32_t count;  // the frame's own: the run may be a part of it
            std::memcpy(&count, at + kHeaderBytes, 4);
            lengths_ = at + kHeaderBytes + 4;
            at_ = lengths_ + 4 * static_cast<std::size_t>(count);
        } else {
            at_ = at;
            bytes_ = run.bytes;
        }
        const char* skipped;
        std::size_t size;
        for (std::uint32_t i = 0; i < run.first; ++i) next(skipped, size);
    }

    std::uint32_t left() const { return left_; }

    // The next message; only while left() is not zero.
    void next(const char*& data, std::size_t& size) {
        --left_;
        if (shape_ == Run::Shape::frames) {
            size = load_header(at_).length;
            data = at_ + kHeaderBytes;
            at_ = data + size;
        } else if (shape_ == Run::Shape::packed) {
            std::uint32_t length;
            std::memcpy(&length, lengths_, 4);
            lengths_ += 4;
            size = length;
            data = at_;
            at_ += length;
        } else {
            data = at_;
            size = bytes_;
        }
    }

   private:
    const char* at_ = nullptr;
    const char* lengths_ = nullptr;
    std::size_t bytes_ = 0;
    std::uint32_t left_ = 0;
    Run::Shape shape_ = Run::Shape::mark;
};

}  // namespace antiphon

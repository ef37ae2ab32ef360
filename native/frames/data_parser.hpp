// Bytes in, runs out: the data direction of a channel.
//
// The parser owns the buffer that is being filled. Every complete frame is looked at once: frames of
// the same kind and flow that follow each other become one run (buffer, offset, count), which is
// parked without a copy. A frame split over two buffers is carried over by copying its beginning into
// the next one, so that every frame is contiguous. No socket and no clock in here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "buffers/pool.hpp"
#include "frames/layout.hpp"

namespace antiphon {

// A contiguous series of frames of one kind and flow.
struct RunView {
    Header first;  // kind and flow of all, flags of the frames
    Buffer* buffer;
    std::uint32_t offset;  // of the first header
    std::uint32_t bytes;   // headers included
    std::uint32_t count;   // messages: for a packed frame, those inside it
    std::uint32_t charge;  // what the sender took from its window for them
};

class DataSink {
   public:
    virtual ~DataSink() = default;
    // What one message of this kind and flow is charged at the least.
    virtual std::uint32_t least_charge(std::uint16_t kind, std::uint32_t flow) = 0;
    // A run; the sink retains the buffer if it keeps it.
    virtual void run(const RunView& run) = 0;
    // A part of a large message. False ends the channel with a protocol error.
    virtual bool fragment(const Header& header, std::uint64_t id, std::string_view part) = 0;
    // A response, ResponseHead included. False ends the channel with a protocol error.
    virtual bool response(const Header& header, std::string_view payload) = 0;
    // A frame of the library's. False ends the channel with a protocol error.
    virtual bool control(const Header& header, std::string_view payload) = 0;
};

class DataParser {
   public:
    explicit DataParser(std::size_t max_frame, std::uint64_t max_message = UINT64_MAX)
        : max_frame_(max_frame), max_message_(max_message) {}
    ~DataParser() { drop(); }
    DataParser(const DataParser&) = delete;
    DataParser& operator=(const DataParser&) = delete;

    // Room for the next read. False when the pool has no buffer: read later.
    bool prepare(BufferPool& pool, char*& at, std::size_t& room);
    // `bytes` were put at the place that prepare() gave. False after a protocol error: see error().
    bool parse(std::size_t bytes, DataSink& sink);
    // Between reads: keep nothing that need not be kept, so that an idle channel holds no memory.
    void rest();
    void drop();

    const std::string& error() const { return error_; }
    bool mid_frame() const { return end_ != begin_; }

   private:
    bool fail(std::string why);
    bool too_large(std::uint64_t size);
    bool packed_frame(const Header& header, DataSink& sink);
    void end_run(DataSink& sink);

    bool over(std::uint16_t kind, std::uint64_t size) const { return size > max_message_ && kind >= kFirstUserKind; }

    const std::size_t max_frame_;
    const std::uint64_t max_message_;  // of users' bytes; what the library puts around its own kinds is not theirs
    Buffer* buffer_ = nullptr;
    std::size_t begin_ = 0, end_ = 0;  // what is not parsed yet
    std::size_t wanted_ = 0;           // the size that recent reads would have filled
    RunView run_{};
    std::uint32_t least_ = 0;
    std::string error_;
};

}  // namespace antiphon

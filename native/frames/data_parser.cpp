#include "frames/data_parser.hpp"

#include <algorithm>

namespace antiphon {

namespace {

// A read into less than this is not worth its system call; move on to another buffer.
constexpr std::size_t kLeastRoom = 4096;

// What is more than any window need not be counted further. It must not wrap: it would look like next to nothing.
std::uint32_t capped(std::uint64_t charge) { return static_cast<std::uint32_t>(std::min<std::uint64_t>(charge, UINT32_MAX)); }

}  // namespace

bool DataParser::prepare(BufferPool& pool, char*& at, std::size_t& room) {
    const std::size_t carried = end_ - begin_;
    std::size_t frame = 0;  // of the frame that has begun, if its header is here
    if (carried >= kHeaderBytes) frame = kHeaderBytes + load_header(buffer_->data() + begin_).length;
    const std::size_t need = std::max(frame, carried + 1);
    if (buffer_ != nullptr && buffer_->capacity() - begin_ >= need &&
        buffer_->capacity() - end_ >= std::min(kLeastRoom, buffer_->capacity() / 4)) {
        at = buffer_->data() + end_;
        room = buffer_->capacity() - end_;
        return true;
    }
    if (buffer_ != nullptr && buffer_->capacity() >= need + kLeastRoom && buffer_->sole()) {
        std::memmove(buffer_->data(), buffer_->data() + begin_, carried);
    } else {
        const std::size_t least = std::max(need, std::min(carried + kLeastRoom, pool.largest()));
        Buffer* next = least > pool.largest()
                           ? Buffer::standalone(least)
                           : pool.acquire(std::clamp(wanted_, least, pool.largest()), least);
        if (next == nullptr) next = pool.acquire_extra(std::max(least, pool.smallest()));
        if (next == nullptr) return false;
        if (carried != 0) std::memcpy(next->data(), buffer_->data() + begin_, carried);
        if (buffer_ != nullptr) buffer_->release();
        buffer_ = next;
    }
    begin_ = 0;
    end_ = carried;
    at = buffer_->data() + end_;
    room = buffer_->capacity() - end_;
    return true;
}

bool DataParser::parse(std::size_t bytes, DataSink& sink) {
    // Worst fit with a memory: a channel that fills its reads gets larger buffers, a quiet one small
    // ones, so that a few parked bytes do not hold a large buffer.
    if (bytes >= buffer_->capacity() / 2) {
        wanted_ = buffer_->capacity() * 4;
    } else if (bytes < buffer_->capacity() / 16) {
        wanted_ = buffer_->capacity() / 4;
    }
    end_ += bytes;
    run_.count = 0;
    while (end_ - begin_ >= kHeaderBytes) {
        const char* at = buffer_->data() + begin_;
        const Header header = load_header(at);
        if (header.length > max_frame_) {
            end_run(sink);
            return fail("a frame of " + std::to_string(header.length) + " bytes, more than the " +
                        std::to_string(max_frame_) + " agreed");
        }
        const std::size_t total = kHeaderBytes + header.length;
        if (end_ - begin_ < total) break;
        if ((header.flags & ~kKnownFlags) != 0) {
            end_run(sink);
            return fail("a frame with unknown flags " + std::to_string(header.flags));
        }
        if (header.kind >= kFirstDataKind && (header.flags & ~kRequest) == 0) {
            if (header.flags != 0 && header.length < 8) {
                end_run(sink);
                return fail("a request without an id");
            }
            if (const std::size_t size = header.length - (header.flags != 0 ? 8 : 0); over(header.kind, size)) {
                end_run(sink);
                return too_large(size);
            }
            if (run_.count != 0 && header.kind == run_.first.kind && header.flow == run_.first.flow &&
                header.flags == run_.first.flags) {
                ++run_.count;
                run_.bytes += static_cast<std::uint32_t>(total);
                run_.charge = capped(std::uint64_t{run_.charge} + std::max(static_cast<std::uint32_t>(total), least_));
            } else {
                end_run(sink);
                least_ = sink.least_charge(header.kind, header.flow);
                run_ = {header, buffer_, static_cast<std::uint32_t>(begin_),
                        static_cast<std::uint32_t>(total), 1,
                        std::max(static_cast<std::uint32_t>(total), least_)};
            }
        } else {
            end_run(sink);
            if (header.kind < kFirstDataKind) {
                if (!sink.control(header, {at + kHeaderBytes, header.length})) {
                    return fail("an unexpected control frame " + std::to_string(header.kind));
                }
            } else if (header.flags == kResponse) {
                if (!sink.response(header, {at + kHeaderBytes, header.length})) {
                    return fail("a response that is none");
                }
            } else if ((header.flags & kFragment) != 0) {
                if (header.length < 8) return fail("a fragment without an id");
                std::uint64_t id;
                std::memcpy(&id, at + kHeaderBytes, 8);
                if (!sink.fragment(header, id, {at + kHeaderBytes + 8, header.length - 8})) {
                    return fail("a fragment that does not fit its message");
                }
            } else if (!packed_frame(header, sink)) {
                return false;
            }
        }
        begin_ += total;
    }
    end_run(sink);
    return true;
}

bool DataParser::packed_frame(const Header& header, DataSink& sink) {
    const char* at = buffer_->data() + begin_ + kHeaderBytes;
    std::uint32_t count = 0;
    if (header.length >= 4) std::memcpy(&count, at, 4);
    const std::uint64_t lengths = 4 + 4 * static_cast<std::uint64_t>(count);
    if (header.flags != kPacked || count == 0 || lengths > header.length) {
        return fail("a packed frame whose count does not fit");
    }
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        std::uint32_t length;
        std::memcpy(&length, at + 4 + 4 * static_cast<std::size_t>(i), 4);
        sum += length;
        if (over(header.kind, length)) return too_large(length);
    }
    if (lengths + sum != header.length) return fail("a packed frame whose lengths do not add up");
    const std::uint64_t total = kHeaderBytes + header.length;
    const std::uint64_t least = sink.least_charge(header.kind, header.flow);
    sink.run({header, buffer_, static_cast<std::uint32_t>(begin_), static_cast<std::uint32_t>(total),
              count, capped(std::max(total, least * count))});
    return true;
}

void DataParser::end_run(DataSink& sink) {
    if (run_.count != 0) sink.run(run_);
    run_.count = 0;
}

void DataParser::rest() {
    if (buffer_ == nullptr || begin_ != end_) return;
    if (buffer_->sole()) drop();
}

void DataParser::drop() {
    if (buffer_ != nullptr) buffer_->release();
    buffer_ = nullptr;
    begin_ = end_ = 0;
}

bool DataParser::too_large(std::uint64_t size) {
    return fail("a message of " + std::to_string(size) + " bytes, over the limit of " + std::to_string(max_message_));
}

bool DataParser::fail(std::string why) {
    error_ = std::move(why);
    return false;
}

}  // namespace antiphon

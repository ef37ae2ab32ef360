// What stands in a segment: a head, then batches of records, each with its checksums.
//
// Everything is little-endian and stands at multiples of eight. docs/explanation/log.md has the same
// in words.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

namespace antiphon::log {

static_assert(std::endian::native == std::endian::little, "the files are little-endian, and written as they lie");

inline constexpr std::uint16_t kFormat = 1;
inline constexpr std::uint32_t kSegmentMagic = 0x47535041;  // "APSG"
inline constexpr std::uint32_t kBatchMagic = 0x54425041;    // "APBT"

// A segment holds what was written between two rolls, by one process. Its head is on the disk before
// anything is written behind it, so what stands here holds after any crash.
struct SegmentHead {
    std::uint32_t magic = kSegmentMagic;
    std::uint32_t crc = 0;  // of everything behind it, the topic included
    std::uint16_t format = kFormat;
    std::uint16_t topic = 0;   // bytes of the topic, behind this
    std::uint32_t epoch = 0;   // how often the store was opened for writing, up to then
    std::uint64_t salt = 0;    // drawn at random; every batch repeats it
    std::uint64_t base = 0;    // the first sequence that may be in here
    std::uint64_t limit = 0;   // the first that may not: after an unclean stop the log goes on there
    std::uint64_t previous_base = 0;   // the segment before; 0: there was none
    std::uint64_t previous_bytes = 0;  // what is valid of it. Anything behind that is void
    std::uint64_t records_before = 0;  // in all segments before, those that are gone included
    std::int64_t created_ns = 0;
};
inline constexpr std::size_t kSegmentHead = sizeof(SegmentHead);
static_assert(kSegmentHead == 72);

struct BatchHead {
    std::uint32_t magic = kBatchMagic;
    std::uint32_t head_crc = 0;  // of the rest of the head: lengths are not believed without it
    std::uint32_t body_crc = 0;
    std::uint32_t body_bytes = 0;  // without the zeros that fill up to a multiple of eight
    std::uint64_t salt = 0;        // the segment's: a payload that looks like a batch is none
    std::uint64_t position = 0;    // of this head in the segment, for the same reason
    std::uint64_t synced = 0;      // bytes of the segment known to be on the disk when this was written
    std::uint64_t base = 0;        // the sequence of the first record; the others follow
    std::uint32_t count = 0;
    std::uint32_t epoch = 0;
    std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();  // earliest and latest of the
    std::int64_t last_ns = std::numeric_limits<std::int64_t>::min();   // records, in whatever order
    std::uint64_t producer = 0;           // 0: nobody who would send again
    std::uint64_t producer_sequence = 0;  // of the first record; the others follow

    std::uint64_t bytes() const;                               // all in all, filled up
    std::uint64_t end() const { return position + bytes(); }   // where the next one begins
    std::uint64_t next() const { return base + count; }        // the sequence behind the last record
};
inline constexpr std::size_t kBatchHead = sizeof(BatchHead);
static_assert(kBatchHead == 88);

inline constexpr std::uint64_t filled(std::uint64_t bytes) { return (bytes + 7) & ~std::uint64_t{7}; }
inline std::uint64_t BatchHead::bytes() const { return kBatchHead + filled(body_bytes); }

// A record: this head without its last four bytes, the properties, the data.
struct RecordHead {
    std::int64_t time_ns;
    std::uint32_t source;
    std::uint32_t properties;
    std::uint32_t data;
    std::uint32_t unused;  // not in the file
};
inline constexpr std::size_t kRecordHead = 20;

struct Record {
    std::uint64_t sequence = 0;
    std::int64_t time_ns = 0;
    std::uint32_t source = 0;
    std::string_view properties, data;
};

// A batch in somebody else's memory.
struct Batch {
    BatchHead head;
    const char* body = nullptr;
};

// Goes through the records of a body. Never reads past its end, whatever the lengths say.
class RecordCursor {
   public:
    RecordCursor(const char* body, std::size_t bytes, std::uint64_t sequence)
        : at_(body), left_(bytes), sequence_(sequence) {}
    explicit RecordCursor(const Batch& batch) : RecordCursor(batch.body, batch.head.body_bytes, batch.head.base) {}

    // False at the end, and when what is left is no record.
    bool next(Record& record) {
        if (left_ < kRecordHead) return false;
        RecordHead head;
        std::memcpy(&head, at_, kRecordHead);
        const std::uint64_t bytes = kRecordHead + std::uint64_t{head.properties} + head.data;
        if (left_ < bytes) return false;
        record.sequence = sequence_++;
        record.time_ns = head.time_ns;
        record.source = head.source;
        record.properties = {at_ + kRecordHead, head.properties};
        record.data = {at_ + kRecordHead + head.properties, head.data};
        at_ += bytes;
        left_ -= bytes;
        return true;
    }
    std::size_t left() const { return left_; }

   private:
    const char* at_;
    std::size_t left_;
    std::uint64_t sequence_;
};

// The head of a segment with its topic, checksum and all, as it is written.
std::string encode(SegmentHead head, std::string_view topic);
// Empty, or what is wrong with it. `head` has all that could be read, `topic` only if nothing is wrong.
std::string decode(std::string_view bytes, SegmentHead& head, std::string& topic);
inline std::uint64_t head_bytes(std::string_view topic) { return filled(kSegmentHead + topic.size()); }

// Puts the checksums in and writes the head to `at`, in front of its body.
void encode(BatchHead& head, const char* body, char* at);

// What is wrong with a batch; nullptr: nothing. In two steps, since only a good head says how long the
// body is. `position` is where it was found, `room` what the segment has from there on.
const char* check_head(const char* at, std::uint64_t room, std::uint64_t salt, std::uint64_t position, BatchHead& head);
const char* check_body(const BatchHead& head, const char* body);

}  // namespace antiphon::log

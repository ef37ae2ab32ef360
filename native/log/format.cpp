#include "log/format.hpp"

#include "log/crc32c.hpp"
#include "log/names.hpp"

namespace antiphon::log {

namespace {

constexpr std::size_t kSegmentSummed = 8;  // behind magic and checksum
constexpr std::size_t kHeadSummed = 8;

}  // namespace

std::string encode(SegmentHead head, std::string_view topic) {
    head.topic = static_cast<std::uint16_t>(topic.size());
    std::string bytes(head_bytes(topic), '\0');
    std::memcpy(bytes.data() + kSegmentHead, topic.data(), topic.size());
    std::memcpy(bytes.data(), &head, kSegmentHead);
    head.crc = crc32c(0, bytes.data() + kSegmentSummed, bytes.size() - kSegmentSummed);
    std::memcpy(bytes.data(), &head, kSegmentHead);
    return bytes;
}

std::string decode(std::string_view bytes, SegmentHead& head, std::string& topic) {
    if (bytes.size() < kSegmentHead) return "the head of the segment is cut off";
    std::memcpy(&head, bytes.data(), kSegmentHead);
    if (head.magic != kSegmentMagic) return "this is no segment";
    if (head.topic > kLongestTopic) return "the head of the segment is damaged";
    const std::uint64_t all = filled(kSegmentHead + head.topic);
    if (bytes.size() < all) return "the head of the segment is cut off";
    if (crc32c(0, bytes.data() + kSegmentSummed, all - kSegmentSummed) != head.crc) {
        return "the head of the segment is damaged";
    }
    if (head.format != kFormat) return "format " + std::to_string(head.format) + " is not known to this version";
    if (head.base == 0 || head.limit < head.base) return "the head of the segment makes no sense";
    topic.assign(bytes.substr(kSegmentHead, head.topic));
    return {};
}

void encode(BatchHead& head, const char* body, char* at) {
    head.body_crc = crc32c(0, body, head.body_bytes);
    std::memcpy(at, &head, kBatchHead);
    head.head_crc = crc32c(0, at + kHeadSummed, kBatchHead - kHeadSummed);
    std::memcpy(at, &head, kBatchHead);
}

const char* check_head(const char* at, std::uint64_t room, std::uint64_t salt, std::uint64_t position, BatchHead& head) {
    if (room < kBatchHead) return "the head of a batch is cut off";
    std::memcpy(&head, at, kBatchHead);
    if (head.magic != kBatchMagic) return "there is no batch here";
    if (crc32c(0, at + kHeadSummed, kBatchHead - kHeadSummed) != head.head_crc) return "the head of a batch is damaged";
    if (head.salt != salt) return "a batch of another segment";
    if (head.position != position) return "a batch of another place";
    if (head.count == 0 || head.base == 0 || head.base > UINT64_MAX - head.count) return "the head of a batch makes no sense";
    if (head.bytes() > room) return "a batch is cut off";
    return nullptr;
}

const char* check_body(const BatchHead& head, const char* body) {
    if (crc32c(0, body, head.body_bytes) != head.body_crc) return "the records of a batch are damaged";
    RecordCursor cursor(body, head.body_bytes, head.base);
    Record record;
    std::uint64_t count = 0;
    while (cursor.next(record)) ++count;
    if (count != head.count || cursor.left() != 0) return "the records of a batch make no sense";
    return nullptr;
}

}  // namespace antiphon::log

#include "log/index.hpp"

#include <algorithm>

#include "log/crc32c.hpp"

namespace antiphon::log {

namespace {

struct Head {
    std::uint32_t magic = 0x58495041;  // "APIX"
    std::uint32_t crc = 0;             // of everything behind it
    std::uint32_t format = kFormat;
    std::uint32_t producers = 0;
    std::uint64_t entries = 0;
    std::uint64_t salt = 0;
    Extent extent;
};
static_assert(sizeof(Head) == 72 && sizeof(IndexEntry) == 32 && sizeof(ProducerMark) == 16);
constexpr std::size_t kSummed = 8;

template <typename T>
void take(std::string_view& from, std::vector<T>& to, std::size_t count) {
    to.resize(count);
    if (count != 0) std::memcpy(to.data(), from.data(), count * sizeof(T));
    from.remove_prefix(count * sizeof(T));
}

template <typename T>
void put(std::string& to, const std::vector<T>& from) {
    to.append(reinterpret_cast<const char*>(from.data()), from.size() * sizeof(T));
}

}  // namespace

const IndexEntry* Index::by_sequence(std::uint64_t sequence) const {
    const auto after = std::upper_bound(entries_.begin(), entries_.end(), sequence,
                                        [](std::uint64_t s, const IndexEntry& entry) { return s < entry.sequence; });
    return after == entries_.begin() ? nullptr : &*std::prev(after);
}

const IndexEntry* Index::by_time(std::int64_t time_ns) const {
    const auto after = std::lower_bound(entries_.begin(), entries_.end(), time_ns,
                                        [](const IndexEntry& entry, std::int64_t t) { return entry.last_ns < t; });
    return after == entries_.begin() ? nullptr : &*std::prev(after);
}

std::string IndexFile::encode() const {
    Head head;
    head.producers = static_cast<std::uint32_t>(producers.size());
    head.entries = index.entries().size();
    head.salt = salt;
    head.extent = extent;
    std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
    put(bytes, index.entries());
    put(bytes, producers);
    head.crc = crc32c(0, bytes.data() + kSummed, bytes.size() - kSummed);
    std::memcpy(bytes.data(), &head, sizeof head);
    return bytes;
}

bool IndexFile::decode(std::string_view bytes) {
    Head head;
    if (bytes.size() < sizeof head) return false;
    std::memcpy(&head, bytes.data(), sizeof head);
    if (head.magic != Head{}.magic || head.format != kFormat) return false;
    if (crc32c(0, bytes.data() + kSummed, bytes.size() - kSummed) != head.crc) return false;
    bytes.remove_prefix(sizeof head);
    const std::uint64_t of_producers = std::uint64_t{head.producers} * sizeof(ProducerMark);
    if (head.entries > bytes.size() / sizeof(IndexEntry) || of_producers > bytes.size()) return false;
    if (head.entries * sizeof(IndexEntry) + of_producers != bytes.size()) return false;
    salt = head.salt;
    extent = head.extent;
    std::vector<IndexEntry> entries;
    take(bytes, entries, head.entries);
    take(bytes, producers, head.producers);
    index.clear();
    index.append(entries);
    return true;
}

void write_index(Disk& disk, const std::string& path, const IndexFile& file) {
    disk.unlink(path);
    int error = 0;
    const auto to = disk.open(path, Access::create, error);
    if (!to) return;
    const std::string bytes = file.encode();
    if (write_all(*to, bytes.data(), bytes.size(), 0) != 0) disk.unlink(path);
}

bool read_index(Disk& disk, const std::string& path, IndexFile& file) {
    constexpr std::int64_t kLargest = std::int64_t{1} << 30;
    int error = 0;
    const auto from = disk.open(path, Access::read, error);
    if (!from) return false;
    const std::int64_t size = from->size();
    if (size < 0 || size > kLargest) return false;
    std::string bytes(static_cast<std::size_t>(size), '\0');
    return from->read(bytes.data(), bytes.size(), 0) == size && file.decode(bytes);
}

}  // namespace antiphon::log

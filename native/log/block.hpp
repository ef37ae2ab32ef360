// Records on their way into a log: what one call appends, all of it or nothing.
#pragma once

#include <algorithm>
#include <string>

#include "log/format.hpp"

namespace antiphon::log {

class Block {
   public:
    Block() = default;
    // A producer that may send again numbers its records without a gap, beginning with any number above
    // 0; a record that the log has already is not appended a second time. 0: it never does.
    explicit Block(std::uint64_t producer, std::uint64_t producer_sequence = 0)
        : producer(producer), producer_sequence(producer_sequence) {}

    void reserve(std::size_t bytes) { bytes_.reserve(bytes); }

    void add(std::string_view data, std::string_view properties, std::int64_t time_ns, std::uint32_t source) {
        const RecordHead head{time_ns, source, static_cast<std::uint32_t>(properties.size()),
                              static_cast<std::uint32_t>(data.size()), 0};
        bytes_.append(reinterpret_cast<const char*>(&head), kRecordHead);
        bytes_.append(properties);
        bytes_.append(data);
        ++count_;
        first_ns = std::min(first_ns, time_ns);
        last_ns = std::max(last_ns, time_ns);
    }

    // Without its first records: the log has those already.
    void drop(std::uint32_t records) {
        RecordCursor cursor(bytes_.data(), bytes_.size(), 0);
        Record record;
        for (std::uint32_t i = 0; i < records; ++i) cursor.next(record);
        bytes_.erase(0, bytes_.size() - cursor.left());
        count_ -= records;
        producer_sequence += records;
    }

    const std::string& bytes() const { return bytes_; }
    std::uint32_t count() const { return count_; }
    std::uint64_t last_of_producer() const { return producer_sequence + count_ - 1; }

    std::uint64_t producer = 0, producer_sequence = 0;
    std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
    std::int64_t last_ns = std::numeric_limits<std::int64_t>::min();

   private:
    std::string bytes_;
    std::uint32_t count_ = 0;
};

}  // namespace antiphon::log

// Looking at a store without touching it: every segment, every batch, every checksum.
#pragma once

#include <string>
#include <vector>

#include "log/disk.hpp"
#include "log/recover.hpp"

namespace antiphon::log {

struct TopicReport {
    std::string topic, directory;  // the topic is empty if no segment says it
    std::size_t segments = 0;
    Tally tally;
    std::vector<Finding> findings;
};

struct StoreReport {
    std::uint32_t epoch = 0;
    bool in_use = false;  // then the end of a log may be in the middle of a write
    std::vector<TopicReport> topics;
};

// Throws Failure if this is no store at all. Whatever else is wrong stands in the report.
StoreReport check_store(Disk& disk, const std::string& directory);

}  // namespace antiphon::log

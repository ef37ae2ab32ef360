#include "log/check.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "log/names.hpp"
#include "log/store.hpp"

namespace antiphon::log {

namespace {

TopicReport check_topic(Disk& disk, const Settings& settings, const std::string& path, const std::string& name) {
    constexpr int kAttempts = 3;
    TopicReport one;
    one.directory = name;
    for (int attempt = 1;; ++attempt) {
        try {
            Recovered found = recover(disk, settings, {path, "", false, true}, now());
            one.topic = found.topic;
            one.segments = found.segments.size();
            one.tally = found.tally;
            one.findings = std::move(found.findings);
            if (!one.topic.empty() && directory_of(one.topic) != name) {
                one.findings.push_back({true, path, 0, "the directory of another topic"});
            }
        } catch (const Failure& failure) {
            // Whoever writes may have dropped a segment between two looks.
            if (failure.error == ENOENT && attempt < kAttempts) continue;
            one.findings.push_back({true, path, 0, failure.what()});
        }
        return one;
    }
}

}  // namespace

StoreReport check_store(Disk& disk, const std::string& directory) {
    Settings settings;
    settings.writable = false;
    settings.max_producers = 0;
    const Store store(disk, directory, settings);
    StoreReport report;
    report.epoch = store.epoch();
    report.in_use = disk.locked(directory + "/lock");
    std::vector<std::string> names;
    const std::string parent = directory + "/topics";
    const int listed = disk.list(parent, names);
    if (listed != 0) {
        throw Failure(Failure::Kind::damaged, "cannot list " + parent + ": " + std::generic_category().message(-listed),
                      -listed);
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
        report.topics.push_back(check_topic(disk, settings, parent + "/" + name, name));
    }
    return report;
}

}  // namespace antiphon::log

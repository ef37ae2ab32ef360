#include "log/log.hpp"

#include <algorithm>

#include "base/wait.hpp"
#include "log/writer.hpp"

namespace antiphon::log {

namespace {

constexpr std::size_t kMostFindings = 1000;  // of one log; what comes after is more of the same

}  // namespace

Log::Log(std::string topic, std::string directory, std::shared_ptr<Files> files, std::shared_ptr<Damages> damages)
    : topic_(std::move(topic)),
      directory_(std::move(directory)),
      files_(std::move(files)),
      damages_(std::move(damages)) {}

Log::~Log() = default;

void Log::give(std::unique_ptr<Writer> writer) { writer_ = std::move(writer); }

LogFacts Log::facts() const {
    std::lock_guard lock(mutex_);
    LogFacts facts;
    facts.segments = segments_.size();
    if (segments_.empty()) return facts;
    facts.first = segments_.front()->head.base;
    facts.next = segments_.back()->extent.next;
    for (const auto& segment : segments_) {
        facts.records += segment->extent.records;
        facts.bytes += segment->extent.bytes;
    }
    return facts;
}

std::vector<Finding> Log::findings() const {
    std::lock_guard lock(mutex_);
    return findings_;
}

std::shared_ptr<Segment> Log::first() const {
    std::lock_guard lock(mutex_);
    return segments_.empty() ? nullptr : segments_.front();
}

std::shared_ptr<Segment> Log::last() const {
    std::lock_guard lock(mutex_);
    return segments_.empty() ? nullptr : segments_.back();
}

std::shared_ptr<Segment> Log::with_sequence(std::uint64_t sequence) const {
    std::lock_guard lock(mutex_);
    if (segments_.empty()) return nullptr;
    const auto after =
        std::upper_bound(segments_.begin(), segments_.end(), sequence,
                         [](std::uint64_t s, const auto& segment) { return s < segment->head.base; });
    return after == segments_.begin() ? segments_.front() : *std::prev(after);
}

std::shared_ptr<Segment> Log::with_time(std::int64_t time_ns) const {
    std::lock_guard lock(mutex_);
    for (const auto& segment : segments_) {
        if (segment->extent.last_ns >= time_ns) return segment;
    }
    return segments_.empty() ? nullptr : segments_.back();
}

std::shared_ptr<Segment> Log::behind(const Segment& segment) const {
    std::lock_guard lock(mutex_);
    const auto next =
        std::lower_bound(segments_.begin(), segments_.end(), segment.head.base,
                         [](const auto& other, std::uint64_t base) { return other->head.base < base; });
    for (auto at = next; at != segments_.end(); ++at) {
        if (at->get() != &segment) return *at;  // one of the same base has taken its place: see add()
    }
    return nullptr;
}

Log::Sight Log::look(const Segment& segment) const {
    std::lock_guard lock(mutex_);
    return {segment.extent, segment.finished};
}

std::optional<IndexEntry> Log::entry(const Segment& segment, std::uint64_t sequence) const {
    std::lock_guard lock(mutex_);
    const IndexEntry* found = segment.index.by_sequence(sequence);
    return found == nullptr ? std::nullopt : std::optional(*found);
}

std::optional<IndexEntry> Log::entry(const Segment& segment, std::int64_t time_ns) const {
    std::lock_guard lock(mutex_);
    const IndexEntry* found = segment.index.by_time(time_ns);
    return found == nullptr ? std::nullopt : std::optional(*found);
}

bool Log::behind_locked(const Segment* segment, std::uint64_t position) const {
    if (segment == nullptr) return !segments_.empty();
    if (segment->extent.bytes > position) return true;
    return segment->finished && !segments_.empty() && segments_.back().get() != segment &&
           segments_.back()->head.base >= segment->head.base;
}

bool Log::wait(const Segment* segment, std::uint64_t position, Nanos until) {
    std::unique_lock lock(mutex_);
    ++waiting_;
    bool there = behind_locked(segment, position);
    while (!there && !closed_ && wait_until(changed_, lock, until)) there = behind_locked(segment, position);
    --waiting_;
    return there;
}

bool Log::closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
}

void Log::watch(std::shared_ptr<Watcher> watcher) {
    std::lock_guard lock(mutex_);
    watchers_.push_back(std::move(watcher));
}

void Log::unwatch(const Watcher* watcher) {
    std::lock_guard lock(mutex_);
    std::erase_if(watchers_, [&](const auto& one) { return one.get() == watcher; });
}

// Watchers are called after the lock was let go, so one may still be called a moment after unwatch().
void Log::tell(std::unique_lock<std::mutex>& lock) {
    if (waiting_ != 0) changed_.notify_all();
    if (watchers_.empty()) return lock.unlock();
    const auto watchers = watchers_;
    lock.unlock();
    for (const auto& watcher : watchers) watcher->more();
}

void Log::begin(std::vector<std::shared_ptr<Segment>> segments, std::vector<Finding> findings) {
    for (const Finding& one : findings) {
        if (one.damage) passed(one.path + " at " + std::to_string(one.position) + ": " + one.what);
    }
    std::lock_guard lock(mutex_);
    segments_.assign(segments.begin(), segments.end());
    findings_ = std::move(findings);
}

void Log::add(std::shared_ptr<Segment> segment) {
    std::unique_lock lock(mutex_);
    // An empty segment is replaced by the one that begins at the same sequence, on the disk as well.
    if (!segments_.empty() && segments_.back()->head.base == segment->head.base) segments_.pop_back();
    segments_.push_back(std::move(segment));
    tell(lock);
}

void Log::show(Segment& segment, const Extent& extent, const std::vector<IndexEntry>& more) {
    std::unique_lock lock(mutex_);
    segment.extent = extent;
    segment.index.append(more);
    tell(lock);
}

Index Log::finish(Segment& segment, const Extent& extent) {
    std::unique_lock lock(mutex_);
    segment.extent = extent;
    segment.finished = true;
    Index index = std::move(segment.index);
    segment.index.clear();
    tell(lock);
    return index;
}

Log::Oldest Log::oldest() const {
    std::lock_guard lock(mutex_);
    Oldest found;
    if (segments_.empty()) return found;
    found.segment = segments_.front();
    found.touched_ns = found.segment->extent.touched_ns;
    found.records = found.segment->extent.records;
    found.count = segments_.size();
    for (const auto& segment : segments_) found.bytes += segment->extent.bytes;
    return found;
}

void Log::drop_first() {
    std::lock_guard lock(mutex_);
    segments_.pop_front();
}

void Log::note(Finding finding) {
    if (finding.damage) passed(finding.path + " at " + std::to_string(finding.position) + ": " + finding.what);
    std::lock_guard lock(mutex_);
    if (findings_.size() < kMostFindings) findings_.push_back(std::move(finding));
}

void Log::close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    tell(lock);
}

}  // namespace antiphon::log

#include "log/recover.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "log/names.hpp"
#include "log/walk.hpp"

namespace antiphon::log {

namespace {

std::string words(int error) { return std::generic_category().message(-error); }

// One file that is called like a segment.
struct Candidate {
    std::uint64_t base = 0, size = 0;
    SegmentHead head;
    std::string topic, path;
    std::string wrong;  // with its head; empty: nothing
};

// What a segment holds, by going through it.
struct Survey {
    Extent extent;
    Index index;
    std::vector<Bad> bad;       // places, in order
    std::uint64_t synced = 0;   // the highest mark
    std::uint64_t good_end = 0; // of the last good batch
    Tally tally;
};

class Recoverer {
   public:
    Recoverer(Disk& disk, const Settings& settings, const Recovery& wanted, Now now)
        : disk_(disk), settings_(settings), wanted_(wanted), now_(now), producers_(settings.max_producers) {}

    Recovered run() {
        result_.topic = wanted_.topic;
        gather();
        drop_unused();
        settle_names();
        for (std::size_t i = 0; i < candidates_.size(); ++i) {
            if (candidates_[i].wrong.empty()) {
                take(i);
            } else {
                find(true, candidates_[i].path, 0, candidates_[i].wrong);
                from().next = std::max(from().next, candidates_[i].base + settings_.segment_records);
            }
        }
        from().producers = producers_.marks();
        return std::move(result_);
    }

   private:
    void gather();
    void drop_unused();
    void settle_names();
    void take(std::size_t i);
    void take_by_index(Segment& segment, const IndexFile& index);
    void take_by_survey(Segment& segment, File& file, std::uint64_t bound, bool last);
    Survey survey(const Segment& segment, File& file, std::uint64_t to);
    void settle(Segment& segment, const Survey& found, std::uint64_t size, bool tail_is_garbage);
    bool has_batches(File& file, std::uint64_t size) const;
    const Candidate* after(std::size_t i) const;

    Continuation& from() { return result_.from; }
    std::string path_of(const std::string& name) const { return wanted_.directory + "/" + name; }
    void find(bool damage, const std::string& path, std::uint64_t position, const std::string& what) {
        result_.findings.push_back({damage, path, position, what});
    }

    Disk& disk_;
    const Settings& settings_;
    const Recovery& wanted_;
    const Now now_;
    Producers producers_;
    std::vector<Candidate> candidates_;
    Recovered result_;
};

void Recoverer::gather() {
    std::vector<std::string> names;
    const int listed = disk_.list(wanted_.directory, names);
    if (listed == -ENOENT) return;
    if (listed != 0) {
        throw Failure(Failure::Kind::disk, "cannot list " + wanted_.directory + ": " + words(listed), -listed);
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
        const auto base = segment_base(name);
        if (!base) continue;
        Candidate one;
        one.base = *base;
        one.path = path_of(name);
        int error = 0;
        const auto file = disk_.open(one.path, Access::read, error);
        if (error == -ENOENT) continue;  // dropped by whoever writes, while we only look
        const std::int64_t size = file ? file->size() : error;
        char bytes[kSegmentHead + kLongestTopic];
        const ssize_t got = size < 0 ? size : file->read(bytes, sizeof bytes, 0);
        if (got < 0) {
            throw Failure(Failure::Kind::disk, "cannot read " + one.path + ": " + words(static_cast<int>(got)),
                          static_cast<int>(-got));
        }
        one.size = static_cast<std::uint64_t>(size);
        one.wrong = decode({bytes, static_cast<std::size_t>(got)}, one.head, one.topic);
        if (one.wrong.empty() && one.head.base != one.base) one.wrong = "the segment is called by another's name";
        if (one.wrong.empty() && result_.topic.empty()) result_.topic = one.topic;
        if (one.wrong.empty() && one.topic != result_.topic) one.wrong = "the segment is of another topic";
        candidates_.push_back(std::move(one));
    }
    if (!wanted_.repair) return;
    for (const std::string& name : names) {
        const auto base = index_base(name);
        const bool stray = base && std::none_of(candidates_.begin(), candidates_.end(),
                                                [&](const Candidate& one) { return one.base == *base; });
        if (stray || name.ends_with(kDraft)) disk_.unlink(path_of(name));
    }
}

// A last segment without a proper head, in which there is nothing else either: nothing was ever written
// into it, or its head would be on the disk.
void Recoverer::drop_unused() {
    while (!candidates_.empty() && !candidates_.back().wrong.empty()) {
        const Candidate& last = candidates_.back();
        int error = 0;
        const auto file = disk_.open(last.path, Access::read, error);
        if (!file || has_batches(*file, last.size)) return;
        find(false, last.path, 0, "a segment that was being made; it holds nothing");
        if (wanted_.repair) disk_.unlink(last.path);
        candidates_.pop_back();
    }
}

// A segment whose directory could not be synced was never used. If only the process died, it is found all
// the same, and the log would go on behind it; were its name lost later, the log would fall back.
void Recoverer::settle_names() {
    if (!wanted_.repair || candidates_.empty()) return;
    if (const int error = disk_.sync_directory(wanted_.directory)) {
        throw Failure(Failure::Kind::disk, "cannot sync " + wanted_.directory + ": " + words(error), -error);
    }
}

// Whether any batch that knows its own place is there, of whatever salt.
bool Recoverer::has_batches(File& file, std::uint64_t size) const {
    Window window(file);
    for (std::uint64_t position = 0; position + kBatchHead <= size; position += 8) {
        const char* at = window.at(position, kBatchHead);
        if (at == nullptr) return window.error() != 0;  // unknown is as good as there
        BatchHead head;
        std::memcpy(&head, at, kBatchHead);
        if (head.magic != kBatchMagic) continue;
        if (check_head(at, size - position, head.salt, position, head) == nullptr) return true;
    }
    return false;
}

const Candidate* Recoverer::after(std::size_t i) const {
    for (++i; i < candidates_.size(); ++i) {
        if (candidates_[i].wrong.empty()) return &candidates_[i];
    }
    return nullptr;
}

void Recoverer::take(std::size_t i) {
    const Candidate& one = candidates_[i];
    const Candidate* next = after(i);
    const bool last = i + 1 == candidates_.size();
    auto segment = std::make_shared<Segment>(one.head, one.path, head_bytes(one.topic));
    const bool first = result_.segments.empty();
    if (!first && one.head.previous_base != from().previous_base) {
        find(true, one.path, 0, "the segment before this one is missing: " + segment_name(one.head.previous_base));
    }
    // How far it is valid: the next one says so, if it follows this one.
    std::uint64_t bound = one.size;
    const bool bounded = next != nullptr && next->head.previous_base == one.base;
    if (bounded) bound = std::max(next->head.previous_bytes, segment->begin);
    segment->extent.touched_ns = next != nullptr ? next->head.created_ns : now_.wall;
    segment->finished = true;

    IndexFile index;
    const bool indexed = read_index(disk_, path_of(index_name(one.base)), index) && index.salt == one.head.salt &&
                         index.extent.bytes >= segment->begin && index.extent.bytes <= one.size &&
                         (!bounded || index.extent.bytes == bound);
    if (indexed && !wanted_.read_all) {
        take_by_index(*segment, index);
    } else {
        int error = 0;
        const auto file = disk_.open(one.path, wanted_.repair ? Access::write : Access::read, error);
        if (!file) throw Failure(Failure::Kind::disk, "cannot open " + one.path + ": " + words(error), -error);
        if (bounded && one.size < bound) find(true, one.path, one.size, "the file is shorter than it was");
        if (indexed) bound = index.extent.bytes;
        take_by_survey(*segment, *file, std::min(bound, one.size), last && !indexed);
    }
    // Cleanly ended: it goes on right behind. Otherwise behind everything that may have been lost.
    if (next == nullptr) from().next = std::max(from().next, indexed ? index.extent.next : one.head.limit);
    // One in which no sequence was used is replaced by the next: see Writer::end_segment.
    const bool unused = next == nullptr && from().next == one.base;
    from().previous_base = unused ? one.head.previous_base : one.base;
    from().previous_bytes = unused ? one.head.previous_bytes : segment->extent.bytes;
    from().records = one.head.records_before + segment->extent.records;
    result_.segments.push_back(std::move(segment));
}

void Recoverer::take_by_index(Segment& segment, const IndexFile& index) {
    segment.extent = index.extent;
    producers_.restore(index.producers);
}

void Recoverer::take_by_survey(Segment& segment, File& file, std::uint64_t bound, bool last) {
    const std::vector<ProducerMark> before = producers_.marks();
    Survey found = survey(segment, file, bound);
    const std::uint64_t sure = last ? found.synced : bound;
    const auto cut = std::find_if(found.bad.begin(), found.bad.end(), [&](const Bad& b) { return b.position >= sure; });
    bool tail_is_garbage = false;
    if (cut != found.bad.end()) {
        const Bad bad = *cut;
        tail_is_garbage = found.good_end <= bad.position;
        find(false, segment.path, bad.position,
             bad.what + std::string(tail_is_garbage ? "; the end is torn off here"
                                                    : "; some of what follows was not lost, but was never acknowledged"));
        producers_.restore(before);
        found = survey(segment, file, bad.position);
    }
    for (const Bad& bad : found.bad) {
        find(true, segment.path, bad.position, bad.what + ", where sequence " + std::to_string(bad.expected) + " should be");
    }
    const std::int64_t touched = segment.extent.touched_ns;
    segment.extent = found.extent;
    segment.extent.touched_ns = touched;
    result_.tally.add(found.tally);
    result_.tally.bytes += segment.extent.bytes;
    result_.tally.epoch = segment.head.epoch;
    if (!wanted_.repair) return;
    if (last) settle(segment, found, static_cast<std::uint64_t>(std::max<std::int64_t>(0, file.size())), tail_is_garbage);
    IndexFile index;
    index.salt = segment.head.salt;
    index.extent = segment.extent;
    index.extent.next = segment.head.limit;
    index.index = found.index;
    index.producers = producers_.marks();
    write_index(disk_, path_of(index_name(segment.head.base)), index);
}

Survey Recoverer::survey(const Segment& segment, File& file, std::uint64_t to) {
    Survey found;
    found.extent.bytes = segment.begin;
    found.extent.next = segment.head.base;
    found.synced = found.good_end = segment.begin;
    Walk walk(file, segment.head.salt, segment.head.base, segment.begin, to);
    Batch batch;
    while (walk.next(batch)) {
        const BatchHead& head = batch.head;
        if (walk.skipped()) found.bad.push_back(*walk.skipped());
        found.index.add(head, found.extent);
        found.extent.bytes = found.good_end = head.end();
        found.extent.next = head.next();
        found.extent.records += head.count;
        found.extent.last_ns = std::max(found.extent.last_ns, head.last_ns);
        found.synced = std::max(found.synced, head.synced);
        found.tally.add(head);
        producers_.accept(head.producer, head.producer_sequence + head.count - 1);
    }
    if (walk.error() != 0) {
        throw Failure(Failure::Kind::disk,
                      "cannot read " + segment.path + " at " + std::to_string(walk.position()) + ": " + words(walk.error()),
                      -walk.error());
    }
    if (walk.skipped()) found.bad.push_back(*walk.skipped());
    return found;
}

// After a crash of the process alone, what was written is in the kernel's memory, perhaps marked clean by
// a sync that failed. Before anybody relies on it, it is written once more and synced.
void Recoverer::settle(Segment& segment, const Survey& found, std::uint64_t size, bool tail_is_garbage) {
    int error = 0;
    const auto file = disk_.open(segment.path, Access::write, error);
    // What is not provably garbage stays where it is: the next segment's head says that it is void.
    if (file && tail_is_garbage && size > segment.extent.bytes) file->truncate(segment.extent.bytes);
    if (file) {
        Window window(*file);
        for (std::uint64_t at = found.synced; at < segment.extent.bytes;) {
            const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(segment.extent.bytes - at, 256 << 10));
            const char* bytes = window.at(at, part);
            // No space to write the same once more: then the sync has to be enough.
            if (bytes == nullptr || write_all(*file, bytes, part, at) != 0) break;
            at += part;
        }
        error = file->sync();
    }
    if (error != 0) throw Failure(Failure::Kind::disk, "cannot sync " + segment.path + ": " + words(error), -error);
}

}  // namespace

void Tally::add(const BatchHead& head) {
    add(Tally{1, head.count, 0, head.base, head.next() - 1, head.first_ns, head.last_ns, head.epoch});
}

void Tally::add(const Tally& other) {
    if (other.first == 0) return;
    first_ns = first == 0 ? other.first_ns : std::min(first_ns, other.first_ns);
    last_ns = first == 0 ? other.last_ns : std::max(last_ns, other.last_ns);
    if (first == 0) first = other.first;
    last = other.last;
    batches += other.batches;
    records += other.records;
}

Recovered recover(Disk& disk, const Settings& settings, const Recovery& wanted, Now now) {
    return Recoverer(disk, settings, wanted, now).run();
}

}  // namespace antiphon::log

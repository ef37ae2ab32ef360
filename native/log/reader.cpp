#include "log/reader.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "log/names.hpp"
#include "log/walk.hpp"

namespace antiphon::log {

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

}  // namespace

Reader::Reader(std::shared_ptr<Log> log, const Start& start) : log_(std::move(log)), start_(start) {
    if (start_.at == Start::At::latest) {
        // Whatever comes from now on. In an empty log that is everything.
        segment_ = log_->last();
        if (segment_) {
            const Log::Sight sight = log_->look(*segment_);
            position_ = sight.extent.bytes;
            records_ = sight.extent.records;
            expected_ = sight.extent.next;
        }
    } else {
        seek();
    }
    // In an empty log the place is known, whatever it was called: what is dropped before this reader comes
    // to it was missed. Not so for a time.
    if (!segment_ && start_.at != Start::At::time) {
        start_ = {Start::At::sequence, std::max<std::uint64_t>(1, start_.sequence), 0};
    }
}

void Reader::enter(std::shared_ptr<Segment> segment) {
    segment_ = std::move(segment);
    position_ = segment_->begin;
    records_ = 0;
    held_ = 0;
    expected_ = segment_->head.base;
}

void Reader::seek() {
    std::shared_ptr<Segment> segment;
    switch (start_.at) {
        case Start::At::earliest:
        case Start::At::latest: segment = log_->first(); break;
        case Start::At::sequence: segment = log_->with_sequence(start_.sequence); break;
        case Start::At::time: segment = log_->with_time(start_.time_ns); break;
    }
    if (!segment) return;
    enter(std::move(segment));
    const SegmentHead& head = segment_->head;
    if (start_.at == Start::At::sequence && start_.sequence != 0 && start_.sequence < head.base) {
        missing_ = std::min(head.base - start_.sequence, head.records_before);
    }
    if (const auto place = entry()) {
        position_ = place->position;
        records_ = place->records;
        expected_ = place->sequence;
    }
}

// Where to begin in the segment, by its index. None: at its beginning.
std::optional<IndexEntry> Reader::entry() const {
    const bool by_sequence = start_.at == Start::At::sequence;
    if (!by_sequence && start_.at != Start::At::time) return std::nullopt;
    if (!log_->look(*segment_).finished) {
        return by_sequence ? log_->entry(*segment_, start_.sequence) : log_->entry(*segment_, start_.time_ns);
    }
    IndexFile file;
    const std::string path = log_->directory() + "/" + index_name(segment_->head.base);
    if (!read_index(log_->files().disk(), path, file) || file.salt != segment_->head.salt) return std::nullopt;
    const IndexEntry* found =
        by_sequence ? file.index.by_sequence(start_.sequence) : file.index.by_time(start_.time_ns);
    return found == nullptr ? std::nullopt : std::optional(*found);
}

Read Reader::next(Batch& batch, Nanos until) {
    missed_ = 0;
    damage_.clear();
    first_ = 0;
    while (true) {
        bool more = false;
        if (segment_) {
            const Log::Sight sight = log_->look(*segment_);
            if (position_ < sight.extent.bytes) {
                more = true;
                const Step done = step(batch, sight.extent);
                if (done == Step::failed) return Read::failed;
                if (done == Step::batch && wanted(batch)) {
                    missed_ = std::exchange(missing_, 0);
                    damage_ = std::exchange(damaged_, {});
                    return Read::batch;
                }
            } else if (sight.finished) {
                if (auto behind = log_->behind(*segment_)) {
                    more = true;
                    // Segments between the two may be gone. Their sequences may have gaps, the counts have none.
                    const std::uint64_t seen = segment_->head.records_before + sight.extent.records;
                    if (behind->head.records_before > seen) missing_ += behind->head.records_before - seen;
                    enter(std::move(behind));
                }
            }
        }
        if (more) continue;
        if (held_ == 0 || capacity_ > kChunk / 16) {  // many readers wait: not with a large buffer each
            buffer_.reset();
            capacity_ = held_ = 0;
        }
        if (!log_->wait(segment_.get(), position_, until)) return log_->closed() ? Read::closed : Read::timeout;
        if (!segment_) seek();
    }
}

Reader::Step Reader::step(Batch& batch, const Extent& extent) {
    const std::uint64_t room = extent.bytes - position_;
    const auto at = [&] { return buffer_.get() + (position_ - begin_); };
    const auto has = [&](std::uint64_t bytes) { return position_ >= begin_ && position_ + bytes <= held_end(); };
    if (!has(kBatchHead)) {
        const Step done = fill(kBatchHead, extent);
        if (done != Step::batch) return done;
    }
    if (!has(kBatchHead)) return skip_damage("the file ends before its time", extent);
    if (const char* wrong = check_head(at(), room, segment_->head.salt, position_, batch.head)) {
        return skip_damage(wrong, extent);
    }
    if (!has(batch.head.bytes())) {
        const Step done = fill(batch.head.bytes(), extent);
        if (done != Step::batch) return done;
        if (!has(batch.head.bytes())) return skip_damage("the file ends before its time", extent);
    }
    batch.body = at() + kBatchHead;
    if (const char* wrong = check_body(batch.head, batch.body)) return skip_damage(wrong, extent);
    position_ += batch.head.bytes();
    expected_ = batch.head.next();
    return Step::batch;
}

// Reads on from the position, at least so many bytes if there are.
Reader::Step Reader::fill(std::size_t bytes, const Extent& extent) {
    const auto wanted = static_cast<std::size_t>(
        std::max<std::uint64_t>(bytes, std::min<std::uint64_t>(kChunk, extent.bytes - position_)));
    if (capacity_ < wanted) {
        buffer_ = std::make_unique_for_overwrite<char[]>(wanted);
        capacity_ = wanted;
    }
    held_ = 0;
    int error = 0;
    const auto file = log_->files().get(segment_->path, error);
    const ssize_t got = file ? file->read(buffer_.get(), wanted, position_) : error;
    if (got == -ENOENT) return fallen_out();
    if (got < 0) {
        error_ = static_cast<int>(-got);
        return Step::failed;
    }
    begin_ = position_;
    held_ = static_cast<std::size_t>(got);
    return Step::batch;
}

// The file is gone: was the segment dropped, too?
Reader::Step Reader::fallen_out() {
    auto first = log_->first();
    if (!first || first->head.base <= segment_->head.base) {
        error_ = ENOENT;
        return Step::failed;
    }
    const std::uint64_t seen = segment_->head.records_before + records_;
    if (first->head.records_before > seen) missing_ += first->head.records_before - seen;
    enter(std::move(first));
    return Step::again;
}

Reader::Step Reader::skip_damage(const char* wrong, const Extent& extent) {
    int error = 0;
    const auto file = log_->files().get(segment_->path, error);
    if (!file) return error == -ENOENT ? fallen_out() : (error_ = -error, Step::failed);
    Walk walk(*file, segment_->head.salt, expected_, position_, extent.bytes);
    Batch found;
    const bool good = walk.next(found);
    if (walk.error() != 0) {
        error_ = -walk.error();
        return Step::failed;
    }
    damaged_ = segment_->path + " at " + std::to_string(position_) + ": " + wrong + ", where sequence " +
               std::to_string(expected_) + " should be";
    log_->passed(damaged_);
    position_ = good ? found.head.position : extent.bytes;
    held_ = 0;
    return Step::again;
}

// Leaves out what lies before the place that was asked for.
bool Reader::wanted(const Batch& batch) {
    const BatchHead& head = batch.head;
    records_ += head.count;
    if (start_.at == Start::At::sequence) {
        if (head.next() <= start_.sequence) return false;
        if (head.base < start_.sequence) first_ = static_cast<std::uint32_t>(start_.sequence - head.base);
        start_.at = Start::At::earliest;
    } else if (start_.at == Start::At::time) {
        if (head.last_ns < start_.time_ns) return false;
        RecordCursor cursor(batch);
        Record record;
        while (cursor.next(record) && record.time_ns < start_.time_ns) ++first_;
        start_.at = Start::At::earliest;
    }
    return true;
}

}  // namespace antiphon::log

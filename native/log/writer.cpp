#include "log/writer.hpp"

#include <sys/random.h>

#include <cerrno>
#include <random>
#include <system_error>

#include "log/names.hpp"

namespace antiphon::log {

namespace {

constexpr std::size_t kWrite = std::size_t{1} << 20;    // staged bytes that are worth a system call
constexpr std::size_t kJoin = std::size_t{128} << 10;   // how large a batch may become by joining blocks
constexpr int kDropsAtOnce = 4;                         // old segments: each one costs a sync

bool no_space(int error) { return error == -ENOSPC || error == -EDQUOT; }

Status status_of(int error) {
    // A file that may not grow is as good as a full disk: the next segment begins at nothing.
    return no_space(error) || error == -EFBIG ? Status::full : Status::failed;
}

std::uint64_t draw_salt() {
    std::uint64_t salt = 0;
    if (getrandom(&salt, sizeof salt, 0) != sizeof salt) salt = std::random_device{}();
    return salt;
}

}  // namespace

Writer::Writer(Log& log, Disk& disk, const Settings& settings, std::uint32_t epoch,
               const std::atomic<int>& not_yet, Continuation from, Counts& counts)
    : log_(log),
      disk_(disk),
      settings_(settings),
      counts_(counts),
      epoch_(epoch),
      not_yet_(not_yet),
      producers_(settings.max_producers),
      next_(from.next),
      previous_base_(from.previous_base),
      previous_bytes_(from.previous_bytes),
      records_(from.records) {
    producers_.restore(from.producers);
}

void Writer::put(Item&& item, Now now) {
    const Block& block = item.block;
    if (producers_.jumps(block.producer, block.producer_sequence)) return refuse(item, Status::out_of_order, 0);
    if (producers_.known(block.producer, block.producer_sequence, block.count()) < block.count()) {
        if (now.steady < tired_until_) return refuse(item, status_of(tired_), tired_);
        if (!has_room(block, now)) {
            flush(now);
            if (!roll(now)) return refuse(item, status_of(tired_), tired_);
            // The flush may have failed, with an earlier block of this producer in it.
            if (producers_.jumps(block.producer, block.producer_sequence)) return refuse(item, Status::out_of_order, 0);
        }
    }
    stage(std::move(item));
    if (buffer_.size() >= kWrite) flush(now);
}

bool Writer::has_room(const Block& block, Now now) const {
    if (!active_ || next_ + block.count() > active_->head.limit) return false;
    const bool empty = ahead_.records == 0 && open_.count == 0;
    if (empty) return true;  // a block that is larger than a segment has one to itself
    if (now.wall - active_->head.created_ns > settings_.segment_age) return false;
    return written_.bytes + buffer_.size() + kBatchHead + filled(block.bytes().size()) <= settings_.segment_bytes;
}

void Writer::stage(Item&& item) {
    Block& block = item.block;
    Entry entry{std::move(item.listener), item.token, {}, {}, block.producer, 0};
    // Looked at once more: a flush that failed has taken back what it had accepted.
    const std::uint32_t here = producers_.known(block.producer, block.producer_sequence, block.count());
    entry.receipt.duplicates = here;
    if (block.count() == 0) producers_.forgive(block.producer);
    if (here < block.count()) {
        if (here != 0) block.drop(here);
        entry.first = block.producer_sequence;
        const bool follows = block.producer == 0 || open_.producer_sequence + open_.count == block.producer_sequence;
        const bool joins = open_.count != 0 && open_.producer == block.producer && follows &&
                           open_.body_bytes + block.bytes().size() <= kJoin;
        if (!joins) {
            close_batch();
            open_batch(block);
        }
        buffer_.append(block.bytes());
        open_.count += block.count();
        open_.body_bytes += static_cast<std::uint32_t>(block.bytes().size());
        open_.first_ns = std::min(open_.first_ns, block.first_ns);
        open_.last_ns = std::max(open_.last_ns, block.last_ns);
        entry.undo = producers_.accept(block.producer, block.last_of_producer());
        entry.receipt.sequence = next_;
        entry.receipt.count = block.count();
        next_ += block.count();
    }
    staged_.push_back(std::move(entry));
}

void Writer::open_batch(const Block& block) {
    open_ = {};
    open_.salt = active_->head.salt;
    open_.position = ahead_.bytes;
    open_.synced = synced_.bytes;
    open_.base = next_;
    open_.epoch = epoch_;
    open_.producer = block.producer;
    open_.producer_sequence = block.producer_sequence;
    open_at_ = buffer_.size();
    buffer_.append(kBatchHead, '\0');
}

void Writer::close_batch() {
    if (open_.count == 0) return;
    buffer_.resize(filled(buffer_.size()), '\0');
    encode(open_, buffer_.data() + open_at_ + kBatchHead, buffer_.data() + open_at_);
    if (indexed_ == 0 || open_.position - indexed_ >= Index::kEvery) {
        entries_.push_back({open_.position, open_.base, ahead_.records, ahead_.last_ns});
        indexed_ = open_.position;
    }
    ahead_.bytes += open_.bytes();
    ahead_.next = open_.next();
    ahead_.records += open_.count;
    ahead_.last_ns = std::max(ahead_.last_ns, open_.last_ns);
    open_.count = 0;
}

void Writer::flush(Now now) {
    close_batch();
    if (!buffer_.empty()) {
        int error = 0;
        if (!file_) file_ = log_.files().get(active_->path, error);
        if (file_) error = write_all(*file_, buffer_.data(), buffer_.size(), written_.bytes);
        if (error != 0) return unstage(error, now);
        buffer_.clear();
        if (buffer_.capacity() > 4 * kWrite) buffer_.shrink_to_fit();
        written_ = ahead_;
        written_.touched_ns = ahead_.touched_ns = now.wall;
    }
    if (settings_.fsync == Fsync::none) {
        if (active_) show();
        acknowledge(staged_);
        file_.reset();
    } else {
        unsynced_.insert(unsynced_.end(), std::make_move_iterator(staged_.begin()),
                         std::make_move_iterator(staged_.end()));
        staged_.clear();
    }
}

// A write failed. Its sequences are used up: some of it may be on the disk. Cutting the file keeps that
// from being found; if the cut is lost in a crash, what is found was never acknowledged, and is either
// overwritten, or behind what the next segment's head says is valid, or simply there.
void Writer::unstage(int error, Now now) {
    const bool cut = file_ && file_->truncate(written_.bytes) == 0;
    buffer_.clear();
    ahead_ = written_;
    while (!entries_.empty() && entries_.back().position >= written_.bytes) entries_.pop_back();
    indexed_ = 0;
    tire(error, now);
    fail(staged_, error);
    if (cut && no_space(error)) return;  // it goes on here, once there is space
    sync(now);
    if (active_) end_segment(settings_.fsync == Fsync::none ? written_ : synced_);
}

void Writer::sync(Now now) {
    if (active_ && written_.bytes > synced_.bytes) {
        int error = 0;
        if (!file_) file_ = log_.files().get(active_->path, error);
        if (file_) error = file_->sync();
        Counts::add(counts_.syncs, 1);
        if (error != 0) return give_up(error, now);
        synced_ = written_;
        show();
    }
    acknowledge(unsynced_);
    file_.reset();
}

// A sync failed: what it should have brought to the disk may be there or not, and trying again would not
// tell (see File::sync). So nothing more is acknowledged in this segment, and the head of the next one
// says where it ends.
void Writer::give_up(int error, Now now) {
    tire(error, now);
    fail(unsynced_, error);
    log_.note({true, active_->path, synced_.bytes,
               std::string("a sync failed (") + std::generic_category().message(-error) + "); the segment ends here"});
    if (settings_.fsync == Fsync::none) return end_segment(written_);  // that was acknowledged
    if (file_) file_->truncate(synced_.bytes);
    end_segment(synced_);
}

// The index is written on the way; nothing depends on it.
void Writer::end_segment(Extent extent) {
    extent.next = next_;
    entries_.clear();
    IndexFile index;
    index.salt = active_->head.salt;
    index.extent = extent;
    index.index = log_.finish(*active_, extent);
    index.producers = producers_.marks();
    write_index(disk_, path_of(index_name(active_->head.base)), index);
    // One in which no sequence was used is replaced by the next, which has its name.
    if (next_ != active_->head.base) {
        previous_base_ = active_->head.base;
        previous_bytes_ = extent.bytes;
        records_ += extent.records;
    }
    active_.reset();
    file_.reset();
}

bool Writer::roll(Now now) {
    if (active_) sync(now);
    if (active_) end_segment(synced_);
    if (const int error = create(now)) {
        tire(error, now);
        return false;
    }
    keep(now);
    return true;
}

// Nothing is written into a segment before its head and its name are on the disk.
int Writer::create(Now now) {
    if (const int error = not_yet_.load(std::memory_order_relaxed)) return error;
    if (!directory_made_) {
        int error = disk_.make_directory(log_.directory());
        if (error != 0 && error != -EEXIST) return error;
        const std::string parent = log_.directory().substr(0, log_.directory().rfind('/'));
        if ((error = disk_.sync_directory(parent)) != 0) return error;
        directory_made_ = true;
    }
    SegmentHead head;
    head.epoch = epoch_;
    head.salt = draw_salt();
    head.base = next_;
    head.limit = next_ + settings_.segment_records;
    head.previous_base = previous_base_;
    head.previous_bytes = previous_bytes_;
    head.records_before = records_;
    head.created_ns = now.wall;
    const std::string bytes = encode(head, log_.topic());
    const std::string path = path_of(segment_name(head.base));
    const std::string draft = path + std::string(kDraft);
    int error = 0;
    disk_.unlink(draft);  // of an attempt that failed
    const auto file = disk_.open(draft, Access::create, error);
    if (!file) return error;
    error = write_all(*file, bytes.data(), bytes.size(), 0);
    if (error == 0) error = file->sync();
    if (error == 0) error = disk_.rename(draft, path);
    if (error != 0) disk_.unlink(draft);
    // If this fails, the file stays: an empty segment, which the next attempt replaces.
    if (error == 0) error = disk_.sync_directory(log_.directory());
    if (error != 0) return error;
    log_.files().forget(path);
    active_ = std::make_shared<Segment>(head, path, bytes.size());
    synced_ = written_ = ahead_ = active_->extent;
    entries_.clear();
    indexed_ = 0;
    log_.files().put(path, file);
    log_.add(active_);
    return 0;
}

void Writer::tend(Now now) {
    bool old = active_ && ahead_.records != 0 && now.wall - active_->head.created_ns > settings_.segment_age;
    if (!active_ && settings_.keep_age != 0) {
        // Nobody has appended since the log was opened. Its last segment holds the sequences; another one
        // has to hold them before that can go.
        const Log::Oldest only = log_.oldest();
        old = only.count == 1 && only.records != 0 && now.wall - only.touched_ns > settings_.keep_age;
    }
    if (old && now.steady >= tired_until_) {
        flush(now);
        roll(now);
    }
    keep(now);
}

// One after the other, each with a sync: after a crash those that are left have no hole between them,
// and a hole means damage.
void Writer::keep(Now now) {
    for (int i = 0; i < kDropsAtOnce; ++i) {
        const Log::Oldest oldest = log_.oldest();
        if (oldest.count < 2) return;
        const bool large = settings_.keep_bytes != 0 && oldest.bytes > settings_.keep_bytes;
        const bool old = settings_.keep_age != 0 && now.wall - oldest.touched_ns > settings_.keep_age;
        if (!large && !old) return;
        log_.drop_first();
        log_.files().forget(oldest.segment->path);
        disk_.unlink(path_of(index_name(oldest.segment->head.base)));
        int error = disk_.unlink(oldest.segment->path);
        if (error == 0) error = disk_.sync_directory(log_.directory());
        if (error != 0) {
            log_.note({false, oldest.segment->path, 0,
                       "cannot be removed: " + std::generic_category().message(-error)});
            return;
        }
    }
}

void Writer::finish(Now now) {
    flush(now);
    sync(now);
    if (active_) end_segment(synced_);
}

void Writer::show() {
    log_.show(*active_, written_, entries_);
    entries_.clear();
}

void Writer::tire(int error, Now now) {
    tired_ = error;
    tired_until_ = now.steady + settings_.retry;
}

void Writer::acknowledge(Entries& entries) {
    for (const Entry& entry : entries) {
        Counts::add(counts_.appended, entry.receipt.count);
        Counts::add(counts_.duplicates, entry.receipt.duplicates);
        if (entry.listener) entry.listener->appended(entry.token, entry.receipt);
    }
    entries.clear();
}

void Writer::fail(Entries& entries, int error) {
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
        producers_.undo(entry->undo);
        // Of those that are here already nothing failed: their producer may know, and never send them again.
        if (entry->receipt.count != 0) producers_.failed(entry->producer, entry->first);
    }
    Counts::add(counts_.refused, entries.size());
    if (status_of(error) == Status::full) Counts::add(counts_.no_space, entries.size());
    for (const Entry& entry : entries) {
        if (entry.listener) entry.listener->appended(entry.token, {status_of(error), -error, 0, 0, 0});
    }
    entries.clear();
}

void Writer::refuse(const Item& item, Status status, int error) {
    Counts::add(counts_.refused, 1);
    if (status == Status::full) Counts::add(counts_.no_space, 1);
    const Block& block = item.block;
    const std::uint32_t here = producers_.known(block.producer, block.producer_sequence, block.count());
    producers_.failed(block.producer, block.producer_sequence + here);
    if (item.listener) item.listener->appended(item.token, {status, -error, 0, 0, 0});
}

}  // namespace antiphon::log

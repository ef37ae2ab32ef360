#include "log/store.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/wait.hpp"
#include "frames/handshake.hpp"
#include "log/names.hpp"
#include "log/recover.hpp"

namespace antiphon::log {

namespace {

constexpr std::size_t kEnough = std::size_t{1} << 20;  // bytes that are written before their interval ends
constexpr std::size_t kItem = 128;                     // what a block costs beside its bytes
constexpr Nanos kTendEvery = kSecond;
constexpr std::string_view kTitle = "antiphon store ";

std::string words(int error) { return std::generic_category().message(-error); }

bool no_space(int error) { return error == -ENOSPC || error == -EDQUOT; }

std::size_t cost(const Block& block) { return block.bytes().size() + kItem; }

// Only whole segments are dropped, so none may span more time than is kept.
Settings sensible(Settings settings) {
    if (settings.keep_age != 0) settings.segment_age = std::min(settings.segment_age, settings.keep_age);
    return settings;
}

[[noreturn]] void fail(const std::string& what, int error) {
    throw Failure(Failure::Kind::disk, what + ": " + words(error), -error);
}

}  // namespace

Now now() { return {now_ns(), wall_clock_ns()}; }

Store::Store(Disk& disk, std::string directory, const Settings& settings)
    : disk_(disk),
      directory_(std::move(directory)),
      settings_(sensible(settings)),
      files_(std::make_shared<Files>(disk, settings.writable ? Access::write : Access::read, settings.max_open)) {
    prepare();
    if (settings_.writable && settings_.threaded) thread_ = std::make_unique<std::thread>([this] { run(); });
}

Store::~Store() {
    if (forked()) {
        (void)thread_.release();  // it is the parent's, and so is what its locks guard
        return;
    }
    close();
}

// --- the directory --------------------------------------------------------------------------------

void Store::prepare() {
    if (settings_.writable) {
        const int error = disk_.make_directory(directory_);
        if (error != 0 && error != -EEXIST) fail("cannot make " + directory_, error);
        // A directory is worth nothing if its name is lost. One that was there may also be of an earlier
        // start, whose sync failed: only where the parent is not ours to sync, somebody else has made it.
        const std::size_t slash = directory_.find_last_of('/');
        const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : directory_.substr(0, slash);
        const int synced = disk_.sync_directory(parent);
        const bool not_ours = error == -EEXIST && (synced == -EACCES || synced == -EPERM);
        if (synced != 0 && !not_ours) fail("cannot sync " + parent, synced);
    }
    std::vector<std::string> names;
    if (const int error = disk_.list(directory_, names)) fail("cannot list " + directory_, error);
    const bool known = std::find(names.begin(), names.end(), "store") != names.end();
    // What a first start leaves that was cut short.
    const std::vector<std::string> ours{"lock", "store.new", "topics"};
    const bool foreign = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return std::find(ours.begin(), ours.end(), name) == ours.end();
    });
    if (!known && (foreign || !settings_.writable)) {
        throw Failure(Failure::Kind::not_a_store, directory_ + " is no store: it has no file called store");
    }
    if (settings_.writable) {
        std::string holder;
        const int error = disk_.lock(directory_ + "/lock", held_, holder);
        if (error == -EWOULDBLOCK) {
            throw Failure(Failure::Kind::in_use, directory_ + " is in use" + (holder.empty() ? "" : " by " + holder));
        }
        if (error != 0) fail("cannot lock " + directory_, error);
    }
    set_epoch();
}

// The epoch is on the disk before anything that carries it.
void Store::set_epoch() {
    const std::string path = directory_ + "/store";
    int error = 0;
    if (const auto file = disk_.open(path, Access::read, error)) {
        char text[128];
        const ssize_t got = file->read(text, sizeof text, 0);
        if (got < 0) fail("cannot read " + path, static_cast<int>(got));
        const std::string_view all(text, static_cast<std::size_t>(got));
        unsigned format = 0;
        const char* end = text + got;
        if (all.starts_with(kTitle)) end = std::from_chars(text + kTitle.size(), text + got, format).ptr;
        if (format == 0) throw Failure(Failure::Kind::damaged, path + " is not the file of a store, or is damaged");
        if (format != kFormat) {
            throw Failure(Failure::Kind::not_a_store, directory_ + " has format " + std::to_string(format) +
                                                          "; this version knows " + std::to_string(kFormat));
        }
        const auto read = [&](std::string_view name, auto& value, int base) {
            const std::string_view rest(end, static_cast<std::size_t>(text + got - end));
            if (!rest.starts_with(name)) return false;
            const auto found = std::from_chars(end + name.size(), text + got, value, base);
            end = found.ptr;
            return found.ec == std::errc{};
        };
        if (!read("\nepoch ", epoch_, 10)) {
            throw Failure(Failure::Kind::damaged, path + " is not the file of a store, or is damaged");
        }
        read("\nid ", id_, 16);  // older ones have none
    } else if (error != -ENOENT) {
        fail("cannot read " + path, error);
    }
    if (!settings_.writable) return;
    ++epoch_;
    while (id_ == 0) id_ = random_u64() >> 1;  // as a signed number it is the same
    // On a full disk what is there can be read all the same, and the log thread tries again.
    if (const int wrong = write_epoch()) {
        if (!no_space(wrong)) fail("cannot write " + path, wrong);
        epoch_error_.store(wrong, std::memory_order_relaxed);
    }
}

int Store::write_epoch() {
    const std::string path = directory_ + "/store", draft = path + ".new";
    char id[17];
    std::snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(id_));
    const std::string text =
        std::string(kTitle) + std::to_string(kFormat) + "\nepoch " + std::to_string(epoch_) + "\nid " + id + "\n";
    int error = 0;
    disk_.unlink(draft);
    {
        const auto file = disk_.open(draft, Access::create, error);
        if (!file) return error;
        error = write_all(*file, text.data(), text.size(), 0);
        if (error == 0) error = file->sync();
    }
    if (error != 0) {
        disk_.unlink(draft);
        return error;
    }
    if ((error = disk_.rename(draft, path)) != 0) return error;
    error = disk_.make_directory(directory_ + "/topics");
    if (error != 0 && error != -EEXIST) return error;
    return disk_.sync_directory(directory_);
}

std::shared_ptr<Log> Store::log(const std::string& topic) {
    const auto known = [&]() -> std::shared_ptr<Log> {
        std::lock_guard lock(logs_mutex_);
        const auto found = logs_.find(topic);
        return found == logs_.end() ? nullptr : found->second;
    };
    if (auto found = known()) return found;
    if (topic.empty() || topic.size() > kLongestTopic) {
        throw Failure(Failure::Kind::topic,
                      "a topic of " + std::to_string(topic.size()) + " bytes; 1 to " + std::to_string(kLongestTopic) + " can be recorded");
    }
    std::lock_guard opening(opening_);
    if (auto found = known()) return found;
    {
        std::lock_guard lock(mutex_);
        if (closing_) throw Failure(Failure::Kind::closed, directory_ + " is closed");
    }
    auto log = std::make_shared<Log>(topic, directory_ + "/topics/" + directory_of(topic), files_, damages_);
    Recovered found = recover(disk_, settings_, {log->directory(), topic, settings_.writable, false}, now());
    if (settings_.writable) {
        log->give(std::make_unique<Writer>(*log, disk_, settings_, epoch_, epoch_error_, std::move(found.from), counts_));
    }
    log->begin(std::move(found.segments), std::move(found.findings));
    std::lock_guard lock(logs_mutex_);
    logs_.emplace(topic, log);
    return log;
}

bool Store::has_open(const std::string& topic) const {
    std::lock_guard lock(logs_mutex_);
    return logs_.contains(topic);
}

std::vector<std::string> Store::topics() const {
    std::vector<std::string> names, topics;
    const std::string parent = directory_ + "/topics";
    if (disk_.list(parent, names) != 0) return topics;
    for (const std::string& name : names) {
        std::vector<std::string> files;
        if (disk_.list(parent + "/" + name, files) != 0) continue;
        std::sort(files.begin(), files.end());
        for (const std::string& file : files) {
            if (!segment_base(file)) continue;
            int error = 0;
            char bytes[kSegmentHead + kLongestTopic];
            SegmentHead head;
            std::string topic;
            const auto opened = disk_.open(parent + "/" + name + "/" + file, Access::read, error);
            const ssize_t got = opened ? opened->read(bytes, sizeof bytes, 0) : -1;
            if (got < 0 || !decode({bytes, static_cast<std::size_t>(got)}, head, topic).empty()) continue;
            if (directory_of(topic) == name) topics.push_back(topic);
            break;
        }
    }
    std::sort(topics.begin(), topics.end());
    return topics;
}

// --- the queue -------------------------------------------------------------------------------------

Put Store::append(const std::shared_ptr<Log>& log, Block&& block, std::shared_ptr<Listener> listener,
                  std::uint64_t token) {
    const std::size_t bytes = cost(block);
    if (bytes > settings_.queue_bytes || block.count() > settings_.segment_records) return Put::too_large;
    std::lock_guard lock(mutex_);
    if (closing_ || !settings_.writable) return Put::closed;
    if (queued_bytes_ + bytes > settings_.queue_bytes) {
        starved_ = true;
        return Put::no_room;
    }
    queued_bytes_ += bytes;
    queue_.push_back({log, std::move(block), std::move(listener), token});
    if (wake_at_ != 0 && queued_bytes_ >= wake_at_) {
        wake_at_ = 0;
        arrived_.notify_one();
    }
    return Put::taken;
}

bool Store::wait_for_room(std::size_t bytes, Nanos until) {
    std::unique_lock lock(mutex_);
    const auto fits = [&] { return queued_bytes_ + bytes + kItem <= settings_.queue_bytes; };
    while (!closing_ && !fits()) {
        starved_ = true;
        if (!wait_until(room_, lock, until)) return false;
    }
    return !closing_;
}

StoreFacts Store::facts() const {
    StoreFacts facts;
    facts.appended = counts_.appended.load(std::memory_order_relaxed);
    facts.duplicates = counts_.duplicates.load(std::memory_order_relaxed);
    facts.refused = counts_.refused.load(std::memory_order_relaxed);
    facts.no_space = counts_.no_space.load(std::memory_order_relaxed);
    facts.rounds = counts_.rounds.load(std::memory_order_relaxed);
    facts.damaged = damages_->count();
    facts.waits = epoch_error_.load(std::memory_order_relaxed) != 0;
    facts.syncs = counts_.syncs.load(std::memory_order_relaxed);
    {
        std::lock_guard lock(mutex_);
        facts.queued_bytes = queued_bytes_;
    }
    std::lock_guard lock(logs_mutex_);
    facts.logs = logs_.size();
    facts.open_files = files_->open();
    return facts;
}

// --- the log thread --------------------------------------------------------------------------------

void Store::run() {
    prctl(PR_SET_NAME, "ap-log");
    std::vector<Item> items;
    while (true) {
        {
            std::unique_lock lock(mutex_);
            while (queue_.empty() && !closing_) {
                const Nanos until = std::min(next_tend_, dirty_.empty() ? kNever : last_sync_ + settings_.interval);
                wake_at_ = 1;
                if (!wait_until(arrived_, lock, until)) break;
            }
            // Nobody is acknowledged before the interval ends, so nobody is in a hurry: larger writes are
            // cheaper, and a thread that appends need not wake this one each time.
            const Nanos ends = last_sync_ + settings_.interval;
            while (settings_.fsync == Fsync::interval && !closing_ && queued_bytes_ < kEnough) {
                wake_at_ = kEnough;
                if (!wait_until(arrived_, lock, std::min(ends, next_tend_))) break;
            }
            wake_at_ = 0;
            if (closing_ && queue_.empty()) break;
            items.swap(queue_);
        }
        round(items, now());
    }
    finish();
}

bool Store::due(Nanos steady) const {
    if (settings_.fsync == Fsync::interval) return steady - last_sync_ >= settings_.interval;
    return settings_.fsync == Fsync::always;
}

void Store::round(std::vector<Item>& items, Now at) {
    Counts::add(counts_.rounds, 1);
    if (epoch_error_.load(std::memory_order_relaxed) != 0 && at.steady >= next_epoch_) {
        next_epoch_ = at.steady + kTendEvery;
        epoch_error_.store(write_epoch(), std::memory_order_relaxed);
    }
    std::size_t bytes = 0;
    for (Item& item : items) {
        Writer& writer = item.log->writer();
        bytes += cost(item.block);
        if (!std::exchange(writer.in_round, true)) written_.push_back(&writer);
        writer.put(std::move(item), at);
    }
    for (Writer* writer : written_) {
        writer->in_round = false;
        writer->flush(at);
        const bool waits = settings_.fsync != Fsync::none && writer->unsynced();
        if (waits && !std::exchange(writer->in_dirty, true)) dirty_.push_back(writer);
        // Each of them holds a descriptor until it is synced.
        if (dirty_.size() > settings_.max_open / 2) sync_all(at);
    }
    written_.clear();
    items.clear();
    bool room = false;
    {
        std::lock_guard lock(mutex_);
        queued_bytes_ -= bytes;
        if (starved_ && queued_bytes_ <= settings_.queue_bytes / 2) {
            starved_ = false;
            room = true;
            room_.notify_all();
        }
    }
    if (room && on_room_) on_room_();
    if (due(at.steady)) sync_all(at);
    if (at.steady >= next_tend_) {
        next_tend_ = at.steady + kTendEvery;
        for (const auto& log : all_logs()) log->writer().tend(at);
    }
}

void Store::sync_all(Now at) {
    for (Writer* writer : dirty_) {
        writer->in_dirty = false;
        // In the middle of a round it may have something staged, which goes with its segment: a sync that
        // fails ends that, and takes back what the producers sent last first.
        writer->flush(at);
        writer->sync(at);
    }
    dirty_.clear();
    last_sync_ = settings_.threaded ? now_ns() : at.steady;
}

void Store::step(Now at) {
    std::vector<Item> items;
    {
        std::lock_guard lock(mutex_);
        items.swap(queue_);
    }
    round(items, at);
}

void Store::close() {
    std::call_once(closed_, [this] {
        {
            // A log that is being opened is opened first, and ended with the others; no other is opened
            // after that, since repairs are only ours to make while we hold the directory.
            std::lock_guard opening(opening_);
            std::lock_guard lock(mutex_);
            closing_ = true;
            arrived_.notify_one();
            room_.notify_all();
        }
        if (thread_) {
            thread_->join();
            thread_.reset();
        } else {
            if (settings_.writable) step(now());
            finish();
        }
        held_.reset();
    });
}

void Store::finish() {
    for (const auto& log : all_logs()) {
        if (settings_.writable) log->writer().finish(now());
        log->close();
    }
}

std::vector<std::shared_ptr<Log>> Store::all_logs() const {
    std::vector<std::shared_ptr<Log>> logs;
    std::lock_guard lock(logs_mutex_);
    logs.reserve(logs_.size());
    for (const auto& [topic, log] : logs_) logs.push_back(log);
    return logs;
}

}  // namespace antiphon::log

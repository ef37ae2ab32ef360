// What the tests of the log share: a store on a disk in memory, driven step by step, and a look at
// everything that is in it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fake_disk.hpp"
#include "log/reader.hpp"
#include "log/store.hpp"

namespace antiphon::log {

// Keeps what it hears.
class Heard : public Listener {
   public:
    void appended(std::uint64_t token, const Receipt& receipt) override {
        std::lock_guard lock(mutex_);
        receipts_[token] = receipt;
        ++count_;
    }
    bool has(std::uint64_t token) const {
        std::lock_guard lock(mutex_);
        return receipts_.contains(token);
    }
    Receipt at(std::uint64_t token) const {
        std::lock_guard lock(mutex_);
        return receipts_.at(token);
    }
    std::uint64_t count() const {
        std::lock_guard lock(mutex_);
        return count_;
    }

   private:
    mutable std::mutex mutex_;
    std::map<std::uint64_t, Receipt> receipts_;
    std::uint64_t count_ = 0;
};

inline Block block(const std::vector<std::string>& data, std::uint64_t producer = 0, std::uint64_t first = 0,
                   std::int64_t time_ns = 0) {
    Block made(producer, first);
    for (const std::string& one : data) made.add(one, "", time_ns, 7);
    return made;
}

struct Seen {
    std::uint64_t sequence;
    std::string data, properties;
    std::int64_t time_ns;
    std::uint32_t source;
    std::uint64_t producer, producer_sequence;
};

struct All {
    std::vector<Seen> records;
    std::uint64_t missed = 0;
    std::vector<std::string> damage;
    Read ended = Read::timeout;

    std::vector<std::string> data() const {
        std::vector<std::string> all;
        for (const Seen& one : records) all.push_back(one.data);
        return all;
    }
};

// Until there is no more, without waiting.
inline All read_all(Reader& reader) {
    All all;
    Batch batch;
    while ((all.ended = reader.next(batch, 0)) == Read::batch) {
        all.missed += reader.missed();
        if (!reader.damage().empty()) all.damage.push_back(reader.damage());
        RecordCursor cursor(batch);
        Record record;
        for (std::uint32_t i = 0; cursor.next(record); ++i) {
            if (i < reader.first()) continue;
            all.records.push_back({record.sequence, std::string(record.data), std::string(record.properties),
                                   record.time_ns, record.source, batch.head.producer,
                                   batch.head.producer == 0 ? 0 : batch.head.producer_sequence + i});
        }
    }
    return all;
}

inline All read_all(const std::shared_ptr<Log>& log, Start start = {}) {
    Reader reader(log, start);
    return read_all(reader);
}

inline Settings small() {
    Settings settings;
    settings.threaded = false;
    settings.fsync = Fsync::always;
    settings.segment_bytes = 4096;
    settings.retry = 0;
    return settings;
}

// A store that goes forward when it is told to, on a clock of its own.
class Stepped {
   public:
    explicit Stepped(FakeDisk& disk, const Settings& settings = small())
        : disk(disk), store(std::make_unique<Store>(disk, "/store", settings)) {}

    // Puts a block in; settle() or step() brings it to the disk.
    std::uint64_t put(const std::string& topic, Block&& made) {
        const std::uint64_t token = ++tokens_;
        if (store->append(store->log(topic), std::move(made), heard, token) != Put::taken) return 0;
        return token;
    }
    void step(Nanos later = kMillisecond) {
        at.steady += later;
        at.wall += later;
        store->step(at);
    }
    Receipt append(const std::string& topic, Block&& made) {
        const std::uint64_t token = put(topic, std::move(made));
        step(kSecond);
        return heard->at(token);
    }
    void close() { store->close(); }
    // The process ends in the middle of whatever it does.
    void kill() {
        disk.dies_in = 0;
        store.reset();
        disk.kill();
    }
    void crash() {
        kill();
        disk.crash();
    }

    FakeDisk& disk;
    std::unique_ptr<Store> store;
    std::shared_ptr<Heard> heard = std::make_shared<Heard>();
    Now at{kSecond, 1'700'000'000 * kSecond};

   private:
    std::uint64_t tokens_ = 0;
};

}  // namespace antiphon::log

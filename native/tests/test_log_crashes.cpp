// The log under a disk that crashes, at random and repeatably: what was acknowledged is there once,
// whatever happened, and no sequence is ever given twice.
//
//   ANTIPHON_SEED=7 test_log_crashes    another few hundred courses
#include <set>

#include "check.hpp"
#include "logs.hpp"

using namespace antiphon;
using namespace antiphon::log;

namespace {

std::string payload(std::uint64_t producer, std::uint64_t number) {
    return std::to_string(producer) + ":" + std::to_string(number) + std::string((producer * 7 + number * 13) % 200, '.');
}

// Somebody who publishes to one topic, in order, and sends again what was not acknowledged, from there
// on. Several of its blocks may be under way at once.
struct Publisher {
    std::uint64_t id;
    std::string topic;
    std::uint64_t made = 0;       // its last number
    std::uint64_t sent = 0;       // up to here, in this life
    std::uint64_t confirmed = 0;  // up to here it knows
    struct Flight {
        std::uint64_t token, first, last;
    };
    std::vector<Flight> flights;
};

// One course: several lives of a store, each ended in another way.
class Course {
   public:
    explicit Course(std::uint64_t number) : random_(check::random(number)), disk_(random_()) {
        settings_ = small();
        settings_.fsync = std::array{Fsync::none, Fsync::interval, Fsync::always}[pick(3)];
        settings_.segment_bytes = 300 + pick(4000);
        settings_.segment_records = 10 + pick(200);
        settings_.max_open = 1 + pick(4);
        settings_.interval = pick(2) ? 0 : 5 * kMillisecond;
        const std::uint64_t topics = 1 + pick(3);
        for (std::uint64_t i = 0; i < 1 + pick(5); ++i) {
            publishers_.push_back({i + 1, "topic/" + std::to_string(pick(topics)), 0, 0, 0, {}});
        }
    }

    void run() {
        const std::uint64_t lives = 1 + pick(6);
        for (std::uint64_t life = 0; life < lives; ++life) live();
        // And in the end everything arrives.
        calm();
        CHECK(open());
        for (int round = 0; round < 50 && !all_confirmed(); ++round) {
            for (Publisher& one : publishers_) {
                while (one.sent < one.made) send(one);
            }
            one_->step(kSecond);
            hear();
        }
        CHECK(all_confirmed());
        verify(true);
        one_->close();
        one_.reset();
        CHECK(open());
        verify(true);
        one_->close();
    }

   private:
    std::uint64_t pick(std::uint64_t bound) { return check::below(random_, bound); }

    void calm() {
        disk_.fails_to_sync = disk_.writes_short = 0;
        disk_.space = UINT64_MAX;
        disk_.dies_in = UINT64_MAX;
    }

    // False: it died on the way.
    bool open() {
        try {
            one_ = std::make_unique<Stepped>(disk_, settings_);
            for (const Publisher& publisher : publishers_) {
                const auto log = one_->store->log(publisher.topic);
                std::uint64_t& highest = highest_[publisher.topic];
                CHECK(log->writer().next() >= highest);
                for (const Finding& finding : log->findings()) CHECK_SAYS(!finding.damage, finding.what);
            }
        } catch (const Failure& failure) {
            CHECK(failure.kind == Failure::Kind::disk);
            return false;
        }
        for (Publisher& publisher : publishers_) {
            publisher.flights.clear();
            publisher.sent = publisher.confirmed;
        }
        return true;
    }

    void live() {
        calm();
        if (pick(3) == 0) disk_.dies_in = pick(300);
        if (pick(3) == 0) disk_.writes_short = 300;
        // A sync that fails may fail while the log is opened, too.
        if (settings_.fsync != Fsync::none && pick(3) == 0) disk_.fails_to_sync = 100;
        if (!open()) return die(false);
        if (disk_.dies_in == UINT64_MAX) verify(false);
        for (std::uint64_t steps = pick(40); steps > 0 && !disk_.dead(); --steps) {
            if (pick(8) == 0) disk_.space = pick(2) ? pick(2000) : UINT64_MAX;
            for (std::uint64_t sends = pick(6); sends > 0; --sends) send(publishers_[pick(publishers_.size())]);
            one_->step(pick(3) * 3 * kMillisecond);
            hear();
            note_highest();
        }
        if (!disk_.dead() && pick(3) == 0) {
            calm();
            verify(false);
            one_->close();
            hear();
            note_highest();
            one_.reset();
            return;
        }
        die(true);
    }

    // In the middle of whatever it does. Without syncs only the process may die: that is what `none` says.
    void die(bool opened) {
        disk_.dies_in = 0;
        if (opened) note_highest();
        one_.reset();
        if (settings_.fsync == Fsync::none || pick(3) == 0) {
            disk_.kill();
        } else {
            disk_.crash();
        }
        calm();
    }

    void send(Publisher& publisher) {
        if (publisher.sent == publisher.made) publisher.made += 1 + pick(4);
        Block made(publisher.id, publisher.sent + 1);
        const std::uint64_t last = std::min(publisher.made, publisher.sent + 1 + pick(6));
        for (std::uint64_t number = publisher.sent + 1; number <= last; ++number) {
            made.add(payload(publisher.id, number), "", static_cast<std::int64_t>(number), 1);
        }
        const std::uint64_t token = one_->put(publisher.topic, std::move(made));
        CHECK(token != 0);
        publisher.flights.push_back({token, publisher.sent + 1, last});
        publisher.sent = last;
    }

    void hear() {
        for (Publisher& publisher : publishers_) {
            std::vector<Publisher::Flight> left;
            for (const Publisher::Flight& flight : publisher.flights) {
                if (!one_->heard->has(flight.token)) {
                    left.push_back(flight);
                    continue;
                }
                const Receipt receipt = one_->heard->at(flight.token);
                if (receipt.status == Status::ok) {
                    CHECK_EQUAL(receipt.count + receipt.duplicates, flight.last - flight.first + 1);
                    // Nothing before it may have failed: the log takes no block over one that did.
                    CHECK_EQUAL(flight.first <= publisher.confirmed + 1, true);
                    publisher.confirmed = std::max(publisher.confirmed, flight.last);
                    if (receipt.count != 0) {
                        std::uint64_t& highest = highest_[publisher.topic];
                        CHECK(receipt.sequence + receipt.count > receipt.sequence);
                        highest = std::max(highest, receipt.sequence + receipt.count);
                    }
                } else {
                    publisher.sent = std::min(publisher.sent, publisher.confirmed);
                }
            }
            publisher.flights = std::move(left);
        }
    }

    void note_highest() {
        for (const Publisher& publisher : publishers_) {
            std::uint64_t& highest = highest_[publisher.topic];
            highest = std::max(highest, one_->store->log(publisher.topic)->writer().next());
        }
    }

    bool all_confirmed() const {
        return std::all_of(publishers_.begin(), publishers_.end(),
                           [](const Publisher& one) { return one.confirmed == one.made; });
    }

    void verify(bool complete) {
        std::map<std::uint64_t, std::vector<std::uint64_t>> numbers;
        std::set<std::string> topics;
        for (const Publisher& publisher : publishers_) topics.insert(publisher.topic);
        for (const std::string& topic : topics) {
            const All all = read_all(one_->store->log(topic));
            CHECK_EQUAL(all.ended, Read::timeout);
            CHECK(all.damage.empty());
            CHECK_EQUAL(all.missed, 0u);
            std::uint64_t last = 0;
            for (const Seen& seen : all.records) {
                CHECK(seen.sequence > last);
                last = seen.sequence;
                CHECK_EQUAL(seen.data, payload(seen.producer, seen.producer_sequence));
                CHECK_EQUAL(publishers_.at(seen.producer - 1).topic, topic);
                numbers[seen.producer].push_back(seen.producer_sequence);
                // A sequence that was ever read means the same for ever.
                const auto [place, fresh] = meaning_[topic].emplace(seen.sequence, seen.data);
                CHECK(fresh || place->second == seen.data);
            }
        }
        for (const Publisher& publisher : publishers_) {
            const auto& there = numbers[publisher.id];
            // Once each, in order, without a hole, and all that was acknowledged.
            for (std::size_t i = 0; i < there.size(); ++i) CHECK_EQUAL(there[i], i + 1);
            CHECK(there.size() >= publisher.confirmed);
            if (complete) CHECK_EQUAL(there.size(), publisher.made);
        }
    }

    std::mt19937_64 random_;
    FakeDisk disk_;
    Settings settings_;
    std::unique_ptr<Stepped> one_;
    std::vector<Publisher> publishers_;
    std::map<std::string, std::uint64_t> highest_;  // the next sequence that any life would have given
    std::map<std::string, std::map<std::uint64_t, std::string>> meaning_;
};

}  // namespace

TEST("every acknowledged record is there once, whatever becomes of the disk") {
    const std::string title = check::running;
    std::string name;
    for (std::uint64_t number = 0; number < check::count(1000, 100'000); ++number) {
        name = title + ", course " + std::to_string(number);
        check::running = name.c_str();
        Course(number).run();
    }
    check::running = "";
}

TEST("a crash at every single operation of a short life loses nothing") {
    for (const Fsync mode : {Fsync::interval, Fsync::always}) {
        Settings settings = small();
        settings.fsync = mode;
        settings.segment_bytes = 400;
        settings.keep_bytes = 0;
        bool whole = false;
        for (std::uint64_t operation = 1; !whole; ++operation) {
            for (std::uint64_t seed = 0; seed < 4; ++seed) {
                FakeDisk disk(operation * 100 + seed);
                std::vector<std::string> acknowledged;
                std::uint64_t next = 0;
                disk.dies_in = operation;
                try {
                    Stepped one(disk, settings);
                    for (std::uint64_t i = 1; i <= 6 && !disk.dead(); ++i) {
                        const Receipt receipt = one.append("t", block({payload(1, i)}, 1, i));
                        if (receipt.status != Status::ok) break;
                        acknowledged.push_back(payload(1, i));
                        next = receipt.sequence + 1;
                    }
                    one.close();
                } catch (const Failure&) {
                }
                whole = !disk.dead();
                disk.dies_in = 0;
                disk.crash();
                Stepped two(disk, settings);
                const auto log = two.store->log("t");
                const auto there = read_all(log).data();
                CHECK(there.size() >= acknowledged.size() && there.size() <= acknowledged.size() + 1);
                CHECK(std::equal(acknowledged.begin(), acknowledged.end(), there.begin()));
                CHECK(log->writer().next() >= next);
            }
        }
    }
}

TEST("a segment whose name may yet be lost does not count before it is synced") {
    FakeDisk disk(1);
    Settings settings = small();
    {
        Stepped one(disk, settings);
        CHECK_EQUAL(one.append("t", block({"1"})).sequence, 1u);
        one.close();
    }
    {
        // The segment is made, and its directory is not synced.
        Stepped one(disk, settings);
        one.store->log("t");
        disk.fails_to_sync_directories = 1000;
        CHECK_EQUAL(one.append("t", block({"2"})).status, Status::failed);
        one.kill();
    }
    std::uint64_t next = 0;
    {
        disk.fails_to_sync_directories = 0;
        Stepped one(disk, settings);
        disk.fails_to_sync_directories = 1000;
        try {
            one.store->log("t");
            CHECK(false);  // it would go on behind a segment that may be gone tomorrow
        } catch (const Failure& failure) {
            CHECK(failure.kind == Failure::Kind::disk);
        }
        disk.fails_to_sync_directories = 0;
        next = one.store->log("t")->writer().next();
        one.crash();
    }
    Stepped one(disk, settings);
    CHECK(one.store->log("t")->writer().next() >= next);
}

TEST("a store whose own name may yet be lost is not opened, also when it was there before") {
    FakeDisk disk(1);
    disk.fails_to_sync_directories = 1000;
    for (int attempt = 0; attempt < 2; ++attempt) {
        try {
            Stepped one(disk, small());
            CHECK(false);  // whatever it acknowledges would go with the directory
        } catch (const Failure& failure) {
            CHECK(failure.kind == Failure::Kind::disk);
        }
        disk.kill();
    }
    disk.fails_to_sync_directories = 0;
    {
        Stepped one(disk, small());
        CHECK_EQUAL(one.append("t", block({"1"})).sequence, 1u);
        one.crash();
    }
    Stepped one(disk, small());
    CHECK_EQUAL(read_all(one.store->log("t")).data().size(), 1u);
}

TEST("old segments that a crash brings back leave no hole") {
    for (std::uint64_t number = 0; number < check::count(300, 5000); ++number) {
        auto random = check::random(number);
        FakeDisk disk(number);
        Settings settings = small();
        settings.segment_bytes = 600;
        settings.keep_bytes = 2000;
        std::uint64_t last = 0;
        for (int life = 0; life < 3; ++life) {
            Stepped one(disk, settings);
            const auto log = one.store->log("t");
            for (const Finding& finding : log->findings()) CHECK_SAYS(!finding.damage, finding.what);
            const All all = read_all(log);
            CHECK_EQUAL(all.missed, 0u);
            if (last != 0) CHECK(!all.records.empty() && all.records.back().sequence >= last);
            if (check::below(random, 2)) disk.dies_in = check::below(random, 200);
            for (std::uint64_t i = 0; i < 40 && !disk.dead(); ++i) {
                const Receipt receipt = one.append("t", block({std::string(100, 'x')}));
                if (receipt.status == Status::ok) last = receipt.sequence;
            }
            one.crash();
        }
    }
}

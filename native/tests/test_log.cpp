// The log on a disk in memory: what goes in comes out, also after it was opened again, torn or damaged.
#include "check.hpp"
#include "log/check.hpp"
#include "log/crc32c.hpp"
#include "log/names.hpp"
#include "logs.hpp"

using namespace antiphon;
using namespace antiphon::log;

namespace {

std::string numbered(std::uint64_t n, std::size_t size = 40) {
    std::string text = std::to_string(n);
    text.resize(std::max(size, text.size()), '.');
    return text;
}

std::vector<std::string> segments(FakeDisk& disk) {
    std::vector<std::string> found;
    for (const std::string& path : disk.paths()) {
        if (path.ends_with(".log")) found.push_back(path);
    }
    return found;
}

// Three batches, each synced before the next, and no clean end.
std::string three_batches(FakeDisk& disk) {
    Stepped one(disk);
    for (int i = 1; i <= 3; ++i) CHECK_EQUAL(one.append("t", block({numbered(i)})).sequence, i);
    one.kill();
    return segments(disk).back();
}

std::vector<std::uint64_t> batch_positions(const std::string& bytes) {
    std::vector<std::uint64_t> found;
    for (std::size_t at = 0; at + kBatchHead <= bytes.size(); at += 8) {
        std::uint32_t word;
        std::memcpy(&word, bytes.data() + at, 4);
        if (word == kBatchMagic) found.push_back(at);
    }
    return found;
}

bool any_damage(const std::vector<Finding>& findings) {
    return std::any_of(findings.begin(), findings.end(), [](const Finding& one) { return one.damage; });
}

}  // namespace

TEST("the checksum is CRC-32C, by instruction and by table") {
    CHECK_EQUAL(crc32c(0, "123456789", 9), 0xe3069283u);
    CHECK_EQUAL(crc32c_by_table(0, "123456789", 9), 0xe3069283u);
    auto random = check::random(1);
    std::string bytes(5000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    for (int i = 0; i < 1000; ++i) {
        const std::size_t from = check::below(random, 2000), size = check::below(random, 3000);
        const std::size_t half = size == 0 ? 0 : check::below(random, size);
        const std::uint32_t whole = crc32c(0, bytes.data() + from, size);
        CHECK_EQUAL(whole, crc32c_by_table(0, bytes.data() + from, size));
        CHECK_EQUAL(whole, crc32c(crc32c(0, bytes.data() + from, half), bytes.data() + from + half, size - half));
    }
}

TEST("every topic has a directory of its own, with a plain name") {
    CHECK_EQUAL(directory_of("plant/7/temp"), std::string("plant%2F7%2Ftemp"));
    CHECK_EQUAL(directory_of(".."), std::string("%2E."));
    std::vector<std::string> topics{".", "..", "a.b", "a/b", "a%2Fb", "a~b", "A", "a", std::string("\0", 1), "\xff"};
    for (std::size_t n = 100; n < 140; ++n) topics.push_back(std::string(n, 'x'));
    for (std::size_t n = 4000; n < 4010; ++n) topics.push_back(std::string(n, '/'));
    std::set<std::string> names;
    for (const std::string& topic : topics) {
        const std::string name = directory_of(topic);
        CHECK(!name.empty() && name.size() <= 120 && name[0] != '.');
        CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.%~") ==
              std::string::npos);
        CHECK(names.insert(name).second);
    }
    CHECK_EQUAL(segment_base(segment_name(UINT64_MAX)).value(), UINT64_MAX);
    for (const char* wrong : {"1.log", "00000000000000000001.log.old", "99999999999999999999.log", "0000000000000000000x.log"}) {
        CHECK(!segment_base(wrong));
    }
}

TEST("what is appended is read, with everything that belongs to it") {
    FakeDisk disk(1);
    Stepped one(disk);
    Block made(9, 100);
    made.add("first", "properties", 11, 1);
    made.add("", "", -5, 2);
    made.add(std::string("\0bytes", 6), "", 13, 65535);
    const Receipt receipt = one.append("plant/7/temp", std::move(made));
    CHECK_EQUAL(receipt.status, Status::ok);
    CHECK_EQUAL(receipt.sequence, 1u);
    CHECK_EQUAL(receipt.count, 3u);
    CHECK_EQUAL(one.append("other", block({"x"})).sequence, 1u);
    const All all = read_all(one.store->log("plant/7/temp"));
    CHECK_EQUAL(all.records.size(), 3u);
    CHECK_EQUAL(all.records[0].data, std::string("first"));
    CHECK_EQUAL(all.records[0].properties, std::string("properties"));
    CHECK_EQUAL(all.records[0].producer_sequence, 100u);
    CHECK_EQUAL(all.records[1].time_ns, -5);
    CHECK_EQUAL(all.records[2].data, std::string("\0bytes", 6));
    CHECK_EQUAL(all.records[2].source, 65535u);
    CHECK_EQUAL(all.records[2].sequence, 3u);
    CHECK(one.store->topics() == (std::vector<std::string>{"other", "plant/7/temp"}));
}

TEST("a clean stop leaves no gap and an unclean one does, and neither loses what was acknowledged") {
    FakeDisk disk(2);
    std::uint64_t next = 1;
    for (int life = 0; life < 6; ++life) {
        Stepped one(disk);
        CHECK_EQUAL(one.store->epoch(), life + 1);
        for (int i = 0; i < 5; ++i) {
            const Receipt receipt = one.append("t", block({numbered(life * 5 + i)}));
            CHECK(i > 0 || life == 0 || receipt.sequence == next || life % 2 == 0);
            if (i == 0 && life % 2 == 1) CHECK_EQUAL(receipt.sequence, next);
            if (i == 0 && life % 2 == 0) CHECK(receipt.sequence >= next);
            next = receipt.sequence + 1;
        }
        if (life % 2 == 0) {
            one.close();
        } else {
            one.crash();
        }
    }
    Stepped one(disk);
    const All all = read_all(one.store->log("t"));
    CHECK_EQUAL(all.records.size(), 30u);
    for (std::size_t i = 0; i < 30; ++i) {
        CHECK_EQUAL(all.records[i].data, numbered(i));
        if (i > 0) CHECK(all.records[i].sequence > all.records[i - 1].sequence);
    }
    CHECK_EQUAL(all.missed, 0u);
}

TEST("segments roll by size, by count and by age, and the directory is synced at each") {
    FakeDisk disk(3);
    Settings settings = small();
    settings.segment_records = 10;
    settings.segment_age = 3600 * kSecond;
    Stepped one(disk, settings);
    for (int i = 0; i < 10; ++i) one.append("t", block({"x"}));
    CHECK_EQUAL(segments(disk).size(), 1u);
    const std::uint64_t before = disk.directory_syncs;
    one.append("t", block({"x"}));
    CHECK_EQUAL(segments(disk).size(), 2u);
    CHECK(disk.directory_syncs > before);
    one.append("t", block({std::string(4000, 'x')}));
    CHECK_EQUAL(segments(disk).size(), 3u);
    one.append("t", block({std::string(100'000, 'x')}));  // larger than a segment: in one of its own
    CHECK_EQUAL(segments(disk).size(), 4u);
    one.append("t", block({"x"}));
    CHECK_EQUAL(segments(disk).size(), 5u);
    one.step(2 * 3600 * kSecond);
    CHECK_EQUAL(segments(disk).size(), 6u);
    one.step(2 * 3600 * kSecond);  // an empty one does not become old
    CHECK_EQUAL(segments(disk).size(), 6u);
    CHECK_EQUAL(read_all(one.store->log("t")).records.size(), 14u);
}

TEST("an acknowledgement comes after the write, or after the sync that covers it") {
    for (const Fsync mode : {Fsync::none, Fsync::interval, Fsync::always}) {
        FakeDisk disk(4);
        Settings settings = small();
        settings.fsync = mode;
        Stepped one(disk, settings);
        one.append("t", block({"first"}));
        const std::uint64_t syncs = disk.syncs;
        const std::uint64_t token = one.put("t", block({"second"}));
        const std::uint64_t other = one.put("t", block({"third"}));
        CHECK(!one.heard->has(token));
        one.step(kMillisecond);
        CHECK_EQUAL(one.heard->has(token), mode != Fsync::interval);
        CHECK_EQUAL(disk.syncs - syncs, mode == Fsync::always ? 1 : 0);
        // Readers see what is acknowledged, and nothing else.
        CHECK_EQUAL(read_all(one.store->log("t")).records.size(), mode == Fsync::interval ? 1 : 3);
        one.step(20 * kMillisecond);
        CHECK(one.heard->has(token) && one.heard->has(other));
        CHECK_EQUAL(disk.syncs - syncs, mode == Fsync::none ? 0 : 1);  // one for both
        CHECK_EQUAL(read_all(one.store->log("t")).records.size(), 3u);
    }
}

TEST("blocks that follow each other become one batch, those of different producers do not") {
    FakeDisk disk(5);
    Stepped one(disk);
    for (int i = 0; i < 5; ++i) one.put("t", block({numbered(i)}));
    one.step();
    CHECK_EQUAL(batch_positions(disk.bytes(segments(disk)[0])).size(), 1u);
    one.put("t", block({"a"}, 1, 1));
    one.put("t", block({"b"}, 1, 2));
    one.put("t", block({"c"}, 2, 1));
    one.put("t", block({"d"}, 1, 3));
    one.put("t", block({"e"}, 1, 5));  // a number that was never sent
    one.step();
    CHECK_EQUAL(batch_positions(disk.bytes(segments(disk)[0])).size(), 5u);
    const All all = read_all(one.store->log("t"));
    CHECK_EQUAL(all.records.size(), 10u);
    for (std::size_t i = 0; i < 10; ++i) CHECK_EQUAL(all.records[i].sequence, i + 1);
    CHECK_EQUAL(all.records[9].producer_sequence, 5u);
}

TEST("a producer that sends again writes nothing twice, also after a restart of either kind") {
    FakeDisk disk(6);
    auto one = std::make_unique<Stepped>(disk);
    CHECK_EQUAL(one->append("t", block({"1", "2", "3"}, 42, 1)).sequence, 1u);
    for (int life = 0; life < 6; ++life) {
        const Receipt again = one->append("t", block({"1", "2", "3"}, 42, 1));
        CHECK_EQUAL(again.status, Status::ok);
        CHECK_EQUAL(again.duplicates, 3u);
        CHECK_EQUAL(again.count, 0u);
        CHECK_EQUAL(again.sequence, 0u);
        // Another topic and another producer know nothing of it.
        CHECK_EQUAL(one->append("other", block({"1"}, 42, 1 + life)).count, 1u);
        CHECK_EQUAL(one->append("t", block({"x"}, 1000 + life, 1)).count, 1u);
        if (life % 3 == 0) one->close();
        if (life % 3 == 1) one->kill();
        if (life % 3 == 2) one->crash();
        one = std::make_unique<Stepped>(disk);
    }
    // Half of it is known.
    const Receipt half = one->append("t", block({"2", "3", "4", "5"}, 42, 2));
    CHECK_EQUAL(half.duplicates, 2u);
    CHECK_EQUAL(half.count, 2u);
    std::vector<std::string> of_producer;
    for (const Seen& seen : read_all(one->store->log("t")).records) {
        if (seen.producer == 42) of_producer.push_back(seen.data);
    }
    CHECK(of_producer == (std::vector<std::string>{"1", "2", "3", "4", "5"}));
}

TEST("a duplicate is acknowledged no sooner than its original") {
    FakeDisk disk(7);
    Settings settings = small();
    settings.fsync = Fsync::interval;
    Stepped one(disk, settings);
    one.append("t", block({"0"}, 1, 1));
    const std::uint64_t original = one.put("t", block({"1"}, 1, 2));
    one.step(kMillisecond);
    const std::uint64_t again = one.put("t", block({"1"}, 1, 2));
    one.step(kMillisecond);
    CHECK(!one.heard->has(original) && !one.heard->has(again));
    disk.fails_to_sync = 1000;
    one.step(kSecond);
    CHECK_EQUAL(one.heard->at(original).status, Status::failed);
    CHECK_EQUAL(one.heard->at(again).status, Status::failed);
    disk.fails_to_sync = 0;
    CHECK_EQUAL(one.append("t", block({"1"}, 1, 2)).count, 1u);
}

TEST("a producer goes on where it failed, and cannot jump over it") {
    FakeDisk disk(8);
    Stepped one(disk);
    one.append("t", block({"1"}, 5, 1));
    disk.fails_to_sync = 1000;
    CHECK_EQUAL(one.append("t", block({"2"}, 5, 2)).status, Status::failed);
    disk.fails_to_sync = 0;
    CHECK_EQUAL(one.append("t", block({"3"}, 5, 3)).status, Status::out_of_order);
    CHECK_EQUAL(one.append("t", block({"2"}, 5, 2)).count, 1u);
    CHECK_EQUAL(one.append("t", block({"3"}, 5, 3)).count, 1u);
    CHECK(read_all(one.store->log("t")).data() == (std::vector<std::string>{"1", "2", "3"}));
    // Unless it gives that one up.
    disk.fails_to_sync = 1000;
    CHECK_EQUAL(one.append("t", block({"4"}, 5, 4)).status, Status::failed);
    disk.fails_to_sync = 0;
    CHECK_EQUAL(one.append("t", block({"5"}, 5, 5)).status, Status::out_of_order);
    CHECK_EQUAL(one.append("t", block({}, 5, 4)).status, Status::ok);
    CHECK_EQUAL(one.append("t", block({"5"}, 5, 5)).count, 1u);
}

TEST("a block that failed behind records that are here holds its producer up only from there") {
    for (const bool soon : {false, true}) {
        FakeDisk disk(9);
        Settings settings = small();
        settings.retry = soon ? kSecond : 0;
        Stepped one(disk, settings);
        CHECK_EQUAL(one.append("t", block({"1", "2", "3"}, 5, 1)).count, 3u);
        disk.space = 0;
        if (soon) one.append("t", block({"x"}, 6, 1));  // and the log asks the disk no more for a while
        CHECK_EQUAL(one.append("t", block({"2", "3", "4"}, 5, 2)).status, Status::full);
        disk.space = UINT64_MAX;
        // What it hears meanwhile is that it need not begin before the fourth.
        CHECK_EQUAL(one.append("t", block({"5"}, 5, 5)).status, Status::out_of_order);
        one.step(2 * kSecond);
        CHECK_EQUAL(one.append("t", block({"4"}, 5, 4)).status, Status::ok);
        CHECK_EQUAL(one.append("t", block({"5"}, 5, 5)).status, Status::ok);
        CHECK(read_all(one.store->log("t")).data() == (std::vector<std::string>{"1", "2", "3", "4", "5"}));
    }
}

TEST("only so many producers are remembered") {
    FakeDisk disk(9);
    Settings settings = small();
    settings.max_producers = 4;
    {
        Stepped one(disk, settings);
        for (std::uint64_t producer = 1; producer <= 10; ++producer) one.append("t", block({"x"}, producer, 1));
        CHECK_EQUAL(one.append("t", block({"x"}, 7, 1)).duplicates, 1u);
        one.close();
    }
    Stepped one(disk, settings);
    for (std::uint64_t producer = 7; producer <= 10; ++producer) {
        CHECK_EQUAL(one.append("t", block({"x"}, producer, 1)).duplicates, 1u);
    }
    CHECK_EQUAL(one.append("t", block({"x"}, 1, 1)).count, 1u);
}

TEST("a tail that is cut at any byte of the last batch is repaired") {
    FakeDisk disk(10);
    const std::string path = three_batches(disk);
    const std::string whole = disk.bytes(path);
    const std::uint64_t last = batch_positions(whole).back();
    for (std::uint64_t size = last; size < whole.size(); ++size) {
        FakeDisk copy(size);
        three_batches(copy);
        const std::string where = segments(copy).back();
        const std::string original = copy.bytes(where);
        copy.bytes(where).resize(size);
        Stepped one(copy);
        const auto log = one.store->log("t");
        CHECK(read_all(log).data() == (std::vector<std::string>{numbered(1), numbered(2)}));
        CHECK(!any_damage(log->findings()));
        CHECK_EQUAL(log->findings().size(), size == last ? 0u : 1u);
        CHECK_EQUAL(copy.bytes(where).size(), last);  // it is gone from the file
        CHECK(one.append("t", block({"next"})).sequence > 3);
        CHECK_EQUAL(read_all(log).records.size(), 3u);
    }
}

TEST("a tail that is damaged at any byte of the last batch is cut off") {
    FakeDisk disk(11);
    const std::string whole = disk.bytes(three_batches(disk));
    const std::uint64_t last = batch_positions(whole).back();
    for (std::uint64_t at = last; at < whole.size(); ++at) {
        FakeDisk copy(at);
        const std::string where = three_batches(copy);
        BatchHead head;
        std::memcpy(&head, copy.bytes(where).data() + last, sizeof head);
        copy.bytes(where)[at] = static_cast<char>(copy.bytes(where)[at] ^ (1 << (at % 8)));
        Stepped one(copy);
        const auto log = one.store->log("t");
        const bool filling = at >= last + kBatchHead + head.body_bytes;  // zeros that mean nothing
        CHECK_EQUAL(read_all(log).records.size(), filling ? 3u : 2u);
        CHECK(!any_damage(log->findings()));
        CHECK_EQUAL(one.append("t", block({"next"})).status, Status::ok);
        CHECK_EQUAL(read_all(log).records.size(), filling ? 4u : 3u);
    }
}

TEST("a bad batch before good ones is damage: it is said where, nothing is destroyed, and the rest is read") {
    FakeDisk disk(12);
    const std::string whole = disk.bytes(three_batches(disk));
    const std::uint64_t second = batch_positions(whole)[1];
    for (const std::uint64_t offset : {0, 5, 9, 13, 20, 50, 90, 100, 120}) {
        FakeDisk copy(offset);
        const std::string where = three_batches(copy);
        copy.bytes(where)[second + offset] = static_cast<char>(copy.bytes(where)[second + offset] ^ 0x10);
        const std::string damaged = copy.bytes(where);
        Stepped one(copy);
        const auto log = one.store->log("t");
        CHECK(any_damage(log->findings()));
        CHECK_EQUAL(log->findings()[0].path, where);
        CHECK_EQUAL(log->findings()[0].position, second);
        CHECK(log->findings()[0].what.find("sequence 2") != std::string::npos);
        CHECK(copy.bytes(where) == damaged);
        const All all = read_all(log);
        CHECK(all.data() == (std::vector<std::string>{numbered(1), numbered(3)}));
        CHECK_EQUAL(all.damage.size(), 1u);
        CHECK(all.damage[0].find(std::to_string(second)) != std::string::npos);
        CHECK(one.append("t", block({"next"})).sequence > 3);
        one.close();
        CHECK(copy.bytes(where) == damaged);
        // And again, when it is no longer the last segment.
        Stepped two(copy);
        CHECK_EQUAL(read_all(two.store->log("t")).records.size(), 3u);
        const StoreReport report = check_store(copy, "/store");
        CHECK(any_damage(report.topics[0].findings));
        CHECK_EQUAL(report.topics[0].tally.records, 3u);
    }
}

TEST("a bad batch before good ones that were never synced is no damage, but the end of the log") {
    FakeDisk disk(13);
    Settings settings = small();
    settings.fsync = Fsync::interval;
    Stepped one(disk, settings);
    one.append("t", block({numbered(1)}));
    std::vector<std::uint64_t> tokens;
    for (int i = 2; i <= 4; ++i) {
        tokens.push_back(one.put("t", block({numbered(i)}, static_cast<std::uint64_t>(i), 1)));
        one.step(kMicrosecond);
    }
    one.kill();
    const std::string where = segments(disk)[0];
    const std::uint64_t third = batch_positions(disk.bytes(where))[2];
    disk.bytes(where)[third + 100] = static_cast<char>(disk.bytes(where)[third + 100] ^ 1);
    Stepped two(disk, settings);
    const auto log = two.store->log("t");
    CHECK(read_all(log).data() == (std::vector<std::string>{numbered(1), numbered(2)}));
    CHECK(!any_damage(log->findings()));
    CHECK_EQUAL(log->findings().size(), 1u);
    // Who was not acknowledged sends again, and is there once.
    for (int i = 2; i <= 4; ++i) two.append("t", block({numbered(i)}, static_cast<std::uint64_t>(i), 1));
    two.close();
    Stepped three(disk, settings);
    CHECK(read_all(three.store->log("t")).data() ==
          (std::vector<std::string>{numbered(1), numbered(2), numbered(3), numbered(4)}));
}

TEST("a payload that looks like a batch is none") {
    FakeDisk disk(14);
    const std::string path = three_batches(disk);
    const std::string whole = disk.bytes(path);
    const std::string batch = whole.substr(batch_positions(whole)[2]);
    FakeDisk other(15);
    Stepped one(other);
    one.append("t", block({"first"}));
    one.append("t", block({std::string(4, 'x') + batch + batch}));
    one.append("t", block({"last"}));
    one.kill();
    const std::string where = segments(other)[0];
    const std::uint64_t second = batch_positions(other.bytes(where))[1];
    other.bytes(where)[second + 9] ^= 1;  // its own head is gone, what it carries is not
    Stepped two(other);
    CHECK(read_all(two.store->log("t")).data() == (std::vector<std::string>{"first", "last"}));
}

TEST("after a failed sync the segment ends, nothing in it is acknowledged, and the next one goes on") {
    FakeDisk disk(16);
    Stepped one(disk);
    CHECK_EQUAL(one.append("t", block({"1"}, 1, 1)).status, Status::ok);
    disk.fails_to_sync = 1000;
    const Receipt failed = one.append("t", block({"2"}, 1, 2));
    CHECK_EQUAL(failed.status, Status::failed);
    CHECK_EQUAL(failed.error, EIO);
    CHECK_EQUAL(one.append("t", block({"2"}, 1, 2)).status, Status::failed);  // no new segment either
    CHECK_EQUAL(read_all(one.store->log("t")).records.size(), 1u);
    disk.fails_to_sync = 0;
    const Receipt again = one.append("t", block({"2"}, 1, 2));
    CHECK_EQUAL(again.status, Status::ok);
    CHECK(again.sequence > 2);  // that one may be somewhere
    CHECK_EQUAL(segments(disk).size(), 2u);
    one.crash();
    Stepped two(disk);
    CHECK(read_all(two.store->log("t")).data() == (std::vector<std::string>{"1", "2"}));
}

TEST("a full disk refuses new records, lets read, and takes records again when there is space") {
    for (const Fsync mode : {Fsync::none, Fsync::interval, Fsync::always}) {
        FakeDisk disk(17);
        Settings settings = small();
        settings.fsync = mode;
        Stepped one(disk, settings);
        std::vector<std::string> taken;
        disk.space = 10'000;
        std::uint64_t refused = 0;
        for (std::uint64_t i = 1; i <= 100; ++i) {
            const std::string data = numbered(i, 300);
            const Receipt receipt = one.append("t", block({data}, 1, i - refused));
            if (receipt.status == Status::ok) {
                taken.push_back(data);
            } else {
                CHECK_EQUAL(receipt.status, Status::full);
                CHECK_EQUAL(receipt.error, ENOSPC);
                ++refused;
            }
        }
        CHECK(refused > 50 && taken.size() > 10);
        CHECK(read_all(one.store->log("t")).data() == taken);
        disk.space = UINT64_MAX;
        CHECK_EQUAL(one.append("t", block({"more"}, 1, 101 - refused)).status, Status::ok);
        taken.push_back("more");
        CHECK(read_all(one.store->log("t")).data() == taken);
        mode == Fsync::none ? one.kill() : one.crash();
        Stepped two(disk, settings);
        CHECK(read_all(two.store->log("t")).data() == taken);
    }
}

TEST("a disk that is tired is not asked before its time") {
    FakeDisk disk(18);
    Settings settings = small();
    settings.retry = 100 * kMillisecond;
    Stepped one(disk, settings);
    one.append("t", block({"1"}));
    disk.space = 0;
    CHECK_EQUAL(one.append("t", block({"2"})).status, Status::full);
    disk.space = UINT64_MAX;
    const std::uint64_t operations = disk.operations;
    const std::uint64_t soon = one.put("t", block({"2"}));
    one.step(kMillisecond);
    CHECK_EQUAL(one.heard->at(soon).status, Status::full);
    CHECK_EQUAL(disk.operations, operations);
    CHECK_EQUAL(one.append("t", block({"2"})).status, Status::ok);
}

TEST("readers begin at the earliest, the latest, a sequence or a time") {
    FakeDisk disk(19);
    Settings settings = small();
    settings.segment_bytes = 200'000;  // with several entries in an index
    std::vector<std::uint64_t> sequences;
    auto one = std::make_unique<Stepped>(disk, settings);
    for (int i = 0; i < 1200; ++i) {
        Block made;
        // Times that rise, but not everywhere.
        made.add(numbered(static_cast<std::uint64_t>(i), 600), "", (i % 7 == 3 ? i - 2 : i) * 10, 1);
        sequences.push_back(one->append("t", std::move(made)).sequence);
        if (i == 500) one->close(), one = std::make_unique<Stepped>(disk, settings);
        if (i == 900) one->crash(), one = std::make_unique<Stepped>(disk, settings);
    }
    const auto log = one->store->log("t");
    CHECK(segments(disk).size() > 3);
    for (int i = 0; i < 1200; i += 13) {
        const auto at = static_cast<std::size_t>(i);
        const All all = read_all(log, {Start::At::sequence, sequences[at], 0});
        CHECK_EQUAL(all.records.size(), 1200 - at);
        CHECK_EQUAL(all.records[0].sequence, sequences[at]);
        CHECK_EQUAL(all.missed, 0u);
        const All later = read_all(log, {Start::At::time, 0, i * 10});
        const std::size_t expected = i % 7 == 3 ? at + 1 : at;
        CHECK_EQUAL(later.records[0].sequence, sequences[expected]);
        CHECK_EQUAL(later.records.size(), 1200 - expected);
    }
    CHECK_EQUAL(read_all(log).records.size(), 1200u);
    Reader latest(log, {Start::At::latest, 0, 0});
    CHECK_EQUAL(read_all(latest).records.size(), 0u);
    one->append("t", block({"new"}));
    CHECK(read_all(latest).data() == std::vector<std::string>{"new"});
    Reader ahead(log, {Start::At::sequence, sequences.back() + 3, 0});
    CHECK_EQUAL(read_all(ahead).records.size(), 0u);
    one->append("t", block({"a", "b"}));
    CHECK(read_all(ahead).data() == (std::vector<std::string>{"b"}));
    CHECK_EQUAL(read_all(log, {Start::At::time, 0, INT64_MAX}).records.size(), 0u);
}

TEST("a reader may begin before there is anything to read") {
    FakeDisk disk(20);
    Stepped one(disk);
    for (const Start::At at : {Start::At::earliest, Start::At::latest, Start::At::sequence, Start::At::time}) {
        Reader reader(one.store->log("t" + std::to_string(static_cast<int>(at))), {at, 1, 0});
        CHECK_EQUAL(read_all(reader).ended, Read::timeout);
        one.append("t" + std::to_string(static_cast<int>(at)), block({"x"}));
        CHECK_EQUAL(read_all(reader).records.size(), 1u);
    }
    CHECK_EQUAL(one.store->topics().size(), 4u);
}

TEST("whole segments are dropped by size, and a reader hears how many it missed") {
    FakeDisk disk(21);
    Settings settings = small();
    settings.keep_bytes = 20'000;
    Stepped one(disk, settings);
    const auto log = one.store->log("t");
    Reader early(log, {}), first(log, {}), latest(log, {Start::At::latest, 0, 0});
    for (std::uint64_t i = 0; i < 10; ++i) one.append("t", block({numbered(i, 300)}));
    Batch batch;
    CHECK(early.next(batch, 0) == Read::batch);
    for (std::uint64_t i = 10; i < 500; ++i) one.append("t", block({numbered(i, 300)}));
    CHECK(log->facts().bytes <= 24'000);
    CHECK(segments(disk).size() <= 6);
    const All rest = read_all(early);
    CHECK(rest.missed > 300);
    CHECK_EQUAL(rest.missed + rest.records.size(), 499u);
    for (Reader* waited : {&first, &latest}) {  // since before there was anything
        const All all = read_all(*waited);
        CHECK_EQUAL(all.missed + all.records.size(), 500u);
    }
    const All cold = read_all(log, {Start::At::sequence, 2, 0});
    CHECK_EQUAL(cold.missed + cold.records.size(), 499u);
    CHECK_EQUAL(read_all(log).missed, 0u);  // the earliest there is was asked for
    one.close();
    Stepped two(disk, settings);
    CHECK_EQUAL(read_all(two.store->log("t")).records.size(), cold.records.size());
}

TEST("what was missed is counted in records, not in the gaps of an unclean stop") {
    FakeDisk disk(22);
    Settings settings = small();
    settings.keep_bytes = 10'000;
    for (int life = 0; life < 5; ++life) {
        Stepped one(disk, settings);
        for (std::uint64_t i = 0; i < 20; ++i) one.append("t", block({numbered(i, 300)}));
        one.kill();
    }
    Stepped one(disk, settings);
    const All all = read_all(one.store->log("t"), {Start::At::sequence, 1, 0});
    CHECK_EQUAL(all.missed + all.records.size(), 100u);
}

TEST("segments are dropped by age, also of a topic that nobody writes to any more") {
    FakeDisk disk(23);
    Settings settings = small();
    settings.keep_age = 100 * kSecond;
    std::int64_t later = 0;
    {
        Stepped one(disk, settings);
        one.at.wall = now().wall;  // closing looks at the real clock
        for (std::uint64_t i = 0; i < 20; ++i) one.append("t", block({numbered(i, 300)}));
        CHECK_EQUAL(read_all(one.store->log("t")).records.size(), 20u);
        one.step(50 * kSecond);
        CHECK_EQUAL(read_all(one.store->log("t")).records.size(), 20u);
        for (int i = 0; i < 20; ++i) one.step(60 * kSecond);
        CHECK_EQUAL(read_all(one.store->log("t")).records.size(), 0u);
        CHECK_EQUAL(one.append("t", block({"x"})).sequence, 21u);
        later = one.at.wall;
        one.close();
    }
    Stepped two(disk, settings);
    two.at.wall = later;
    CHECK_EQUAL(read_all(two.store->log("t")).records.size(), 1u);
    for (int i = 0; i < 5; ++i) two.step(60 * kSecond);
    CHECK_EQUAL(read_all(two.store->log("t")).records.size(), 0u);
    two.close();
    // An empty segment is all that is left: it knows the sequences, and what comes takes its place.
    CHECK_EQUAL(segments(disk).size(), 1u);
    Stepped three(disk, settings);
    three.at.wall = two.at.wall;
    Reader waits(three.store->log("t"), {});
    CHECK_EQUAL(read_all(waits).records.size(), 0u);
    CHECK_EQUAL(three.append("t", block({"y"})).sequence, 22u);
    CHECK_EQUAL(read_all(waits).records.size(), 1u);
    CHECK_EQUAL(segments(disk).size(), 1u);
    CHECK(!any_damage(check_store(disk, "/store").topics[0].findings));
}

TEST("few files are open, however many topics there are") {
    FakeDisk disk(24);
    Settings settings = small();
    settings.max_open = 8;
    Stepped one(disk, settings);
    for (int round = 0; round < 5; ++round) {
        for (int topic = 0; topic < 60; ++topic) one.put("t" + std::to_string(topic), block({numbered(round)}));
        one.step();
    }
    CHECK(one.store->facts().open_files <= 8);
    CHECK(disk.most_open_files <= 8 + 5 + 2);  // those that wait for their sync, and those being made
    for (int topic = 0; topic < 60; ++topic) {
        CHECK_EQUAL(read_all(one.store->log("t" + std::to_string(topic))).records.size(), 5u);
    }
    CHECK(disk.open_files <= 10);
}

TEST("a second store on the directory is refused, one that only looks is not") {
    FakeDisk disk(25);
    Stepped one(disk);
    one.append("t", block({"x"}));
    try {
        Store second(disk, "/store", small());
        CHECK(false);
    } catch (const Failure& failure) {
        CHECK(failure.kind == Failure::Kind::in_use);
        CHECK(std::string(failure.what()).find("process 1") != std::string::npos);
    }
    Settings looks = small();
    looks.writable = false;
    Store other(disk, "/store", looks);
    CHECK_EQUAL(read_all(other.log("t")).records.size(), 1u);
    CHECK(other.append(other.log("t"), block({"y"})) == Put::closed);
    CHECK(check_store(disk, "/store").in_use);
    one.close();
    CHECK(!check_store(disk, "/store").in_use);
    Store third(disk, "/store", small());
}

TEST("a directory that is something else is left alone") {
    FakeDisk disk(26);
    int error = 0;
    disk.make_directory("/home");
    disk.open("/home/letter", Access::create, error);
    for (const bool writable : {true, false}) {
        Settings settings = small();
        settings.writable = writable;
        for (const char* path : {"/home", "/nowhere/at/all"}) {
            try {
                Store store(disk, path, settings);
                CHECK(false);
            } catch (const Failure& failure) {
                CHECK(!std::string(failure.what()).empty());
            }
        }
    }
    Stepped(disk).append("t", block({"x"}));
    for (const std::string text : {"", "antiphon store", "antiphon store 1", "antiphon store 2\nepoch 1\n",
                                   "antiphon store 1\nepoch x", "something else entirely"}) {
        disk.bytes("/store/store") = text;
        try {
            Stepped again(disk);
            CHECK_SAYS(false, text);
        } catch (const Failure& failure) {
            CHECK(failure.kind == Failure::Kind::damaged || failure.kind == Failure::Kind::not_a_store);
        }
    }
}

TEST("indexes that are missing, damaged or of another life are made again") {
    FakeDisk disk(27);
    {
        Stepped one(disk);
        for (std::uint64_t i = 0; i < 100; ++i) one.append("t", block({numbered(i, 300)}, 3, i + 1));
        one.close();
    }
    auto random = check::random(27);
    for (const std::string& path : disk.paths()) {
        if (!path.ends_with(".idx")) continue;
        std::string& bytes = disk.bytes(path);
        switch (check::below(random, 4)) {
            case 0: disk.unlink(path); break;
            case 1: bytes.resize(check::below(random, bytes.size())); break;
            case 2: bytes[check::below(random, bytes.size())] ^= 4; break;
            case 3: bytes.clear(); break;
        }
    }
    Stepped two(disk);
    const All all = read_all(two.store->log("t"));
    CHECK_EQUAL(all.records.size(), 100u);
    CHECK_EQUAL(read_all(two.store->log("t"), {Start::At::sequence, 50, 0}).records.size(), 51u);
    CHECK_EQUAL(two.append("t", block({"x"}, 3, 100)).duplicates, 1u);
    CHECK(!any_damage(two.store->log("t")->findings()));
    for (const std::string& path : segments(disk)) {
        if (path == segments(disk).back()) continue;  // still written
        const auto paths = disk.paths();
        CHECK(std::find(paths.begin(), paths.end(), path.substr(0, path.size() - 4) + ".idx") != paths.end());
    }
}

TEST("a segment that is missing from the middle is damage") {
    FakeDisk disk(28);
    {
        Stepped one(disk);
        for (std::uint64_t i = 0; i < 100; ++i) one.append("t", block({numbered(i, 300)}));
        one.close();
    }
    const auto all = segments(disk);
    CHECK(all.size() > 4);
    disk.unlink(all[2]);
    Stepped two(disk);
    const auto log = two.store->log("t");
    CHECK(any_damage(log->findings()));
    const All rest = read_all(log);
    CHECK(rest.missed > 0);
    CHECK_EQUAL(rest.missed + rest.records.size(), 100u);
    CHECK_EQUAL(two.append("t", block({"x"})).sequence, 101u);
}

TEST("a queue that is full says so, and a block that cannot fit says that") {
    FakeDisk disk(29);
    Settings settings = small();
    settings.queue_bytes = 10'000;
    settings.segment_records = 100;
    Stepped one(disk, settings);
    int rooms = 0;
    one.store->on_room([&] { ++rooms; });
    const auto log = one.store->log("t");
    int taken = 0;
    while (one.store->append(log, block({std::string(1000, 'x')})) == Put::taken) ++taken;
    CHECK(taken >= 5 && taken < 10);
    CHECK(one.store->append(log, block({std::string(1000, 'x')})) == Put::no_room);
    CHECK(!one.store->wait_for_room(1000, now_ns()));
    one.step();
    CHECK_EQUAL(rooms, 1);
    CHECK(one.store->wait_for_room(1000, now_ns()));
    CHECK(one.store->append(log, block({std::string(1000, 'x')})) == Put::taken);
    CHECK(one.store->append(log, block({std::string(10'000, 'x')})) == Put::too_large);
    CHECK(one.store->append(log, block(std::vector<std::string>(101, ""))) == Put::too_large);
    one.close();
    CHECK(one.store->append(log, block({"x"})) == Put::closed);
    CHECK(!one.store->wait_for_room(1, kNever));
    CHECK_EQUAL(read_all(log).records.size(), static_cast<std::size_t>(taken) + 1);
}

TEST("a store of any bytes at all is opened or refused, never worse") {
    auto random = check::random(30);
    for (std::uint64_t round = 0; round < check::count(300, 20'000); ++round) {
        FakeDisk disk(round);
        {
            Stepped one(disk);
            for (std::uint64_t i = 0; i < 12; ++i) one.append("t", block({numbered(i, 200), "x"}, 1 + i % 3, i * 2 + 1));
            check::below(random, 2) ? one.close() : one.kill();
        }
        for (const std::string& path : disk.paths()) {
            if (path == "/store/store" && round % 10 != 0) continue;  // what follows would be refused each time
            std::string& bytes = disk.bytes(path);
            for (std::uint64_t hits = check::below(random, 4); hits > 0 && !bytes.empty(); --hits) {
                const std::uint64_t at = check::below(random, bytes.size());
                switch (check::below(random, 5)) {
                    case 0: bytes[at] = static_cast<char>(random()); break;
                    case 1: bytes.resize(at); break;
                    case 2: bytes.insert(at, std::string(check::below(random, 100), static_cast<char>(random()))); break;
                    case 3: bytes.erase(at, check::below(random, 100)); break;
                    case 4: bytes += bytes.substr(at); break;
                }
            }
        }
        try {
            const StoreReport report = check_store(disk, "/store");
            CHECK(report.topics.size() <= 1);
            Stepped two(disk);
            const auto log = two.store->log("t");
            const All all = read_all(log);
            for (std::size_t i = 1; i < all.records.size(); ++i) {
                CHECK(all.records[i].sequence > all.records[i - 1].sequence);
            }
            const Receipt receipt = two.append("t", block({"on"}));
            CHECK_EQUAL(receipt.status, Status::ok);
            CHECK(all.records.empty() || receipt.sequence > all.records.back().sequence);
        } catch (const Failure&) {
        }
    }
}

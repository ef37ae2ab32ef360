// The log with its thread, on the real disk: many who append and many who read, at once.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "check.hpp"
#include "logs.hpp"

using namespace antiphon;
using namespace antiphon::log;

namespace {

class Directory {
   public:
    Directory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "antiphon-log-XXXXXX").string();
        CHECK(mkdtemp(pattern.data()) != nullptr);
        path = pattern;
    }
    ~Directory() { std::filesystem::remove_all(path); }
    std::string store() const { return path + "/store"; }
    std::string path;
};

Settings quick(Fsync mode) {
    Settings settings;
    settings.fsync = mode;
    settings.interval = kMillisecond;
    settings.segment_bytes = 256 << 10;
    settings.max_open = 4;
    return settings;
}

// Appends one after the other and waits for each.
class Waits : public Listener {
   public:
    void appended(std::uint64_t, const Receipt& receipt) override {
        std::lock_guard lock(mutex_);
        receipt_ = receipt;
        done_ = true;
        changed_.notify_one();
    }
    Receipt wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_; });
        done_ = false;
        return receipt_;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    Receipt receipt_;
    bool done_ = false;
};

}  // namespace

TEST("many append and many read at once, and everybody sees everything once and in order") {
    for (const Fsync mode : {Fsync::none, Fsync::interval, Fsync::always}) {
        Directory directory;
        const std::uint64_t writers = 4, readers = 3;
        const std::uint64_t each = check::count(mode == Fsync::always ? 200 : 2000, 20'000);
        Store store(real_disk(), directory.store(), quick(mode));
        const auto log = store.log("shared");
        std::vector<std::thread> threads;
        for (std::uint64_t reader = 0; reader < readers; ++reader) {
            threads.emplace_back([&, reader] {
                Reader from(log, {reader == 0 ? Start::At::earliest : Start::At::sequence, 1, 0});
                std::vector<std::uint64_t> next(writers + 1, 1);
                std::uint64_t total = 0, last = 0;
                Batch batch;
                while (total < writers * each) {
                    CHECK(from.next(batch, now_ns() + check::patience(60 * kSecond)) == Read::batch);
                    CHECK(from.damage().empty());
                    RecordCursor cursor(batch);
                    Record record;
                    while (cursor.next(record)) {
                        CHECK(record.sequence > last);
                        last = record.sequence;
                        CHECK_EQUAL(record.data, std::to_string(next[batch.head.producer]++));
                        ++total;
                    }
                }
                CHECK_EQUAL(from.next(batch, 0), Read::timeout);
            });
        }
        for (std::uint64_t writer = 1; writer <= writers; ++writer) {
            threads.emplace_back([&, writer] {
                const auto heard = std::make_shared<Heard>();
                for (std::uint64_t i = 1; i <= each;) {
                    Block made(writer, i);
                    made.add(std::to_string(i), "", static_cast<std::int64_t>(i), 1);
                    const Put put = store.append(log, std::move(made), heard, i);
                    if (put == Put::no_room) {
                        CHECK(store.wait_for_room(1000, now_ns() + 60 * kSecond));
                    } else {
                        CHECK(put == Put::taken);
                        ++i;
                    }
                }
                CHECK(check::soon([&] { return heard->count() == each; }, 60 * kSecond));
                for (std::uint64_t i = 1; i <= each; ++i) CHECK_EQUAL(heard->at(i).status, Status::ok);
            });
        }
        for (std::thread& thread : threads) thread.join();
        CHECK_EQUAL(store.facts().appended, writers * each);
        store.close();
        Store again(real_disk(), directory.store(), quick(mode));
        CHECK_EQUAL(read_all(again.log("shared")).records.size(), writers * each);
    }
}

TEST("those who wait together share a sync") {
    Directory directory;
    Store store(real_disk(), directory.store(), quick(Fsync::always));
    const auto log = store.log("t");
    const std::uint64_t each = 20, writers = 16;
    std::vector<std::thread> threads;
    for (std::uint64_t writer = 0; writer < writers; ++writer) {
        threads.emplace_back([&] {
            const auto waits = std::make_shared<Waits>();
            for (std::uint64_t i = 0; i < each; ++i) {
                CHECK(store.append(log, block({"x"}), waits) == Put::taken);
                CHECK_EQUAL(waits->wait().status, Status::ok);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(store.facts().syncs < writers * each);
}

TEST("readers follow a log that drops its old segments, and count what they miss") {
    Directory directory;
    Settings settings = quick(Fsync::none);
    settings.segment_bytes = 64 << 10;
    settings.keep_bytes = 256 << 10;
    Store store(real_disk(), directory.store(), settings);
    const auto log = store.log("t");
    const std::uint64_t records = check::count(20'000, 200'000);
    std::atomic<bool> written{false};
    std::vector<std::thread> threads;
    for (int reader = 0; reader < 3; ++reader) {
        threads.emplace_back([&, reader] {
            Reader from(log, {Start::At::sequence, 1, 0});
            std::uint64_t seen = 0, missed = 0;
            Batch batch;
            while (seen + missed < records) {
                const Read read = from.next(batch, now_ns() + check::patience(60 * kSecond));
                CHECK(read == Read::batch);
                missed += from.missed();
                seen += batch.head.count - from.first();
                if (reader == 2 && !written.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            CHECK_EQUAL(seen + missed, records);
        });
    }
    for (std::uint64_t i = 0; i < records;) {
        const Put put = store.append(log, block({std::string(100, 'x')}));
        if (put == Put::taken) {
            ++i;
        } else {
            store.wait_for_room(1000, now_ns() + kSecond);
        }
    }
    written.store(true);
    for (std::thread& thread : threads) thread.join();
}

TEST("logs are opened, written and read by many threads at once") {
    Directory directory;
    Store store(real_disk(), directory.store(), quick(Fsync::interval));
    std::vector<std::thread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            auto random = check::random(thread);
            const auto waits = std::make_shared<Waits>();
            for (std::uint64_t i = 1; i <= check::count(60, 600); ++i) {
                const auto log = store.log("topic " + std::to_string(check::below(random, 20)));
                CHECK(store.append(log, block({"x"}, thread * 1'000'000 + i, 1), waits) == Put::taken);
                CHECK_EQUAL(waits->wait().status, Status::ok);
                CHECK(!read_all(log).records.empty());
                CHECK(log->facts().records > 0);
                CHECK(store.facts().logs > 0);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}

TEST("closing wakes readers, answers everybody who waits, and is done once") {
    Directory directory;
    auto store = std::make_unique<Store>(real_disk(), directory.store(), quick(Fsync::interval));
    const auto log = store->log("t");
    const auto heard = std::make_shared<Heard>();
    std::thread reader([&] {
        Reader from(log, {});
        Batch batch;
        Read read;
        while ((read = from.next(batch, kNever)) == Read::batch) {
        }
        CHECK_EQUAL(read, Read::closed);
    });
    std::thread writer([&] {
        std::uint64_t taken = 0;
        while (true) {
            const Put put = store->append(log, block({"x"}), heard, taken);
            if (put == Put::closed) break;
            if (put == Put::taken) ++taken;
            if (put == Put::no_room) store->wait_for_room(1000, now_ns() + kMillisecond);
        }
        CHECK(check::soon([&] { return heard->count() == taken; }));
    });
    CHECK(check::soon([&] { return heard->count() > 100; }));
    std::thread closes([&] { store->close(); });
    store->close();
    closes.join();
    writer.join();
    reader.join();
    store.reset();
    Reader after(log, {});  // what was read before can be read still
    CHECK_EQUAL(read_all(after).records.size(), heard->count());
}

TEST("watchers hear of every growth") {
    class Counts : public Watcher {
       public:
        void more() override { count.fetch_add(1); }
        std::atomic<int> count{0};
    };
    Directory directory;
    Store store(real_disk(), directory.store(), quick(Fsync::always));
    const auto log = store.log("t");
    const auto watcher = std::make_shared<Counts>();
    log->watch(watcher);
    const auto waits = std::make_shared<Waits>();
    for (int i = 1; i <= 5; ++i) {
        store.append(log, block({"x"}), waits);
        waits->wait();
        CHECK(watcher->count.load() >= i);
    }
    log->unwatch(watcher.get());
    const int before = watcher->count.load();
    store.append(log, block({"x"}), waits);
    waits->wait();
    CHECK_EQUAL(watcher->count.load(), before);
}

TEST("a forked child neither writes nor holds the directory") {
    Directory directory;
    auto store = std::make_unique<Store>(real_disk(), directory.store(), quick(Fsync::always));
    const auto log = store->log("t");
    const auto waits = std::make_shared<Waits>();
    store->append(log, block({"x"}), waits);
    waits->wait();
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    const pid_t child = fork();
    if (child == 0) {
        close(pipes[1]);
        char byte;
        [[maybe_unused]] const ssize_t ended = read(pipes[0], &byte, 1);
        _exit(store->forked() ? 0 : 1);
    }
    close(pipes[0]);
    CHECK(!store->forked());
    store.reset();
    Store again(real_disk(), directory.store(), quick(Fsync::always));  // while the child lives
    CHECK_EQUAL(read_all(again.log("t")).records.size(), 1u);
    close(pipes[1]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

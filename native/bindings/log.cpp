#include "bindings/log.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "base/wait.hpp"
#include "bindings/python.hpp"
#include "log/check.hpp"
#include "log/reader.hpp"
#include "log/store.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace antiphon::python {

namespace {

nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }
std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

[[noreturn]] void raise_failure(const log::Failure& failure, const std::string& path) {
    if (failure.error == ENOSPC || failure.error == EDQUOT) {
        raise("StoreFull", failure.what(), facts("{ss}", "path", path.c_str()));
    } else if (failure.kind == log::Failure::Kind::disk) {
        Reference error = Reference::steal(
            PyObject_CallFunction(PyExc_OSError, "iss", failure.error, failure.what(), path.c_str()));
        if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
    } else if (failure.kind == log::Failure::Kind::closed) {
        raise("Closed", failure.what(), facts("{ss}", "what", "store"));
    } else {
        raise("ConfigError", failure.what(), facts("{ssss}", "setting", "store", "value", path.c_str()));
    }
    throw nb::python_error();
}

// Runs without the interpreter's lock.
template <typename Work>
auto apart(const std::string& path, Work&& work) {
    try {
        Released released;
        return work();
    } catch (const log::Failure& failure) {
        raise_failure(failure, path);
    }
}

// Waits until `done`, which is asked every 100 ms at the latest, or until then. Looks at signals.
template <typename Wait>
bool wait_patiently(double timeout, Wait&& wait) {
    const Nanos until = now_ns() + seconds_to_ns(timeout);
    bool there = false, interrupted = false;
    {
        Released released;
        while (!(there = wait(std::min(until, now_ns() + 100 * kMillisecond))) && now_ns() < until) {
            const Interrupted* ask = released.interrupted();
            if (ask != nullptr && (interrupted = (*ask)())) break;
        }
    }
    if (interrupted) throw nb::python_error();
    return there;
}

log::Settings read_settings(const nb::dict& from) {
    log::Settings s;
    const auto mode = nb::cast<std::string>(from["fsync"]);
    s.fsync = mode == "none" ? log::Fsync::none : mode == "always" ? log::Fsync::always : log::Fsync::interval;
    s.interval = seconds_to_ns(nb::cast<double>(from["interval"]));
    s.segment_bytes = nb::cast<std::uint64_t>(from["segment_bytes"]);
    s.segment_records = nb::cast<std::uint64_t>(from["segment_records"]);
    s.segment_age = seconds_to_ns(nb::cast<double>(from["segment_age"]));
    s.keep_bytes = nb::cast<std::uint64_t>(from["keep_bytes"]);
    s.keep_age = seconds_to_ns(nb::cast<double>(from["keep_age"]));
    s.queue_bytes = nb::cast<std::size_t>(from["queue_bytes"]);
    s.max_open = nb::cast<std::size_t>(from["max_open"]);
    s.max_producers = nb::cast<std::size_t>(from["max_producers"]);
    s.writable = nb::cast<bool>(from["writable"]);
    return s;
}

// Shared by a store and everything made from it. In a forked child none of it is touched: its locks may
// be held by threads that the child does not have, and a condition that somebody waits for there cannot
// be destroyed.
using Stores = std::shared_ptr<log::Store>;

void check_alive(const Stores& store) {
    if (!store->forked()) return;
    raise("Closed",
          "this store belongs to the process that this one was forked from; open it after the fork, "
          "in one process only",
          facts("{ss}", "what", "store"));
    throw nb::python_error();
}

// The last one to go ends the log thread, which may take as long as the disk does.
template <typename... Owned>
void let_go(Stores& store, Owned&... owned) {
    if (!store) return;
    if (store->forked()) {
        (new Owned(std::move(owned)), ...);
        new Stores(std::move(store));
        return;
    }
    Released released;
    (owned.reset(), ...);
    store.reset();
}

const char* name_of(log::Status status) {
    switch (status) {
        case log::Status::ok: return "ok";
        case log::Status::full: return "full";
        case log::Status::failed: return "failed";
        case log::Status::out_of_order: return "out_of_order";
        case log::Status::closed: return "closed";
    }
    return "";
}

nb::tuple receipt_tuple(std::uint64_t token, const log::Receipt& receipt) {
    return nb::make_tuple(token, name_of(receipt.status), receipt.sequence, receipt.count, receipt.duplicates,
                          receipt.error);
}

// Receipts by their tokens. Bounded: what is not taken out stops those who would append more.
class Receipts : public log::Listener {
   public:
    explicit Receipts(std::size_t most) : most_(most) {}

    // A token; 0: as many as there may be wait for their receipt, or to be taken.
    std::uint64_t begin() {
        std::lock_guard lock(mutex_);
        if (under_way_ + done_.size() >= most_) return 0;
        ++under_way_;
        return ++tokens_;
    }
    void give_up() {
        std::lock_guard lock(mutex_);
        --under_way_;
    }
    void appended(std::uint64_t token, const log::Receipt& receipt) override {
        std::lock_guard lock(mutex_);
        done_.emplace(token, receipt);
        if (--under_way_ == 0 || wanted_.contains(token)) changed_.notify_all();
    }
    // True: the receipt is there, and taken out.
    bool wait(std::uint64_t token, log::Receipt& receipt, Nanos until) {
        std::unique_lock lock(mutex_);
        const auto want = wanted_.insert(token);
        auto found = done_.find(token);
        while (found == done_.end() && wait_until(changed_, lock, until)) found = done_.find(token);
        wanted_.erase(want);
        if (found == done_.end()) return false;
        receipt = found->second;
        done_.erase(found);
        return true;
    }
    bool wait_all(Nanos until) {
        std::unique_lock lock(mutex_);
        while (under_way_ != 0 && wait_until(changed_, lock, until)) {
        }
        return under_way_ == 0;
    }
    std::map<std::uint64_t, log::Receipt> take() {
        std::lock_guard lock(mutex_);
        return std::exchange(done_, {});
    }
    std::size_t under_way() {
        std::lock_guard lock(mutex_);
        return under_way_;
    }

   private:
    const std::size_t most_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, log::Receipt> done_;
    std::size_t under_way_ = 0;
    std::uint64_t tokens_ = 0;
    std::multiset<std::uint64_t> wanted_;  // tokens that somebody waits for: few
};

class LogAppender {
   public:
    LogAppender(Stores store, std::shared_ptr<log::Log> log, std::size_t most)
        : store_(std::move(store)), log_(std::move(log)), receipts_(std::make_shared<Receipts>(most)) {}
    ~LogAppender() { let_go(store_, log_, receipts_); }
    LogAppender(const LogAppender&) = delete;

    // The token of what was taken; 0: there is no room.
    std::uint64_t submit(nb::handle data, const nb::bytes& properties, std::int64_t time_ns, std::uint32_t source,
                         std::uint64_t producer, std::uint64_t sequence) {
        check_alive(store_);
        log::Block block(producer, sequence);
        if (PyBytes_CheckExact(data.ptr())) {
            block.add(view(nb::borrow<nb::bytes>(data)), view(properties), time_ns, source);
        } else {
            const nb::list all = nb::cast<nb::list>(data);
            std::size_t bytes = 0;
            for (nb::handle one : all) bytes += view(nb::cast<nb::bytes>(one)).size() + log::kRecordHead + properties.size();
            block.reserve(bytes);
            for (nb::handle one : all) block.add(view(nb::cast<nb::bytes>(one)), view(properties), time_ns, source);
        }
        const std::size_t size = block.bytes().size();
        const std::uint64_t token = receipts_->begin();
        if (token == 0) return 0;
        const log::Put put = store_->append(log_, std::move(block), receipts_, token);
        if (put == log::Put::taken) return token;
        receipts_->give_up();
        if (put == log::Put::no_room) return 0;
        if (put == log::Put::closed) {
            raise("Closed", "this store is closed, or was opened only to look", facts("{ss}", "what", "store"));
        } else {
            raise("MessageTooLarge", "what is appended at once must fit into the store's queue and into a segment",
                  facts("{sKsK}", "size", static_cast<unsigned long long>(size), "limit",
                        static_cast<unsigned long long>(store_->settings().queue_bytes)));
        }
        throw nb::python_error();
    }
    bool wait_for_room(std::size_t bytes, double timeout) {
        check_alive(store_);
        return wait_patiently(timeout, [&](Nanos until) { return store_->wait_for_room(bytes, until); });
    }
    nb::object wait(std::uint64_t token, double timeout) {
        check_alive(store_);
        log::Receipt receipt;
        if (!wait_patiently(timeout, [&](Nanos until) { return receipts_->wait(token, receipt, until); })) {
            return nb::none();
        }
        return receipt_tuple(token, receipt);
    }
    bool wait_all(double timeout) {
        check_alive(store_);
        return wait_patiently(timeout, [&](Nanos until) { return receipts_->wait_all(until); });
    }
    nb::list take() {
        check_alive(store_);
        nb::list all;
        for (const auto& [token, receipt] : receipts_->take()) all.append(receipt_tuple(token, receipt));
        return all;
    }
    std::size_t under_way() {
        check_alive(store_);
        return receipts_->under_way();
    }

   private:
    Stores store_;
    std::shared_ptr<log::Log> log_;
    std::shared_ptr<Receipts> receipts_;
};

class LogReader {
   public:
    LogReader(Stores store, std::shared_ptr<log::Log> log, const log::Start& start)
        : store_(std::move(store)), reader_(std::make_unique<log::Reader>(std::move(log), start)) {}
    ~LogReader() { let_go(store_, reader_); }
    LogReader(const LogReader&) = delete;

    // One batch with an object per record; None: nothing came in time.
    nb::object read(double timeout) {
        const Turn turn(*this);
        log::Batch batch;
        if (!next(batch, timeout)) return nb::none();
        nb::list records;
        log::RecordCursor cursor(batch);
        log::Record record;
        for (std::uint32_t i = 0; cursor.next(record); ++i) {
            if (i < reader_->first()) continue;
            records.append(nb::make_tuple(record.sequence, record.time_ns, record.source, to_bytes(record.properties),
                                          to_bytes(record.data)));
        }
        const log::BatchHead& head = batch.head;
        return nb::make_tuple(head.epoch, head.producer,
                              head.producer == 0 ? 0 : head.producer_sequence + reader_->first(), reader_->missed(),
                              to_bytes(reader_->damage()), records);
    }

    // About so many bytes of records that follow each other, without an object for each: sequences, offsets
    // and all data in one piece; what was missed and what is damaged just before them. None: nothing came
    // in time.
    nb::object read_packed(std::size_t bytes, double timeout) {
        const Turn turn(*this);
        log::Batch batch;
        if (!next(batch, timeout)) return nb::none();
        std::vector<std::uint64_t> sequences;
        std::vector<std::int64_t> offsets{0};
        std::string data;
        const std::uint64_t missed = reader_->missed();
        const std::string damage = reader_->damage();
        {
            Released released;
            while (true) {
                log::RecordCursor cursor(batch);
                log::Record record;
                for (std::uint32_t i = 0; cursor.next(record); ++i) {
                    if (i < reader_->first()) continue;
                    sequences.push_back(record.sequence);
                    data.append(record.data);
                    offsets.push_back(static_cast<std::int64_t>(data.size()));
                }
                if (data.size() >= bytes || reader_->next(batch, 0) != log::Read::batch) break;
                if (reader_->missed() != 0 || !reader_->damage().empty()) {
                    held_ = batch;  // something lies between: it begins the next piece
                    break;
                }
            }
        }
        const auto raw = [](const auto& all) { return nb::bytes(all.data(), all.size() * sizeof all[0]); };
        return nb::make_tuple(raw(sequences), raw(offsets), to_bytes(data), missed, to_bytes(damage));
    }

    std::uint64_t position() const { return reader_->position(); }

   private:
    // A wait lets the interpreter's lock go, and a reader is for one thread at a time.
    class Turn {
       public:
        explicit Turn(LogReader& reader) : reader_(reader) {
            if (reader.busy_.exchange(true)) {
                raise("WouldBlock", "another thread reads with this reader; make one for each thread");
                throw nb::python_error();
            }
        }
        Turn(const Turn&) = delete;
        ~Turn() { reader_.busy_.store(false); }

       private:
        LogReader& reader_;
    };

    bool next(log::Batch& batch, double timeout) {
        check_alive(store_);
        if (held_) {
            batch = *std::exchange(held_, std::nullopt);
            return true;
        }
        log::Read read = log::Read::timeout;
        const bool ended = wait_patiently(timeout, [&](Nanos until) {
            read = reader_->next(batch, until);
            return read != log::Read::timeout;
        });
        if (!ended) return false;
        if (read == log::Read::batch) return true;
        if (read == log::Read::closed) {
            raise("Closed", "this store is closed, and there is no more to read", facts("{ss}", "what", "store"));
        } else {
            errno = reader_->error();
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, reader_->log()->directory().c_str());
        }
        throw nb::python_error();
    }

    Stores store_;
    std::unique_ptr<log::Reader> reader_;
    std::optional<log::Batch> held_;  // read already, and given out next; its bytes are the reader's
    std::atomic<bool> busy_{false};   // set and cleared by whoever reads; says no to anybody else
};

nb::list finding_list(const std::vector<log::Finding>& findings) {
    nb::list all;
    for (const log::Finding& one : findings) {
        all.append(nb::make_tuple(one.damage, to_bytes(one.path), one.position, to_bytes(one.what)));
    }
    return all;
}

class LogStore {
   public:
    LogStore(const std::string& path, const nb::dict& settings) {
        const log::Settings read = read_settings(settings);
        store_ = apart(path, [&] { return std::make_shared<log::Store>(log::real_disk(), path, read); });
    }
    ~LogStore() { let_go(store_); }
    LogStore(const LogStore&) = delete;

    std::shared_ptr<log::Log> log(const nb::bytes& topic) {
        return open_log(store_, std::string(view(topic)));
    }
    nb::list topics() {
        check_alive(store_);
        nb::list all;
        for (const std::string& topic : apart(store_->directory(), [&] { return store_->topics(); })) {
            all.append(to_bytes(topic));
        }
        return all;
    }
    nb::dict facts_of(const nb::bytes& topic) {
        const auto one = log(topic);
        const log::LogFacts found = one->facts();
        nb::dict d;
        d["first"] = found.first;
        d["next"] = found.next;
        d["records"] = found.records;
        d["bytes"] = found.bytes;
        d["segments"] = found.segments;
        d["findings"] = finding_list(one->findings());
        return d;
    }
    std::shared_ptr<LogAppender> appender(const nb::bytes& topic, std::size_t most) {
        return std::make_shared<LogAppender>(store_, log(topic), most);
    }
    std::shared_ptr<LogReader> reader(const nb::bytes& topic, const std::string& at, std::int64_t value) {
        const log::Start start = read_start(at, value);
        auto opened = log(topic);
        return apart(store_->directory(), [&] { return std::make_shared<LogReader>(store_, std::move(opened), start); });
    }
    nb::dict statistics() {
        check_alive(store_);
        const log::StoreFacts found = store_->facts();
        nb::dict d;
        d["appended"] = found.appended;
        d["duplicates"] = found.duplicates;
        d["refused"] = found.refused;
        d["no_space"] = found.no_space;
        d["rounds"] = found.rounds;
        d["syncs"] = found.syncs;
        d["queued_bytes"] = found.queued_bytes;
        d["logs"] = found.logs;
        d["open_files"] = found.open_files;
        d["damaged"] = found.damaged;
        d["waits"] = found.waits ? 1 : 0;
        return d;
    }
    bool has_open(const nb::bytes& topic) {
        check_alive(store_);
        return store_->has_open(std::string(view(topic)));
    }
    nb::list take_damages() {
        check_alive(store_);
        nb::list all;
        for (const auto& [topic, what] : store_->take_damages()) all.append(nb::make_tuple(to_bytes(topic), to_bytes(what)));
        return all;
    }
    void close() {
        check_alive(store_);
        Released released;
        store_->close();
    }
    std::uint32_t epoch() const { return store_->epoch(); }
    std::uint64_t id() const { return store_->id(); }
    const Stores& store() const { return store_; }

   private:
    Stores store_;
};

nb::dict check_log(const std::string& path) {
    const log::StoreReport report = apart(path, [&] { return log::check_store(log::real_disk(), path); });
    nb::dict d;
    d["epoch"] = report.epoch;
    d["in_use"] = report.in_use;
    nb::list topics;
    for (const log::TopicReport& one : report.topics) {
        nb::dict t;
        t["topic"] = to_bytes(one.topic);
        t["directory"] = to_bytes(one.directory);
        t["segments"] = one.segments;
        t["batches"] = one.tally.batches;
        t["records"] = one.tally.records;
        t["bytes"] = one.tally.bytes;
        t["first"] = one.tally.first;
        t["last"] = one.tally.last;
        t["first_ns"] = one.tally.first_ns;
        t["last_ns"] = one.tally.last_ns;
        t["epoch"] = one.tally.epoch;
        t["findings"] = finding_list(one.findings);
        topics.append(t);
    }
    d["topics"] = topics;
    return d;
}

}  // namespace

std::shared_ptr<log::Store> store_in(nb::handle object) {
    const Stores& store = nb::cast<LogStore&>(object).store();
    check_alive(store);
    return store;
}

std::shared_ptr<log::Log> open_log(const Stores& store, const std::string& topic) {
    check_alive(store);
    return apart(store->directory(), [&] { return store->log(topic); });
}

log::Start read_start(const std::string& at, std::int64_t value) {
    log::Start start;
    if (at == "latest") start.at = log::Start::At::latest;
    if (at == "sequence") start = {log::Start::At::sequence, static_cast<std::uint64_t>(value), 0};
    if (at == "time") start = {log::Start::At::time, 0, value};
    return start;
}

void add_log(nb::module_& m) {
    nb::class_<LogAppender>(m, "LogAppender", nb::is_weak_referenceable())
        .def("submit", &LogAppender::submit, "data"_a, "properties"_a, "time_ns"_a, "source"_a, "producer"_a,
             "sequence"_a)
        .def("wait_for_room", &LogAppender::wait_for_room, "bytes"_a, "timeout"_a)
        .def("wait", &LogAppender::wait, "token"_a, "timeout"_a)
        .def("wait_all", &LogAppender::wait_all, "timeout"_a)
        .def("take", &LogAppender::take)
        .def_prop_ro("under_way", &LogAppender::under_way);
    nb::class_<LogReader>(m, "LogReader", nb::is_weak_referenceable())
        .def("read", &LogReader::read, "timeout"_a)
        .def("read_packed", &LogReader::read_packed, "bytes"_a, "timeout"_a)
        .def_prop_ro("position", &LogReader::position);
    nb::class_<LogStore>(m, "LogStore", nb::is_weak_referenceable())
        .def(nb::init<const std::string&, const nb::dict&>(), "path"_a, "settings"_a)
        .def("topics", &LogStore::topics)
        .def("facts", &LogStore::facts_of, "topic"_a)
        .def("appender", &LogStore::appender, "topic"_a, "most"_a)
        .def("reader", &LogStore::reader, "topic"_a, "at"_a, "value"_a)
        .def("statistics", &LogStore::statistics)
        .def("has_open", &LogStore::has_open, "topic"_a)
        .def("take_damages", &LogStore::take_damages)
        .def("close", &LogStore::close)
        .def_prop_ro("epoch", &LogStore::epoch)
        .def_prop_ro("id", &LogStore::id);
    m.def("check_log", &check_log, "path"_a);
}

}  // namespace antiphon::python

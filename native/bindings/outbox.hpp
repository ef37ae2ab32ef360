// A publisher whose events a broker records: each is kept here until the broker has said that it is in
// the log, and sent again when the connection, or the broker, was another meanwhile.
//
// Events are numbered without a gap, and the broker's log knows the last number of each producer. So
// what is sent twice is recorded once.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/python.hpp"
#include "bindings/targets.hpp"
#include "log/append.hpp"
#include "node/pump.hpp"

namespace antiphon::python {

// Calls into Python are made with the interpreter's lock and without any other.
class Outbox : public Pump {
   public:
    struct Options {
        std::uint32_t topic;
        std::string name;
        std::uint64_t producer;
        std::size_t events, bytes;  // that may wait for their receipts
    };
    Outbox(std::shared_ptr<Node> node, Options options, Reference encode, Reference encode_message);
    ~Outbox() override;

    // With the interpreter's lock. New references; null with an exception set.
    PyObject* publish(PyObject* data, PyObject* properties);
    PyObject* publish_many(PyObject* events);
    PyObject* publish_packed(PyObject* data, PyObject* offsets);
    // Until everything that was published before is in the log. Null with an exception set.
    PyObject* flush(double timeout);
    bool close(Nanos drain);  // false with an exception set

    // The broker's subscription; false: that node is not known.
    bool serve(std::uint16_t peer, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge);
    void leave(std::uint16_t peer, std::uint32_t flow);
    // A receipt of the broker.
    void acknowledge(std::uint64_t producer, std::uint64_t upto, std::uint32_t status, int error);
    // What the broker has refused, for good or until it is asked again; an empty text: nothing any more.
    void refuse(std::string error, std::string text);
    // Again, after the broker could not take it: only the first one, and less and less often, until that is
    // taken. To be called now and then. True: there is something to try.
    bool retry();

    bool run_slice(Nanos until) override;

    std::size_t targets();
    std::size_t pending();
    std::uint64_t published();
    std::uint64_t acknowledged();
    std::uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }
    bool active() const { return !closed_.load(std::memory_order_relaxed); }

   private:
    struct Kept {
        std::int64_t time_ns;
        std::uint32_t properties;
        std::string bytes;  // the properties, then the data
    };

    PyObject* add(const std::vector<Message>& events, Message properties, Call call = kPublish, std::size_t before = 0);
    std::uint64_t largest();
    bool make_room(std::unique_lock<std::mutex>& lock, Nanos deadline, const Interrupted* interrupted, Outcome& outcome);
    bool full() const { return kept_.size() >= most_events_ || bytes_ >= most_bytes_; }
    PyObject* raise_trouble(std::unique_lock<std::mutex>& lock);
    bool troubled() const { return !refused_.empty() || (status_ != log::Status::ok && probing_ == 0); }
    // Behind the last that may be sent.
    std::uint64_t end() const { return acked_ + (probing_ != 0 ? std::min(probing_, kept_.size()) : kept_.size()) + 1; }
    // Until somebody does something: what is out of order is sent again by itself.
    bool stuck() const {
        return !refused_.empty() || (status_ != log::Status::ok && status_ != log::Status::out_of_order);
    }
    bool open() const;
    Reference encoded(PyObject* message);
    void send();  // with the mutex
    bool send_large(std::unique_lock<std::mutex>& lock);
    EventView view(std::uint64_t number) const;
    void begin(Peer& peer, std::shared_ptr<OutFlow> way, std::uint64_t incarnation);
    void go_back() { next_ = acked_ + 1; }

    const std::uint32_t topic_;
    const std::string name_;
    const std::uint64_t producer_;
    const std::size_t most_events_, most_bytes_;
    Reference encode_, encode_message_;
    std::atomic<bool> closing_{false};  // nothing is added; set once, with the mutex; read anywhere
    std::atomic<bool> closed_{false};   // nor sent; the same
    std::atomic<std::uint64_t> waits_{0};

    // Of everything below. Held while events are written into the ring, which never waits.
    std::mutex mutex_;
    std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
    std::shared_ptr<Target> target_;  // the broker's subscription; null: it has none of us now
    std::deque<Kept> kept_;           // from acked_ + 1 on
    std::size_t bytes_ = 0;
    std::uint64_t acked_ = 0;  // the last number that is in the log
    std::uint64_t next_ = 1;   // to be sent
    log::Status status_ = log::Status::ok;
    int error_ = 0;
    std::size_t probing_ = 0;         // not 0: so many are sent, to see whether the broker takes them now
    Nanos retry_at_ = 0, pause_ = 0;  // before the next such attempt
    std::uint64_t tried_from_ = 0;    // how far the broker was when that was last thought of
    std::string refused_, refusal_;  // an error's class, and its text
    bool large_ = false;             // one goes in fragments, and the others wait behind it
};

}  // namespace antiphon::python

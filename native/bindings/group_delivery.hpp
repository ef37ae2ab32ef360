// Messages and views of one group to its handlers: one ordered task.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "bindings/python.hpp"
#include "groups/datagram_port.hpp"
#include "groups/outgoing.hpp"

namespace antiphon::python {

// A member as whoever delivers has to know it.
struct Admitted {
    groups::Route route;  // to its acknowledgements
    Reference object;     // what handlers are given
};

class GroupDelivery : public Task {
   public:
    GroupDelivery(std::shared_ptr<Node> node, std::uint64_t most_bytes, Reference on_error);
    ~GroupDelivery() override;

    // Before anything can come.
    void start(std::shared_ptr<Registration> registration, std::shared_ptr<groups::Outgoing> all,
               std::shared_ptr<groups::DatagramPort> port);  // null: it goes over nodes
    // With the interpreter's lock:
    void set_handler(Reference handler) { handler_ = std::move(handler); }
    // This member, from now on; what is sent to it waits for the first view with it.
    void expect(std::uint64_t self) { expected_self_.store(self, std::memory_order_seq_cst); }
    // From this point on those are the members; then `call` is called, without arguments.
    void install(std::uint64_t self, std::vector<Admitted> members, Reference call);
    void pause(bool paused);
    void tick();
    void drop();  // it will not run again

    bool run_slice(Nanos until) override;
    std::uint64_t handled() const override { return delivered_.load(std::memory_order_relaxed); }

    struct Counts {
        std::uint64_t delivered, bytes, failed, duplicates, gaps, malformed, strangers, acknowledgements, early,
            unfinished;
    };
    Counts counts() const;
    // When something last came from there, on the clock of the core; 0: never.
    std::map<std::uint64_t, Nanos> heard();

   private:
    struct Sender {
        Sender(const groups::Route& route, Peer* peer_, std::shared_ptr<OutFlow> flow_, Reference object_, std::uint64_t most_bytes)
            : member(route.member),
              node(route.node),
              incarnation(route.incarnation),
              peer(peer_),
              flow(std::move(flow_)),
              object(std::move(object_)),
              lanes{window::ReceiveWindow(most_bytes), window::ReceiveWindow(most_bytes)} {}
        const std::uint64_t member;
        const std::uint16_t node;
        const std::uint64_t incarnation;  // of the node
        Peer* const peer;  // null: its node is not known
        const std::shared_ptr<OutFlow> flow;
        Reference object;
        std::array<window::ReceiveWindow, groups::kLanes> lanes;
        std::array<std::uint64_t, groups::kLanes> unacknowledged{};
        std::array<bool, groups::kLanes> due{};
        Nanos noted = 0;  // in heard_
    };
    struct Item {
        std::uint64_t self;
        std::vector<Admitted> members;
        Reference call;
    };

    bool has_work();
    void apply(Item item);
    bool next_run();
    void begin_run();
    void deliver_run(PyObject* handler, Nanos until);
    bool next_batch();
    void deliver_batch(PyObject* handler, Nanos until);
    void deliver_own(PyObject* handler, Nanos until);
    void call(PyObject* handler, PyObject* member, std::string_view message);
    void report();
    void acknowledge(Sender& sender, std::uint32_t lane, bool resume);
    void end_run();
    void expire();
    void count_unfinished();

    std::shared_ptr<Node> node_;
    const std::uint64_t most_bytes_;
    std::shared_ptr<Registration> registration_;
    std::shared_ptr<groups::Outgoing> all_;
    std::shared_ptr<groups::DatagramPort> port_;
    // With the interpreter's lock:
    Reference handler_, on_error_;
    std::mutex mutex_;  // of items_ and heard_
    std::deque<Item> items_;
    std::map<std::uint64_t, Nanos> heard_;
    std::atomic<bool> has_items_{false};  // written with the mutex; a hint for whoever looks without
    // Written by anybody, read in slices; a change is followed by a notice.
    std::atomic<bool> paused_{false}, ticked_{false};
    std::atomic<std::uint64_t> expected_self_{0};

    // Of the thread that runs the task:
    TaskQueue::Slice slice_;
    std::uint64_t self_ = 0;
    std::map<std::uint64_t, std::unique_ptr<Sender>> senders_;
    std::deque<Run> early_, again_;  // of members that no view has named yet; and those to be looked at again
    Run run_;
    RunCursor cursor_;
    bool begun_ = false, popped_ = false;
    Sender* sender_ = nullptr;  // of the run that was begun
    std::uint32_t lane_ = 0;
    std::uint32_t acknowledge_every_ = 1;
    // By datagrams: the batch that was begun, or one that waits for the view that names its sender.
    groups::DatagramPort::Batch batch_;
    bool batch_begun_ = false, batch_waits_ = false;
    std::size_t batch_at_ = 0, batch_offset_ = 0;  // the next message of it
    std::vector<std::string_view> own_;
    std::vector<std::string> wrapped_;
    std::unique_ptr<window::ReceiveWindow> own_parts_;
    // Written by that thread, read by anybody.
    std::atomic<std::uint64_t> delivered_{0}, bytes_{0}, failed_{0}, duplicates_{0}, gaps_{0}, malformed_{0},
        strangers_{0}, acknowledgements_{0}, early_count_{0}, unfinished_{0};
};

}  // namespace antiphon::python

// The native half of antiphon.Node.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "bindings/bell.hpp"
#include "bindings/tasks.hpp"

namespace antiphon::python {

class Feed;
class Inbox;
class Request;

class Handle;

// The subscriptions of a node that are open: nobody else need keep them. With the interpreter's lock.
using Subscriptions = std::unordered_map<const Handle*, std::shared_ptr<Handle>>;

// What `on` returns: closes the registration.
class Handle {
   public:
    Handle(std::shared_ptr<Node> node, std::shared_ptr<Registration> registration, std::shared_ptr<Handler> handler,
           std::vector<std::shared_ptr<HandlerTask>> tasks, std::weak_ptr<Subscriptions> among = {})
        : node_(std::move(node)),
          registration_(std::move(registration)),
          handler_(std::move(handler)),
          tasks_(std::move(tasks)),
          among_(std::move(among)) {}
    // With the interpreter's lock, which it lets go while a running slice ends, also one that somebody
    // else waits for already. False with an exception set when a signal handler raised meanwhile: another
    // call waits again.
    bool close();
    void drop();  // the node is closed: lets go of the handler

    const Handler& handler() const { return *handler_; }
    const Registration& registration() const { return *registration_; }
    // A fraction of the node's time for it, or none (0). False: there is not so much left.
    bool set_share(double share);
    // Where the events of that publisher of that node go; null: nowhere.
    void route(std::uint16_t source, std::uint32_t number, std::shared_ptr<Route> to);
    // Its events are acknowledged from now on: as the handler ends, or by the program.
    void acknowledge(bool manual);
    // May block: until all that was acknowledged is on its way, or for so many seconds; then false.
    bool wait_acknowledged(double timeout);
    // Of a subscription: the last sequence of each recorded topic that was handed out.
    // Of each recorded topic: the sequence that comes next, and of which store.
    std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> positions() const;
    bool closed() const { return closed_; }  // and nothing here needs it any more
    // Also those that have ended: what they have counted stays.
    std::vector<std::shared_ptr<const Task>> tasks() const;
    bool active() const { return registration_->active.load(std::memory_order_relaxed); }

   private:
    std::shared_ptr<Node> node_;
    std::shared_ptr<Registration> registration_;
    std::shared_ptr<Handler> handler_;
    std::vector<std::shared_ptr<HandlerTask>> tasks_, ended_;
    const std::weak_ptr<Subscriptions> among_;  // leaves it when it is closed
    double share_ = 0;
    bool closed_ = false;
    bool wait_for(HandlerTask& task, const Interrupted* interrupted, bool& raised);
};

// A message that waits for its peer without a thread.
class Soon {
   public:
    Soon(std::shared_ptr<Node> node, Peer& peer, std::uint16_t kind, Reference data)
        : node_(std::move(node)), peer_(peer), kind_(kind), data_(std::move(data)) {}
    ~Soon() {
        if (node_->forked()) new std::shared_ptr<Node>(std::move(node_));
    }
    // Never blocks: tried again when the bell rings, or at until(). `failed`: with an exception. Its time begins with
    // the first attempt.
    Waits::Next attempt(Bell& bell);
    void drop() { waits_.reset(); }
    Nanos until() const { return waits_ ? waits_->until() : kNever; }

   private:
    std::shared_ptr<Node> node_;
    Peer& peer_;
    const std::uint16_t kind_;
    const Reference data_;  // bytes
    std::optional<Waits> waits_;
};

class NodeCore {
   public:
    NodeCore(NodeOptions options, Reference kind_of, Reference encode);
    ~NodeCore();

    void start();
    bool close(double drain);
    std::shared_ptr<Handle> on(std::uint16_t kind, Reference call, Reference decode, Reference on_error, bool batch,
                               int tasks, std::uint64_t capacity, WhenFull when_full);
    std::shared_ptr<Inbox> inbox(std::uint16_t kind, Reference decode, std::uint64_t capacity, WhenFull when_full);
    std::shared_ptr<Feed> feed(std::uint16_t kind, Reference decode, std::uint64_t capacity, WhenFull when_full);
    void set_on_event(Reference call);
    // The events of topics that publishers send to its flow.
    std::shared_ptr<Handle> subscribe(Reference call, Reference on_error, bool batch, std::uint64_t capacity,
                                      WhenFull when_full);
    // A subscription whose events go to the routes that `call` makes with Handle::route.
    std::shared_ptr<Handle> relay(Reference call, Reference on_error, Reference ended, std::uint64_t capacity,
                                  Nanos patience);
    // Who listens at that address. With an exception set when nobody answers.
    std::pair<std::uint16_t, std::uint64_t> identify(const std::string& address, double timeout);
    std::shared_ptr<Inbox> subscribe_inbox(std::uint64_t capacity, WhenFull when_full);
    // Between buses or groups, by a kind of ours. None, or null with an exception set; False when it would
    // have to wait.
    PyObject* tell(long target, PyObject* data, bool blocking, std::uint16_t kind);

    // The sending calls; null with an exception set.
    PyObject* send(PyObject* const* arguments, Py_ssize_t count, PyObject* names, bool blocking);
    PyObject* send_many(PyObject* const* arguments, Py_ssize_t count, PyObject* names);
    PyObject* send_packed(PyObject* const* arguments, Py_ssize_t count, PyObject* names);
    // A message that is not sent yet, or null with an exception. `data` is bytes.
    std::shared_ptr<Soon> soon(long target, Reference data, std::uint16_t kind);
    // A request that is not sent yet, or null with an exception.
    std::shared_ptr<Request> prepare(long target, int kind);
    // (kind, bytes) of the answer, or null with an exception.
    PyObject* request(long target, PyObject* data, int kind, double timeout);
    bool flush(int peer, double timeout);  // false with an exception set; peer 0: all

    std::shared_ptr<Node> node() { return node_; }
    Reference encode() const { return Reference::share(encode_.get()); }
    const std::vector<std::shared_ptr<Handle>>& handles() const { return handles_; }
    std::uint64_t lost_events() const { return events_->lost(); }
    std::uint64_t forgotten_failed() const { return forgotten_failed_; }
    std::uint64_t forgotten_dropped() const { return forgotten_dropped_; }

   private:
    std::shared_ptr<Handle> add_subscription(std::shared_ptr<Handler> handler, std::uint64_t capacity,
                                             WhenFull when_full);
    Peer* find(long id);
    PyObject* send_bytes(Peer& peer, int kind, Message message, bool blocking);
    bool send_spans(Peer& peer, int kind, const Message* messages, std::size_t count, std::size_t before,
                    Node::Sending& sending);
    Nanos send_deadline() const;
    int kind_for(PyObject* message);  // -1 with an exception set

    std::shared_ptr<Node> node_;
    std::shared_ptr<EventTask> events_;
    Reference kind_of_, encode_, kinds_;
    std::vector<std::shared_ptr<Handle>> handles_;
    std::shared_ptr<Subscriptions> subscriptions_ = std::make_shared<Subscriptions>();
    bool started_ = false, kept_ = false;
    std::uint64_t forgotten_failed_ = 0, forgotten_dropped_ = 0;  // of handles that are gone
};

}  // namespace antiphon::python

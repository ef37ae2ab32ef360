// The native half of antiphon.Group: lanes, acknowledgements and delivery of one group on a node.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "bindings/group_delivery.hpp"
#include "groups/datagram_lane.hpp"
#include "groups/acknowledging.hpp"

namespace antiphon::python {

class GroupCore {
   public:
    struct Options {
        std::size_t window_bytes, window_messages;  // of what is sent to all
        std::size_t unicast_bytes;                  // of what is sent to one
        std::uint64_t capacity;
        std::uint64_t max_message_bytes;
        bool whole;  // no message goes in parts: those that would are refused
        std::string name;  // of the group, for errors
        // By datagrams, or over nodes.
        struct Datagrams {
            groups::DatagramPort::Options port;
            groups::DatagramLane::Options all, one;
        };
        std::optional<Datagrams> datagrams;
    };
    struct Member {
        groups::Route data, acknowledgements;
        Reference object;
    };
    GroupCore(std::shared_ptr<Node> node, Options options, Reference on_error);
    ~GroupCore();

    // With the interpreter's lock, which the first and the last let go to wait.
    // None, or null with an exception set. `to`: a member, 0: all. A negative timeout: the node's.
    PyObject* send(PyObject* data, std::uint64_t to, double timeout);
    bool try_send(PyObject* data, std::uint64_t to);  // false too with an exception set
    void set_handler(Reference handler) { delivery_->set_handler(std::move(handler)); }
    void expect(std::uint64_t self) { delivery_->expect(self); }
    // The members of a view, this one among them; `call` is called where the view stands among the messages.
    // `key`: of the view, where datagrams are sealed; otherwise empty. `primary`: whether it may send; if not, whoever
    // waits is refused before what the view frees could let it through.
    void install(std::uint64_t self, std::vector<Member> members, std::string_view key, bool primary, Reference call);
    // Nobody gets anything any more; sends wait for the next view.
    void leave();
    void pause(bool paused) { delivery_->pause(paused); }
    void tick();
    // How long the handler has been in one call, in nanoseconds; our own calls, in which it may wait, do not
    // count.
    Nanos busy() { return node_->scheduler().running_for(*delivery_); }
    bool settle(double timeout);  // false too with an exception set
    bool close(double patience);

    const Registration& data() const { return *data_; }
    const Registration& acknowledgements() const { return *words_; }
    GroupDelivery& delivery() { return *delivery_; }
    groups::Outgoing& all() { return *all_; }
    std::shared_ptr<Node> node() { return node_; }
    std::map<std::uint64_t, groups::Outgoing::Counts> singles();
    groups::DatagramPort* port() { return port_.get(); }  // null: over nodes

   private:
    // To one member; null where it is none, and once this is closed.
    std::shared_ptr<groups::Outgoing> single(std::uint64_t member);
    bool closed();
    PyObject* raise_departed();
    PyObject* raise_forbidden();
    void acknowledged(std::uint16_t node, const groups::Acknowledgement& word);

    std::shared_ptr<Node> node_;
    Options options_;
    std::shared_ptr<groups::DatagramPort> port_;
    std::shared_ptr<Registration> data_, words_;
    std::shared_ptr<GroupDelivery> delivery_;
    std::shared_ptr<groups::Outgoing> all_;
    std::shared_ptr<groups::AcknowledgementTask> task_;
    std::mutex mutex_;  // of what follows; held for moments, inside no other
    std::map<std::uint64_t, std::shared_ptr<groups::Outgoing>> singles_;
    std::map<std::uint64_t, groups::Route> routes_;
    std::uint64_t self_ = 0;
    bool closed_ = false;  // no lane is made any more
    bool primary_ = true;
};

}  // namespace antiphon::python

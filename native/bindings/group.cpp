#include "bindings/group.hpp"

#include <algorithm>

#include "bindings/packed.hpp"

namespace antiphon::python {

namespace {

using groups::LaneKind;
using groups::Outgoing;

// Acknowledgements are small and few; they need no large window of the receive memory.
constexpr std::uint32_t kWordsWindow = 64 << 10;
constexpr std::uint64_t kWordsCapacity = 1024;
constexpr std::size_t kUnicastMessages = 4096;

// Takes it out of the scheduler. False: it still runs, on another thread.
bool forget(Node& node, Task& task, Nanos until) { return node.scheduler().forget(task, until); }

}  // namespace

GroupCore::GroupCore(std::shared_ptr<Node> node, Options options, Reference on_error)
    : node_(std::move(node)), options_(std::move(options)) {
    std::size_t part = Outgoing::kPartBytes;
    if (options_.datagrams) {
        port_ = std::make_shared<groups::DatagramPort>(node_, options_.datagrams->port);
        part = groups::DatagramLane::part_in(port_->mtu());
        for (groups::DatagramLane::Options* lane : {&options_.datagrams->all, &options_.datagrams->one}) {
            lane->cast.datagram_bytes = groups::DatagramLane::room_in(port_->mtu());
            lane->flow.least = std::max(lane->flow.least, 2 * port_->mtu());
            lane->flow.most = std::max(lane->flow.most, lane->flow.least);
        }
    }
    if (options_.whole) options_.max_message_bytes = std::min<std::uint64_t>(options_.max_message_bytes, part);
    delivery_ = std::make_shared<GroupDelivery>(node_, options_.max_message_bytes, std::move(on_error));
    if (port_) {
        const auto lane = std::make_shared<groups::DatagramLane>(node_, port_, LaneKind::all, delivery_.get(),
                                                                 options_.datagrams->all);
        port_->attach(0, lane);
        all_ = lane;
    } else {
        all_ = std::make_shared<Outgoing>(node_, LaneKind::all, options_.window_bytes, options_.window_messages,
                                          delivery_.get());
    }
    data_ = node_->add_flow(kGroupKind, options_.capacity, 0, [&](const auto& made) {
        delivery_->start(made, all_, port_);
        made->queue->set_on_ready([node = node_.get(), raw = delivery_.get()] { node->scheduler().notify(*raw); });
    });
    words_ = node_->add_flow(kGroupKind, kWordsCapacity, kWordsWindow, [&](const auto& made) {
        task_ = std::make_shared<groups::AcknowledgementTask>(
            *node_, made, [this](std::uint16_t source, const auto& word) { acknowledged(source, word); });
        made->queue->set_on_ready([node = node_.get(), raw = task_.get()] { node->scheduler().notify(*raw); });
    });
    if (!port_) return;
    try {
        Released released;
        port_->start([node = node_.get(), raw = delivery_.get()] { node->scheduler().notify(*raw); });
    } catch (...) {
        close(0);  // the node knows of this already
        throw;
    }
}

GroupCore::~GroupCore() {
    if (node_->forked()) {
        new std::shared_ptr<Node>(std::move(node_));
        new std::shared_ptr<groups::DatagramPort>(std::move(port_));
        new std::shared_ptr<GroupDelivery>(std::move(delivery_));
        new std::shared_ptr<Outgoing>(std::move(all_));
        new std::shared_ptr<groups::AcknowledgementTask>(std::move(task_));
        new std::map<std::uint64_t, std::shared_ptr<Outgoing>>(std::move(singles_));
        new std::shared_ptr<Registration>(std::move(data_));
        new std::shared_ptr<Registration>(std::move(words_));
        return;
    }
    close(0);
    PyErr_Clear();
}

bool GroupCore::close(double patience) {
    if (node_->forked()) return true;
    std::vector<std::shared_ptr<Outgoing>> lanes{all_};
    {
        // Those that are here now are all there will ever be: each is taken out of the scheduler below.
        std::lock_guard lock(mutex_);
        if (closed_) return true;
        closed_ = true;
        for (auto& [member, lane] : singles_) lanes.push_back(lane);
    }
    bool ended = true;
    {
        Released released;
        for (const auto& lane : lanes) lane->close();
        if (port_) port_->stop();
        for (const auto& registration : {data_, words_}) {
            node_->remove_registration(registration);
            registration->queue->set_on_ready(nullptr);
        }
        const Nanos until = now_ns() + seconds_to_ns(patience);
        ended = forget(*node_, *delivery_, std::max(until, now_ns() + 100 * kMillisecond)) &&
                !Scheduler::on_scheduler_thread();
        // These two wait for nothing.
        forget(*node_, *task_, kNever);
        for (const auto& lane : lanes) {
            lane->remove_all();
            forget(*node_, *lane, kNever);
        }
    }
    if (ended) {
        delivery_->drop();
    } else {
        // A handler is still running, on a thread that uses all of this.
        new std::shared_ptr<GroupDelivery>(delivery_);
        new std::shared_ptr<Outgoing>(all_);
    }
    return ended;
}

// --- members -----------------------------------------------------------------------------------------

void GroupCore::install(std::uint64_t self, std::vector<Member> members, std::string_view key, bool primary,
                        Reference call) {
    if (port_ && port_->sealed()) {
        std::vector<std::uint64_t> senders;
        for (const Member& one : members) senders.push_back(one.data.member);
        port_->seal_with(self, key, std::move(senders));
    }
    std::vector<Admitted> admitted;
    std::vector<std::shared_ptr<Outgoing>> gone;
    std::vector<std::uint64_t> left;
    std::vector<groups::Route> came;
    if (!primary) all_->allow(false);
    std::vector<std::shared_ptr<Outgoing>> singles;
    {
        std::lock_guard lock(mutex_);
        primary_ = primary;
        std::map<std::uint64_t, groups::Route> now;
        for (Member& one : members) now.emplace(one.data.member, one.data);
        if (self != self_) {  // another life: nothing of the one before goes on
            for (auto& [member, route] : routes_) left.push_back(member);
            routes_.clear();
        }
        for (auto& [member, route] : routes_) {
            if (!now.contains(member)) left.push_back(member);
        }
        for (auto& [member, route] : now) {
            if (!routes_.contains(member) && member != self) came.push_back(route);
        }
        routes_ = std::move(now);
        for (const std::uint64_t member : left) {
            if (auto found = singles_.find(member); found != singles_.end()) {
                gone.push_back(std::move(found->second));
                singles_.erase(found);
            }
            if (port_) port_->detach(member);  // now: another one may be made as soon as the lock is free
        }
        for (const auto& [member, lane] : singles_) singles.push_back(lane);
        self_ = self;
    }
    for (const auto& lane : singles) lane->allow(primary);
    if (node_->find_peer(node_->id()) == nullptr) node_->add_peer(node_->id(), "");  // to itself alone
    for (const std::uint64_t member : left) all_->remove(member);
    for (const auto& lane : gone) lane->close();
    all_->identify(self);
    for (const groups::Route& route : came) all_->add(route);
    std::vector<groups::Route> routes;
    for (const Member& one : members) routes.push_back(one.data);
    for (Member& one : members) admitted.push_back({one.acknowledgements, std::move(one.object)});
    all_->open(self);
    if (primary) all_->allow(true);
    delivery_->install(self, std::move(admitted), std::move(call));
    // Afterwards: whoever delivers finds the view before anything of those whom it names.
    if (port_) port_->admit(self, routes);
    for (const auto& lane : gone) {
        Released released;
        lane->remove_all();
        node_->scheduler().forget(*lane, kNever);
    }
}

void GroupCore::leave() {
    std::vector<std::shared_ptr<Outgoing>> gone;
    all_->shut();
    all_->remove_all();
    if (port_) port_->clear();
    {
        std::lock_guard lock(mutex_);
        routes_.clear();
        for (auto& [member, lane] : singles_) {
            gone.push_back(std::move(lane));
            if (port_) port_->detach(member);
        }
        singles_.clear();
    }
    for (const auto& lane : gone) {
        lane->close();
        lane->remove_all();
        Released released;
        node_->scheduler().forget(*lane, kNever);
    }
}

std::shared_ptr<Outgoing> GroupCore::single(std::uint64_t member) {
    std::lock_guard lock(mutex_);
    const auto route = routes_.find(member);
    if (closed_ || route == routes_.end()) return nullptr;
    auto& lane = singles_[member];
    if (!lane) {
        if (port_) {
            const auto made = std::make_shared<groups::DatagramLane>(node_, port_, LaneKind::one, nullptr,
                                                                     options_.datagrams->one);
            port_->attach(member, made);
            lane = made;
        } else {
            lane = std::make_shared<Outgoing>(node_, LaneKind::one, options_.unicast_bytes, kUnicastMessages, nullptr);
        }
        lane->identify(self_);
        lane->add(route->second);
        lane->allow(primary_);
        lane->open(self_);
    }
    return lane;
}

bool GroupCore::closed() {
    std::lock_guard lock(mutex_);
    return closed_;
}

void GroupCore::acknowledged(std::uint16_t node, const groups::Acknowledgement& word) {
    if (word.lane == static_cast<std::uint32_t>(LaneKind::all)) return all_->acknowledged(node, word);
    std::shared_ptr<Outgoing> lane;
    {
        std::lock_guard lock(mutex_);
        if (auto found = singles_.find(word.from); found != singles_.end()) lane = found->second;
    }
    if (lane) lane->acknowledged(node, word);
}

void GroupCore::tick() {
    if (node_->forked() || closed()) return;
    std::vector<std::shared_ptr<Outgoing>> lanes{all_};
    {
        std::lock_guard lock(mutex_);
        for (auto& [member, lane] : singles_) lanes.push_back(lane);
    }
    {
        Released released;
        for (const auto& lane : lanes) lane->tick();
    }
    delivery_->tick();
}

std::map<std::uint64_t, Outgoing::Counts> GroupCore::singles() {
    std::vector<std::pair<std::uint64_t, std::shared_ptr<Outgoing>>> lanes;
    {
        std::lock_guard lock(mutex_);
        lanes.assign(singles_.begin(), singles_.end());
    }
    std::map<std::uint64_t, Outgoing::Counts> counts;
    for (const auto& [member, lane] : lanes) counts.emplace(member, lane->counts());
    return counts;
}

bool GroupCore::settle(double timeout) {
    const Nanos deadline = now_ns() + seconds_to_ns(timeout);
    std::vector<std::shared_ptr<Outgoing>> lanes{all_};
    {
        std::lock_guard lock(mutex_);
        for (auto& [member, lane] : singles_) lanes.push_back(lane);
    }
    Released released;
    bool all = true;
    for (const auto& lane : lanes) all &= lane->settle(deadline, released.interrupted());
    return all;
}

// --- sending -----------------------------------------------------------------------------------------

namespace {

PyObject* left() {
    return raise("Closed", "this group was left, or is being left; nothing can be sent any more",
                 facts("{ss}", "what", "group"));
}

bool take_message(PyObject* data, View& view) {
    if (!PyObject_CheckBuffer(data)) {
        PyErr_Format(PyExc_TypeError, "a message is bytes or another buffer, not %.100s", Py_TYPE(data)->tp_name);
        return false;
    }
    return view.take(data, PyBUF_SIMPLE);
}

bool check_size(std::size_t size, std::uint64_t most) {
    if (size <= most) return true;
    Outcome outcome;
    outcome.code = Outcome::Code::too_large;
    outcome.size = size;
    outcome.limit = most;
    outcome.text = "a message of " + std::to_string(size) + " bytes is over the limit of " + std::to_string(most) +
                   "; raise max_message_bytes of all members' nodes, or send parts";
    raise_outcome(outcome, 0, kGroupKind, 0, 0);
    return false;
}

}  // namespace

PyObject* GroupCore::raise_departed() {
    if (closed()) return left();
    return raise("PeerUnreachable", "that member is not in the view any more; look at group.view for who is",
                 facts("{ss}", "reason", "not a member"));
}

PyObject* GroupCore::raise_forbidden() {
    std::size_t members;
    {
        std::lock_guard lock(mutex_);
        members = routes_.size();
    }
    return raise("NotPrimary",
                 "group '" + options_.name + "' is partitioned, and this side, " + std::to_string(members) +
                     " members, is not the larger one: it may not send until it has joined the other",
                 facts("{sssn}", "group", options_.name.c_str(), "members", static_cast<Py_ssize_t>(members)));
}

bool GroupCore::try_send(PyObject* data, std::uint64_t to) {
    if (node_->forked()) {
        raise_forked();
        return false;
    }
    View view;
    if (!take_message(data, view) || !check_size(static_cast<std::size_t>(view->len), options_.max_message_bytes)) return false;
    const auto lane = to == 0 ? all_ : single(to);
    if (!lane) {
        raise_departed();
        return false;
    }
    const auto put = lane->try_put({static_cast<const char*>(view->buf), static_cast<std::size_t>(view->len)});
    if (put == Outgoing::Put::forbidden) raise_forbidden();
    return put == Outgoing::Put::put;
}

PyObject* GroupCore::send(PyObject* data, std::uint64_t to, double timeout) {
    if (node_->forked()) return raise_forked();
    View view;
    if (!take_message(data, view)) return nullptr;
    const std::string_view message(static_cast<const char*>(view->buf), static_cast<std::size_t>(view->len));
    if (!check_size(message.size(), options_.max_message_bytes)) return nullptr;
    std::shared_ptr<Outgoing> one;
    if (to != 0) {
        one = single(to);
        if (!one) return raise_departed();
    }
    Outgoing& lane = one ? *one : *all_;
    const Outgoing::Put put = lane.try_put(message);
    if (put == Outgoing::Put::put) Py_RETURN_NONE;
    if (put == Outgoing::Put::forbidden) return raise_forbidden();
    const NodeOptions& options = node_->options();
    if (timeout != 0 && !may_wait("send()", "send_async()")) return nullptr;
    const Nanos began = now_ns();
    const Nanos patience = timeout < 0 ? (Scheduler::on_scheduler_thread() ? options.request_timeout : options.send_timeout)
                                       : seconds_to_ns(timeout);
    Outcome outcome;
    {
        Released released;
        outcome = lane.put(message, began + patience, released.interrupted());
    }
    if (outcome.ok()) Py_RETURN_NONE;
    if (outcome.code == Outcome::Code::closed) return one ? raise_departed() : left();
    if (outcome.code == Outcome::Code::forbidden) return raise_forbidden();
    if (outcome.code != Outcome::Code::timeout) return raise_outcome(outcome, 0, kGroupKind, now_ns() - began, 0);
    const Outgoing::Counts counts = lane.counts();
    if (timeout == 0) {
        return raise("QueueFull",
                     "the window is full: " + std::to_string(counts.used) + " of " + std::to_string(counts.capacity) +
                         " bytes are not acknowledged by every member yet; wait (timeout=), or send less",
                     facts("{snsn}", "capacity", static_cast<Py_ssize_t>(counts.capacity), "pending",
                           static_cast<Py_ssize_t>(counts.used)));
    }
    return raise("SendTimeout",
                 "the window had no room in " + std::to_string(static_cast<double>(now_ns() - began) / kSecond) +
                     " s: a member is behind, or there is no view; look at group.statistics(), wait longer "
                     "(timeout=), or send less",
                 facts("{sd}", "waited", static_cast<double>(now_ns() - began) / kSecond));
}

}  // namespace antiphon::python

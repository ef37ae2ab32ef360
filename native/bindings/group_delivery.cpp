#include "bindings/group_delivery.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace antiphon::python {

namespace {

using Status = Attempt::Status;
using groups::Acknowledgement;
using groups::BatchHead;

constexpr std::size_t kOwnPerTurn = 128;
constexpr int kRunsPerTurn = 64;
// Signs of life are noted no more often than anybody could care for.
constexpr Nanos kNoted = 20 * kMillisecond;
constexpr std::uint32_t kCallsPerLook = 16;
// How long a member's messages are kept before a view has named it. Its view comes within moments, or never.
constexpr Nanos kEarly = 10 * kSecond;

void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) {
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

GroupDelivery::GroupDelivery(std::shared_ptr<Node> node, std::uint64_t most_bytes, Reference on_error)
    : node_(std::move(node)),
      most_bytes_(most_bytes),
      on_error_(std::move(on_error)),
      own_parts_(std::make_unique<window::ReceiveWindow>(most_bytes)) {}

GroupDelivery::~GroupDelivery() = default;

void GroupDelivery::start(std::shared_ptr<Registration> registration, std::shared_ptr<groups::Outgoing> all,
                          std::shared_ptr<groups::DatagramPort> port) {
    registration_ = std::move(registration);
    all_ = std::move(all);
    port_ = std::move(port);
    registration_->queue->begin(slice_);
}

void GroupDelivery::install(std::uint64_t self, std::vector<Admitted> members, Reference call) {
    {
        std::lock_guard lock(mutex_);
        items_.push_back({self, std::move(members), std::move(call)});
        has_items_.store(true, std::memory_order_seq_cst);
    }
    node_->scheduler().notify(*this);
}

void GroupDelivery::pause(bool paused) {
    paused_.store(paused, std::memory_order_seq_cst);
    if (!paused) node_->scheduler().notify(*this);
}

void GroupDelivery::tick() {
    ticked_.store(true, std::memory_order_seq_cst);
    node_->scheduler().notify(*this);
}

// With the interpreter's lock; no slice runs, and none will.
void GroupDelivery::drop() {
    if (begun_) end_run();
    batch_ = {};
    batch_begun_ = batch_waits_ = false;
    for (auto* runs : {&early_, &again_}) {
        for (Run& run : *runs) node_->finish(run);
        runs->clear();
    }
    registration_->queue->end(slice_);
    senders_.clear();
    std::deque<Item> items;
    {
        std::lock_guard lock(mutex_);
        items.swap(items_);
    }
    handler_ = {};
    on_error_ = {};
}

bool GroupDelivery::has_work() {
    if (has_items_.load(std::memory_order_seq_cst) || ticked_.load(std::memory_order_seq_cst)) return true;
    if (paused_.load(std::memory_order_seq_cst) || self_ == 0) return false;
    if (batch_begun_ || batch_waits_ || (port_ && port_->has_ready())) return true;
    return begun_ || !again_.empty() || !registration_->queue->empty() || all_->has_own();
}

bool GroupDelivery::run_slice(Nanos until) {
    if (!has_work()) return false;
    // A thread that sends holds the interpreter's lock for milliseconds at a time. Acknowledgements and room
    // in the window, for which it will wait next, are not to wait behind this.
    std::optional<Scheduler::Blocked> waiting(std::in_place);
    Entered entered;
    waiting.reset();
    for (;;) {
        while (has_items_.load(std::memory_order_seq_cst)) {
            Item item;
            {
                std::lock_guard lock(mutex_);
                if (items_.empty() || begun_ || batch_begun_) break;  // a batch is handed out as it came
                item = std::move(items_.front());
                items_.pop_front();
                has_items_.store(!items_.empty(), std::memory_order_seq_cst);
            }
            apply(std::move(item));
        }
        if (ticked_.exchange(false, std::memory_order_seq_cst)) {
            for (auto& [member, sender] : senders_) {
                for (std::uint32_t lane = 0; lane < groups::kLanes; ++lane) {
                    if (sender->unacknowledged[lane] != 0 || sender->due[lane]) acknowledge(*sender, lane, false);
                }
            }
            expire();
        }
        if (paused_.load(std::memory_order_seq_cst) || self_ == 0) return false;  // whoever goes on gives notice
        // Its own: a handler may be replaced while it runs.
        const Reference handler = Reference::share(handler_.get());
        bool some = false;
        // Several at a time: own messages and views take locks to look for.
        for (int runs = 0; runs < kRunsPerTurn && (begun_ || next_run()); ++runs) {
            some = true;
            if (begun_) deliver_run(handler.get(), until);
            if (begun_ || paused_.load(std::memory_order_relaxed) || has_items_.load(std::memory_order_relaxed)) break;
            if (runs % 16 == 15 && now_ns() >= until) break;
        }
        for (int batches = 0; port_ && batches < kRunsPerTurn && (batch_begun_ || next_batch()); ++batches) {
            some = true;
            if (batch_begun_) deliver_batch(handler.get(), until);
            if (batch_begun_ || paused_.load(std::memory_order_relaxed) || has_items_.load(std::memory_order_relaxed)) break;
            if (batches % 16 == 15 && now_ns() >= until) break;
        }
        if (!paused_.load(std::memory_order_seq_cst) && all_->has_own()) {
            some = true;
            deliver_own(handler.get(), until);
        }
        if (!some) return has_work();
        if (now_ns() >= until || outranked()) return has_work();
    }
}

// --- views -------------------------------------------------------------------------------------------

void GroupDelivery::apply(Item item) {
    if (item.self != self_) senders_.clear();  // another life of ours: what was before is not for it
    self_ = item.self;
    std::map<std::uint64_t, std::unique_ptr<Sender>> now;
    for (Admitted& one : item.members) {
        const std::uint64_t member = one.route.member;
        if (auto known = senders_.find(member); known != senders_.end()) {
            now.emplace(member, std::move(known->second));
            continue;
        }
        Peer* peer = node_->find_peer(one.route.node);
        auto flow = peer == nullptr ? nullptr
                                    : node_->subscription_flow(*peer, one.route.incarnation, one.route.flow,
                                                               one.route.least_charge, kGroupKind);
        now.emplace(member, std::make_unique<Sender>(one.route, peer, std::move(flow), std::move(one.object), most_bytes_));
    }
    senders_ = std::move(now);
    count_unfinished();
    again_.insert(again_.begin(), std::make_move_iterator(early_.begin()), std::make_move_iterator(early_.end()));
    early_.clear();
    {
        std::lock_guard lock(mutex_);
        std::erase_if(heard_, [&](const auto& one) { return !senders_.contains(one.first); });
    }
    if (!item.call) return;
    PyObject* arguments[] = {nullptr};
    const Reference done = Reference::steal(call_python(item.call.get(), arguments + 1, 0 | PY_VECTORCALL_ARGUMENTS_OFFSET));
    if (!done) report();
}

// Logs the exception that is set.
void GroupDelivery::report() {
    failed_.fetch_add(1, std::memory_order_relaxed);
    const Reference exception = take_exception();
    Reference done;
    if (on_error_ && exception) done = call_one(on_error_.get(), exception.get());
    if (!done) PyErr_WriteUnraisable(on_error_.get());
}

// --- messages of others ------------------------------------------------------------------------------

// True when one was taken, though perhaps not for delivery.
bool GroupDelivery::next_run() {
    if (!again_.empty()) {
        run_ = std::move(again_.front());
        again_.pop_front();
        popped_ = false;
    } else if (registration_->queue->pop(run_, slice_)) {
        popped_ = true;
    } else {
        return false;
    }
    begun_ = true;
    begin_run();
    return true;
}

void GroupDelivery::end_run() {
    node_->finish(run_);
    begun_ = false;
    sender_ = nullptr;
    if (popped_) registration_->queue->done(slice_);
    popped_ = false;
}

void GroupDelivery::begin_run() {
    cursor_ = RunCursor(run_);
    BatchHead head;
    const char* data;
    std::size_t size;
    cursor_.next(data, size);
    if (run_.shape != Run::Shape::packed || size != sizeof head) {
        add(malformed_, run_.count);
        return end_run();
    }
    std::memcpy(&head, data, sizeof head);
    if (head.to != expected_self_.load(std::memory_order_seq_cst) || head.lane >= groups::kLanes) {
        add(strangers_, run_.count - 1);  // for another life of ours
        return end_run();
    }
    const auto found = senders_.find(head.from);
    if (found == senders_.end() || head.to != self_) {
        // Its view is on its way. Its credit stays with it meanwhile, so that this is bounded.
        if (popped_) registration_->queue->done(slice_);
        popped_ = begun_ = false;
        early_.push_back(std::move(run_));
        early_count_.store(early_.size(), std::memory_order_relaxed);
        run_ = {};
        return;
    }
    Sender& sender = *found->second;
    if (sender.node != run_.source) {
        add(strangers_, run_.count - 1);  // it is not the one that it says it is
        return end_run();
    }
    if (run_.arrived - sender.noted > kNoted) {
        sender.noted = run_.arrived;
        std::lock_guard lock(mutex_);
        heard_[head.from] = run_.arrived;
    }
    window::ReceiveWindow& lane = sender.lanes[head.lane];
    const auto taken = lane.accept(head.base, head.first, run_.count - 1);
    if (taken.gap) {
        add(gaps_, 1);
        acknowledge(sender, head.lane, true);
        return end_run();
    }
    add(duplicates_, taken.skip);
    for (std::uint64_t i = 0; i < taken.skip; ++i) cursor_.next(data, size);
    sender_ = &sender;
    lane_ = head.lane;
    acknowledge_every_ = std::max(1u, head.acknowledge_every);
    if (cursor_.left() == 0) {
        // Nothing new: it asks how far we are, or has not heard it.
        acknowledge(sender, head.lane, false);
        end_run();
    }
}

void GroupDelivery::deliver_run(PyObject* handler, Nanos until) {
    window::ReceiveWindow& lane = sender_->lanes[lane_];
    const Reference member = Reference::share(sender_->object.get());
    const std::uint32_t per_credit = Node::messages_per_credit(run_);
    const std::size_t unfinished = lane.open_streams();
    std::uint32_t to_look = kCallsPerLook;
    while (cursor_.left() != 0) {
        const char* data;
        std::size_t size;
        cursor_.next(data, size);
        std::string_view message;
        const std::uint64_t malformed = lane.malformed();
        if (lane.put_together({data, size}, message)) {
            call(handler, member.get(), message);
            --to_look;
        }
        add(malformed_, lane.malformed() - malformed);
        lane.advance();
        sender_->unacknowledged[lane_] += size;
        if (sender_->unacknowledged[lane_] >= acknowledge_every_) acknowledge(*sender_, lane_, false);
        const std::uint32_t done = run_.size() - cursor_.left();
        if (done - run_.done >= per_credit && cursor_.left() != 0) node_->progress(run_, done);
        if (to_look == 0 || message.size() > groups::Outgoing::kPartBytes) {
            to_look = kCallsPerLook;
            if (now_ns() >= until || outranked() || paused_.load(std::memory_order_relaxed)) break;
        }
    }
    if (lane.open_streams() != unfinished) count_unfinished();
    if (cursor_.left() == 0) {
        end_run();
    } else {
        node_->progress(run_, run_.size() - cursor_.left());
    }
}

void GroupDelivery::count_unfinished() {
    std::uint64_t all = 0;
    for (const auto& [member, sender] : senders_) {
        for (const window::ReceiveWindow& lane : sender->lanes) all += lane.open_streams();
    }
    unfinished_.store(all, std::memory_order_relaxed);
}

void GroupDelivery::call(PyObject* handler, PyObject* member, std::string_view message) {
    add(delivered_, 1);
    add(bytes_, message.size());
    if (handler == nullptr) return;
    const Reference data =
        Reference::steal(PyBytes_FromStringAndSize(message.data(), static_cast<Py_ssize_t>(message.size())));
    Reference result;
    if (data) {
        PyObject* arguments[] = {nullptr, member, data.get()};
        result = Reference::steal(call_python(handler, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET));
    }
    if (!result) report();
}

// Never blocks: what cannot go now goes with the next tick.
void GroupDelivery::acknowledge(Sender& sender, std::uint32_t lane, bool resume) {
    sender.due[lane] = true;
    if (sender.peer == nullptr) return;
    const std::uint64_t upto = sender.lanes[lane].expected();
    if (upto == 0) return;
    const std::uint32_t session = sender.peer->session.load(std::memory_order_seq_cst);
    if (session == 0) return node_->want_connection(*sender.peer);
    // The node has begun another life, in which that flow may be something else: a view will say so.
    if (sender.peer->incarnation.load(std::memory_order_seq_cst) != sender.incarnation) return;
    const Acknowledgement word{self_, sender.member, upto, lane, resume ? 1u : 0u};
    const Attempt attempt =
        node_->try_word(*sender.peer, *sender.flow, session, {reinterpret_cast<const char*>(&word), sizeof word});
    if (attempt.status == Status::no_credit) node_->want_credit(*sender.peer, attempt);
    if (attempt.status != Status::sent) return;
    add(acknowledgements_, 1);
    sender.due[lane] = false;
    sender.unacknowledged[lane] = 0;
}

void GroupDelivery::expire() {
    const Nanos old = now_ns() - kEarly;
    while (!early_.empty() && early_.front().arrived < old) {
        add(strangers_, early_.front().count - 1);
        node_->finish(early_.front());
        early_.pop_front();
    }
    early_count_.store(early_.size(), std::memory_order_relaxed);
}

// --- by datagrams --------------------------------------------------------------------------------------

// True when one was taken, though perhaps not for delivery.
bool GroupDelivery::next_batch() {
    if (!batch_waits_ && !port_->pop(batch_)) return false;
    batch_waits_ = false;
    const auto found = senders_.find(batch_.member);
    if (found == senders_.end()) {
        // Its view was left here before it was let in: it waits for that. Or it has gone meanwhile.
        batch_waits_ = has_items_.load(std::memory_order_seq_cst);
        if (!batch_waits_) add(strangers_, batch_.ready.chunk->lengths.size() - batch_.ready.begin);
        return true;
    }
    const window::Chunk& chunk = *batch_.ready.chunk;
    Sender& sender = *found->second;
    if (chunk.arrived - sender.noted > kNoted) {
        sender.noted = chunk.arrived;
        std::lock_guard lock(mutex_);
        heard_[batch_.member] = chunk.arrived;
    }
    batch_at_ = batch_.ready.begin;
    batch_offset_ = 0;
    for (std::size_t i = 0; i < batch_at_; ++i) batch_offset_ += chunk.lengths[i];
    batch_begun_ = true;
    return true;
}

void GroupDelivery::deliver_batch(PyObject* handler, Nanos until) {
    // No view comes in between: it is there.
    Sender& sender = *senders_.at(batch_.member);
    window::ReceiveWindow& lane = sender.lanes[batch_.lane];
    const Reference member = Reference::share(sender.object.get());
    const window::Chunk& chunk = *batch_.ready.chunk;
    std::uint32_t to_look = kCallsPerLook;
    std::size_t bytes = 0;
    bool rest = true;
    while (rest) {
        const std::size_t size = chunk.lengths[batch_at_];
        std::string_view message;
        const std::uint64_t malformed = lane.malformed();
        const bool whole = lane.put_together({chunk.bytes.data() + batch_offset_, size}, message);
        if (whole) call(handler, member.get(), message);
        add(malformed_, lane.malformed() - malformed);
        ++batch_at_;
        batch_offset_ += size;
        bytes += size;
        rest = batch_at_ < chunk.lengths.size();
        if (rest && --to_look != 0 && message.size() <= groups::Outgoing::kPartBytes) continue;
        // As it goes: a handler may wait for a sender that waits for this.
        port_->handled(batch_.member, batch_.lane, chunk.first + batch_at_, bytes);
        bytes = 0;
        to_look = kCallsPerLook;
        if (now_ns() >= until || outranked() || paused_.load(std::memory_order_relaxed)) break;
    }
    if (rest) return;
    batch_ = {};
    batch_begun_ = false;
}

// --- its own -----------------------------------------------------------------------------------------

void GroupDelivery::deliver_own(PyObject* handler, Nanos until) {
    const auto self = senders_.find(self_);
    const std::uint64_t end = all_->own(own_, wrapped_, kOwnPerTurn);
    std::uint64_t done = end - own_.size();
    const Reference member = Reference::share(self == senders_.end() ? Py_None : self->second->object.get());
    std::uint32_t to_look = kCallsPerLook;
    for (const std::string_view raw : own_) {
        std::string_view message;
        if (own_parts_->put_together(raw, message)) call(handler, member.get(), message);
        ++done;
        if (--to_look != 0 && message.size() <= groups::Outgoing::kPartBytes) continue;
        to_look = kCallsPerLook;
        if (now_ns() >= until || outranked() || paused_.load(std::memory_order_relaxed)) break;
    }
    all_->delivered(done);
}

std::map<std::uint64_t, Nanos> GroupDelivery::heard() {
    std::lock_guard lock(mutex_);
    return heard_;
}

GroupDelivery::Counts GroupDelivery::counts() const {
    const auto get = [](const std::atomic<std::uint64_t>& one) { return one.load(std::memory_order_relaxed); };
    return {get(delivered_), get(bytes_),     get(failed_),           get(duplicates_), get(gaps_),
            get(malformed_), get(strangers_), get(acknowledgements_), get(early_count_), get(unfinished_)};
}

}  // namespace antiphon::python

#include "bindings/recorder.hpp"

#include <optional>

#include "bindings/python.hpp"

namespace antiphon::python {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;   // bytes that go to the log at once
constexpr Nanos kLook = 100 * kMillisecond;            // for the end, while a log has no room
constexpr Nanos kPatience = 30 * kSecond;              // with a disk that takes nothing, of a few
constexpr Nanos kMoment = 200 * kMillisecond;          // and of everybody else: threads are for other clients too

}  // namespace

Recorder::Recorder(std::shared_ptr<Node> node, std::shared_ptr<log::Store> store, std::shared_ptr<log::Log> log,
                   std::uint16_t source, std::uint32_t number, std::uint64_t producer)
    : Pump(std::move(node)),
      store_(std::move(store)),
      log_(std::move(log)),
      source_(source),
      number_(number),
      producer_(producer) {}

Recorder::~Recorder() { close(); }

void Recorder::close() {
    if (!closed_.exchange(true) && !node_->forked()) retire();
}

// A block has the numbers of one producer without a gap. What is not taken is left to its publisher, who
// sends it again until it is told that it is here; whoever is told nothing has lost it.
void Recorder::relay(const std::vector<EventView>& views, std::uint32_t, Nanos, Nanos) {
    received_.fetch_add(views.size(), std::memory_order_relaxed);
    const std::size_t total = allowed(views);
    Released released;
    // It may have gone back and been told meanwhile that it need not have.
    resume(receipt().upto + 1);
    for (std::size_t i = 0; i < total && !closed_.load(std::memory_order_relaxed);) {
        log::Block block(producer_, producer_ == 0 ? 0 : views[i].head.sequence);
        const std::size_t first = i;
        if (producer_ != 0 && views[i].head.sequence > expected_) return refuse(expected_);
        do {
            const EventView& view = views[i];
            block.add({view.data, view.size}, {view.properties, view.head.properties}, view.head.time_ns, source_);
            ++i;
        } while (i < total && block.bytes().size() < kBlock &&
                 (producer_ == 0 || views[i].head.sequence == views[i - 1].head.sequence + 1));
        const std::uint64_t last = views[i - 1].head.sequence;
        expected_ = views[first].head.sequence;
        if (append(std::move(block), last)) {
            expected_ = last + 1;
            continue;
        }
        dropped_.fetch_add(i - first, std::memory_order_relaxed);
        if (producer_ != 0) return refuse(expected_);
    }
    if (total < views.size() && producer_ != 0) refuse(expected_);
}

// How many of them the quota lets pass. What was let pass before and comes again is not asked about again.
std::size_t Recorder::allowed(const std::vector<EventView>& views) {
    const std::shared_ptr<Quota> quota = quota_;
    if (!quota) return views.size();
    std::size_t known = 0;
    while (producer_ != 0 && known < views.size() && views[known].head.sequence < paid_) ++known;
    const std::size_t passed = known + quota->take(views.data() + known, views.size() - known, producer_ != 0);
    if (passed > known) paid_ = views[passed - 1].head.sequence + 1;
    return passed;
}

// Something of the publisher's was not taken, and what comes behind it must not be there before it: it
// would pass for acknowledged. The publisher goes back to where it was told to be.
void Recorder::refuse(std::uint64_t number) {
    note(number, {log::Status::out_of_order});
    nudge();
}

bool Recorder::append(log::Block&& block, std::uint64_t token) {
    const std::size_t bytes = block.bytes().size();
    const auto self = std::static_pointer_cast<Recorder>(shared_from_this());
    const Nanos began = now_ns();
    std::optional<Node::LongWait> few;
    while (!closed_.load(std::memory_order_relaxed)) {
        const log::Put put = store_->append(log_, std::move(block), self, token);
        if (put == log::Put::taken) return true;
        if (put != log::Put::no_room) return false;
        if (!few) few.emplace(*node_);
        if (now_ns() >= began + (*few ? kPatience : kMoment)) return false;
        Scheduler::Blocked blocked;
        store_->wait_for_room(bytes, now_ns() + kLook);
    }
    return false;
}

// On the log thread.
void Recorder::appended(std::uint64_t token, const log::Receipt& receipt) {
    if (producer_ == 0 || closed_.load(std::memory_order_relaxed)) return;
    note(token, receipt);
    nudge();
}

// A block that is full or failed is told of at once, and so is what was not taken at all; one that was written
// is told of when it is synced: so good news of earlier ones may come behind bad news. Only those that reach the
// last one that was not taken end the trouble, and those come only when the publisher has gone back. The first
// one would not do: a publisher that has gone back for it, and of whom less was taken than it sent, has to hear
// that it must go back again.
void Recorder::note(std::uint64_t number, const log::Receipt& receipt) {
    std::lock_guard lock(mutex_);
    if (receipt.status == log::Status::ok) {
        upto_ = std::max(upto_, number);
        if (number < trouble_) return;
        trouble_ = 0;
        status_ = log::Status::ok;
        return;
    }
    trouble_ = std::max(trouble_, number);
    if (status_ == log::Status::ok || receipt.status != log::Status::out_of_order) {
        status_ = receipt.status;
        error_ = receipt.error;
    }
}

ReceiptMessage Recorder::receipt() {
    std::lock_guard lock(mutex_);
    return {producer_, upto_, number_, static_cast<std::uint32_t>(status_), error_};
}

// One word for all that was acknowledged since the last.
bool Recorder::run_slice(Nanos) {
    Peer* peer = node_->find_peer(source_);
    for (bool last = false; peer != nullptr; last = true) {
        const ReceiptMessage message = receipt();
        const Attempt tried =
            node_->try_message(*peer, kReceiptKind, {reinterpret_cast<const char*>(&message), sizeof message});
        if (tried.status == Attempt::Status::sent || tried.status == Attempt::Status::closed) return false;
        if (tried.status == Attempt::Status::not_connected) return false;  // it will send again, and be told then
        wait_for(*peer, tried);
        if (last) return false;
    }
    return false;
}

}  // namespace antiphon::python

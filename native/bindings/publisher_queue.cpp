// A publisher with a queue of its own: events wait in it for their turn, and scheduler threads send them. None of
// them waits for a subscriber that has no room; the event stays in hand, and the task is parked.
#include <algorithm>

#include "base/wait.hpp"
#include "bindings/publisher.hpp"

namespace antiphon::python {

namespace {
using Status = Attempt::Status;
}  // namespace

// True when there is room. With the queue's lock, and the interpreter's where it need not wait.
bool Publisher::make_room(std::unique_lock<std::mutex>& lock, Nanos deadline, const Interrupted* interrupted,
                          Outcome& outcome) {
    while (queue_.size() >= capacity_) {
        if (closed_ || node_->closed()) {
            outcome.code = Outcome::Code::closed;
            return false;
        }
        const Nanos now = now_ns();
        if (now >= deadline) {
            outcome.code = Outcome::Code::timeout;
            return false;
        }
        wait_until(room_, lock, std::min(deadline, now + kLook));
        if (interrupted == nullptr) continue;
        lock.unlock();
        if ((*interrupted)()) outcome.code = Outcome::Code::interrupted;
        lock.lock();
        if (!outcome.ok()) return false;
    }
    return true;
}

PyObject* Publisher::enqueue(const Chosen& targets, Load load) {
    const NodeOptions& options = node_->options();
    const Nanos began = now_ns();
    const Nanos deadline = began + (Scheduler::on_scheduler_thread() ? options.request_timeout : options.send_timeout);
    if (node_->fresh()) return raise_not_started();
    // Either all of it is taken or nothing where nobody may wait; so what had room when it came is not held up by what
    // others put in meanwhile.
    bool fits = true;
    if (when_full_ == WhenFull::block) {
        std::lock_guard lock(queue_mutex_);
        fits = queue_.size() + load.count <= capacity_;
    }
    if (!fits && !may_wait_for(load)) {
        brimmed_.store(true, std::memory_order_relaxed);
        return nullptr;
    }
    for (std::size_t i = 0; i < load.count; ++i) {
        Queued event{targets, {}, load.head, {}, {}, load.expires};
        if (load.properties.size != 0) event.properties.assign(load.properties.data, load.properties.size);
        if (load.events[i].size != 0) event.data.assign(load.events[i].data, load.events[i].size);
        Outcome outcome;
        bool full;
        {
            std::lock_guard lock(queue_mutex_);  // held for moments only, by whoever
            full = queue_.size() >= capacity_;
        }
        if (full) brimmed_.store(true, std::memory_order_relaxed);
        if (full && !fits) {
            waits_.fetch_add(1, std::memory_order_relaxed);
            Released released;
            Scheduler::Blocked blocked;
            std::unique_lock lock(queue_mutex_);
            make_room(lock, deadline, released.interrupted(), outcome);
        }
        if (outcome.ok() && closed_.load(std::memory_order_relaxed)) outcome.code = Outcome::Code::closed;
        if (!outcome.ok()) return raise_outcome(outcome, 0, kEventKind, now_ns() - began, load.before + i);
        {
            std::lock_guard lock(queue_mutex_);
            event.head.sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
            event.head.time_ns = wall_clock_ns();
            if (queue_.size() >= capacity_ && when_full_ == WhenFull::drop_newest) {
                lose(event, gaps_);
                continue;
            }
            event.gaps.swap(gaps_);
            queue_.push_back(std::move(event));
            if (queue_.size() > capacity_ && when_full_ == WhenFull::drop_oldest) {
                const Queued oldest = std::move(queue_.front());
                queue_.pop_front();
                lose(oldest, queue_.front().gaps);
            }
        }
        node_->scheduler().notify(*sender_);
    }
    Py_RETURN_NONE;
}

bool Publisher::flush_queue(double timeout) {
    if (node_->forked()) {
        raise_forked();
        return false;
    }
    if (!sender_) return true;
    const Nanos began = now_ns(), deadline = timeout < 0 ? kNever : began + seconds_to_ns(timeout);
    Outcome outcome;
    std::size_t left = 0;
    {
        Released released;
        Scheduler::Blocked blocked;
        const Interrupted* interrupted = released.interrupted();
        std::unique_lock lock(queue_mutex_);
        const std::uint64_t last = sequence_.load(std::memory_order_relaxed);
        const auto waits = [&] {
            return (sending_ != 0 && sending_ <= last) || (!queue_.empty() && queue_.front().head.sequence <= last);
        };
        while (waits() && outcome.ok()) {
            const Nanos now = now_ns();
            if (closed_ || node_->closed()) outcome.code = Outcome::Code::closed;
            else if (now >= deadline) outcome.code = Outcome::Code::timeout;
            if (!outcome.ok()) break;
            wait_until(room_, lock, std::min(deadline, now + kLook));
            if (interrupted == nullptr) continue;
            lock.unlock();
            if ((*interrupted)()) outcome.code = Outcome::Code::interrupted;
            lock.lock();
        }
        left = queue_.size() + (sending_ != 0 ? 1 : 0);
    }
    if (outcome.ok()) return true;
    if (outcome.code == Outcome::Code::timeout) {
        raise("SendTimeout",
              std::to_string(left) + " events wait in the queue of the publisher of " + name_ + " after " +
                  seconds_text(now_ns() - began) + "; wait longer, give it a larger share, or look at its subscribers",
              facts("{sd}", "waited", static_cast<double>(now_ns() - began) / kSecond));
    } else if (outcome.code == Outcome::Code::closed) {
        raise("Closed", "this publisher was closed before everything in its queue was sent",
              facts("{ss}", "what", "publisher"));
    }
    return false;
}

// Whoever it was for finds a gap before the event that has these gaps. With the queue's lock.
void Publisher::lose(const Queued& event, Gaps& after) {
    auto add = [&](const std::shared_ptr<Target>& target, std::uint32_t count) {
        for (auto& [known, gap] : after) {
            if (known == target) {
                gap += count;
                return;
            }
        }
        after.emplace_back(target, count);
    };
    for (const auto& [target, gap] : event.gaps) add(target, gap);
    for (const auto& target : event.targets) add(target, 1);
    dropped_.fetch_add(1, std::memory_order_relaxed);
}

// True: it has the turn, and an event in hand. False: there is none, or somebody else has the turn, who wakes it.
bool Publisher::take_next(Sender& sender) {
    for (;;) {
        {
            std::lock_guard lock(queue_mutex_);
            if (queue_.empty()) return false;
        }
        {
            std::lock_guard lock(mutex_);
            if (std::exchange(taken_, true)) {
                sender_waits_ = true;
                return false;
            }
        }
        Turn turn{*this};
        std::unique_lock lock(queue_mutex_);
        if (queue_.empty()) continue;
        Queued event = std::move(queue_.front());
        queue_.pop_front();
        room_.notify_all();
        const Nanos now = now_ns();
        if (event.expires == 0 || now < event.expires) {
            sending_ = event.head.sequence;
            hand_.emplace(InHand{std::move(event), {}, now});
            turn.kept = true;
            return true;
        }
        lose(event, queue_.empty() ? gaps_ : queue_.front().gaps);
        sender.sent_.store(sender.sent_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
}

Publisher::Load Publisher::load_of(const Queued& event, const Message& data) {
    return {event.head, {event.properties.data(), event.properties.size()}, &data, 1, event.expires};
}

void Publisher::let_go() {
    hand_.reset();
    pass();
    std::lock_guard lock(queue_mutex_);
    sending_ = 0;
    room_.notify_all();
}

// On a scheduler thread.
bool Publisher::send_queued(Nanos until, Sender& sender) {
    try {
        return send_while_time(until, sender);
    } catch (const std::bad_alloc&) {
        if (!hand_) return false;
        // Nobody gets it who has not got it.
        dropped_.fetch_add(1, std::memory_order_relaxed);
        let_go();
        return true;
    }
}

bool Publisher::send_while_time(Nanos until, Sender& sender) {
    for (;;) {
        if (!hand_) {
            if (!take_next(sender)) return false;
            const Message data{hand_->event.data.data(), hand_->event.data.size()};
            const Load load = load_of(hand_->event, data);
            for (const auto& [target, gap] : hand_->event.gaps) target->number += gap;
            if (retains_) retain(load);
            send_what_goes(hand_->event.targets, load, hand_->rest);
            if (!hand_->rest.empty()) waits_.fetch_add(1, std::memory_order_relaxed);
        }
        if (!hand_->rest.empty() && !send_parked(sender)) return false;
        let_go();
        sender.sent_.store(sender.sent_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        if (now_ns() >= until || sender.stop_early()) return true;
    }
}

// To those who had no room for the event in hand. False: some still have none, and wake the task when that changes.
bool Publisher::send_parked(Sender& sender) {
    InHand& hand = *hand_;
    const Message data{hand.event.data.data(), hand.event.data.size()};
    const Load load = load_of(hand.event, data);
    const Nanos deadline = hand.began + node_->options().send_timeout;
    for (int looks = 0; looks < 2 && !hand.rest.empty(); ++looks) {
        std::vector<Rest> still;
        still.reserve(hand.rest.size());
        for (Rest& one : hand.rest) {
            if (!over(one, load, deadline)) still.push_back(one);
        }
        hand.rest.swap(still);
        for (const Rest& one : hand.rest) sender.wait_at(one.target->peer, one.attempt);
    }
    if (hand.rest.empty()) {
        if (hand.failed) dropped_.fetch_add(1, std::memory_order_relaxed);
        return true;
    }
    Nanos next = deadline;
    for (const Rest& one : hand.rest) {
        if (one.connect_by != 0) next = std::min(next, one.connect_by);
    }
    sender.look_at(next);
    return false;
}

// Whether nothing is left to be done for one of them: it has the event, is gone, or does without.
bool Publisher::over(Rest& one, const Load& load, Nanos deadline) {
    Target& target = *one.target;
    if (target.gone()) return true;
    std::size_t taken = 0;
    one.attempt = attempt(target, load, one.done, taken);
    one.done += taken;
    if (one.done == load.count) return true;
    if (one.attempt.status == Status::large) {
        // In fragments, and it has to be waited for each of them.
        std::vector<Rest> alone{one};
        std::uint16_t at = 0;
        std::size_t left_over = 0;
        hand_->failed |= !send_rest(load, alone, deadline, hand_->began, nullptr, at, left_over).ok();
        return true;
    }
    const Nanos now = now_ns();
    bool lost = false;
    if (one.attempt.status == Status::not_connected) {
        std::lock_guard lock(target.peer.mutex);
        if (one.connect_by == 0) {
            one.connect_by = now + node_->options().connect_timeout;
            one.failures = target.peer.failures;
        }
        lost = now >= one.connect_by || target.peer.failures != one.failures;
    } else {
        one.connect_by = 0;
    }
    if (!lost && one.attempt.status != Status::closed && now < deadline) return false;
    target.number += static_cast<std::uint32_t>(load.count - one.done);
    // One that cannot be reached is not the publisher's trouble.
    if (lost) lost_.fetch_add(load.count - one.done, std::memory_order_relaxed);
    else hand_->failed = true;
    return true;
}

}  // namespace antiphon::python

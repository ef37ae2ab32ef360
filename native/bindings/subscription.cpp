#include "bindings/subscription.hpp"

#include <algorithm>

#include "bindings/publisher.hpp"

namespace antiphon::python {

namespace {

// As with handlers of messages: quick ones are not charged a look at the clock per call.
constexpr std::uint32_t kCallsPerLook = 16;
constexpr Nanos kSoon = 50 * kMicrosecond;
// A batch is no larger: its arrays are copied, and a slice ends between batches only.
constexpr std::size_t kMostEvents = 8192;

void add(std::atomic<std::uint64_t>& to, std::uint64_t amount) {
    to.store(to.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

void SubscriptionTask::took(Nanos now, std::uint64_t events) {
    if (events == 0) return;
    Delays& delays = *delays_.load(std::memory_order_relaxed);
    const Nanos response = now - run_.arrived;
    delays.response.add(response, events);
    delays.sum.store(delays.sum.load(std::memory_order_relaxed) + static_cast<double>(response) * static_cast<double>(events),
                     std::memory_order_relaxed);
    add(delays.events, events);
}

// A relay's batch is not divided, so its size is what keeps it to its turn: one step of the schedule, by what
// the batch before has taken of the processor.
void SubscriptionTask::pace(Nanos used) {
    const Schedule& schedule = node_->scheduler().schedule();
    const Nanos step = std::max<Nanos>(schedule.period / schedule.buckets, kSoon);
    if (used <= step) {
        if (views_.size() == most_relayed_) most_relayed_ = std::min(most_relayed_ * 2, kMostEvents);
    } else {
        const double each = static_cast<double>(used) / static_cast<double>(views_.size());
        most_relayed_ = std::max<std::size_t>(1, static_cast<std::size_t>(static_cast<double>(step) / each));
    }
}

void SubscriptionTask::handle(Nanos until) {
    if (delays_.load(std::memory_order_relaxed) == nullptr) delays_.store(new Delays, std::memory_order_release);
    const std::uint32_t before = cursor_.left();
    std::uint64_t failed = 0, count = 0;
    const Calls calls(*handler_);
    if (!registration_->queue->closed() && calls.call) {
        if (handler_->batch) {
            handle_batches(calls, until, count, failed);
        } else {
            handle_events(calls, until, count, failed);
        }
    }
    if (handler_->acks) handler_->acks->send();
    account(before, cursor_.left(), count, failed);
}

void SubscriptionTask::handle_events(const Calls& calls, Nanos until, std::uint64_t& count, std::uint64_t& failed) {
    const TaskQueue& queue = *registration_->queue;
    Delays& delays = *delays_.load(std::memory_order_relaxed);
    const std::uint32_t per_credit = Node::messages_per_credit(run_);
    std::uint32_t distance = 1, to_look = 1;
    std::uint64_t since_look = 0;
    Nanos looked = now_ns();
    // The handler may close its own subscription: nothing is handed out after that.
    while (cursor_.left() != 0 && handler_->call) {
        const std::uint32_t done = run_.size() - cursor_.left();
        if (done - run_.done >= per_credit) node_->progress(run_, done);
        const char* message;
        std::size_t size;
        cursor_.next(message, size);
        EventView view;
        EventReader::Topic* topic = nullptr;
        if (!view.read(message, size) || (topic = reader_.topic(run_.source, view.head.topic, run_.session)) == nullptr) {
            add(delays.malformed, 1);
            continue;
        }
        const Nanos waited = view.head.ttl_us != 0 ? now_ns() - run_.arrived : 0;
        const EventReader::Told told = reader_.told(*topic, view, run_.source, waited);
        if (told.state == EventReader::Told::expired) {
            add(delays.expired, 1);  // the next one says that it was missed
            continue;
        }
        const std::uint32_t missed = EventReader::missed(*topic, view.head.number);
        if (told.state == EventReader::Told::repeated) continue;
        if (missed != 0) add(delays.missed, missed);
        const AckOf ack = told.attempt != 0 ? reader_.ack_of(*topic, view, run_.source) : AckOf{};
        Reference event = Reference::steal(make_event(view, topic->name, told.source, missed, told.attempt,
                                                      handler_->manual ? handler_->acks : nullptr, ack));
        Reference result;
        if (event) {
            PyObject* arguments[] = {nullptr, event.get()};
            result = Reference::steal(call_python(calls.call.get(), arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET));
        }
        if (!result) {
            ++failed;
            calls.report(told.source);
        }
        if (ack.broker != 0 && handler_->acks && (!handler_->manual || !result)) {
            // Before the next one: it may take long, or be the end of this process. One of those that come
            // again may have been just that.
            const bool first = handler_->acks->add(ack, result ? AckRange::done : AckRange::again);
            if (told.attempt > 1) {
                handler_->acks->send();
            } else if (first) {
                handler_->acks->nudge();
            }
        }
        ++count;
        ++since_look;
        if (--to_look != 0) continue;
        const Nanos now = now_ns();
        took(now, since_look);
        since_look = 0;
        if (now >= until || queue.closed() || outranked()) break;
        distance = now - looked < kSoon ? std::min(distance * 2, kCallsPerLook) : 1;
        to_look = distance;
        looked = now;
    }
    took(now_ns(), since_look);
}

// False with an exception set.
bool SubscriptionTask::hand_over(const Calls& calls, const EventReader::Topic& topic, std::uint32_t missed) {
    Reference batch = Reference::steal(make_event_batch(views_, sources_, topic.name, missed, attempt_));
    if (!batch) return false;
    PyObject* arguments[] = {nullptr, batch.get()};
    return static_cast<bool>(
        Reference::steal(call_python(calls.call.get(), arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET)));
}

// To the publisher that the handler has named for the one they come from. False with an exception set.
bool SubscriptionTask::pass_on(const Calls& calls, const EventReader::Topic& topic, std::uint32_t missed) {
    const std::uint32_t number = views_.front().head.topic;
    const std::uint64_t key = TopicNames::key(run_.source, number);
    const auto serves = [&](const auto& found) {
        return found != handler_->routes.end() && found->second->serves(topic.bound->producer);
    };
    if (!serves(handler_->routes.find(key))) {
        Reference source = Reference::steal(PyLong_FromLong(run_.source));
        Reference publisher = Reference::steal(PyLong_FromUnsignedLong(number));
        Reference producer = Reference::steal(PyLong_FromUnsignedLongLong(topic.bound->producer));
        if (!source || !publisher || !producer) return false;
        PyObject* arguments[] = {nullptr, source.get(), publisher.get(), topic.name,
                                 topic.bound->retains ? Py_True : Py_False, producer.get()};
        if (!Reference::steal(call_python(calls.call.get(), arguments + 1, 5 | PY_VECTORCALL_ARGUMENTS_OFFSET))) {
            return false;
        }
    }
    const auto found = handler_->routes.find(key);
    if (!serves(found)) return true;  // nobody wants them
    const std::shared_ptr<Route> route = found->second;
    route->resume(topic.bound->first);
    route->relay(views_, missed, run_.arrived, handler_->patience);
    for (const auto& [peer, flow] : route->take_ended()) {
        if (!Reference::steal(PyObject_CallFunction(calls.ended.get(), "iI", peer, flow))) return false;
    }
    return true;
}

void SubscriptionTask::handle_batches(const Calls& calls, Nanos until, std::uint64_t& count, std::uint64_t& failed) {
    const TaskQueue& queue = *registration_->queue;
    Delays& delays = *delays_.load(std::memory_order_relaxed);
    const bool paced = handler_->relays && charged();
    while (cursor_.left() != 0 && handler_->call) {
        const std::size_t most = paced ? most_relayed_ : kMostEvents;
        const Nanos cpu = paced ? thread_cpu_ns() : 0;
        views_.clear();
        sources_.clear();
        attempt_ = 0;
        EventReader::Topic* topic = nullptr;
        std::uint32_t missed = 0;
        const Nanos began = now_ns();
        while (cursor_.left() != 0 && views_.size() < most) {
            RunCursor ahead = cursor_;
            const char* message;
            std::size_t size;
            ahead.next(message, size);
            EventView view;
            if (!view.read(message, size)) {
                add(delays.malformed, 1);
            } else if (!views_.empty() && view.head.topic != views_.front().head.topic) {
                break;  // another topic: another batch
            } else if (views_.empty() && (topic = reader_.topic(run_.source, view.head.topic, run_.session)) == nullptr) {
                add(delays.malformed, 1);
            } else {
                const EventReader::Told told = reader_.told(*topic, view, run_.source, began - run_.arrived);
                if (told.state == EventReader::Told::expired) {
                    add(delays.expired, 1);
                } else {
                    missed += EventReader::missed(*topic, view.head.number);
                }
                if (told.state == EventReader::Told::fresh) {
                    views_.push_back(view);
                    sources_.push_back(told.source);
                    attempt_ = std::max(attempt_, told.attempt);
                }
            }
            cursor_ = ahead;
        }
        if (!views_.empty()) {
            if (missed != 0) add(delays.missed, missed);
            const bool good = handler_->relays ? pass_on(calls, *topic, missed) : hand_over(calls, *topic, missed);
            if (!good) {
                failed += views_.size();
                calls.report(sources_.front());
            }
            if (attempt_ != 0 && handler_->acks) {
                for (const EventView& view : views_) {
                    if (LogMark::of(view.head).attempt == 0) continue;
                    handler_->acks->add(reader_.ack_of(*topic, view, run_.source),
                                        good ? AckRange::done : AckRange::again);
                }
                handler_->acks->send();
            }
            ++count;
            if (paced) pace(thread_cpu_ns() - cpu);
        }
        const Nanos now = now_ns();
        took(now, views_.size());
        if (now >= until || queue.closed() || outranked()) break;
        if (cursor_.left() != 0) node_->progress(run_, run_.size() - cursor_.left());
    }
}

}  // namespace antiphon::python

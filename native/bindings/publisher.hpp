// One topic's publisher: a number for its name, its sequence, and the subscriptions it serves.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bindings/content.hpp"
#include "bindings/node.hpp"
#include "bindings/quota.hpp"
#include "bindings/route.hpp"
#include "bindings/targets.hpp"
#include "node/pump.hpp"

namespace antiphon::python {

class Publisher : public Route {
   public:
    struct Options {
        std::uint32_t topic;
        std::string name;
        WhenFull when_full;
        bool retains;          // the last value, for whoever comes later
        std::size_t capacity;  // of a queue of its own; 0: it writes straight into the rings
        std::uint16_t origin;  // the node whose events it passes on; 0: it has its own
    };
    Publisher(std::shared_ptr<Node> node, Options options, Reference encode, Reference encode_message)
        : node_(std::move(node)),
          topic_(options.topic),
          name_(std::move(options.name)),
          when_full_(options.when_full),
          retains_(options.retains),
          capacity_(options.capacity),
          origin_(options.origin),
          encode_(std::move(encode)),
          encode_message_(std::move(encode_message)),
          sender_(options.capacity != 0 ? std::make_shared<Sender>(*this) : nullptr) {}
    ~Publisher() override;

    // A subscription of another node, or of this one: its flow there, what it charges at the least, and
    // which events it wants: by their properties, null for all of them, and by their content, 0 for all
    // of them. Serving one again changes nothing. False: that node is not known.
    // `ends`: by a relay, when it has had no room for as long as that waits.
    bool serve(std::uint16_t peer, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge,
               std::shared_ptr<const match::Filter> where, std::uint64_t content, bool ends);
    // Who judges content; before the first that asks for it is served.
    void judge_by(Reference planner) { content_.use(std::move(planner)); }
    void leave(std::uint16_t peer, std::uint32_t flow);
    std::size_t targets() const { return targets_.alive(); }

    // With the interpreter's lock. New references; null with an exception set.
    // A buffer or a message; properties and ttl may be null or None.
    PyObject* publish(PyObject* data, PyObject* properties, PyObject* ttl);
    PyObject* publish_many(PyObject* events, PyObject* ttl);  // a sequence of bytes and messages
    PyObject* publish_packed(PyObject* data, PyObject* offsets, PyObject* ttl);
    // Events that came from `origin`, as they are, and how many were lost before them. With the
    // interpreter's lock, which it lets go; on a scheduler thread. Waits at most so long for those that
    // have no room, and then no more until they have.
    void relay(const std::vector<EventView>& views, std::uint32_t missed, Nanos arrived, Nanos patience) override;
    // With the interpreter's lock. What a relay may pass on; null: everything.
    void limit(std::shared_ptr<Quota> quota) { quota_ = std::move(quota); }
    Ended take_ended() override;
    // With the interpreter's lock, which it lets go. What waits in a queue of its own is sent before, for
    // at most so long. False with an exception set when a signal handler raised meanwhile; it is closed all
    // the same.
    bool close(Nanos drain = 0);
    // Only with a queue of its own. False: there is not so much time left.
    bool set_share(double share) { return sender_ && node_->scheduler().set_share(*sender_, share); }
    bool active() const { return !closed_; }
    // False with an exception set: nothing can be published now.
    bool open() const;
    // With the interpreter's lock. Before its bus has started nobody is served, so what is published would be lost.
    void set_started(bool started) { started_ = started; }
    // With the interpreter's lock, which it lets go: until what was published before has left the queue of its own. A
    // negative timeout waits for ever. False with an exception set.
    bool flush_queue(double timeout);
    std::shared_ptr<const Task> task() const { return sender_; }
    std::size_t pending();
    // Gives the last value to those who came after it, if it is kept. Never blocks; false when some
    // have no room for it yet.
    bool settle();
    // As above, and waits for those that take it in fragments; with the interpreter's lock, which it lets go.
    void settle_waiting();
    bool owes_large() const { return owes_large_.load(std::memory_order_relaxed); }

    std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
    std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
    std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
    std::uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }
    // Of a relay: how many of the dropped and of the lost each node would have got, if any.
    struct Missed {
        std::uint64_t dropped = 0, lost = 0;
    };
    std::map<std::uint16_t, Missed> missed_by() {
        std::lock_guard lock(mutex_);
        return missed_by_;
    }
    std::shared_ptr<Node> node() { return node_; }

   private:
    static constexpr Nanos kLook = 100 * kMillisecond;  // for signals, and for the end of the node

    // What is to be published; the same for all targets.
    struct Load {
        EventHead head;
        Message properties;
        const Message* events;
        std::size_t count;
        Nanos expires;  // on this machine's clock; 0: never
        std::size_t before = 0;  // events of the same call that have gone already
        // Instead of head, properties, events and expires: somebody else's, and when they came.
        const EventView* views = nullptr;
        Nanos arrived = 0;
        Call call = kPublish;
    };

    // A target that has not got everything yet, and why.
    struct Rest {
        Target* target;
        std::size_t done;
        Attempt attempt;
        // While it is not connected, of one in hand: until when that may be, and how often connecting had failed.
        Nanos connect_by = 0;
        std::uint64_t failures = 0;
    };
    struct Retained {
        EventHead head;
        std::string properties, data;
        Nanos expires;
    };

    // An event that waits for this publisher's turn.
    using Gaps = std::vector<std::pair<std::shared_ptr<Target>, std::uint32_t>>;
    struct Queued {
        Chosen targets;
        Gaps gaps;  // how many were dropped before it, by whom they were for
        EventHead head;
        std::string properties, data;
        Nanos expires;
    };

    // The event that was taken out of the queue, and those that have no room for it yet.
    struct InHand {
        Queued event;
        std::vector<Rest> rest;
        Nanos began;
        bool failed = false;
    };

    // With a share, or with an own queue: the scheduler's threads send, without the interpreter's lock.
    class Sender : public Pump, public Alarm {
       public:
        explicit Sender(Publisher& publisher) : Pump(publisher.node_), publisher_(publisher) {}
        void tick(Nanos, std::uint64_t, std::uint64_t) override { nudge(); }
        void wait_at(Peer& peer, const Attempt& attempt) { wait_for(peer, attempt); }
        // Too early does no harm: it is set again then.
        void look_at(Nanos at) {
            if (alarm_at_ > now_ns() && alarm_at_ <= at) return;
            if (node_->timers().set(*this, at)) alarm_at_ = at;
        }
        void end() {
            retire();
            node_->timers().set(*this, kNever);
        }
        bool run_slice(Nanos until) override { return publisher_.send_queued(until, *this); }
        std::uint64_t handled() const override { return sent_.load(std::memory_order_relaxed); }
        bool filled() override { return publisher_.brimmed_.exchange(false, std::memory_order_relaxed); }
        bool stop_early() const { return outranked(); }
        std::atomic<std::uint64_t> sent_{0};

       private:
        Publisher& publisher_;
        Nanos alarm_at_ = 0;
    };

    Chosen wanted(const Message& properties, const Verdict& verdict = {});
    void lose(const Queued& event, Gaps& after);
    void unbind(const Chosen& targets);
    bool send_queued(Nanos until, Sender& sender);
    bool send_while_time(Nanos until, Sender& sender);
    bool take_next(Sender& sender);
    bool send_parked(Sender& sender);
    bool over(Rest& one, const Load& load, Nanos deadline);
    void let_go();
    static Load load_of(const Queued& event, const Message& data);
    PyObject* enqueue(const Chosen& targets, Load load);
    bool make_room(std::unique_lock<std::mutex>& lock, Nanos deadline, const Interrupted* interrupted, Outcome& outcome);
    PyObject* send(const Chosen& targets, Load load);
    void send_what_goes(const Chosen& targets, const Load& load, std::vector<Rest>& rest);
    Attempt attempt_all(Target& target, const Load& load, std::size_t& done);
    bool open_up(const Load& load, std::vector<Rest>& rest);
    bool too_large(const Load& load) const;
    Outcome send_rest(const Load& load, std::vector<Rest>& rest, Nanos deadline, Nanos began,
                      const Interrupted* signalled, std::uint16_t& at, std::size_t& left_over);
    void relay_to(const Chosen& targets, const EventView* views, std::size_t count, Nanos arrived, Nanos patience);
    void wait_for_room(const Load& load, std::vector<Rest>& rest, Nanos patience);
    void send_within(const Load& load, std::vector<Rest>& alone, Nanos length);
    void end_if_full(Target& target, Nanos patience);
    bool take_for_relay(std::size_t count, Nanos patience);
    void pass_up(std::size_t count);
    void missed(const Target& target, std::uint64_t dropped, std::uint64_t lost);
    Passing passing(const Load& load, std::uint32_t number) const;
    EventHead head_at(const Load& load, std::size_t i, std::uint32_t number) const;
    static Message properties_at(const Load& load, std::size_t i);
    static Message data_at(const Load& load, std::size_t i);
    void retain(const Load& load);
    bool send_spans(const std::vector<Message>& spans, Nanos expires, std::size_t before, Call call);
    bool send_judged(const std::vector<Message>& spans, Nanos expires, std::size_t before, Call call);
    bool send_some(const Chosen& targets, const Message* first, std::size_t count, Nanos expires, std::size_t before,
                   Call call);
    static bool may_wait_for(const Load& load) { return may_wait(load.call, load.before); }
    bool all_have_room(const Chosen& targets, const Load& load) const;
    void ask_for_room(const Chosen& targets, const Load& load);
    // With the interpreter's lock, and without the turn: of the event that is kept, and which one that is.
    bool judge_retained(Nanos deadline, Verdict& verdict, std::uint64_t& sequence);
    void relay_chosen(const EventView* views, std::size_t count, const std::vector<Verdict>& verdicts, Nanos arrived,
                      Nanos patience);
    // The bytes of a message; null with an exception set.
    Reference encoded(PyObject* message);
    // When it is worth nothing any more; 0: never. False with an exception set.
    static bool read_ttl(PyObject* ttl, Nanos& expires);
    Attempt attempt(Target& target, const Load& load, std::size_t done, std::size_t& taken);
    // Those that cannot have it now: asked for, and they see a gap.
    void pass_over(const Load& load, std::vector<Rest>& rest);

    std::shared_ptr<Node> node_;
    const std::uint32_t topic_;
    const std::string name_;
    const WhenFull when_full_;
    const bool retains_;
    const std::size_t capacity_;
    const std::uint16_t origin_;
    Reference encode_;  // properties to bytes
    Reference encode_message_;
    Targets targets_;
    Content content_;
    std::atomic<bool> closed_{false};  // written with the interpreter's lock
    bool started_ = true;              // with the interpreter's lock
    // Whose turn it is: of numbers and order. Held while somebody waits for credit, so nobody waits for
    // it with the interpreter's lock, and nobody for longer than his own deadline.
    std::mutex mutex_;
    std::condition_variable passed_;
    bool taken_ = false;
    bool sender_waits_ = false;  // for the turn
    std::atomic<std::thread::id> owner_{};
    bool try_take();
    bool take(Nanos deadline, const Interrupted* interrupted, Outcome& outcome);
    void pass();
    // Passes the turn on when it goes.
    struct Passed {
        ~Passed() { publisher.pass(); }
        Publisher& publisher;
    };
    // As above, unless it is kept.
    struct Turn {
        ~Turn() {
            if (!kept) publisher.pass();
        }
        Publisher& publisher;
        bool kept = false;
    };
    // What was above the quota is a gap behind what was not, for whoever comes next.
    struct Beyond {
        ~Beyond() {
            if (count == 0) return;
            publisher.sequence_.fetch_add(count, std::memory_order_relaxed);
            publisher.owed_gap_.fetch_add(count, std::memory_order_relaxed);
        }
        Publisher& publisher;
        const std::uint32_t count;
    };
    std::optional<Retained> retained_;
    std::atomic<bool> owes_large_{false};
    // The queue of its own. Its mutex is taken without the other, or inside it.
    std::mutex queue_mutex_;
    std::condition_variable room_;
    std::deque<Queued> queue_;
    std::uint64_t sending_ = 0;  // the sequence of the one that was taken out of it and is on its way; 0: none is
    std::optional<InHand> hand_;  // of the task that sends, which has the turn as long
    // Somebody has found it full. Set by whoever publishes, taken by the thread that sends; a hint, relaxed.
    std::atomic<bool> brimmed_{false};
    Gaps gaps_;  // before the next one that comes
    std::shared_ptr<Sender> sender_;
    std::atomic<std::uint64_t> sequence_{0}, dropped_{0}, lost_{0}, waits_{0};
    // Of relays, with the interpreter's lock:
    std::shared_ptr<Quota> quota_;
    Ended ended_;  // with the mutex
    std::map<std::uint16_t, Missed> missed_by_;  // the same
    // Of relays: events that nobody could be given a gap for, because somebody else had the turn.
    std::atomic<std::uint32_t> owed_gap_{0};
    std::uint64_t last_relayed_ = 0;  // sequence; of the one task that relays
};

}  // namespace antiphon::python

// One durable subscription, or one work group: each event goes to one member, and is done with when that
// has acknowledged it. What is not comes again, to whoever is there, and in the end to the dead letters.
//
// Events come out of logs, from a position on, or are pushed by publishers' routes; those that were read
// and not acknowledged are kept here, so their number is bounded. A topic costs nothing as long as nothing
// of it comes: each log says when it has more, and those that have are read in turn.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings/acks.hpp"
#include "bindings/python.hpp"
#include "bindings/quota.hpp"
#include "bindings/route.hpp"
#include "bindings/targets.hpp"
#include "log/reader.hpp"
#include "log/store.hpp"
#include "node/pump.hpp"
#include "scheduler/timers.hpp"

namespace antiphon::python {

class Delivery : public Pump, public log::Listener, public Alarm {
   public:
    struct Options {
        Nanos ack_timeout;
        unsigned max_attempts;
        std::size_t most_waiting;  // that were pushed, and nobody has yet
    };
    // A part of a log: from one sequence to another, both included.
    using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
    // Where a topic stands: everything below `next` is acknowledged, but what is in the ranges.
    struct Position {
        std::string topic;
        std::uint64_t next;
        Ranges pending;
    };
    struct Counts {
        std::uint64_t delivered = 0, acknowledged = 0, again = 0, dead = 0, dropped = 0, missed = 0;
        std::size_t members = 0, out = 0, waiting = 0;
    };

    // `store` and `dead` may be null: then what nobody takes is dropped. `judge` looks into the data of each
    // event, as that of a Replay does, or is null.
    Delivery(std::shared_ptr<Node> node, std::shared_ptr<log::Store> store, std::shared_ptr<log::Log> dead,
             std::shared_ptr<const match::Filter> where, Options options, Reference judge);
    ~Delivery() override;
    // With the interpreter's lock: another judge of the same; none, before `close`, since whoever holds this
    // last may not have that lock.
    void judge_by(Reference judge) { judge_ = std::move(judge); }
    void close();  // without the interpreter's lock

    // A recorded topic; `next` and `pending` as a position has them, or next 0: from `start` on.
    void add_log(std::uint32_t topic, std::string name, std::shared_ptr<log::Log> log, const log::Start& start,
                 std::uint64_t next, Ranges pending);
    void join(Peer& peer, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge, std::size_t capacity);
    // `blame`: it has died, perhaps of the event that it had for longest.
    void leave(std::uint16_t peer, std::uint32_t flow, bool blame);
    // It gets nothing more, and may acknowledge what it has; how many that is.
    std::size_t dismiss(std::uint16_t peer, std::uint32_t flow);
    void acknowledge(std::uint16_t peer, const AckRange& range);
    // Events of a topic that is not recorded. May wait for room, on a scheduler thread; what finds none in
    // time is dropped.
    void push(const std::string& name, std::uint16_t source, const std::vector<EventView>& views, Nanos patience);

    std::vector<Position> positions();
    std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }  // changes with them
    Counts counts();

    bool run_slice(Nanos until) override;
    void tick(Nanos, std::uint64_t, std::uint64_t) override { nudge(); }
    void appended(std::uint64_t token, const log::Receipt& receipt) override;

   private:
    // Hears of one log that there is more to read. The log keeps it, and may ring once more when it is not
    // wanted any longer.
    class Bell : public log::Watcher {
       public:
        Bell(std::weak_ptr<Delivery> of, std::uint32_t topic) : topic(topic), of_(std::move(of)) {}
        void more() override {
            if (const auto of = of_.lock()) of->rang(*this);
        }
        const std::uint32_t topic;
        bool rung = false;  // and not taken note of; with said_mutex_

       private:
        const std::weak_ptr<Delivery> of_;
    };
    struct Item {
        std::uint32_t topic = 0;
        std::uint64_t sequence = 0;
        std::int64_t time_ns = 0;
        std::uint16_t source = 0;
        std::uint32_t attempts = 0;  // made so far
        // Of these: it was handed back, too much time went by, or it was the one at hand when its member went.
        // A member that dies has many that it has not begun yet, and those are not to blame.
        unsigned strikes = 0;
        std::uint32_t properties = 0;
        std::string bytes;  // the properties, then the data
        Nanos not_before = 0;
        std::uint64_t id = 0;  // of this delivery's own
    };
    struct Out {
        std::uint32_t topic, number;
        std::size_t bytes;         // of the item, which may be elsewhere by now
        Nanos deadline = kNever;   // never: its time has not begun
        bool settled = false;
        Item item;
    };
    // One whose time was up. Its member may say all the same that it is done with.
    struct Late {
        std::uint32_t topic, epoch, number;
        std::uint64_t order, id, sequence;
    };
    struct Topic {
        std::string name;
        std::shared_ptr<log::Log> log;  // null: its events are pushed
        std::unique_ptr<log::Reader> reader;
        std::shared_ptr<Bell> bell;
        bool ready = false;         // it is among those that are to be read
        std::uint64_t read_to = 0;  // what was looked at; in the beginning what is asked for
        std::uint64_t resumed = 0;  // below that only what `redo` has is to be done
        Ranges redo;
        std::uint64_t next = 0;           // behind the last that was read
        std::set<std::uint64_t> pending;  // read, and not acknowledged
        std::uint64_t missed = 0;         // before the next one
        std::size_t open = 0;             // pushed, and not acknowledged
    };
    struct Place {
        std::uint32_t number;
        std::uint64_t order;  // among all that its member was sent
    };
    struct Lane {
        std::shared_ptr<Target> target;
        std::deque<Place> places{};
    };
    struct Member {
        Peer& peer;
        std::shared_ptr<OutFlow> way;
        std::uint64_t incarnation;
        std::size_t capacity;
        Nanos heard;                   // when it last acknowledged something, or came
        std::size_t out = 0, bytes = 0;  // without an acknowledgement
        std::uint64_t served = 0;        // when it last got something
        bool blocked = false;          // in this slice
        // It has let the time of an event go by, and said nothing of others either. It gets one at a time until
        // it acknowledges the last that it had then, or one that it got since: the others may be in its queue.
        bool stalled = false;
        std::uint64_t sign_of_life = 0;  // behind that last one
        LargePause large{};
        Nanos trial_at = 0;            // while there are others who take something
        std::deque<Out> outs{};        // in the order in which they were sent
        std::uint64_t first = 0;       // the order of the first of them
        std::uint64_t begun = 0;       // the time of those before this order has begun
        std::deque<Late> late{};
        std::unordered_map<std::uint32_t, Lane> lanes{};

        std::uint64_t end() const { return first + outs.size(); }
        Out& at(std::uint64_t order) { return outs[order - first]; }
        std::size_t room() const { return stalled ? std::min<std::size_t>(1, capacity) : capacity; }
    };
    using Key = std::pair<std::uint16_t, std::uint32_t>;
    static constexpr std::size_t kManyPushed = 1024;

    std::uint32_t number_of(const std::string& name);
    void forget_idle();
    void rang(Bell& bell);
    void make_ready(std::uint32_t number, Topic& topic);
    enum class Found { some, none, later };  // later: there may be something behind what was passed over
    Found read(Nanos until);
    std::uint64_t missed(const Topic& topic, std::uint64_t before) const;
    bool wants(const log::Record& record, Topic& topic) const;
    bool hand_out(Nanos until, std::unique_lock<std::mutex>& lock);
    bool judge(std::unique_lock<std::mutex>& lock);
    Member* choose();
    bool send(Member& member, std::deque<Item>& from, std::size_t most, std::unique_lock<std::mutex>& lock);
    bool send_large(Member& member, Lane& lane, std::deque<Item>& from, std::uint32_t missed,
                    std::unique_lock<std::mutex>& lock);
    void sent(Member& member, Lane& lane, std::deque<Item>& from, std::size_t count);
    Item take_back(Member& member, Lane& lane);
    void begin(Member& member, std::uint64_t before, Nanos now);
    void turn_to_next(Member& member, Nanos now);
    void heard(Member& member, std::uint64_t last, Nanos now);
    std::uint64_t acknowledge_late(Member& member, const AckRange& range);
    bool answered(const Item& item) const {
        const auto found = late_.find(item.id);
        return found != late_.end() && found->second;
    }
    void give_up(Member& member, std::uint64_t order, bool strike);
    void stall(Member& member, Nanos now);
    void settle(Member& member, Out& out);
    void drop_settled(Member& member);
    bool has_room() const {
        return fresh_.size() + again_.size() + unjudged_.size() + judging_ < options_.most_waiting;
    }
    void finish(const Item& item);
    void again(Item&& item, bool at_once, bool strike);
    LogMark mark_of(const Item& item) const {
        return {item.source, static_cast<std::uint8_t>(std::min<std::uint32_t>(item.attempts + 1, 255))};
    }
    void bury(Item&& item);
    void not_buried(Item&& item);
    void take_what_was_said();
    void look_at_deadlines(Nanos now);
    void set_alarm();
    void look_by(Nanos at) { look_at_ = std::min(look_at_, at); }

    const std::shared_ptr<log::Store> store_;
    const std::shared_ptr<log::Log> dead_;
    const std::shared_ptr<const match::Filter> where_;
    const Options options_;
    const bool judged_;  // somebody looks into the data of each event
    Reference judge_;    // who does; with the interpreter's lock
    std::atomic<bool> closed_{false};  // set once; looked at in slices
    std::atomic<std::uint64_t> version_{0};

    std::mutex mutex_;  // of everything below; held while a log is read, and while a ring is written
    std::unique_ptr<std::condition_variable> room_ = std::make_unique<std::condition_variable>();
    std::map<std::uint32_t, Topic> topics_;
    // Those that are pushed have numbers of this delivery's own, above all of the broker's: the broker's are
    // given to other topics while events of the one before are still to be acknowledged.
    std::unordered_map<std::string, std::uint32_t> pushed_;
    std::deque<std::pair<Nanos, std::uint32_t>> free_numbers_;  // and since when
    std::size_t sweep_at_ = kManyPushed;  // so many topics: those without an event are forgotten
    std::uint32_t next_number_ = std::uint32_t{1} << 31;
    std::deque<std::uint32_t> ready_;  // topics that may have something to be read; they take turns
    std::deque<std::pair<Nanos, std::uint32_t>> resting_;  // whose logs could not be read, and until when
    std::map<Key, Member> members_;
    std::deque<Item> unjudged_;  // nobody has looked into their data yet
    std::size_t judging_ = 0;    // somebody does, without the mutex
    std::deque<Item> fresh_;
    std::multimap<Nanos, Item> again_;  // by when they may be tried
    // Whose time was up once and that are not done with, by their ids; true: somebody was late, and has done it.
    std::unordered_map<std::uint64_t, bool> late_;
    std::uint64_t served_ = 0;  // how often members got something
    std::uint64_t ids_ = 0;
    bool starved_ = false;              // somebody has waited for room in vain, and there is none since
    std::unordered_map<std::uint64_t, Item> dying_;  // on their way to the dead letters
    // That the log of dead letters did not take. One of them is tried when it is time, and the others when
    // that was taken.
    std::deque<Item> unburied_;
    Nanos bury_at_ = 0, bury_pause_ = 0;  // no pause: it takes them
    std::uint64_t tokens_ = 0;
    Nanos outs_due_ = kNever;  // no event that is out has an earlier deadline
    Nanos look_at_ = kNever;   // what else this slice has found: not later than that
    Nanos alarm_at_ = 0;       // for when the alarm was set
    Counts counts_;

    std::mutex said_mutex_;  // what the log thread says, which never waits for the mutex above
    std::vector<std::pair<std::uint64_t, bool>> receipts_;
    std::vector<std::uint32_t> rung_;
};

// From one publisher of a topic that is not recorded to a group.
class GroupRoute : public Route {
   public:
    GroupRoute(std::shared_ptr<Delivery> to, std::string name, std::uint16_t source)
        : to_(std::move(to)), name_(std::move(name)), source_(source) {}
    void relay(const std::vector<EventView>& views, std::uint32_t, Nanos, Nanos patience) override;

   private:
    const std::shared_ptr<Delivery> to_;
    const std::string name_;
    const std::uint16_t source_;
};

// To several, one after the other; the quota, if there is one, counts an event once for all of them.
class ForkedRoute : public Route {
   public:
    ForkedRoute(std::vector<std::shared_ptr<Route>> to, std::shared_ptr<Quota> quota)
        : to_(std::move(to)), quota_(std::move(quota)) {}
    void relay(const std::vector<EventView>& views, std::uint32_t missed, Nanos arrived, Nanos patience) override;
    Ended take_ended() override;

   private:
    const std::vector<std::shared_ptr<Route>> to_;
    const std::shared_ptr<Quota> quota_;
};

}  // namespace antiphon::python

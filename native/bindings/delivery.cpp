#include "bindings/delivery.hpp"

#include <algorithm>
#include <iterator>

#include "base/wait.hpp"
#include "bindings/content.hpp"
#include "frames/bytes.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

constexpr Nanos kSoon = 20 * kMillisecond;
constexpr Nanos kPause = 50 * kMillisecond;      // before the second attempt; four times that before each further one
constexpr Nanos kReadAgain = kSecond;            // after a log could not be read
constexpr std::uint64_t kMostMissed = 1 << 24;   // that one event tells of; the rest is told with the next
constexpr std::size_t kAtOnce = 256;             // events of one attempt
constexpr std::size_t kMostAgain = 16384;        // that were handed back; no more are read meanwhile
constexpr std::size_t kPlaces = 16;              // for each event that it may have: of those that were settled out of turn
constexpr Nanos kNumberRests = 60 * kSecond;     // before it is used again: as with a broker's

}  // namespace

Delivery::Delivery(std::shared_ptr<Node> node, std::shared_ptr<log::Store> store, std::shared_ptr<log::Log> dead,
                   std::shared_ptr<const match::Filter> where, Options options, Reference judge)
    : Pump(std::move(node)),
      store_(std::move(store)),
      dead_(std::move(dead)),
      where_(std::move(where)),
      options_(options),
      judged_(judge.get() != nullptr),
      judge_(std::move(judge)) {}

Delivery::~Delivery() {
    (void)judge_.release();  // of one that nobody closed
    if (node_->forked()) (void)room_.release();  // somebody may wait for it there
    close();
}

void Delivery::close() {
    if (closed_.exchange(true) || node_->forked()) return;
    std::vector<std::pair<std::shared_ptr<log::Log>, std::shared_ptr<Bell>>> watched;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [number, topic] : topics_) {
            if (topic.log) watched.emplace_back(topic.log, topic.bell);
        }
        for (auto& [key, member] : members_) {
            for (auto& [topic, lane] : member.lanes) lane.target->left.store(true, std::memory_order_seq_cst);
            member.peer.wake();
        }
        room_->notify_all();
    }
    for (const auto& [log, bell] : watched) log->unwatch(bell.get());
    retire();
    node_->timers().set(*this, kNever);  // a slice may have set it, and none runs any more
}

// --- who and what ---------------------------------------------------------------------------------

void Delivery::add_log(std::uint32_t number, std::string name, std::shared_ptr<log::Log> log, const log::Start& start,
                       std::uint64_t next, Ranges pending) {
    log::Start from = start;
    std::sort(pending.begin(), pending.end());
    if (next != 0) {
        from = {log::Start::At::sequence, pending.empty() ? next : std::min(next, pending.front().first), 0};
    }
    auto reader = std::make_unique<log::Reader>(log, from);
    const auto bell = std::make_shared<Bell>(std::static_pointer_cast<Delivery>(shared_from_this()), number);
    {
        std::lock_guard lock(mutex_);
        Topic& topic = topics_[number];
        if (topic.log) return;
        topic.name = std::move(name);
        topic.next = next != 0 ? next : std::max<std::uint64_t>(1, reader->position());
        topic.log = log;
        topic.reader = std::move(reader);
        topic.bell = bell;
        topic.read_to = from.sequence;
        topic.resumed = next;
        topic.redo = std::move(pending);
        version_.fetch_add(1, std::memory_order_relaxed);
    }
    log->watch(bell);
    if (closed_.load()) log->unwatch(bell.get());  // meanwhile, and perhaps before it was watched
    bell->more();  // whatever it has by now
}

// On the log thread, or on that of whoever adds a log.
void Delivery::rang(Bell& bell) {
    {
        std::lock_guard lock(said_mutex_);
        if (std::exchange(bell.rung, true)) return;  // whoever takes note of that looks after this moment
        rung_.push_back(bell.topic);
    }
    nudge();
}

void Delivery::finish(const Item& item) {
    const auto topic = topics_.find(item.topic);
    if (topic != topics_.end()) {
        if (topic->second.log) {
            topic->second.pending.erase(item.sequence);
        } else {
            --topic->second.open;
        }
    }
    late_.erase(item.id);
    version_.fetch_add(1, std::memory_order_relaxed);
}

void Delivery::again(Item&& item, bool at_once, bool strike) {
    if (answered(item)) return finish(item);
    if (strike && ++item.strikes >= options_.max_attempts) return bury(std::move(item));
    ++counts_.again;
    Nanos pause = kPause;
    for (unsigned i = 1; i < item.strikes && pause < options_.ack_timeout; ++i) pause *= 4;
    item.not_before = at_once ? 0 : now_ns() + std::min(pause, options_.ack_timeout);
    again_.emplace(item.not_before, std::move(item));
}

// On the log thread.
void Delivery::appended(std::uint64_t token, const log::Receipt& receipt) {
    {
        std::lock_guard lock(said_mutex_);
        receipts_.emplace_back(token, receipt.status == log::Status::ok);
    }
    nudge();
}

void Delivery::take_what_was_said() {
    std::vector<std::pair<std::uint64_t, bool>> receipts;
    {
        std::lock_guard lock(said_mutex_);
        receipts.swap(receipts_);
        for (const std::uint32_t number : rung_) {
            Topic& topic = topics_[number];  // those of logs stay
            topic.bell->rung = false;
            make_ready(number, topic);
        }
        rung_.clear();
    }
    for (const auto& [token, ok] : receipts) {
        const auto found = dying_.find(token);
        if (found == dying_.end()) continue;
        if (ok) {
            ++counts_.dead;
            bury_pause_ = 0;
            finish(found->second);
        } else {
            not_buried(std::move(found->second));
        }
        dying_.erase(found);
    }
}

void Delivery::make_ready(std::uint32_t number, Topic& topic) {
    if (std::exchange(topic.ready, true)) return;
    ready_.push_back(number);
}

// Nothing happens by itself: whatever is to be done at a time has the alarm set for it, when a slice ends
// with nothing more to do. One that is set too early does no harm.
void Delivery::set_alarm() {
    const Nanos now = now_ns();
    Nanos at = std::min(look_at_, outs_due_);
    // What is due and has not gone waits for a member, and not for a time.
    if (!again_.empty() && again_.begin()->first > now) at = std::min(at, again_.begin()->first);
    if (!unburied_.empty()) at = std::min(at, bury_at_);
    if (!resting_.empty() && resting_.front().first > now) at = std::min(at, resting_.front().first);
    if (at == kNever || (alarm_at_ > now && alarm_at_ <= at)) return;
    if (node_->timers().set(*this, at)) alarm_at_ = at;
}

// --- handing out ----------------------------------------------------------------------------------

bool Delivery::run_slice(Nanos until) {
    std::unique_lock lock(mutex_);
    look_at_ = kNever;
    take_what_was_said();
    look_at_deadlines(now_ns());
    for (auto& [key, member] : members_) member.blocked = false;
    const bool more = hand_out(until, lock);
    if (!more) set_alarm();
    return more;
}

bool Delivery::hand_out(Nanos until, std::unique_lock<std::mutex>& lock) {
    while (!closed_.load(std::memory_order_relaxed)) {
        if (!unjudged_.empty()) {
            if (!judge(lock)) return false;
            if (now_ns() >= until) return true;
            continue;
        }
        Member* member = choose();
        if (member == nullptr) return false;
        const Nanos now = now_ns();
        // Those whose time has come first; they are few.
        const auto due = again_.begin();
        if (due != again_.end() && due->first <= now) {
            std::deque<Item> one;
            one.push_back(std::move(due->second));
            again_.erase(due);
            if (answered(one.front())) {
                finish(one.front());
                continue;
            }
            send(*member, one, 1, lock);
            // Back to where it was, before those of the same time: they keep their order.
            if (!one.empty()) again_.emplace_hint(again_.begin(), one.front().not_before, std::move(one.front()));
        } else {
            if (fresh_.empty()) {
                // When so many wait to be tried again, or buried, that is tried first: the alarm comes back to it.
                if (again_.size() + dying_.size() + unburied_.size() >= kMostAgain) return false;
                const Found found = read(until);
                if (found != Found::some) return found == Found::later;
                if (fresh_.empty()) continue;  // they are judged first
            }
            // Several members get a part each, so that none has much while another has nothing.
            const std::size_t part = (fresh_.size() + members_.size() - 1) / members_.size();
            send(*member, fresh_, std::min(part, member->room() - member->out), lock);
            room_->notify_all();
        }
        if (now_ns() >= until) return true;
    }
    return false;
}

// Some of those that wait for it: what passes is to be handed out, the rest is done with. Without the mutex
// while Python looks at them, which may take its time. False: there is no judge any more.
bool Delivery::judge(std::unique_lock<std::mutex>& lock) {
    std::deque<Item> some;
    std::vector<Message> bodies;
    std::size_t bytes = 0;
    while (!unjudged_.empty() && some.size() < kJudgedAtOnce && bytes < kMostJudged) {
        some.push_back(std::move(unjudged_.front()));
        unjudged_.pop_front();
        bytes += some.back().bytes.size();
    }
    for (const Item& item : some) bodies.push_back({item.bytes.data() + item.properties, item.bytes.size() - item.properties});
    judging_ = some.size();
    lock.unlock();
    std::vector<bool> passes;
    {
        Entered entered;
        const Reference judge = Reference::share(judge_.get());
        if (judge) passes = judge_bodies(judge.get(), bodies);
    }
    lock.lock();
    judging_ = 0;
    if (passes.empty()) {  // it is being closed; they are not done with
        unjudged_.insert(unjudged_.begin(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
        return false;
    }
    for (std::size_t i = 0; i < some.size(); ++i) {
        if (passes[i]) {
            fresh_.push_back(std::move(some[i]));
        } else {
            finish(some[i]);
        }
    }
    room_->notify_all();
    return true;
}

bool Delivery::wants(const log::Record& record, Topic& topic) const {
    if (record.sequence < topic.resumed) {
        const auto behind = std::upper_bound(topic.redo.begin(), topic.redo.end(), record.sequence,
                                             [](std::uint64_t sequence, const auto& range) { return sequence < range.first; });
        if (behind == topic.redo.begin() || std::prev(behind)->second < record.sequence) return false;
    }
    return !where_ || where_->matches(match::Properties(record.properties));
}

// How many of those that are no longer kept, before that sequence, this one has not had. Of what it has had
// before only some was to come again.
std::uint64_t Delivery::missed(const Topic& topic, std::uint64_t before) const {
    const std::uint64_t gone = topic.reader->missed();
    if (gone == 0 || topic.read_to >= topic.resumed) return gone;
    std::uint64_t wanted = before - std::min(before, std::max(topic.read_to, topic.resumed));
    for (const auto& [first, last] : topic.redo) {
        const std::uint64_t from = std::max(first, topic.read_to), to = std::min({last + 1, before, topic.resumed});
        if (from < to) wanted += to - from;
    }
    return std::min(gone, wanted);
}

// One batch of one topic; the topics take turns. What nobody wants is passed over for one slice at a time.
Delivery::Found Delivery::read(Nanos until) {
    const Nanos now = now_ns();
    while (!resting_.empty() && resting_.front().first <= now) {
        make_ready(resting_.front().second, topics_[resting_.front().second]);
        resting_.pop_front();
    }
    while (!ready_.empty()) {
        const std::uint32_t number = ready_.front();
        Topic& topic = topics_[number];
        ready_.pop_front();
        topic.ready = false;
        log::Batch batch;
        log::Read got;
        while ((got = topic.reader->next(batch, 0)) == log::Read::batch) {
            const std::uint64_t lost = missed(topic, batch.head.base + topic.reader->first());
            topic.missed += lost;
            counts_.missed += lost;
            topic.read_to = batch.head.next();
            log::RecordCursor cursor(batch);
            log::Record record;
            for (std::uint32_t r = 0; cursor.next(record); ++r) {
                if (r < topic.reader->first() || !wants(record, topic)) continue;
                Item item{number, record.sequence, record.time_ns, static_cast<std::uint16_t>(record.source), 0, 0,
                          static_cast<std::uint32_t>(record.properties.size()), {}, 0, ++ids_};
                item.bytes.reserve(record.properties.size() + record.data.size());
                item.bytes.append(record.properties).append(record.data);
                topic.pending.insert(record.sequence);
                (judged_ ? unjudged_ : fresh_).push_back(std::move(item));
            }
            topic.next = std::max(topic.next, batch.head.next());
            version_.fetch_add(1, std::memory_order_relaxed);
            const bool some = !fresh_.empty() || !unjudged_.empty();
            if (some || now_ns() >= until) {
                make_ready(number, topic);
                return some ? Found::some : Found::later;
            }
        }
        if (got == log::Read::failed) {
            resting_.emplace_back(now_ns() + kReadAgain, number);
        } else if (topic.reader->position() > topic.next) {
            topic.next = topic.reader->position();  // what was passed over to find where it begins
            version_.fetch_add(1, std::memory_order_relaxed);
        }
    }
    return Found::none;
}

// Of the front, as many as follow each other of one topic. What goes is out; the rest stays.
bool Delivery::send(Member& member, std::deque<Item>& from, std::size_t most, std::unique_lock<std::mutex>& lock) {
    const std::uint32_t number = from.front().topic;
    Topic& topic = topics_[number];
    Lane& lane = member.lanes[number];
    if (!lane.target) {
        lane.target = std::make_shared<Target>(member.peer, member.way, member.incarnation,
                                               static_cast<std::uint32_t>(random_u64()), nullptr, 0, false);
    }
    if (member.outs.size() >= kPlaces * member.capacity) {  // behind one that it keeps for very long
        member.blocked = true;
        return false;
    }
    Target& target = *lane.target;
    std::vector<EventView> views;
    for (const Item& item : from) {
        if (item.topic != number || views.size() >= std::min(most, kAtOnce)) break;
        const EventHead head{number, 0, item.sequence, item.time_ns, mark_of(item).word(), item.properties};
        views.push_back({head, item.bytes.data(), item.bytes.data() + item.properties, item.bytes.size() - item.properties});
    }
    for (bool parked = false;;) {
        const std::uint32_t session = target.peer.session.load(std::memory_order_seq_cst);
        // What was sent in a session that has ended comes again when the member has left, which it does.
        if (target.gone() || (target.bound != 0 && session != target.bound)) {
            member.blocked = true;
            return false;
        }
        Attempt tried{session == 0 ? Status::not_connected : Status::sent};
        if (session != 0 && target.bound == 0) {
            tried = node_->try_bind(target.peer, target.flow, session, {number, target.epoch, topic.name, 0, false, true});
            if (tried.status == Status::sent) target.bound = session;
        }
        if (tried.status == Status::sent) {
            // Told by a gap in the numbers, and only when something goes: it may be another who gets it.
            const auto missed = static_cast<std::uint32_t>(std::min(topic.missed, kMostMissed));
            std::size_t taken = 0;
            tried = node_->try_views(target.peer, target.flow, session, {number, target.number + missed, 0}, views.data(),
                                     views.size(), taken);
            if (taken != 0 || tried.status == Status::large) {
                topic.missed -= missed;
                target.number += missed;
            }
            if (taken != 0) {
                sent(member, lane, from, taken);
                return true;
            }
            if (tried.status == Status::large) return send_large(member, lane, from, missed, lock);
        }
        if (tried.status == Status::again) continue;
        if (tried.status == Status::closed) break;
        wait_for(target.peer, tried);
        if (std::exchange(parked, true)) break;
    }
    member.blocked = true;
    return false;
}

// It waits for each fragment, so without the mutex: members may leave meanwhile, and topics come. It is out
// from the beginning on, since its acknowledgement may be here before this thread is.
bool Delivery::send_large(Member& member, Lane& lane, std::deque<Item>& from, std::uint32_t missed,
                          std::unique_lock<std::mutex>& lock) {
    const Key key{member.peer.id, member.way->id.load(std::memory_order_relaxed)};
    const std::shared_ptr<Target> target = lane.target;
    const Node::LargeWait few(*node_);
    const Nanos asked = now_ns();
    if (!few || !member.large.over(asked)) {
        topics_[from.front().topic].missed += missed;
        target->number -= missed;
        member.blocked = true;
        look_by(std::max(asked + kSoon, member.large.at()));
        return false;
    }
    const Nanos grant_by = member.large.grant_by(asked);
    const std::uint32_t number = target->number, topic = from.front().topic;
    const std::string bytes = from.front().bytes;
    const std::uint32_t properties = from.front().properties;
    const EventHead head{topic, number, from.front().sequence, from.front().time_ns, mark_of(from.front()).word(), properties};
    std::string prefix(reinterpret_cast<const char*>(&head), kEventHead);
    prefix.append(bytes, 0, properties);
    sent(member, lane, from, 1);
    Outcome outcome;
    bool went = false;
    lock.unlock();
    {
        Scheduler::Blocked blocked;
        const Nanos began = now_ns();
        Node::Sending sending{target->peer, began + large_patience(bytes.size()), began};
        sending.only_in = target->bound;
        sending.grant_by = grant_by;
        const Interrupted interrupted = [&] { return closed_.load(std::memory_order_relaxed) || target->gone(); };
        outcome = node_->send_large(sending, kEventKind, {bytes.data() + properties, bytes.size() - properties}, &interrupted,
                                    0, {prefix.data(), prefix.size()}, &target->flow);
        went = outcome.ok() && sending.went;
    }
    lock.lock();
    if (!went) topics_[topic].missed += missed;  // it is open, so the topic is there
    const auto found = members_.find(key);
    if (found == members_.end()) return went;  // what it had is for others
    Member& still = found->second;
    if (outcome.code == Outcome::Code::timeout) {
        still.large.begin(now_ns());
    } else {
        still.large.end();
    }
    const auto there = still.lanes.find(topic);
    if (there == still.lanes.end() || there->second.target != target) return went;
    // This is the only thread that hands out: if it is there, it is the last.
    Out* const last = still.outs.empty() ? nullptr : &still.outs.back();
    const bool open = last != nullptr && last->topic == topic && last->number == number && !last->settled;
    if (open && went && last->deadline != kNever) last->deadline = now_ns() + options_.ack_timeout;
    if (!open || went) return went;
    Item item = take_back(still, there->second);
    target->number -= 1 + missed;
    --item.attempts;
    --counts_.delivered;
    if (outcome.code == Outcome::Code::too_large) {  // for this member, for ever
        again(std::move(item), false, true);
        return true;
    }
    from.push_front(std::move(item));
    still.blocked = true;
    park(still.peer);
    look_by(std::max(now_ns() + kSoon, still.large.at()));  // what it waits for may have come before it was parked
    return false;
}

// Of a topic that is pushed. With the mutex.
std::uint32_t Delivery::number_of(const std::string& name) {
    const auto known = pushed_.find(name);
    if (known != pushed_.end()) return known->second;
    if (pushed_.size() >= sweep_at_) {
        forget_idle();
        sweep_at_ = std::max(kManyPushed, 2 * pushed_.size());
    }
    std::uint32_t number = next_number_;
    if (!free_numbers_.empty() && now_ns() - free_numbers_.front().first > kNumberRests) {
        number = free_numbers_.front().second;
        free_numbers_.pop_front();
    } else {
        ++next_number_;
    }
    topics_[number].name = name;
    pushed_.emplace(name, number);
    return number;
}

void Delivery::forget_idle() {
    const Nanos now = now_ns();
    for (auto one = pushed_.begin(); one != pushed_.end();) {
        const std::uint32_t number = one->second;
        if (topics_[number].open != 0) {
            ++one;
            continue;
        }
        for (auto& [key, member] : members_) {
            const auto lane = member.lanes.find(number);
            if (lane == member.lanes.end()) continue;
            lane->second.target->left.store(true, std::memory_order_seq_cst);
            member.lanes.erase(lane);  // nothing of it is out
        }
        topics_.erase(number);
        free_numbers_.emplace_back(now, number);
        one = pushed_.erase(one);
    }
}

void Delivery::push(const std::string& name, std::uint16_t source, const std::vector<EventView>& views, Nanos patience) {
    {
        std::unique_lock lock(mutex_);
        const Nanos until = now_ns() + patience;
        for (const EventView& view : views) {
            const std::string_view properties(view.properties, view.head.properties);
            if (where_ && !where_->matches(match::Properties(properties))) continue;
            // Where nobody takes anything, one wait is enough: the publisher's other subscriptions wait with it.
            starved_ = starved_ && !has_room();
            while (!has_room() && !starved_ && !closed_.load(std::memory_order_relaxed)) {
                lock.unlock();
                nudge();
                lock.lock();
                Scheduler::Blocked blocked;
                if (!has_room()) wait_until(*room_, lock, until);
                starved_ = !has_room() && now_ns() >= until;
            }
            if (!has_room() || closed_.load(std::memory_order_relaxed)) {
                ++counts_.dropped;
                ++topics_[number_of(name)].missed;
                continue;
            }
            // Looked up for each: while it waited for room others may have come and gone.
            const std::uint32_t number = number_of(name);
            ++topics_[number].open;
            Item item{number, view.head.sequence, view.head.time_ns, source, 0, 0, view.head.properties, {}, 0, ++ids_};
            item.bytes.assign(view.properties, view.head.properties + view.size);
            (judged_ ? unjudged_ : fresh_).push_back(std::move(item));
        }
    }
    nudge();
}

// --- looking --------------------------------------------------------------------------------------

std::vector<Delivery::Position> Delivery::positions() {
    std::lock_guard lock(mutex_);
    std::vector<Position> all;
    for (const auto& [number, topic] : topics_) {
        if (!topic.log) continue;
        Position position{topic.name, std::max(topic.next, topic.resumed), {}};
        const auto add = [&](std::uint64_t first, std::uint64_t last) {
            if (!position.pending.empty() && position.pending.back().second + 1 == first) {
                position.pending.back().second = last;
            } else {
                position.pending.emplace_back(first, last);
            }
        };
        for (const std::uint64_t sequence : topic.pending) add(sequence, sequence);
        // What was pending before this life and has not been read again yet.
        const std::uint64_t reached = topic.reader->position();
        for (const auto& [first, last] : topic.redo) {
            if (last >= reached) add(std::max(first, reached), last);
        }
        std::sort(position.pending.begin(), position.pending.end());
        all.push_back(std::move(position));
    }
    return all;
}

Delivery::Counts Delivery::counts() {
    std::lock_guard lock(mutex_);
    Counts counts = counts_;
    counts.members = members_.size();
    for (const auto& [key, member] : members_) counts.out += member.out;
    counts.waiting = unjudged_.size() + judging_ + fresh_.size() + again_.size() + dying_.size() + unburied_.size();
    return counts;
}

}  // namespace antiphon::python

#include "bindings/delivery.hpp"

#include <algorithm>
#include <iterator>

#include "base/wait.hpp"
#include "bindings/python.hpp"
#include "frames/bytes.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

constexpr Nanos kTick = 20 * kMillisecond;
constexpr Nanos kPause = 50 * kMillisecond;      // before the second attempt; four times that before each further one
constexpr Nanos kReadAgain = kSecond;            // after a log could not be read
constexpr Nanos kBuryAgain = kSecond;            // after the log of dead letters did not take one
constexpr std::size_t kAtOnce = 256;             // events of one attempt
constexpr std::size_t kMostAgain = 16384;        // that were handed back; no more are read meanwhile
constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // that one member has, and one event more
constexpr std::size_t kPlaces = 16;              // for each event that it may have: of those that were settled out of turn
constexpr Nanos kNumberRests = 60 * kSecond;     // before it is used again: as with a broker's

// MessagePack: a map's length, a short text, a number.
void put_map(std::string& to, std::uint32_t count) {
    to.push_back(static_cast<char>(0xdf));
    for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<char>(count >> shift));
}

void put_text(std::string& to, std::string_view text) {
    to.push_back(static_cast<char>(0xdb));
    const auto size = static_cast<std::uint32_t>(text.size());
    for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<char>(size >> shift));
    to.append(text);
}

void put_number(std::string& to, std::uint64_t number) {
    to.push_back(static_cast<char>(0xcf));
    for (int shift = 56; shift >= 0; shift -= 8) to.push_back(static_cast<char>(number >> shift));
}

// The entries of an encoded map and their number; none of what is no map.
std::string_view entries_of(std::string_view map, std::uint32_t& count) {
    count = 0;
    if (map.empty()) return {};
    const auto byte = [&](std::size_t at) { return std::uint32_t{static_cast<unsigned char>(map[at])}; };
    const std::uint32_t head = byte(0);
    if (head >= 0x80 && head <= 0x8f) {
        count = head & 0x0f;
        return map.substr(1);
    }
    if (head == 0xde && map.size() >= 3) {
        count = byte(1) << 8 | byte(2);
        return map.substr(3);
    }
    if (head == 0xdf && map.size() >= 5) {
        count = byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
        return map.substr(5);
    }
    return {};
}

}  // namespace

Delivery::Delivery(std::shared_ptr<Node> node, std::shared_ptr<log::Store> store, std::shared_ptr<log::Log> dead,
                   std::shared_ptr<const match::Filter> where, Options options)
    : Pump(std::move(node)),
      store_(std::move(store)),
      dead_(std::move(dead)),
      where_(std::move(where)),
      options_(options) {}

Delivery::~Delivery() {
    if (node_->forked()) (void)room_.release();  // somebody may wait for it there
    close();
}

void Delivery::start() {
    started_ = node_->timers().add(*this, now_ns() + kTick, kTick);
    nudge();
}

void Delivery::close() {
    if (closed_.exchange(true) || node_->forked()) return;
    if (started_) node_->timers().remove(*this);
    std::vector<std::shared_ptr<log::Log>> watched;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [number, topic] : topics_) {
            if (topic.log) watched.push_back(topic.log);
        }
        for (auto& [key, member] : members_) {
            for (auto& [topic, lane] : member.lanes) lane.target->left.store(true, std::memory_order_seq_cst);
            member.peer.wake();
        }
        room_->notify_all();
    }
    for (const auto& log : watched) log->unwatch(this);
    retire();
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
    {
        std::lock_guard lock(mutex_);
        Topic& topic = topics_[number];
        if (topic.log) return;
        topic.name = std::move(name);
        topic.next = next != 0 ? next : std::max<std::uint64_t>(1, reader->position());
        topic.log = log;
        topic.reader = std::move(reader);
        topic.resumed = next;
        topic.redo = std::move(pending);
        version_.fetch_add(1, std::memory_order_relaxed);
    }
    log->watch(std::static_pointer_cast<Delivery>(shared_from_this()));
    if (closed_.load()) log->unwatch(this);  // meanwhile, and perhaps before it was watched
    nudge();
}

void Delivery::join(Peer& peer, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge,
                    std::size_t capacity) {
    leave(peer.id, flow, false);
    {
        std::lock_guard lock(mutex_);
        members_.emplace(Key{peer.id, flow}, Member{peer, node_->subscription_flow(peer, incarnation, flow, least_charge),
                                                    incarnation, std::max<std::size_t>(1, capacity)});
    }
    nudge();
}

// What it had and has not acknowledged is for the others, or for the next one.
void Delivery::leave(std::uint16_t peer, std::uint32_t flow, bool blame) {
    if (node_->forked()) return;
    {
        std::lock_guard lock(mutex_);
        const auto found = members_.find({peer, flow});
        if (found == members_.end()) return;
        const Out* first = nullptr;  // the one that it has had for longest
        for (const auto& [number, lane] : found->second.lanes) {
            const auto open = std::find_if(lane.out.begin(), lane.out.end(), [](const Out& out) { return !out.settled; });
            if (open != lane.out.end() && (first == nullptr || open->deadline < first->deadline)) first = &*open;
        }
        for (auto& [number, lane] : found->second.lanes) {
            lane.target->left.store(true, std::memory_order_seq_cst);
            for (Out& out : lane.out) {
                if (!out.settled) again(std::move(out.item), true, blame && &out == first);
            }
        }
        members_.erase(found);
    }
    nudge();
}

std::size_t Delivery::dismiss(std::uint16_t peer, std::uint32_t flow) {
    std::lock_guard lock(mutex_);
    const auto found = members_.find({peer, flow});
    if (found == members_.end()) return 0;
    found->second.capacity = 0;
    return found->second.out;
}

void Delivery::acknowledge(std::uint16_t peer, const AckRange& range) {
    {
        std::lock_guard lock(mutex_);
        const auto member = members_.find({peer, range.flow});
        if (member == members_.end()) return;
        const auto found = member->second.lanes.find(range.topic);
        if (found == member->second.lanes.end() || found->second.target->epoch != range.epoch) return;
        Lane& lane = found->second;
        auto out = std::lower_bound(lane.out.begin(), lane.out.end(), range.first,
                                    [](const Out& one, std::uint32_t number) { return one.number < number; });
        for (; out != lane.out.end() && out->number <= range.last; ++out) {
            if (out->settled) continue;
            settle(member->second, *out);
            if (range.verdict == AckRange::done) {
                ++counts_.acknowledged;
                finish(out->item);
            } else {
                again(std::move(out->item), false, true);
            }
            out->item.bytes = {};
        }
        drop_settled(lane);
    }
    nudge();
}

// With the mutex, as all below.
void Delivery::settle(Member& member, Out& out) {
    out.settled = true;
    --member.out;
    member.bytes -= out.bytes;
}

// Those at the front. One that is open keeps the places of those behind it, and not their room.
void Delivery::drop_settled(Lane& lane) {
    while (!lane.out.empty() && lane.out.front().settled) lane.out.pop_front();
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
    version_.fetch_add(1, std::memory_order_relaxed);
}

void Delivery::again(Item&& item, bool at_once, bool strike) {
    if (strike && ++item.strikes >= options_.max_attempts) return bury(std::move(item));
    ++counts_.again;
    Nanos pause = kPause;
    for (unsigned i = 1; i < item.strikes && pause < options_.ack_timeout; ++i) pause *= 4;
    item.not_before = at_once ? 0 : now_ns() + std::min(pause, options_.ack_timeout);
    again_.emplace(item.not_before, std::move(item));
    timed_.store(true, std::memory_order_relaxed);
}

// With where it came from among its properties, so that it can be sent there once more.
void Delivery::bury(Item&& item) {
    if (!store_ || !dead_) {
        ++counts_.dropped;
        return finish(item);
    }
    const std::string_view bytes(item.bytes);
    std::uint32_t count = 0;
    const std::string_view entries = entries_of(bytes.substr(0, item.properties), count);
    std::string properties;
    put_map(properties, count + 3);
    properties.append(entries);
    put_text(properties, "dead.topic");
    put_text(properties, topics_[item.topic].name);
    put_text(properties, "dead.sequence");
    put_number(properties, item.sequence);
    put_text(properties, "dead.attempts");
    put_number(properties, item.attempts);
    log::Block block;
    block.add(bytes.substr(item.properties), properties, item.time_ns, item.source);
    const std::uint64_t token = ++tokens_;
    const auto self = std::static_pointer_cast<Delivery>(shared_from_this());
    item.not_before = kNever;
    const bool taken = store_->append(dead_, std::move(block), self, token) == log::Put::taken;
    if (!taken) item.not_before = now_ns() + kBuryAgain;
    dying_.emplace(token, std::move(item));
    timed_.store(true, std::memory_order_relaxed);
}

// On the log thread.
void Delivery::appended(std::uint64_t token, const log::Receipt& receipt) {
    {
        std::lock_guard lock(receipts_mutex_);
        receipts_.emplace_back(token, receipt.status == log::Status::ok);
    }
    nudge();
}

void Delivery::take_receipts() {
    std::vector<std::pair<std::uint64_t, bool>> receipts;
    {
        std::lock_guard lock(receipts_mutex_);
        receipts.swap(receipts_);
    }
    for (const auto& [token, ok] : receipts) {
        const auto found = dying_.find(token);
        if (found == dying_.end()) continue;
        if (ok) {
            ++counts_.dead;
            finish(found->second);
            dying_.erase(found);
        } else {
            found->second.not_before = now_ns() + kBuryAgain;
        }
    }
}

void Delivery::look_at_deadlines(Nanos now) {
    bool any = !again_.empty();
    for (auto& [key, member] : members_) {
        for (auto& [number, lane] : member.lanes) {
            bool late = false;
            for (Out& out : lane.out) {
                if (out.settled) continue;
                if (out.deadline > now) break;  // they were sent in this order
                settle(member, out);
                late = true;
                again(std::move(out.item), true, true);
                out.item.bytes = {};
            }
            if (late) drop_settled(lane);
            any = any || !lane.out.empty();
        }
    }
    std::vector<Item> once_more;
    for (auto one = dying_.begin(); one != dying_.end();) {
        if (one->second.not_before > now) {
            ++one;
            continue;
        }
        once_more.push_back(std::move(one->second));
        one = dying_.erase(one);
    }
    for (Item& item : once_more) bury(std::move(item));
    timed_.store(any || !dying_.empty() || !again_.empty() || read_failed_, std::memory_order_relaxed);
}

// --- handing out ----------------------------------------------------------------------------------

bool Delivery::run_slice(Nanos until) {
    std::unique_lock lock(mutex_);
    take_receipts();
    look_at_deadlines(now_ns());
    for (auto& [key, member] : members_) member.blocked = false;
    while (!closed_.load(std::memory_order_relaxed)) {
        Member* member = choose();
        if (member == nullptr) return false;
        const Nanos now = now_ns();
        // Those whose time has come first; they are few.
        const auto due = again_.begin();
        if (due != again_.end() && due->first <= now) {
            std::deque<Item> one;
            one.push_back(std::move(due->second));
            again_.erase(due);
            send(*member, one, 1, lock);
            // Back to where it was, before those of the same time: they keep their order.
            if (!one.empty()) again_.emplace_hint(again_.begin(), one.front().not_before, std::move(one.front()));
        } else {
            if (fresh_.empty()) {
                // When so many wait to be tried again, or buried, that is tried first: the timers come back to it.
                if (again_.size() + dying_.size() >= kMostAgain) return false;
                const Found found = read(until);
                if (found != Found::some) return found == Found::later;
            }
            // Several members get a part each, so that none has much while another has nothing.
            const std::size_t part = (fresh_.size() + members_.size() - 1) / members_.size();
            send(*member, fresh_, std::min(part, member->capacity - member->out), lock);
            room_->notify_all();
        }
        if (now_ns() >= until) return true;
    }
    return false;
}

// The one with the least to do that has room.
Delivery::Member* Delivery::choose() {
    Member* best = nullptr;
    for (auto& [key, member] : members_) {
        if (member.blocked || member.out >= member.capacity || member.bytes >= kMostBytes) continue;
        if (best == nullptr || member.out < best->out) best = &member;
    }
    return best;
}

bool Delivery::wants(const log::Record& record, Topic& topic) const {
    if (record.sequence < topic.resumed) {
        const auto behind = std::upper_bound(topic.redo.begin(), topic.redo.end(), record.sequence,
                                             [](std::uint64_t sequence, const auto& range) { return sequence < range.first; });
        if (behind == topic.redo.begin() || std::prev(behind)->second < record.sequence) return false;
    }
    return !where_ || where_->matches(match::Properties(record.properties));
}

// One batch of one topic; the topics take turns. What nobody wants is passed over for one slice at a time.
Delivery::Found Delivery::read(Nanos until) {
    read_failed_ = false;
    auto at = topics_.upper_bound(last_read_);
    for (std::size_t i = 0; i < topics_.size(); ++i, ++at) {
        if (at == topics_.end()) at = topics_.begin();
        Topic& topic = at->second;
        if (!topic.reader) continue;
        if (topic.rests_until > now_ns()) {
            read_failed_ = true;
            continue;
        }
        topic.rests_until = 0;
        log::Batch batch;
        log::Read got;
        while ((got = topic.reader->next(batch, 0)) == log::Read::batch) {
            last_read_ = at->first;
            topic.missed += topic.reader->missed();
            counts_.missed += topic.reader->missed();
            log::RecordCursor cursor(batch);
            log::Record record;
            for (std::uint32_t r = 0; cursor.next(record); ++r) {
                if (r < topic.reader->first() || !wants(record, topic)) continue;
                Item item{at->first, record.sequence, record.time_ns, static_cast<std::uint16_t>(record.source), 0, 0,
                          static_cast<std::uint32_t>(record.properties.size()), {}, 0};
                item.bytes.reserve(record.properties.size() + record.data.size());
                item.bytes.append(record.properties).append(record.data);
                topic.pending.insert(record.sequence);
                fresh_.push_back(std::move(item));
            }
            topic.next = std::max(topic.next, batch.head.next());
            version_.fetch_add(1, std::memory_order_relaxed);
            if (!fresh_.empty()) return Found::some;
            if (now_ns() >= until) return Found::later;
        }
        if (got == log::Read::failed) {
            read_failed_ = true;
            topic.rests_until = now_ns() + kReadAgain;
            timed_.store(true, std::memory_order_relaxed);
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
        lane.target = std::make_shared<Target>(member.peer, member.flow, member.incarnation,
                                               static_cast<std::uint32_t>(random_u64()), nullptr, 0, false);
    }
    if (lane.out.size() >= kPlaces * member.capacity) {  // behind one that it keeps for very long
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
            target.number += static_cast<std::uint32_t>(std::min<std::uint64_t>(std::exchange(topic.missed, 0), UINT32_MAX / 4));
            std::size_t taken = 0;
            tried = node_->try_views(target.peer, target.flow, session, {number, target.number, 0}, views.data(), views.size(),
                                     taken);
            if (taken != 0) {
                sent(member, lane, from, taken);
                return true;
            }
            if (tried.status == Status::large) return send_large(member, lane, from, lock);
        }
        if (tried.status == Status::again) continue;
        if (parked || tried.status == Status::closed) break;
        wait_for(target.peer, tried);
        parked = true;
    }
    member.blocked = true;
    return false;
}

void Delivery::sent(Member& member, Lane& lane, std::deque<Item>& from, std::size_t count) {
    const Nanos deadline = now_ns() + options_.ack_timeout;
    for (std::size_t i = 0; i < count; ++i) {
        Item item = std::move(from.front());
        from.pop_front();
        ++item.attempts;
        const std::size_t bytes = item.bytes.size();
        member.bytes += bytes;
        lane.out.push_back({lane.target->number++, deadline, bytes, false, std::move(item)});
    }
    member.out += count;
    counts_.delivered += count;
    timed_.store(true, std::memory_order_relaxed);
}

// It waits for each fragment, so without the mutex: members may leave meanwhile, and topics come. It is out
// from the beginning on, since its acknowledgement may be here before this thread is.
bool Delivery::send_large(Member& member, Lane& lane, std::deque<Item>& from, std::unique_lock<std::mutex>& lock) {
    const Key key{member.peer.id, member.flow.id.load(std::memory_order_relaxed)};
    const std::shared_ptr<Target> target = lane.target;
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
        const Interrupted interrupted = [&] { return closed_.load(std::memory_order_relaxed) || target->gone(); };
        outcome = node_->send_large(sending, kEventKind, {bytes.data() + properties, bytes.size() - properties}, &interrupted,
                                    0, {prefix.data(), prefix.size()}, &target->flow);
        went = outcome.ok() && sending.went;
    }
    lock.lock();
    const auto found = members_.find(key);
    if (found == members_.end()) return went;  // what it had is for others
    const auto there = found->second.lanes.find(topic);
    if (there == found->second.lanes.end() || there->second.target != target) return went;
    std::deque<Out>& out = there->second.out;
    const bool open = !out.empty() && out.back().number == number && !out.back().settled;
    if (open && went) out.back().deadline = now_ns() + options_.ack_timeout;
    if (!open || went) return went;
    settle(found->second, out.back());
    Item item = std::move(out.back().item);
    out.pop_back();
    --target->number;
    --item.attempts;
    --counts_.delivered;
    if (outcome.code == Outcome::Code::too_large) {  // for this member, for ever
        again(std::move(item), false, true);
        return true;
    }
    from.push_front(std::move(item));
    found->second.blocked = true;
    park(found->second.peer);
    timed_.store(true, std::memory_order_relaxed);  // what it waits for may have come before it was parked
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
            Item item{number, view.head.sequence, view.head.time_ns, source, 0, 0, view.head.properties, {}, 0};
            item.bytes.assign(view.properties, view.head.properties + view.size);
            fresh_.push_back(std::move(item));
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
    counts.waiting = fresh_.size() + again_.size() + dying_.size();
    return counts;
}

void GroupRoute::relay(const std::vector<EventView>& views, std::uint32_t, Nanos, Nanos patience) {
    Released released;
    if (!views.empty()) to_->push(name_, source_, views, patience);
}

void ForkedRoute::relay(const std::vector<EventView>& views, std::uint32_t missed, Nanos arrived, Nanos patience) {
    const std::size_t passed = quota_ ? quota_->take(views.data(), views.size()) : views.size();
    if (passed == views.size()) {
        for (const auto& one : to_) one->relay(views, missed, arrived, patience);
        return;
    }
    const std::vector<EventView> some(views.begin(), views.begin() + static_cast<std::ptrdiff_t>(passed));
    const auto beyond = static_cast<std::uint32_t>(views.size() - passed);
    for (const auto& one : to_) {
        one->relay(some, missed, arrived, patience);
        one->relay({}, beyond, arrived, patience);  // whoever gets the next one is told
    }
}

Route::Ended ForkedRoute::take_ended() {
    Ended all;
    for (const auto& one : to_) {
        const Ended ended = one->take_ended();
        all.insert(all.end(), ended.begin(), ended.end());
    }
    return all;
}

}  // namespace antiphon::python

#include "groups/datagram_port.hpp"

#include <sys/epoll.h>

#include <algorithm>

#include "groups/datagram_lane.hpp"

namespace antiphon::groups {

namespace {

constexpr int kReadsPerTurn = 4;
constexpr std::uint64_t kMostNumber = std::uint64_t{1} << 62;  // nobody comes so far
constexpr std::size_t kMostRelayed = 16;
constexpr Nanos kLeastPause = 50 * kMicrosecond;

bool same(const sockaddr_in& one, const sockaddr_in& other) {
    return one.sin_addr.s_addr == other.sin_addr.s_addr && one.sin_port == other.sin_port;
}

}  // namespace

DatagramPort::DatagramPort(std::shared_ptr<Node> node, const Options& options)
    : node_(std::move(node)),
      group_(options.group),
      options_(options.receivers),
      socket_(options.socket),
      keys_(options.sealed ? std::make_shared<Keyring>() : nullptr),
      chance_(options.faults.seed != 0 ? options.faults.seed : std::random_device{}()),
      faults_(options.faults) {
    if (!keys_) return;
    opener_ = std::make_unique<Opener>(keys_);
    open_.resize(kMostDatagram);
}

void DatagramPort::start(std::function<void()> deliver) {
    deliver_ = std::move(deliver);
    Selector::Turn turn(node_->selector());
    watching_ = true;  // also where the second fails
    node_->selector().watch(socket_.multicast_fd(), EPOLLIN, this);
    node_->selector().watch(socket_.unicast_fd(), EPOLLIN, this);
}

void DatagramPort::stop() {
    stopped_.store(true, std::memory_order_seq_cst);
    Selector::Turn turn(node_->selector());
    if (timer_ != 0) node_->selector().cancel(timer_);
    timer_ = 0;
    if (watching_) {
        node_->selector().unwatch(socket_.multicast_fd(), this);
        node_->selector().unwatch(socket_.unicast_fd(), this);
        watching_ = false;
    }
    socket_.close();
}

// --- members -----------------------------------------------------------------------------------------

void DatagramPort::retire(Member& member) {
    for (const auto& one : member.receivers) {
        if (!one) continue;
        counts_.duplicates += one->duplicates();
        counts_.gaps += one->gaps();
        counts_.asked += one->asked();
        counts_.refused += one->refused();
    }
}

void DatagramPort::admit(std::uint64_t self, const std::vector<Route>& members) {
    {
        std::lock_guard lock(mutex_);
        if (self != self_) forget_all();
        self_ = self;
        std::set<std::uint64_t> now;
        for (const Route& route : members) {
            now.insert(route.member);
            Member& member = members_[route.member];
            member.node = route.node;
            member.address = route.datagrams;
            if (route.member != self) receiver(route.member, 0, true);
        }
        for (auto at = members_.begin(); at != members_.end();) {
            if (now.contains(at->first)) {
                ++at;
                continue;
            }
            retire(at->second);
            at = members_.erase(at);
        }
    }
    arm(now_ns());
}

void DatagramPort::clear() {
    if (keys_) keys_->clear();
    std::lock_guard lock(mutex_);
    forget_all();
}

// --- sealing -----------------------------------------------------------------------------------------

void DatagramPort::seal_with(std::uint64_t self, std::string_view key, std::vector<std::uint64_t> senders) {
    keys_->install(key, std::move(senders), now_ns());
    std::lock_guard lock(sealing_);
    if (sealer_ && sender_ == self) return;
    if (sealer_) sealed_before_ += sealer_->sealed();
    sender_ = self;
    sealer_ = std::make_unique<Sealer>(keys_, self);
}

std::size_t DatagramPort::send(std::vector<Datagram>& datagrams) {
    if (!keys_) return socket_.send(datagrams);
    std::lock_guard lock(sealing_);
    going_.resize(datagrams.size());
    std::vector<std::size_t> place;  // of each that goes
    for (std::size_t i = 0; i < datagrams.size(); ++i) {
        const std::string_view bytes = datagrams[i].bytes;
        DatagramHead head;
        std::string_view body = bytes;
        // One that was made before this life of ours began is not for it.
        if (!take_word(body, head) || !sealer_ || head.from != sender_) continue;
        Datagram& sealed = going_[place.size()];
        sealed.to = datagrams[i].to;
        sealed.bytes.resize(bytes.size() + kSealBytes);
        std::size_t size = 0;
        const std::string_view pieces[] = {body};
        if (sealer_->seal(bytes.substr(0, sizeof head), pieces, sealed.bytes.data(), size) != Sealer::Result::sealed) {
            continue;
        }
        place.push_back(i);
    }
    going_.resize(place.size());
    if (going_.empty()) return datagrams.size();
    const std::size_t went = socket_.send(going_);
    return went == place.size() ? datagrams.size() : place[went];
}

std::uint64_t DatagramPort::sealed_count() {
    std::lock_guard lock(sealing_);
    return sealed_before_ + (sealer_ ? sealer_->sealed() : 0);
}

void DatagramPort::forget_all() {
    for (auto& [id, member] : members_) retire(member);
    members_.clear();
    queue_.clear();
    ready_count_.store(0, std::memory_order_seq_cst);
}

void DatagramPort::cut(std::set<std::uint16_t> nodes) {
    std::lock_guard lock(mutex_);
    cut_ = std::move(nodes);
}

void DatagramPort::attach(std::uint64_t member, const std::shared_ptr<DatagramLane>& lane) {
    std::lock_guard lock(mutex_);
    lanes_[member] = lane;
}

void DatagramPort::detach(std::uint64_t member) {
    std::lock_guard lock(mutex_);
    lanes_.erase(member);
}

window::CastReceiver* DatagramPort::receiver(std::uint64_t member, std::uint32_t lane, bool make) {
    const auto found = members_.find(member);
    if (found == members_.end()) return nullptr;
    auto& one = found->second.receivers[lane];
    if (!one && make) one = std::make_unique<window::CastReceiver>(options_[lane], chance_());
    return one.get();
}

// --- the clock ---------------------------------------------------------------------------------------

void DatagramPort::arm(Nanos when) {
    Nanos known = armed_.load(std::memory_order_seq_cst);
    while (when < known) {
        if (!armed_.compare_exchange_weak(known, when, std::memory_order_seq_cst)) continue;
        if (node_->selector().has_turn()) return set_timer();
        node_->selector().post([weak = weak_from_this()] {
            if (const auto self = weak.lock()) self->set_timer();
        });
        return;
    }
}

void DatagramPort::set_timer() {
    if (stopped_.load(std::memory_order_seq_cst)) return;
    Selector& selector = node_->selector();
    if (timer_ != 0) selector.cancel(timer_);
    timer_ = selector.at(armed_.load(std::memory_order_seq_cst), [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->run();
    });
}

void DatagramPort::run() {
    timer_ = 0;
    if (stopped_.load(std::memory_order_seq_cst)) return;
    armed_.store(kNever, std::memory_order_seq_cst);
    const Nanos now = now_ns();
    came_.clear();
    faults_.due(now, came_);
    for (const Came& one : came_) look(one.bytes, one.from, now);
    std::vector<std::shared_ptr<DatagramLane>> lanes;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [member, weak] : lanes_) {
            if (auto lane = weak.lock()) lanes.push_back(std::move(lane));
        }
    }
    for (const auto& lane : lanes) arm(std::max(lane->turn(), now + kLeastPause));
    after(now);
}

// --- reading -----------------------------------------------------------------------------------------

void DatagramPort::ready(std::uint32_t) {
    if (stopped_.load(std::memory_order_seq_cst)) return;
    const Nanos now = now_ns();
    const bool faults = faults_.any();
    came_.clear();
    const auto take = [&](std::string_view bytes, const sockaddr_in& from) {
        if (faults) faults_.take(bytes, from, now, came_);
        else look(bytes, from, now);
    };
    for (int i = 0; i < kReadsPerTurn; ++i) {
        const bool words = socket_.receive(socket_.unicast_fd(), take);
        const bool data = socket_.receive(socket_.multicast_fd(), take);
        if (!words && !data) break;
    }
    for (const Came& one : came_) look(one.bytes, one.from, now);
    after(now);
}

void DatagramPort::look(std::string_view bytes, const sockaddr_in& from, Nanos now) {
    Taken taken{{}, bytes, now};
    const DatagramHead& head = taken.head;
    bool wrong = !take_word(taken.body, taken.head) || head.magic != kDatagramMagic || head.lane >= kLanes;
    {
        std::lock_guard lock(mutex_);
        if (wrong || head.group != group_) {
            ++(wrong ? counts_.malformed : counts_.foreign);
            return;
        }
        // What this member sends to all it delivers out of its own window.
        if (head.from == self_ && head.lane == static_cast<std::uint8_t>(LaneKind::all)) return;
        const auto found = members_.find(head.from);
        // For another life of ours, of nobody that a view names, or not from where that one sends.
        // What is sealed proves by that whose it is.
        if (self_ == 0 || (head.to != 0 && head.to != self_) || found == members_.end() ||
            (!keys_ && !same(found->second.address, from))) {
            ++counts_.strangers;
            return;
        }
        if (cut_.contains(found->second.node)) return;
    }
    if (opener_) {
        std::size_t size = 0;
        if (opener_->open(bytes, sizeof head, head.from, open_.data(), size, now) != Opener::Result::opened) return;
        taken.body = {open_.data(), size};
    }
    switch (head.kind) {
        case DatagramKind::data: wrong = !take_data(taken); break;
        case DatagramKind::ask: wrong = !take_ask(taken); break;
        default: wrong = !take_word_of(taken); break;
    }
    if (!wrong) return;
    std::lock_guard lock(mutex_);
    ++counts_.malformed;
}

bool DatagramPort::take_data(const Taken& taken) {
    std::string_view body = taken.body;
    DataHead data;
    if (!take_word(body, data) || data.first == 0 || data.first > kMostNumber || data.count == 0 || data.count > body.size() / 2) return false;
    auto chunk = std::make_shared<window::Chunk>();
    chunk->first = data.first;
    chunk->arrived = taken.now;
    chunk->lengths.resize(data.count);
    std::memcpy(chunk->lengths.data(), body.data(), data.count * sizeof(std::uint16_t));
    body.remove_prefix(data.count * sizeof(std::uint16_t));
    std::size_t bytes = 0;
    for (const std::uint16_t length : chunk->lengths) bytes += length;
    if (bytes != body.size()) return false;
    // Copied, since the memory of a batch is used again; the message is then handed out from here.
    chunk->bytes.assign(body);
    std::lock_guard lock(mutex_);
    const std::uint32_t lane = taken.head.lane;
    if (data.origin == self_ && lane == 0) return true;
    window::CastReceiver* from = receiver(data.origin, lane, true);
    if (from == nullptr) return true;  // it has gone meanwhile
    const bool passed_on = data.origin != taken.head.from;
    if (passed_on && lane != 0) return false;  // of what is for one, nobody else has anything
    from->data(std::move(chunk), data.stable, data.acknowledge_every, (taken.head.flags & kAskNow) != 0, taken.now);
    move_ready(data.origin, lane, *from);
    return true;
}

void DatagramPort::move_ready(std::uint64_t member, std::uint32_t lane, window::CastReceiver& from) {
    Batch batch{member, lane, {}};
    while (from.take(batch.ready)) queue_.push_back(batch);
    ready_count_.store(queue_.size(), std::memory_order_seq_cst);
}

std::shared_ptr<DatagramLane> DatagramPort::lane_for(const DatagramHead& head) {
    std::lock_guard lock(mutex_);
    const auto found = lanes_.find(head.lane == 0 ? 0 : head.from);
    return found == lanes_.end() ? nullptr : found->second.lock();
}

bool DatagramPort::take_word_of(const Taken& taken) {
    std::string_view body = taken.body;
    const DatagramHead& head = taken.head;
    if (head.kind == DatagramKind::head || head.kind == DatagramKind::base) {
        HeadWord word{};
        BaseWord base{};
        const bool whole = head.kind == DatagramKind::head ? take_word(body, word) : take_word(body, base);
        if (!whole || !body.empty()) return false;
        std::lock_guard lock(mutex_);
        window::CastReceiver* from = receiver(head.from, head.lane, true);
        if (from == nullptr) return true;
        if (head.kind == DatagramKind::head) from->head(word.next, word.stable, (head.flags & kAskNow) != 0, taken.now);
        else from->begin(base.base, taken.now);
        move_ready(head.from, head.lane, *from);
        return true;
    }
    if (head.kind == DatagramKind::acknowledge) {
        AcknowledgeWord word;
        if (!take_word(body, word) || !body.empty()) return false;
        if (const auto lane = lane_for(head)) lane->acknowledged(head.from, word, (head.flags & kSlow) != 0, taken.now);
        return true;
    }
    if (head.kind != DatagramKind::ask_base || !body.empty()) return false;
    if (const auto lane = lane_for(head)) lane->asks_base(head.from, taken.now);
    return true;
}

bool DatagramPort::take_ask(const Taken& taken) {
    std::string_view body = taken.body;
    AskHead ask;
    if (!take_word(body, ask) || ask.count > window::CastReceiver::kMostRanges ||
        body.size() != ask.count * sizeof(AskedRange)) {
        return false;
    }
    std::vector<window::Range> ranges;
    AskedRange range;
    while (take_word(body, range)) {
        if (range.first >= range.end) return false;
        ranges.push_back({range.first, range.end});
    }
    std::uint64_t self;
    {
        std::lock_guard lock(mutex_);
        self = self_;
    }
    if (ask.origin == self) {
        if (const auto lane = lane_for(taken.head)) lane->asked(taken.head.from, ranges, taken.now);
        return true;
    }
    std::vector<Datagram> words;
    {
        std::lock_guard lock(mutex_);
        relay(taken.head.from, ask.origin, ranges, words);
    }
    send(words);
    return true;
}

// What another one has sent, to a member that did not get it from there.
void DatagramPort::relay(std::uint64_t asker, std::uint64_t origin, const std::vector<window::Range>& ranges,
                         std::vector<Datagram>& words) {
    const auto to = members_.find(asker);
    const window::CastReceiver* from = receiver(origin, 0, false);
    if (to == members_.end() || from == nullptr) return;
    std::vector<std::shared_ptr<const window::Chunk>> chunks;
    for (const window::Range& range : ranges) from->find(range, chunks, kMostRelayed);
    for (const auto& chunk : chunks) {
        Datagram one = word(DatagramKind::data, 0, 0, asker, to->second.address);
        append_word(one.bytes, DataHead{origin, chunk->first, 0, 0, static_cast<std::uint32_t>(chunk->lengths.size())});
        for (const std::uint16_t length : chunk->lengths) append_word(one.bytes, length);
        one.bytes.append(chunk->bytes);
        words.push_back(std::move(one));
        ++counts_.relayed;
    }
}

// --- saying and asking -------------------------------------------------------------------------------

Datagram DatagramPort::word(DatagramKind kind, std::uint32_t lane, std::uint8_t flags, std::uint64_t to,
                            const sockaddr_in& at) const {
    Datagram one;
    append_word(one.bytes, head(kind, static_cast<LaneKind>(lane), flags, self_, to));
    one.to = at;
    return one;
}

void DatagramPort::collect(std::uint64_t id, Member& member, Nanos now, std::vector<Datagram>& words) {
    std::vector<window::Range> ranges;
    std::uint32_t attempt;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
        window::CastReceiver* from = member.receivers[lane].get();
        if (from == nullptr) continue;
        if (from->ask_base(now)) words.push_back(word(DatagramKind::ask_base, lane, 0, id, member.address));
        if (from->acknowledge(now)) {
            words.push_back(word(DatagramKind::acknowledge, lane, from->slow() ? kSlow : 0, id, member.address));
            append_word(words.back().bytes, AcknowledgeWord{from->received(), from->handled()});
            ++counts_.acknowledgements;
        }
        if (!from->ask(now, ranges, attempt)) continue;
        // The sender first, twice; then in turn with it somebody else, who may have it.
        auto at = members_.find(id);
        if (lane == 0 && attempt >= 2 && attempt % 2 == 0) {
            auto other = members_.begin();
            std::advance(other, static_cast<std::ptrdiff_t>(chance_() % members_.size()));
            if (other->first != self_) at = other;
        }
        words.push_back(word(DatagramKind::ask, lane, 0, at->first, at->second.address));
        append_word(words.back().bytes, AskHead{id, ranges.size()});
        for (const window::Range& range : ranges) append_word(words.back().bytes, AskedRange{range.first, range.end});
    }
}

void DatagramPort::after(Nanos now) {
    std::vector<Datagram> words;
    Nanos next = faults_.next_time();
    {
        std::lock_guard lock(mutex_);
        for (auto& [id, member] : members_) {
            collect(id, member, now, words);
            for (const auto& from : member.receivers) {
                if (from) next = std::min(next, from->next_time());
            }
        }
    }
    // A word that does not go is as good as lost: it is said again.
    if (!words.empty()) send(words);
    if (has_ready()) deliver_();
    arm(std::max(next, now + kLeastPause));
}

// --- delivering --------------------------------------------------------------------------------------

bool DatagramPort::pop(Batch& batch) {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) return false;
    batch = std::move(queue_.front());
    queue_.pop_front();
    ready_count_.store(queue_.size(), std::memory_order_seq_cst);
    return true;
}

void DatagramPort::handled(std::uint64_t member, std::uint32_t lane, std::uint64_t upto, std::size_t bytes) {
    std::vector<Datagram> words;
    Nanos next = kNever;
    const Nanos now = now_ns();
    {
        std::lock_guard lock(mutex_);
        window::CastReceiver* from = receiver(member, lane, false);
        if (from == nullptr) return;
        from->handled(upto, bytes, now);
        collect(member, members_.at(member), now, words);
        next = from->next_time();
    }
    if (!words.empty()) send(words);
    arm(next);
}

DatagramPort::Counts DatagramPort::counts() {
    std::lock_guard lock(mutex_);
    Counts counts = counts_;
    for (const auto& [id, member] : members_) {
        for (const auto& one : member.receivers) {
            if (!one) continue;
            counts.duplicates += one->duplicates();
            counts.gaps += one->gaps();
            counts.asked += one->asked();
            counts.refused += one->refused();
            counts.held_bytes += one->held_bytes();
            counts.kept += one->kept();
        }
    }
    counts.dropped = faults_.dropped();
    return counts;
}

}  // namespace antiphon::groups

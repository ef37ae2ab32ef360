#include "bindings/replay.hpp"

#include <algorithm>

#include "bindings/content.hpp"

namespace antiphon::python {

namespace {

using Status = Attempt::Status;

constexpr Nanos kReadAgain = kSecond;      // after the log could not be read
constexpr Nanos kSoon = 50 * kMillisecond;  // after others were sending large events
constexpr Nanos kTick = 2 * kMillisecond;  // how exact a replay at a speed is

}  // namespace

Replay::Replay(std::shared_ptr<Node> node, std::shared_ptr<log::Store> store, std::shared_ptr<log::Log> log,
               std::shared_ptr<Target> target, Options options, Reference judge)
    : Pump(std::move(node)),
      store_(std::move(store)),
      log_(std::move(log)),
      target_(std::move(target)),
      topic_(options.topic),
      name_(std::move(options.name)),
      speed_(options.speed),
      judged_(judge.get() != nullptr),
      judge_(std::move(judge)),
      reader_(log_, options.start),
      first_(options.start.at == log::Start::At::latest ? std::max<std::uint64_t>(1, reader_.position()) : 0) {
    position_.store(reader_.position(), std::memory_order_relaxed);
}

Replay::~Replay() {
    (void)judge_.release();  // of one that nobody closed
    close();
}

void Replay::start() {
    log_->watch(std::static_pointer_cast<Replay>(shared_from_this()));
    watches_ = true;
    if (speed_ > 0) ticks_ = node_->timers().add(*this, now_ns() + kTick, kTick);
    nudge();
}

void Replay::close() {
    if (closed_.exchange(true) || node_->forked()) return;
    target_->left.store(true, std::memory_order_seq_cst);
    target_->peer.wake();
    if (watches_) log_->unwatch(this);
    retire();
    node_->timers().set(*this, kNever);
    if (ticks_) node_->timers().remove(*this);  // a slice may have set it, and none runs any more
}

bool Replay::run_slice(Nanos until) {
    while (!closed_.load(std::memory_order_relaxed) && !target_->gone()) {
        if (next_ == views_.size() && !read()) {
            introduce();
            return false;
        }
        bool parked = false;
        if (!send(parked)) {
            // What was waited for may have come before it was told whom to wake.
            if (!parked || !send(parked)) return false;
        }
        if (now_ns() >= until || outranked()) return true;
    }
    return false;
}

Attempt Replay::bind(std::uint32_t session) {
    if (session == 0) return {Status::not_connected};
    if (target_->bound == session) return {Status::sent};
    const Attempt tried = node_->try_bind(target_->peer, target_->flow, session,
                                          {topic_, target_->epoch, name_, 0, false, true, 0, first_, store_->id()});
    if (tried.status == Status::sent) target_->bound = session;
    return tried;
}

// Whoever begins at the end of a log is told where that is before there is anything to send. Otherwise,
// when the connection is lost before the first event, it would begin at another end.
void Replay::introduce() {
    if (first_ == 0 || target_->bound != 0) return;
    for (bool parked = false;;) {
        const Attempt tried = bind(target_->peer.session.load(std::memory_order_seq_cst));
        if (tried.status == Status::sent || tried.status == Status::closed) return;
        if (tried.status == Status::again) continue;
        wait_for(target_->peer, tried);
        if (std::exchange(parked, true)) return;
    }
}

// The next batch that has something for this subscription. False: there is none yet.
bool Replay::read() {
    views_.clear();
    next_ = 0;
    while (!closed_.load(std::memory_order_relaxed)) {
        log::Batch batch;
        const log::Read got = reader_.next(batch, 0);
        if (got == log::Read::failed) look_again(kReadAgain);  // nobody else says that it may be read
        if (got != log::Read::batch) return false;
        if (const std::uint64_t missed = reader_.missed()) {
            missed_.fetch_add(missed, std::memory_order_relaxed);
            target_->number += static_cast<std::uint32_t>(std::min<std::uint64_t>(missed, UINT32_MAX / 4));
        }
        log::RecordCursor cursor(batch);
        log::Record record;
        for (std::uint32_t i = 0; cursor.next(record); ++i) {
            if (i < reader_.first() || !target_->wants(record.properties)) continue;
            const LogMark mark{static_cast<std::uint16_t>(record.source), 0};
            const EventHead head{topic_, 0, record.sequence, record.time_ns, mark.word(),
                                 static_cast<std::uint32_t>(record.properties.size())};
            views_.push_back({head, record.properties.data(), record.data.data(), record.data.size()});
        }
        if (judged_ && !views_.empty()) keep_what_passes();
        position_.store(reader_.position(), std::memory_order_relaxed);
        if (!views_.empty()) return true;
    }
    return false;
}

// Only those whose data passes the filter on it. What cannot be judged passes none.
void Replay::keep_what_passes() {
    Entered entered;
    const Reference judge = Reference::share(judge_.get());
    std::vector<Message> bodies;
    std::size_t kept = 0;
    for (std::size_t first = 0; first < views_.size() && judge; first += bodies.size()) {
        bodies.clear();
        std::size_t bytes = 0;
        while (first + bodies.size() < views_.size() && bodies.size() < kJudgedAtOnce && bytes < kMostJudged) {
            const EventView& view = views_[first + bodies.size()];
            bodies.push_back({view.data, view.size});
            bytes += view.size;
        }
        const std::vector<bool> passes = judge_bodies(judge.get(), bodies);
        for (std::size_t i = 0; i < bodies.size(); ++i) {
            if (passes[i]) views_[kept++] = views_[first + i];
        }
    }
    views_.resize(kept);
}

// How many of them may go by now.
std::size_t Replay::due() {
    if (speed_ <= 0) return views_.size() - next_;
    const Nanos now = now_ns();
    if (began_ == 0) {
        began_ = now;
        from_ns_ = views_[next_].head.time_ns;
    }
    const auto passed = static_cast<std::int64_t>(static_cast<double>(now - began_) * speed_);
    std::size_t count = 0;
    while (next_ + count < views_.size() && views_[next_ + count].head.time_ns - from_ns_ <= passed) ++count;
    return count;
}

// True: something went. Otherwise it is parked, or its time has not come.
bool Replay::send(bool& parked) {
    const std::uint32_t session = target_->peer.session.load(std::memory_order_seq_cst);
    // What was sent in a session that has ended may be lost: whoever subscribed says where to go on.
    if (target_->bound != 0 && session != target_->bound) return false;
    Attempt tried = bind(session);
    if (tried.status == Status::sent) {
        const std::size_t count = due();
        if (count == 0) return false;
        std::size_t taken = 0;
        tried = node_->try_views(target_->peer, target_->flow, session, {topic_, target_->number, 0},
                                 views_.data() + next_, count, taken);
        if (tried.status == Status::large) {
            const Nanos now = now_ns();
            const Node::LargeWait few(*node_);
            if (!few || !large_.over(now)) {
                look_again(std::max(kSoon, large_.at() - now));
                return false;
            }
            const Outcome::Code code = send_large(views_[next_]);
            if (code == Outcome::Code::too_large) {  // for this subscription, for ever: it misses it
                ++target_->number;
                ++next_;
                missed_.fetch_add(1, std::memory_order_relaxed);
                return true;
            }
            if (code == Outcome::Code::timeout) {
                large_.begin(now_ns());
                look_again(large_.at() - now_ns());
                return false;
            }
            large_.end();
            taken = code == Outcome::Code::ok ? 1 : 0;
        }
        if (taken != 0) {
            target_->number += static_cast<std::uint32_t>(taken);
            next_ += taken;
            sent_.store(sent_.load(std::memory_order_relaxed) + taken, std::memory_order_relaxed);
            return true;
        }
    }
    if (tried.status == Status::again) return true;
    if (tried.status == Status::closed) return false;
    wait_for(target_->peer, tried);
    parked = true;
    return false;
}

// An event of many fragments, each of which has to be waited for.
Outcome::Code Replay::send_large(const EventView& view) {
    Scheduler::Blocked blocked;
    const EventHead head = Passing{topic_, target_->number, 0}.head(view, 0);
    std::string prefix(reinterpret_cast<const char*>(&head), kEventHead);
    prefix.append(view.properties, view.head.properties);
    const Nanos began = now_ns();
    Node::Sending sending{target_->peer, began + large_patience(view.size), began};
    sending.only_in = target_->bound;
    sending.grant_by = large_.grant_by(began);
    const Interrupted interrupted = [&] { return closed_.load(std::memory_order_relaxed) || target_->gone(); };
    const Outcome outcome = node_->send_large(sending, kEventKind, {view.data, view.size}, &interrupted, 0,
                                              {prefix.data(), prefix.size()}, &target_->flow);
    return outcome.ok() && !sending.went ? Outcome::Code::interrupted : outcome.code;
}

}  // namespace antiphon::python

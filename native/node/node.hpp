// A node: one selector, one pool of receive buffers, one scheduler, and the peers.
//
// No Python in here. Every call says whether it may block; those that may return an Outcome, which
// the bindings turn into an exception.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/descriptors.hpp"
#include "base/patience.hpp"
#include "buffers/pool.hpp"
#include "frames/handshake.hpp"
#include "node/channel.hpp"
#include "node/helper.hpp"
#include "node/lead.hpp"
#include "node/peer.hpp"
#include "node/traffic.hpp"
#include "requests/requests.hpp"
#include "scheduler/scheduler.hpp"
#include "scheduler/task_queue.hpp"
#include "scheduler/timers.hpp"
#include "selector/interests.hpp"
#include "selector/selector.hpp"
#include "selector/transport.hpp"
#include "topics/event_head.hpp"
#include "topics/names.hpp"

namespace antiphon {

struct NodeOptions {
    std::uint16_t id = 0;  // 0: draw one
    std::string listen;    // empty: no listener
    std::string advertise;
    std::string secret;
    tls::Context::Files tls;       // certificates; none: TLS off loopback, with the secret
    std::size_t ring_bytes = 4 << 20;
    std::uint32_t flow_window_bytes = 4 << 20;
    double flow_threshold = 0.4;
    std::size_t socket_buffer_bytes = 4 << 20;
    std::vector<std::pair<std::size_t, std::size_t>> buffer_pool{{16384, 256}, {65536, 64}, {262144, 64}};
    std::uint64_t receive_bytes = 64 << 20;
    std::uint64_t large_message_bytes = 128 << 20;
    std::uint64_t max_message_bytes = 64 << 20;
    Nanos connect_timeout = 5 * kSecond;
    Nanos request_timeout = 10 * kSecond;
    Nanos send_timeout = 30 * kSecond;
    Nanos heartbeat = kSecond;
    Nanos rest = 10 * kSecond;  // until what belonged to a registration that was removed is forgotten
    Nanos spin = 0;  // how long a caller looks for its response before it sleeps, while that helps
    std::size_t max_connections = 0;  // peers; 0: no limit
    int threads = 2;
    Schedule schedule;
    Scheduler::Hooks hooks;
};

// How a call ended that could not simply succeed.
struct Outcome {
    enum class Code : std::uint8_t {
        ok,
        timeout,
        unreachable,
        authentication,
        duplicate,
        protocol,
        unknown_peer,
        too_large,
        closed,
        interrupted,
        forbidden,  // by a group, to a minority of it
    };
    Code code = Code::ok;
    std::string text;
    std::string address;
    std::string other;
    std::uint16_t id = 0;                // duplicate: the id that two nodes have
    std::uint64_t size = 0, limit = 0;   // too_large
    bool ok() const { return code == Code::ok; }
};

// What a non-blocking attempt to put a message into a ring found.
struct Attempt {
    enum class Status : std::uint8_t { sent, again, not_connected, no_credit, ring_full, large, closed };
    Status status = Status::sent;
    OutFlow* flow = nullptr;
    std::uint32_t amount = 0;
    std::uint32_t session = 0;
    std::uint32_t window = 0;  // no_credit: what the flow's window was
};

// When what is in the ring is written: with much else that is about to be sent; by the sender itself if
// it has sent nothing for a moment; by the sender itself.
enum class Haste : std::uint8_t { gather, usual, at_once };

// Asked every 100 ms by a thread that waits; true ends the wait as `interrupted`.
using Interrupted = std::function<bool()>;

struct Event {
    enum class Type : std::uint8_t { connected, disconnected, warning };
    Type type;
    std::uint16_t peer;
    std::string reason;
};

struct Message {
    const char* data;
    std::size_t size;
};

// Of events that are to be sent, as if each had a frame of its own: together they take less.
struct EventSizes {
    EventSizes(std::size_t properties, const Message* messages, std::size_t count);
    // On a flow that charges so much at the least.
    std::uint64_t charge(std::uint32_t least) const;

    const std::size_t prefix;
    const Message* const messages;
    const std::size_t count;
    std::uint64_t bytes = 0, smallest = 0, largest = 0;
};

struct FlowStatistics {
    std::uint16_t kind;
    std::uint32_t flow;
    std::uint64_t messages, bytes, waits;
    std::uint32_t window, in_flight;
};

struct PeerStatistics {
    std::uint16_t id;
    std::string address;
    std::uint64_t incarnation;
    bool sending, receiving;
    std::uint64_t messages_out, bytes_out, messages_in, bytes_in;
    std::uint64_t ring_used, ring_bytes, ring_waits, credit_waits, writes, inline_writes, reads;
    std::uint64_t connects, losses, dropped_bytes, unconfirmed_messages, large_out, large_in;
    std::uint32_t remote_age_ms;
    std::vector<FlowStatistics> flows_out, flows_in;
};

// Of those below, some are for brokers, which are not asked to give theirs up (broker/broker.py).
inline constexpr std::uint16_t kFirstDrawnId = 36864;

struct Registration {
    std::uint32_t flow = 0;
    std::uint16_t kind = 0;
    std::uint32_t window = 0, least_charge = 0;
    std::shared_ptr<TaskQueue> queue;
    bool answers = false;  // requests of this kind get an answer; set before anything is parked
    std::atomic<bool> active{true};
    std::atomic<std::uint64_t> messages{0}, bytes{0};
    std::vector<InFlow*> senders;  // the selector's: who holds a part of the window
    // Whoever sends to it learned of its flow from a bus or a group, not from this node's announcements of
    // kinds.
    bool told = false;
    bool announced = false;  // the selector's: whoever is connected has heard of it
    std::shared_ptr<TopicNames> topics;  // of a subscription
};

struct NodeCounters {
    std::uint64_t unknown_kind = 0, refused = 0, protocol_errors = 0;
    std::uint64_t buffers_out = 0, buffers_bound = 0, pinned = 0, starved = 0, turns = 0, slices = 0;
    int threads = 0;
    std::uint64_t granted = 0, large_in_use = 0;
    std::uint64_t dismissed = 0;
    std::uint64_t events_dropped = 0;  // by subscriptions, also those that were closed
    std::uint64_t registrations = 0;   // that are there, or were a moment ago
    std::uint64_t requests = 0, requests_open = 0, late_responses = 0, answers = 0, lost_answers = 0;
};

class Node {
   public:
    explicit Node(NodeOptions options);
    ~Node();

    // --- life ------------------------------------------------------------------------------------
    void start();  // throws std::system_error when it cannot listen
    // Sends raise from now on; rings are written out, queues are run, until the deadline; then
    // everything is joined. False when a handler is still running: the node must be kept for it.
    // An interrupt ends the patience, not the closing.
    bool close(Nanos drain, const Interrupted* interrupted = nullptr);
    // Somebody has a last word, which waits for room or for credit: a close with time left waits until it is
    // on its way. Each word is begun and ended once; any thread.
    void begin_word() noexcept { words_.fetch_add(1, std::memory_order_relaxed); }
    void end_word();
    bool fresh() const { return phase_.load(std::memory_order_acquire) == Phase::fresh; }
    bool closed() const { return phase_.load(std::memory_order_acquire) >= Phase::closing; }
    // True in a child that was forked off the process that made this node. Nothing works there, and
    // the node must not even be destroyed: its threads are not there, its locks may be held.
    bool forked() const { return fork_generation() != generation_; }

    std::uint16_t id() const { return id_.load(std::memory_order_acquire); }
    std::uint64_t incarnation() const { return incarnation_; }
    std::string address();
    const NodeOptions& options() const { return options_; }
    Scheduler& scheduler() { return scheduler_; }
    Selector& selector() { return selector_; }
    Timers& timers() { return timers_; }

    // --- registrations ---------------------------------------------------------------------------
    // Null when the kind is taken. `prepare` is called before the first message can be parked.
    std::shared_ptr<Registration> add_registration(
        std::uint16_t kind, std::uint64_t capacity, WhenFull when_full,
        const std::function<void(const std::shared_ptr<Registration>&)>& prepare = nullptr);
    // A flow of its own for the events of topics; as above.
    std::shared_ptr<Registration> add_subscription(
        std::uint64_t capacity, WhenFull when_full,
        const std::function<void(const std::shared_ptr<Registration>&)>& prepare);
    // A flow of its own for what others are told to send there; as above. `window`: 0, or less than usual.
    std::shared_ptr<Registration> add_flow(
        std::uint16_t kind, std::uint64_t capacity, std::uint32_t window,
        const std::function<void(const std::shared_ptr<Registration>&)>& prepare);
    // Says how many messages were dropped from its queue.
    std::uint64_t remove_registration(const std::shared_ptr<Registration>& registration);
    // So many messages of the run are handled: returns their credit.
    void progress(Run& run, std::uint32_t done);
    // How many messages of the run make up a unit of credit. Whoever handles a run one by one reports so
    // often: a handler may wait for a sender that waits for this credit.
    static std::uint32_t messages_per_credit(const Run& run);
    // The run is handled: returns its credit and its memory.
    void finish(Run& run);

    // --- peers -----------------------------------------------------------------------------------
    void add_peer(std::uint16_t id, const std::string& address);
    bool remove_peer(std::uint16_t id);
    Peer* find_peer(std::uint16_t id) const { return peers_[id].load(std::memory_order_acquire); }
    void set_on_event(std::function<void(Event)> call) { on_event_ = std::move(call); }
    std::vector<PeerStatistics> statistics();
    NodeCounters counters();

    // --- sending: attempts never block -------------------------------------------------------------
    Attempt try_message(Peer& peer, std::uint16_t kind, Message message);
    // As many of the messages as one frame takes; `taken` says how many went.
    Attempt try_packed(Peer& peer, std::uint16_t kind, const Message* messages, std::size_t count,
                       std::size_t& taken);
    // Starts a connection if there is none.
    void want_connection(Peer& peer);

    // One call that sends: remembers what it began with, so that it can tell what changed.
    struct Sending {
        Peer& peer;
        Nanos deadline;
        Nanos began;
        std::uint32_t session = 0;
        Nanos connect_deadline = 0;
        std::uint64_t failures = 0;
        bool went = false;  // send_large: it was more than a wait for a connection
        Nanos grant_by = kNever;     // send_large: nothing is sent if the other side has not made room by then
        std::uint32_t only_in = 0;   // send_large: in this session, or not at all
        std::uint32_t asked_in = 0;  // an answer: the session that its request came in, and it is worth
                                     // nothing after
    };
    // May block: until the attempt is worth repeating (ok), or never will be.
    Outcome wait(Sending& sending, const Attempt& attempt, const Interrupted* interrupted);
    // The same for a call that has no thread to wait with. With `ok` the attempt is to be repeated when the peer
    // changes, which whoever calls must have asked to be told of before that attempt, and by `until` all the same.
    Outcome wait_apart(Sending& sending, const Attempt& attempt, Nanos& until);
    // May block: a message of any size, whole. With `ok` and not `sending.went` the connection was
    // opened or the flow changed meanwhile, and nothing was sent: the caller begins again.
    Outcome send_large(Sending& sending, std::uint16_t kind, Message message, const Interrupted* interrupted,
                       std::uint16_t flags = 0, Message prefix = {nullptr, 0}, OutFlow* on = nullptr);
    // May block: who listens at that address, with our secret or a certificate. One call at a time; the
    // second one gets a timeout.
    struct Identity {
        std::uint16_t id = 0;
        std::uint64_t incarnation = 0;
    };
    void settle_id() { id_settled_.store(true, std::memory_order_relaxed); }
    Outcome identify(const std::string& address, Nanos timeout, const Interrupted* interrupted, Identity& found);
    // May block: everything sent before to this peer, or to all (0), has been handled there. `at`
    // names the one that it failed with. Asks all before it waits for any.
    Outcome flush_peers(std::uint16_t only, Nanos deadline, const Interrupted* interrupted, std::uint16_t& at);
    // Asks for a window, if the attempt found none.
    void want_credit(Peer& peer, const Attempt& attempt);

    // --- topics (topics.cpp): attempts never block -------------------------------------------------
    // The way to a subscription of that peer, which has told its flow and its least charge. To be kept by whoever
    // sends there: what nobody has goes.
    std::shared_ptr<OutFlow> subscription_flow(Peer& peer, std::uint64_t incarnation, std::uint32_t flow, std::uint32_t least_charge,
                               std::uint16_t kind = kEventKind);
    // Everything that a publisher says before its first event in a session.
    struct Binding {
        std::uint32_t topic, epoch;
        std::string_view name;  // empty: there will be no more of it
        std::uint16_t origin;  // whose event it is, where it is passed on; else 0
        bool retains;
        bool recorded = false;       // its events come out of a log
        std::uint64_t producer = 0;  // its events are to be recorded, each once
        // Of one that is recorded or a producer: where it begins, as BoundTopic has it.
        std::uint64_t first = 0;
        std::uint64_t store = 0;  // of one that is recorded: which store its log is in
    };
    Attempt try_bind(Peer& peer, OutFlow& flow, std::uint32_t session, const Binding& binding);
    // One event, or as many as one frame takes; the head is that of the first. Without a limit to their
    // number only events without properties.
    // `again` when that session is over.
    Attempt try_events(Peer& peer, OutFlow& flow, std::uint32_t session, EventHead head, Message properties,
                       const Message* events, std::size_t count, std::size_t& taken);
    // What would become of these events if they were sent now: `sent` if they would all go, as far as the ring has room
    // for them. Nothing is changed, and the next moment it may be different.
    Attempt look_at_events(Peer& peer, OutFlow& flow, const EventSizes& sizes) const;
    // One of the few threads that may wait for long to pass something on. False: enough do.
    class LongWait {
       public:
        explicit LongWait(Node& node)
            : node_(node), may_(node.long_waits_.fetch_add(1, std::memory_order_relaxed) < kMostLongWaits) {}
        ~LongWait() { node_.long_waits_.fetch_sub(1, std::memory_order_relaxed); }
        explicit operator bool() const { return may_; }

       private:
        Node& node_;
        const bool may_;
    };
    // One of the few scheduler threads that may send events in fragments out of logs, each of which waits for
    // its receiver: a few who take nothing must not have them all. Others come back a little later.
    class LargeWait {
       public:
        explicit LargeWait(Node& node)
            : node_(node), may_(node.large_waits_.fetch_add(1, std::memory_order_relaxed) < kMostLargeWaits) {}
        ~LargeWait() { node_.large_waits_.fetch_sub(1, std::memory_order_relaxed); }
        explicit operator bool() const { return may_; }

       private:
        Node& node_;
        const bool may_;
    };
    // The broker behind which this node is, whose word on the origin of events is taken; 0: none.
    void set_broker(std::uint16_t id) { broker_.store(id, std::memory_order_relaxed); }
    // Events of somebody else, each with a head of its own, as many as one frame takes.
    Attempt try_views(Peer& peer, OutFlow& flow, std::uint32_t session, const Passing& passing,
                      const EventView* views, std::size_t count, std::size_t& taken);

    // --- groups (groups.cpp): attempts never block -------------------------------------------------
    // A head, and as many of the messages as one frame takes. Their bytes lie in two pieces, without a gap.
    Attempt try_batch(Peer& peer, OutFlow& flow, std::uint32_t session, Message head, const std::uint32_t* lengths,
                      std::size_t count, Message first, Message second, std::size_t& taken);
    // A message of a few bytes, by itself.
    Attempt try_word(Peer& peer, OutFlow& flow, std::uint32_t session, Message word);

    // --- requests --------------------------------------------------------------------------------
    std::shared_ptr<Pending> add_request(Peer& peer, std::uint16_t kind) { return requests_.add(peer, kind); }
    Attempt try_request(Pending& pending, Message message);
    // May block: as send_large.
    Outcome send_large_request(Sending& sending, Pending& pending, Message message, const Interrupted* interrupted);
    // May block: until it is done, the deadline (timeout), or an interrupt. The caller gives up then.
    // Gives the lead up.
    Outcome await(Pending& pending, Nanos deadline, const Interrupted* interrupted, std::optional<Lead>& lead);
    // Reads this peer's answers from now on, if nobody does: before the request is sent, or its answer
    // might be faster. Whoever leads sees to it that it does not wait for anything else.
    void lead_answers(Peer& peer, std::optional<Lead>& lead);
    // True unless it was done already. The response, if one comes, is counted as late.
    bool give_up(Pending& pending, Pending::State state) { return requests_.give_up(pending, state); }
    // May block: sends the answer to a request that came in that session, if it still lasts. `urgent`:
    // nothing else is about to be sent.
    Attempt try_answer(Peer& peer, std::uint32_t session, std::uint16_t kind, const ResponseHead& head,
                       Message body, bool urgent);
    // A scheduler thread without work waits on the channel that the last request came on, and reads it.
    bool lead_asker(const std::function<bool()>& done);
    // Eventfds of leaders; takes the selector's turn.
    std::size_t lead_wakes() {
        Selector::Turn turn(selector_);
        return lead_wakes_.made();
    }
    void lost_answer() { lost_answers_.fetch_add(1, std::memory_order_relaxed); }
    Outcome send_answer(Sending& sending, std::uint32_t session, std::uint16_t kind, const ResponseHead& head,
                        Message body);

    // The largest message that both ends take.
    std::uint64_t message_limit(const Peer& peer) const;
    Outcome too_large(const Peer& peer, std::uint64_t size) const;

   private:
    friend struct Channel;
    friend class ChannelSink;
    friend class Lead;
    static constexpr int kWarningsPerTick = 10;
    enum class Phase : int { fresh, running, draining, closing, closed };
    // A registration that was removed, and whoever had opened its flow.
    struct Retired {
        std::uint32_t flow;
        Nanos since;
        std::vector<Peer*> senders;
    };

    // send.cpp
    template <typename Fill>
    Attempt put(Peer& peer, std::uint16_t kind, std::uint16_t flags, std::size_t payload,
                std::uint32_t messages, Fill&& fill, Haste haste = Haste::usual);
    template <typename Fill>
    Attempt put_uncharged(Peer& peer, Header header, std::uint32_t session, Fill&& fill,
                          Haste haste = Haste::usual);
    template <typename Fill>
    Attempt put_on(Peer& peer, OutFlow& flow, std::uint32_t session, std::uint16_t kind, std::uint16_t flags,
                   std::size_t payload, std::uint32_t messages, Fill&& fill, Haste haste);
    void signal_data(Peer& peer, Haste haste);
    bool write_inline(Peer& peer);
    bool sends_allowed() const;
    template <typename Events>
    Attempt put_events(Peer& peer, OutFlow& flow, std::uint32_t session, const Events& events, std::size_t count,
                       std::size_t& taken);
    Outcome lost(Peer& peer);
    static Outcome why_not(const Peer& peer);
    static bool was_lost(const Sending& sending, std::uint32_t session);
    Outcome ask_flush(Sending& sending, std::uint64_t& id, const Interrupted* interrupted);
    Outcome block(Peer& peer, Nanos deadline, const Interrupted* interrupted,
                  const std::function<bool()>& done, Channel* Peer::*answers = nullptr);

    // links.cpp: connections, on the selector thread
    bool apply_interests();
    void apply(Peer& peer, std::uint8_t interests);
    void forget(Peer& peer);
    void add_interest(Peer& peer, std::uint8_t interests);
    void connect(Peer& peer);
    void drop_earlier_question();
    void connect_for_peer(Peer& peer);
    void dial(Peer& peer, const std::string& address, bool yours);
    void dial_endpoints(Peer& peer, const std::string& address, std::vector<Endpoint> endpoints, bool yours);
    void dial_self(Peer& peer);
    void dial_failed(Peer& peer, Failure failure, bool fatal);
    void accept_all();
    void adopt_socket(int fd);
    Channel* new_channel(int fd, bool dialled);
    void close_channel(Channel* channel);
    Channel* release_out(Peer& peer);
    void take_down(Peer& peer, const std::string& reason);
    void finish_peer(Peer& peer);
    void check_drained();
    void take_everything_down();
    void channel_ready(Channel& channel, std::uint32_t events);
    void channel_failed(Channel& channel, const std::string& reason);
    void read_control(Channel& channel);
    void read_data(Channel& channel);
    void write_channel(Channel& channel);
    void write_out(Peer& peer);
    bool write_some(Peer& peer, Channel& channel);
    void write_back(Peer& peer);
    void watch(Channel& channel);
    void want_writable(Channel& channel, bool wanted);
    void start_sending(Peer& peer);
    void tick();
    void show_life(Peer& peer, const std::string& alive, bool over);
    bool half_dead(const Peer& peer, Nanos before) const;
    void warn(std::uint16_t peer, const std::string& text);
    void read_again(Channel& channel);
    bool read_channel(Channel& channel);
    void open_reading(Channel& channel);
    void pause_reading(Channel& channel);

    // part.cpp: on the selector thread
    void keep_to_limit();
    void look_at_limit(Nanos when);
    bool hold(Peer& peer);
    bool all_handled(const Peer& peer) const;
    void let_go(Peer& peer);
    void drop_question(Peer& peer, Nanos patience);
    void say(Peer& peer, Control word, std::string_view payload = {});
    void stay(Peer& peer);
    bool got_part(Peer& peer, Control word, std::string_view payload);
    void end_session(Peer& peer);
    void out_ended(Peer& peer);
    void in_ended(Peer& peer);
    void close_in(Peer& peer);
    void finish_parting(Peer& peer);

    // reclaim.cpp: on the selector thread
    std::unique_ptr<OutFlow> fresh_flow(Peer& peer, std::uint16_t kind);
    void drop_unused_flows(Peer& peer);
    void trim_ring(Peer& peer);
    void retire_ring(Peer& peer);
    void reclaim();
    bool reclaim(const Retired& retired);

    // encrypt.cpp: on the selector thread
    void begin(Channel& channel);
    void start_tls(Channel& channel);
    void look_at_first_bytes(Channel& channel);
    void refuse_tls(Channel& channel);
    void shake_tls(Channel& channel);
    void tls_failed(Channel& channel, const std::string& reason);
    void reload_certificates();

    // hand_shake.cpp: on the selector thread
    void say_hello(Channel& channel);
    bool hand_shake(Channel& channel, const Header& header, std::string_view payload);
    void got_hello(Channel& channel, std::string_view payload);
    void got_reply(Channel& channel, std::string_view payload);
    void got_confirm(Channel& channel, std::string_view payload);
    void got_refuse(Channel& channel, std::string_view payload);
    void admit(Channel& channel);
    void settle_clash(Channel& channel, Peer& peer, std::function<void()> then);
    void refuse(Channel& channel, Failure::Code code, const std::string& text,
                const std::string& other = {});
    void opened(Channel& channel);
    void announce_all(Channel& channel);
    std::string proof(const Channel& channel, bool dialler) const;
    Hello my_hello(const Channel& channel) const;

    // receive.cpp: on the selector thread
    bool back_control(Peer& peer, const Header& header, std::string_view payload);
    bool forward_control(Channel& channel, Peer& peer, const Header& header, std::string_view payload);
    std::uint32_t least_charge(std::uint16_t kind, std::uint32_t flow);
    Registration* registration_for(std::uint16_t kind, std::uint32_t flow);
    InFlow& in_flow(Peer& peer, std::uint32_t id);
    InFlow* known_flow(Peer& peer, std::uint32_t id);
    void discard(Peer& peer, const RunView& view);
    void park(Peer& peer, const RunView& view);
    void park_run(Registration& registration, Run run);
    bool got_response(Peer& peer, const Header& header, std::string_view payload);
    void refuse_requests(Run& run, std::uint16_t kind, bool unknown);
    bool got_fragment(Peer& peer, const Header& header, std::uint64_t id, std::string_view part);
    void open_flow(Peer& peer, std::uint32_t flow);
    void shut_flow(Peer& peer, std::uint32_t flow);
    void share_window(Registration& registration);
    bool make_room(std::uint64_t bytes);
    bool overdrawn(Peer& peer, InFlow& flow, std::uint32_t charge);
    std::uint32_t account_of(Peer& peer, std::uint32_t flow);
    bool large_fits(std::uint32_t flow, std::uint64_t size) const;
    void use_large(std::uint32_t flow, std::int64_t bytes);
    void set_window(InFlow& flow, std::uint32_t flow_id, std::uint32_t window);
    void retry_opens();
    void reserve(Peer& peer, std::uint64_t id, std::uint64_t size, std::uint16_t kind, std::uint32_t flow);
    void retry_reservations();
    bool hoards(const Peer& peer, Nanos patience) const;
    void drop_receiving(Peer& peer);
    void when_handled(Peer& peer, std::function<void()> call);
    void announce(Registration& registration);
    bool got_bind(Peer& peer, std::uint32_t flow, std::string_view payload);
    std::shared_ptr<Registration> make_registration(std::uint16_t kind, std::uint64_t capacity, WhenFull when_full);
    Registration* flow_of(std::uint32_t id);
    void return_idle_windows(Peer& peer);
    void queue_credit(InFlow& flow, bool confirm = false);
    void give_credit(Run& run, std::uint32_t due);

    // That this node takes, its header included.
    std::uint32_t largest_frame() const {
        return std::clamp<std::uint32_t>(options_.flow_window_bytes / 4, 4096, 1 << 20);
    }

    Peer& peer_for(std::uint16_t id);
    void draw_id();
    bool promise(std::uint16_t id, std::uint64_t incarnation);

    NodeOptions options_;
    std::atomic<std::uint16_t> id_{0};
    const std::uint64_t incarnation_;
    const std::uint32_t generation_ = fork_generation();
    std::atomic<Phase> phase_{Phase::fresh};
    std::shared_ptr<BufferPool> pool_;
    Selector selector_;
    LeadWakes lead_wakes_;  // outlives all who may wake a leader
    Scheduler::Hooks scheduler_hooks();
    Scheduler scheduler_;
    Timers timers_;
    InterestQueue<Peer> interests_;
    Requests requests_;
    Patience spin_, serving_spin_;  // of callers that wait for a response; of who waits for a request
    std::atomic<Peer*> asker_{nullptr};  // the last one whose request was answered
    std::atomic<Peer*> led_{nullptr};    // whose channel a scheduler thread leads
    std::atomic<std::uint64_t> answers_{0}, lost_answers_{0}, requests_made_{0};
    std::function<void(Event)> on_event_;

    // Indexed by node id and kind. The pages of these tables that are never touched cost nothing.
    std::unique_ptr<std::atomic<Peer*>[], void (*)(std::atomic<Peer*>*)> peers_;
    std::unique_ptr<std::atomic<Registration*>[], void (*)(std::atomic<Registration*>*)> by_kind_;
    std::mutex mutex_;  // of the lists below
    std::vector<std::unique_ptr<Peer>> peer_list_;
    // Whoever listens at an address that is asked for its id; nothing is ever sent to it.
    Peer unknown_{0};
    std::mutex identify_mutex_;
    std::optional<Identity> found_;  // with its mutex
    static constexpr int kMostLongWaits = 16;  // half of the scheduler's threads
    std::atomic<int> long_waits_{0};
    static constexpr int kMostLargeWaits = 12;
    std::atomic<int> large_waits_{0};  // both are only counts
    std::atomic<std::uint16_t> broker_{0};
    std::atomic<bool> id_settled_{false};  // others know it: no other is drawn
    struct Promise {
        std::uint64_t incarnation = 0;
        Nanos until = 0;
    };
    std::map<std::uint16_t, Promise> promises_;  // the selector's: of ids to those who have asked with them
    std::map<std::uint32_t, std::shared_ptr<Registration>> registrations_;  // by flow id
    std::uint32_t next_flow_ = 1;  // no id is given twice: peers may send to one long after it has gone
    std::uint64_t events_dropped_ = 0;  // by those that are no more
    std::string address_, bound_address_;

    // the selector's
    struct Door : Watcher {
        explicit Door(Node& node_) : node(node_) {}
        void ready(std::uint32_t) override { node.accept_all(); }
        Node& node;
    };
    Door door_{*this};
    int listener_ = -1;
    Address listen_address_;
    std::shared_ptr<tls::Context> tls_;  // for new connections; null: none is encrypted
    std::vector<std::int64_t> tls_times_, tls_tried_;  // when its files had changed, and those of the last try
    bool tls_looking_ = false;  // the helper looks at them
    std::unordered_set<Channel*> channels_;
    std::map<std::uint64_t, Channel*> strangers_;  // accepted, and not proven to be anybody; the oldest first
    std::uint64_t next_stranger_ = 0;
    std::unordered_map<std::uint32_t, Registration*> flows_;  // by flow id, for the parser
    std::deque<Retired> retired_;
    std::vector<Channel*> starved_;
    std::atomic<bool> buffer_returned_{false};
    std::deque<std::pair<Peer*, std::uint32_t>> waiting_opens_;
    struct WaitingReservation {
        Peer* peer;
        std::uint64_t id, size;
        std::uint16_t kind;
        std::uint32_t flow, session;
    };
    std::deque<WaitingReservation> waiting_reservations_;
    std::uint64_t granted_ = 0, large_used_ = 0;
    std::unordered_map<std::uint32_t, std::uint64_t> large_by_flow_;
    std::atomic<std::uint64_t> granted_now_{0}, large_now_{0};
    Nanos tick_due_ = kNever, away_until_ = 0;
    std::size_t tick_turn_ = 0;
    Traffic traffic_;
    int lingering_ = 0;  // connections that are written again in a moment
    bool finishing_ = false;  // rings are being written out for the last time
    std::uint32_t partings_ = 0;  // times that a peer was asked to part
    std::uint64_t limit_timer_ = 0;
    Nanos limit_due_ = 0;  // when that is
    int warnings_left_ = kWarningsPerTick;

    Helper helper_{[this](std::function<void()> call) { selector_.post(std::move(call)); }};

    std::mutex close_mutex_;
    std::condition_variable drained_;
    bool is_drained_ = false;
    // Written by whoever begins or ends a word; read by the closing thread, which is woken under close_mutex_.
    std::atomic<std::size_t> words_{0};
    bool stuck_handler_ = false;
    std::atomic<std::uint64_t> unknown_kind_{0}, refused_{0}, protocol_errors_{0}, starvations_{0},
        dismissed_{0};
    std::atomic<std::uint64_t> large_ids_{0};
    // When a ring was last found without a writer; a rough clock, written by whoever finds it so.
    std::atomic<Nanos> last_signal_{0};
};

}  // namespace antiphon

// Where a group that goes by datagrams hears: it checks what comes, puts it in order by sender, asks for what
// is missing, and says how far it is.
//
// Datagrams are read on the selector's thread, which also keeps the clock. What is next in order waits in a
// queue for the one thread that delivers; it is bounded by what the windows of the senders hold. Datagrams of
// nobody whom a view has named are dropped: their senders are asked for them when the view is there.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "groups/datagram_faults.hpp"
#include "groups/datagram_socket.hpp"
#include "groups/datagrams.hpp"
#include "groups/wire.hpp"
#include "node/node.hpp"
#include "window/cast_receiver.hpp"

namespace antiphon::groups {

class DatagramLane;
struct Route;

class DatagramPort : public Watcher, public std::enable_shared_from_this<DatagramPort> {
   public:
    struct Options {
        DatagramSocket::Options socket;
        std::uint64_t group;  // a number that stands for its name
        std::array<window::CastReceiver::Options, kLanes> receivers;
        DatagramFaults::Options faults;
        bool sealed = false;  // nothing goes or counts without a key
    };
    // Throws as DatagramSocket does.
    DatagramPort(std::shared_ptr<Node> node, const Options& options);

    // `deliver` is called when something is ready.
    void start(std::function<void()> deliver);
    // Nothing is called any more. Never with a lock, nor on the selector's thread.
    void stop();

    // --- members, any thread -----------------------------------------------------------------------
    void admit(std::uint64_t self, const std::vector<Route>& members);
    void clear();
    // Before anything of that view is sent: who we are in it, its key, and who else may send.
    void seal_with(std::uint64_t self, std::string_view key, std::vector<std::uint64_t> senders);
    bool sealed() const { return keys_ != nullptr; }
    // Nothing of those nodes is heard, for tests.
    void cut(std::set<std::uint16_t> nodes);
    // The lane to a member, or to all (0), which hears of what comes for it while it lives.
    void attach(std::uint64_t member, const std::shared_ptr<DatagramLane>& lane);
    void detach(std::uint64_t member);

    // --- the thread that delivers --------------------------------------------------------------------
    struct Batch {
        std::uint64_t member = 0;
        std::uint32_t lane = 0;
        window::CastReceiver::Ready ready;
    };
    bool pop(Batch& batch);
    bool has_ready() const { return ready_count_.load(std::memory_order_seq_cst) != 0; }
    // Everything before that number was handled, of so many bytes since the last time.
    void handled(std::uint64_t member, std::uint32_t lane, std::uint64_t upto, std::size_t bytes);

    // --- lanes ---------------------------------------------------------------------------------------
    DatagramSocket& socket() { return socket_; }
    // Any thread; never blocks. Sealed, where they are to be. As DatagramSocket::send: those without a key count
    // as gone.
    std::size_t send(std::vector<Datagram>& datagrams);
    std::size_t mtu() const { return socket_.mtu(); }
    const sockaddr_in& group_address() const { return socket_.group(); }
    DatagramHead head(DatagramKind kind, LaneKind lane, std::uint8_t flags, std::uint64_t from, std::uint64_t to) const {
        return {kDatagramMagic, kind, static_cast<std::uint8_t>(lane), flags, 0, group_, from, to};
    }
    // Any thread: there is something to do at that time.
    void arm(Nanos when);

    void ready(std::uint32_t events) override;

    struct Counts {
        std::uint64_t duplicates = 0, gaps = 0, asked = 0, relayed = 0, refused = 0, malformed = 0, foreign = 0,
                      strangers = 0, acknowledgements = 0, dropped = 0, held_bytes = 0, kept = 0;
    };
    Counts counts();
    // Of what is sealed; zeros where nothing is.
    std::uint64_t sealed_count();
    Opener::Counts opened() const { return opener_ ? opener_->counts() : Opener::Counts{}; }

   private:
    struct Member {
        std::uint16_t node = 0;
        sockaddr_in address{};
        std::array<std::unique_ptr<window::CastReceiver>, kLanes> receivers;
    };
    struct Taken {  // of one datagram that was read
        DatagramHead head;
        std::string_view body;
        Nanos now;
    };
    // On the selector's thread, or with its turn:
    void set_timer();
    void run();
    void look(std::string_view bytes, const sockaddr_in& from, Nanos now);
    bool take_data(const Taken& taken);
    bool take_word_of(const Taken& taken);
    bool take_ask(const Taken& taken);
    void after(Nanos now);
    std::shared_ptr<DatagramLane> lane_for(const DatagramHead& head);
    // With the mutex:
    window::CastReceiver* receiver(std::uint64_t member, std::uint32_t lane, bool make);
    void collect(std::uint64_t id, Member& member, Nanos now, std::vector<Datagram>& words);
    void move_ready(std::uint64_t member, std::uint32_t lane, window::CastReceiver& from);
    void relay(std::uint64_t asker, std::uint64_t origin, const std::vector<window::Range>& ranges,
               std::vector<Datagram>& words);
    Datagram word(DatagramKind kind, std::uint32_t lane, std::uint8_t flags, std::uint64_t to, const sockaddr_in& at) const;
    void retire(Member& member);
    void forget_all();

    const std::shared_ptr<Node> node_;
    const std::uint64_t group_;
    const std::array<window::CastReceiver::Options, kLanes> options_;
    DatagramSocket socket_;
    const std::shared_ptr<Keyring> keys_;  // null: nothing is sealed
    std::function<void()> deliver_;

    // Of what follows; held while sealed datagrams are sent. A lane's may be held outside, mutex_ may not.
    std::mutex sealing_;
    std::uint64_t sender_ = 0;
    std::unique_ptr<Sealer> sealer_;
    std::uint64_t sealed_before_ = 0;  // in other lives of this member
    std::vector<Datagram> going_;

    std::mutex mutex_;  // of what follows; never held while a lane's is taken, or anything is sent
    std::uint64_t self_ = 0;
    std::map<std::uint64_t, Member> members_;
    std::map<std::uint64_t, std::weak_ptr<DatagramLane>> lanes_;
    std::deque<Batch> queue_;
    std::set<std::uint16_t> cut_;
    std::mt19937_64 chance_;
    Counts counts_;  // of members that are gone, and of nobody

    // Stored with the mutex; a hint for whoever looks without.
    std::atomic<std::size_t> ready_count_{0};
    // When the timer goes off. Lowered by anybody, who then has it set; raised by the selector's thread alone.
    std::atomic<Nanos> armed_{kNever};
    std::atomic<bool> stopped_{false};  // written by stop, read on the selector's thread
    // The selector's:
    std::unique_ptr<Opener> opener_;  // its counts are anybody's
    std::string open_;
    std::uint64_t timer_ = 0;
    DatagramFaults faults_;
    std::vector<Came> came_;
    bool watching_ = false;
};

}  // namespace antiphon::groups

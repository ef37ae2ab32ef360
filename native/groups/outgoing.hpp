// A lane over nodes: takes messages from any thread, and sends every member what it has credit for.
//
// Whoever sends writes into the window, and from there into the rings of the members, as far as they go.
// A member without credit, room or connection is passed over and holds up nobody else; it is watched, and
// a scheduler thread goes on when something has changed. So no thread waits for a member, only senders for
// the window, and a batch lies in memory once for all of them.
#pragma once

#include <netinet/in.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "groups/wire.hpp"
#include "node/pump.hpp"
#include "window/lane.hpp"
#include "window/receive_window.hpp"

namespace antiphon::groups {

// A member as a sender has to know it.
struct Route {
    std::uint64_t member;
    std::uint16_t node;
    std::uint64_t incarnation;  // of the node
    std::uint32_t flow, least_charge;
    // Where datagrams are by the way it is reached, and the bytes of its socket's buffer.
    sockaddr_in datagrams{};
    std::size_t buffer = 0;
};

class Outgoing : public Pump {
   public:
    // No message is larger in the window: larger ones go in parts. A frame with one of them must fit into a
    // quarter of the smallest window that a member gets from a crowded node.
    static constexpr std::size_t kPartBytes = 16 << 10;

    // `deliver`: notified of messages that this member gets itself; null where it does not. It outlives this.
    Outgoing(std::shared_ptr<Node> node, LaneKind kind, std::size_t bytes, std::size_t messages, Task* deliver,
             std::size_t part_bytes = kPartBytes)
        : Pump(std::move(node)), kind_(kind), part_bytes_(part_bytes), lane_(bytes, messages), deliver_(deliver) {
        if (deliver_ != nullptr) lane_.deliver_here(true);
    }

    enum class Put : std::uint8_t { put, full, busy, forbidden };
    // Never blocks. `busy`: another thread is at it.
    Put try_put(std::string_view message);
    // May block: until all of it is in the window. `timeout`, `closed`, `forbidden` or `interrupted` otherwise.
    Outcome put(std::string_view message, Nanos deadline, const Interrupted* interrupted);

    // Who we are now, and whether anything can be sent: sends wait while it cannot.
    void identify(std::uint64_t self);
    void open(std::uint64_t self);
    void shut();
    // Whether anything may be sent at all: what may not is refused, and whoever waits is told. What is in the
    // window goes on.
    void allow(bool allowed);
    void close();  // for good: whoever waits wakes
    virtual void add(const Route& route);
    virtual void remove(std::uint64_t member);
    virtual void remove_all();
    // From the node of that member, or it does not count.
    void acknowledged(std::uint16_t node, const Acknowledgement& word);
    // From time to time: what could not go is tried again, and whoever is silent is asked.
    virtual void tick();
    // May block: until everybody has everything, or the deadline.
    bool settle(Nanos deadline, const Interrupted* interrupted);

    // Own messages, for the one thread that delivers them: fills `raw` with up to `most` of them, which stay
    // where they are until `delivered`. What wraps around is copied into `wrapped`.
    std::uint64_t own(std::vector<std::string_view>& raw, std::vector<std::string>& wrapped, std::size_t most);
    bool has_own();
    void delivered(std::uint64_t upto);

    bool run_slice(Nanos until) override;

    struct Counts {
        std::uint64_t sent, bytes, repeated, waits, batches, used, capacity, receivers, messages, probes;
        // By datagrams only: what may be under way, how often that has held the sender up, or was cut.
        std::uint64_t flight = 0, held = 0, cuts = 0;
    };
    virtual Counts counts();
    // Members for which senders wait, and seconds: the window has had no room since a sender wanted some, and
    // they are the furthest behind and have acknowledged nothing. Asked from time to time.
    std::map<std::uint64_t, double> held_up();
    bool large(std::size_t size) const { return size > part_bytes_; }

   protected:
    struct Target {
        Peer& peer;
        std::shared_ptr<OutFlow> way;
        std::uint64_t incarnation;
        std::uint16_t node;
        OutFlow& flow = *way;
    };
    // All with the mutex.
    bool push(std::string_view head, std::string_view body, bool reserved = false);
    virtual bool pump();  // false: somebody is behind, and watched
    virtual void hasten() {}  // somebody waits until everybody has everything
    bool pump_one(std::uint64_t member, Target& target, window::Lane::Receiver& receiver);
    Attempt send_batch(std::uint64_t member, Target& target, window::Lane::Receiver& receiver, std::uint64_t end,
                       std::size_t& taken);
    void made_room();
    Outcome wait_for_room(std::unique_lock<std::mutex>& lock, std::size_t bytes, Nanos deadline,
                          const Interrupted* interrupted);

    const LaneKind kind_;
    const std::size_t part_bytes_;
    std::mutex mutex_;
    std::condition_variable room_;
    int waiting_ = 0;
    window::Lane lane_;
    Task* const deliver_;
    std::map<std::uint64_t, Target> targets_;
    std::vector<std::uint32_t> lengths_;
    std::uint64_t self_ = 0;
    bool open_ = false, closed_ = false, allowed_ = true;
    bool full_ = false;  // a sender found no room, and not a quarter of it has come free since
    std::uint32_t streams_ = 0;
    std::uint64_t sent_ = 0, bytes_ = 0, waits_ = 0, batches_ = 0, probes_ = 0;
};

}  // namespace antiphon::groups

// A lane by datagrams: what is in its window goes to the multicast address, or to one member, once for all.
//
// Whoever sends writes into the window, and from there datagrams go as far as flow control lets them. The rest
// goes when acknowledgements come, on the selector's thread, which also sends again what is asked for.
#pragma once

#include "groups/datagram_port.hpp"
#include "groups/outgoing.hpp"
#include "window/cast_sender.hpp"

namespace antiphon::groups {

class DatagramLane : public Outgoing {
   public:
    struct Options {
        std::size_t bytes, messages;
        window::CastSender::Options cast;
        window::Flow::Options flow;
    };
    // What a datagram of that size has for messages and their lengths, and for one part of a message.
    static std::size_t room_in(std::size_t mtu);
    static std::size_t part_in(std::size_t mtu);

    DatagramLane(std::shared_ptr<Node> node, std::shared_ptr<DatagramPort> port, LaneKind kind, Task* deliver,
                 const Options& options)
        : Outgoing(std::move(node), kind, options.bytes, options.messages, deliver, part_in(port->mtu())),
          port_(std::move(port)),
          cast_(lane_, options.cast, options.flow) {}

    void add(const Route& route) override;
    void remove(std::uint64_t member) override;
    void remove_all() override;
    void tick() override {}  // the port has a clock of its own
    Counts counts() override;

    // --- the port: that came from a member -------------------------------------------------------
    void acknowledged(std::uint64_t member, const AcknowledgeWord& word, bool slow, Nanos now);
    void asked(std::uint64_t member, const std::vector<window::Range>& ranges, Nanos now);
    void asks_base(std::uint64_t member, Nanos now);
    // Sends what is due; when there is something next.
    Nanos turn();

   protected:
    bool pump() override;
    void hasten() override;

   private:
    Datagram& next_datagram(DatagramKind kind, std::uint64_t to, std::uint8_t flags);
    void build(const window::CastSender::Piece& piece);
    bool flush(bool again);

    const std::shared_ptr<DatagramPort> port_;
    // With the mutex:
    window::CastSender cast_;
    std::map<std::uint64_t, sockaddr_in> addresses_;
    std::vector<Datagram> out_;
    std::size_t used_ = 0;  // of them
    Nanos stalled_until_ = 0;
};

}  // namespace antiphon::groups

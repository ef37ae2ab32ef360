// Where the frames of a data channel go. Nothing in here ends the channel: the parser that calls is
// the channel's own. Answers are left as interests, a farewell as a mark.
#pragma once

#include "node/node.hpp"

namespace antiphon {

class ChannelSink : public DataSink {
   public:
    ChannelSink(Node& node, Channel& channel)
        : node_(node), channel_(channel), peer_(*channel.peer) {}

    std::uint32_t least_charge(std::uint16_t kind, std::uint32_t flow) override {
        return node_.least_charge(kind, flow);
    }
    void run(const RunView& view) override { node_.park(peer_, view); }
    bool fragment(const Header& header, std::uint64_t id, std::string_view part) override {
        return node_.got_fragment(peer_, header, id, part);
    }
    bool response(const Header& header, std::string_view payload) override {
        return node_.got_response(peer_, header, payload);
    }
    bool control(const Header& header, std::string_view payload) override {
        return node_.forward_control(channel_, peer_, header, payload);
    }

   private:
    Node& node_;
    Channel& channel_;
    Peer& peer_;
};

}  // namespace antiphon

// Transports: how channels are set up. Afterwards a channel is a stream socket, whatever made it.
//
// An in-process address is served by a socket pair handed to the listening node of that name, so
// that hand-shakes, flow control and liveness are the same everywhere.
#pragma once

#include <memory>
#include <string>

#include "selector/address.hpp"

namespace antiphon {

struct BufferSizes {
    int send = 0, receive = 0;  // bytes for the kernel's buffers; 0 leaves them alone
};

class Transport {
   public:
    virtual ~Transport() = default;
    // A listening descriptor (non-blocking, close-on-exec); `address` becomes the bound one. Throws
    // std::system_error.
    virtual int listen(Address& address) = 0;
    // Undoes what listen() left behind apart from the descriptor, which is still open. Idempotent.
    virtual void unlisten(const Address& address, int listener) = 0;
    // A descriptor whose connect is done or under way; -1 with errno. Never blocks.
    virtual int dial(const Address& address, const Endpoint& endpoint, BufferSizes sizes) = 0;
    // The next waiting connection, or -1 with errno. Never blocks.
    virtual int accept(int listener) = 0;
};

// The transport of an address; they are stateless and live for ever.
Transport& transport_for(const Address& address);

void set_buffers(int fd, BufferSizes sizes);
// What the kernel gave, in the terms in which it was asked for.
BufferSizes get_buffers(int fd);

}  // namespace antiphon

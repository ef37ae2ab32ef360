"""SCTP, where the kernel has it: one-to-one sockets, used as those of TCP in ``sockets_tcp``.

SCTP keeps messages apart by itself. The frames are kept all the same: a large message comes in
pieces, and what is compared with TCP is to do the same work.
"""

from __future__ import annotations

import socket

from antiphon.lab.peers.base import Endpoint
from antiphon.lab.peers.sockets_tcp import Sockets, Transport

__all__ = ["ENDPOINT", "SCTP", "SctpSockets"]

# Of linux/sctp.h; the socket module does not have it.
_SCTP_NODELAY = 3

SCTP = Transport(socket.IPPROTO_SCTP, _SCTP_NODELAY)


class SctpSockets(Sockets):
    """One association per sender and target."""

    transport = SCTP


ENDPOINT: type[Endpoint] = SctpSockets

"""The bare ping-pong: two C loops around ``send`` and ``recv``, in the core.

Nothing is framed and nothing reaches Python, so this is how soon the kernel's loopback and its
scheduler let one process answer another. Threads run without the GIL here, as no other system's do.
The lab, which times each call by itself, asks the core for one at a time.
"""

from __future__ import annotations

import socket
from array import array
from functools import partial

from antiphon import _core
from antiphon.lab.peers.base import EndpointConfig
from antiphon.lab.peers.requests.base import STUCK, Caller, SocketEndpoint

__all__ = ["ENDPOINT", "RawEcho"]

# Between two looks at the stop flag.
SLICE = 0.01


class RawCaller(Caller):
    """Stays in the core for a while with each target in turn, instead of for a single call."""

    def __init__(self, config: EndpointConfig, streams: list[socket.socket]) -> None:
        super().__init__([partial(self._call, stream.fileno()) for stream in streams])
        self._size = config.size
        self._streams = streams

    def _call(self, link: int, data: bytes) -> bytes:
        # It sends bytes of its own of that size, and raises if others come back.
        _core.raw_echo_call(link, self._size, 0.0)
        return data

    def round(self, data: bytes, times: array[int]) -> int:
        for stream in self._streams:
            # The core compares the answers itself and raises.
            times.frombytes(_core.raw_echo_call(stream.fileno(), self._size, SLICE))
        return 0

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


class RawEcho(SocketEndpoint):
    """A thread per connection, as for plain sockets, but in the core."""

    def _echo(self, stream: socket.socket) -> None:
        _core.raw_echo_serve(stream.fileno(), self.config.size, STUCK)

    def caller(self) -> Caller:
        return RawCaller(self.config, self._dial())


ENDPOINT = RawEcho

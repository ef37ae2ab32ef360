"""The bare stream: two C loops around ``send`` and ``recv``, in the core.

No message is framed, copied twice or handed to Python, so this is what the kernel's loopback and
the memory can carry in chunks of the given size. Nothing that delivers messages can beat it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from antiphon.lab.peers.base import EndpointConfig, StreamEndpoint

__all__ = ["ENDPOINT", "RawTcp"]

# A receiver waits this much longer than the sender sends, then reports what it has.
GRACE = 10.0


class RawTcp(StreamEndpoint):
    """Sends for a given time, or accepts one connection and reads it to its end."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        # A core of another build may lack the loop; the point then says so.
        from antiphon import _core

        self._send = _core.raw_stream_send
        self._receive = _core.raw_stream_receive
        self._listener: socket.socket | None = None
        self._target = ("", 0)

    def listen(self) -> str:
        self._listener = socket.create_server((self.config.host, 0), backlog=1)
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def connect(self, addresses: Mapping[int, str]) -> None:
        (target,) = self.config.targets
        host, _, port = addresses[target].rpartition(":")
        self._target = (host, int(port))

    def transfer(self, seconds: float) -> tuple[int, float]:
        if self._listener is not None:
            return self._receive(self._listener.fileno(), seconds + GRACE)
        host, port = self._target
        return self._send(host, port, self.config.size, seconds)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


ENDPOINT = RawTcp

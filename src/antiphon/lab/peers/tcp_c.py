"""TCP from two loops in the core, around ``send`` and ``recv``: a call of the kernel per message.

Messages have no frame, as all of a run have one size. None reaches Python but for the stamps of
those that carry their times; these, and the ones that are sent by a timetable, are sent one by one
as in ``sockets_tcp``, which has the rest of it. The benchmark's ``raw_tcp`` is the same kernel with
nothing around it at all: a stream for a given time, which nobody looks at.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from antiphon import _core
from antiphon.lab.peers.base import Endpoint, EndpointConfig, OnData, Sender, payload_of
from antiphon.lab.peers.sockets_tcp import STUCK, TCP, Sockets
from antiphon.lab.stamps import MARK, STAMP_BYTES, Reader

__all__ = ["ENDPOINT", "CoreStreams"]

# Of one call of the core. What is sent is counted when it returns, so it is short on a slow link.
CALL_BYTES = 256 * 1024
READ_BYTES = 256 * 1024


class CoreSender(Sender):
    """One connection per target."""

    def __init__(self, config: EndpointConfig, addresses: Mapping[int, str]) -> None:
        self._payload = payload_of(config.size)
        self._sockets = {target: TCP.dial(addresses[target]) for target in config.targets}
        self._gathering = False
        most = max(1, CALL_BYTES // max(1, config.size))
        self._rounds = max(1, min(config.burst, most) // len(self._sockets))

    def burst(self) -> int:
        self._gather(True)
        for link in self._sockets.values():
            try:
                _core.raw_stream_write(link.fileno(), self._payload, self._rounds)
            except TimeoutError:
                raise TimeoutError(f"the receiver took nothing for {STUCK:g} s") from None
        return self._rounds * len(self._sockets)

    def send(self, target: int, data: bytes) -> None:
        self._gather(False)
        try:
            self._sockets[target].sendall(data)
        except BlockingIOError:
            raise TimeoutError(f"the receiver took nothing for {STUCK:g} s") from None

    def _gather(self, wanted: bool) -> None:
        """Whether the kernel waits for more to send with it, as it does for whoever says nothing.

        A single message that carries its times is not to wait for an acknowledgement.
        """
        if wanted != self._gathering:
            self._gathering = wanted
            for link in self._sockets.values():
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not wanted)

    def close(self) -> None:
        for link in self._sockets.values():
            link.close()


class CoreStreams(Sockets):
    """Counts in the core. For a caller who wants to see every message, as ``sockets_tcp`` does."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._counting = on_data if isinstance(on_data, Reader) else None
        self._seeing = on_data is not None and self._counting is None
        first = payload_of(1)[0]
        self._core = _core.StreamReader(config.size, first, MARK, STAMP_BYTES)
        self._told = (0, 0, 0)

    def sender(self) -> Sender:
        return CoreSender(self.config, self._addresses)

    def _read(self, link: socket.socket) -> None:
        if self._seeing:
            self._cut(link)
        else:
            self._core.read(link.fileno())

    def _cut(self, link: socket.socket) -> None:
        assert self.on_data is not None
        n = 0
        self._readers.append(lambda: (n, self.config.size if n else None))
        rest, size = b"", self.config.size
        while more := link.recv(READ_BYTES):
            rest += more
            whole = len(rest) // size * size
            for at in range(0, whole, size):
                n += 1
                self.on_data(rest[at : at + size])
            rest = rest[whole:]

    def catch_up(self) -> None:
        messages, size, wrong, last_ns, dropped, stamps = self._core.take()
        before, self._told = self._told, (messages, size, wrong)
        if self._counting is not None:
            new = [now - then for now, then in zip(self._told, before, strict=True)]
            self._counting.add(new[0], new[1], new[2], last_ns, stamps)
            self._counting.times.left_out += dropped

    def _count(self) -> tuple[int, int | None]:
        if self._seeing:
            return super()._count()
        self.catch_up()
        messages, _, wrong = self._told
        return messages, -1 if wrong else self.config.size if messages else None


ENDPOINT: type[Endpoint] = CoreStreams

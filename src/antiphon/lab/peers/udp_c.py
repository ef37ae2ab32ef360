"""UDP from two loops in the core, around ``sendmmsg`` and ``recvmmsg``: many datagrams to a call.

No datagram reaches Python, but for the stamps of those that carry their times. These, and the ones
that are sent by a timetable, are sent one by one as in ``udp_python``; the rest of it is the same
too, also what becomes of a slow receiver.
"""

from __future__ import annotations

from antiphon import _core
from antiphon.lab.peers.base import Endpoint
from antiphon.lab.peers.udp_python import Datagrams, DatagramSender
from antiphon.lab.stamps import MARK, STAMP_BYTES, Reader

__all__ = ["ENDPOINT", "CoreDatagrams"]

# What was counted is told so often; a sample that comes between is behind by that at the most.
SLICE = 0.02


class CoreSender(DatagramSender):
    """One connected socket per target."""

    def burst(self) -> int:
        rounds = max(1, self._config.burst // len(self._sockets))
        for link in self._sockets.values():
            _core.raw_datagrams_send(link.fileno(), self._payload, rounds)
        return rounds * len(self._sockets)


class CoreDatagrams(Datagrams):
    """Counts in the core. For a caller who wants to see every message, as ``udp_python`` does."""

    def sender(self) -> CoreSender:
        return CoreSender(self.config, self._addresses)

    def _receive(self) -> None:
        reader = self.on_data
        if reader is not None and not isinstance(reader, Reader):
            return super()._receive()
        assert self._socket is not None
        fd, size = self._socket.fileno(), self.config.size
        n = 0
        last: int | None = None
        self._reader = lambda: (n, last)
        while not self._stop.is_set():
            count, total, wrong, when, stamps = _core.raw_datagrams_receive(
                fd, size, SLICE, MARK, STAMP_BYTES
            )
            if count:
                last = -1 if wrong else size
            n += count
            if reader is not None:
                reader.add(count, total, wrong, when, stamps)


ENDPOINT: type[Endpoint] = CoreDatagrams

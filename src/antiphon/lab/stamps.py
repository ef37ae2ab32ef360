"""Messages that carry their times: which one it is, when it was due, when it was sent.

A writer sends one now and then among its ordinary messages, and a reader tells them apart by their
first byte, which no ordinary message begins with.
"""

from __future__ import annotations

import struct
import time
from array import array

from antiphon.lab.peers.base import payload_of

__all__ = ["MARK", "STAMP_BYTES", "Reader", "Stamper"]

MARK = 0xFF
# The mark, padding, source, sequence, intended and sent, the times of CLOCK_MONOTONIC.
_STAMP = struct.Struct("<BxHIqq")
STAMP_BYTES = _STAMP.size
# Of a reader's list: sequence, source, intended, sent, received.
COLUMNS = 5
MOST_PER_SECOND = 10_000


class Stamper:
    """Makes stamped messages of one size, numbered from 0. For one thread."""

    def __init__(self, source: int, size: int) -> None:
        self._source = source
        self._rest = payload_of(max(0, size - STAMP_BYTES))
        self.fits = size >= STAMP_BYTES
        self.sequence = 0

    def __call__(self, intended_ns: int) -> bytes:
        stamp = _STAMP.pack(
            MARK, self._source, self.sequence & 0xFFFFFFFF, intended_ns, time.monotonic_ns()
        )
        self.sequence += 1
        return stamp + self._rest


class Reader:
    """Counts what comes, checks its size, and keeps the times of what is stamped.

    ``__call__`` is for one thread at a time. At most ``MOST_PER_SECOND`` times a second are kept;
    the rest is counted in ``left_out``.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.messages = 0
        self.bytes = 0
        self.wrong = 0
        self.left_out = 0
        self._times: array[int] = array("q")
        self._second = 0
        self._in_second = 0

    def __call__(self, data: bytes) -> None:
        size = len(data)
        self.messages += 1
        self.bytes += size
        if size != self._size:
            self.wrong += 1
        elif size >= STAMP_BYTES and data[0] == MARK:
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        now = time.monotonic_ns()
        _, source, sequence, intended, sent = _STAMP.unpack_from(data)
        second = now // 1_000_000_000
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second > MOST_PER_SECOND:
            self.left_out += 1
            return
        self._times.extend((sequence, source, intended, sent, now))

    def take(self, most: int = 20_000) -> list[int]:
        """What was kept since the last call, oldest first, as one flat list of `COLUMNS` each."""
        end = min(len(self._times), most * COLUMNS)
        taken = self._times[:end]
        # What comes meanwhile goes to the end.
        del self._times[:end]
        return taken.tolist()

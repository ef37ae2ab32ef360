"""Messages that carry their times: which one it is, when it was due, when it was sent.

A writer sends one now and then among its ordinary messages, and a reader tells them apart by their
first byte, which no ordinary message begins with.
"""

from __future__ import annotations

import base64
import struct
import threading
import time
from array import array

from antiphon._core import Batch
from antiphon.lab.peers.base import payload_of

__all__ = [
    "COLUMNS",
    "MARK",
    "MOST_PER_SECOND",
    "STAMP_BYTES",
    "Reader",
    "SlowReader",
    "Stamper",
    "TimedReader",
    "Times",
    "packed",
    "unpacked",
]

MARK = 0xFF
# The mark, padding, source, sequence, intended and sent, the times of CLOCK_MONOTONIC.
_STAMP = struct.Struct("<BxHIqq")
STAMP_BYTES = _STAMP.size
# A stamp, and when it was there, as the core's datagrams hand them over.
_RECEIVED = struct.Struct("<BxHIqqq")
# Of a list of times: sequence, source, intended, sent, received.
COLUMNS = 5
MOST_PER_SECOND = 10_000
# Multiples of the golden ratio, in parts of 2**32: of any long stretch of sequences, also of every
# fourth or sixteenth, the hashes are spread evenly. `Latencies.java` has the same.
_SPREAD = 0x9E3779B1
_HASHES = 1 << 32


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


def packed(times: array[int]) -> str:
    """Times for an answer: as numbers in JSON they would hold up the process for much longer."""
    return base64.b64encode(times.tobytes()).decode("ascii")


def unpacked(times: str | list[int]) -> array[int]:
    """Times of an answer, whether they were packed or not."""
    return array("q", base64.b64decode(times) if isinstance(times, str) else times)


class Times:
    """Times of messages: at most so many a second, the rest is counted in ``left_out``.

    More than that, and only 1 message in 2, in 4 and so on is kept from then on, and of those that
    have come in the same second. Which ones is told by a hash of their sequence, so that they are
    spread evenly over all. The first so many of each second would be one piece out of it; and every
    so many-th may be always the same sender's, or none of a receiver whose turn is every fourth.

    Any thread may add, and any may take.
    """

    def __init__(self, most: int = MOST_PER_SECOND) -> None:
        self.left_out = 0
        self._most = most * COLUMNS
        self._lock = threading.Lock()
        self._ready: array[int] = array("q")
        # Of the second that goes on: it may have to be thinned.
        self._present: array[int] = array("q")
        self._second = 0
        self._below = _HASHES

    def add(self, sequence: int, other: int, intended: int, sent: int, received: int) -> None:
        """``other`` is whoever sent it, or was asked."""
        with self._lock:
            if sequence * _SPREAD % _HASHES >= self._below:
                self.left_out += 1
                return
            second = received // 1_000_000_000
            if second > self._second:
                self._second = second
                self._end_second()
            self._present.extend((sequence, other, intended, sent, received))
            while len(self._present) > self._most and self._below > 1:
                self._thin()

    def _end_second(self) -> None:
        self._ready.extend(self._present)
        self._present = array("q")

    def _thin(self) -> None:
        self._below //= 2
        before, self._present = self._present, array("q")
        for at in range(0, len(before), COLUMNS):
            if before[at] * _SPREAD % _HASHES < self._below:
                self._present.extend(before[at : at + COLUMNS])
        self.left_out += (len(before) - len(self._present)) // COLUMNS

    @property
    def ready(self) -> int:
        """How many could be taken now."""
        return len(self._ready) // COLUMNS

    def take(self, most: int = 20_000, end: bool = False) -> array[int]:
        """What was kept since the last call, oldest first, one after the other, `COLUMNS` each.

        Without those of the second that goes on, unless this is the ``end``.
        """
        with self._lock:
            if end or time.monotonic_ns() // 1_000_000_000 > self._second:
                self._end_second()
            last = min(len(self._ready), most * COLUMNS)
            taken = self._ready[:last]
            del self._ready[:last]
        return taken


class Reader:
    """Counts what comes, checks its size, and keeps the times of what is stamped.

    At ``most`` so many times a second. Messages are given to it by one thread at a time.
    """

    def __init__(self, size: int, most: int = MOST_PER_SECOND) -> None:
        self._size = size
        self._stamped = size >= STAMP_BYTES
        self._expected: array[int] = array("i")
        self._excess = 0  # bytes, of messages of another size
        self.messages = 0
        self.wrong = 0
        self.last_ns = 0
        self.times = Times(most)

    def __call__(self, data: bytes) -> None:
        # With every message: as little as will do.
        self.messages += 1
        if len(data) != self._size:
            self.wrong += 1
            self._excess += len(data) - self._size
        elif self._stamped and data[0] == MARK:
            self._keep(data, 0)

    @property
    def received_bytes(self) -> int:
        """Of all messages together."""
        return self.messages * self._size + self._excess

    def _keep(self, data: bytes | memoryview, at: int) -> None:
        now = time.monotonic_ns()
        _, source, sequence, intended, sent = _STAMP.unpack_from(data, at)
        self.times.add(sequence, source, intended, sent, now)

    def batch(self, batch: Batch) -> None:
        """A whole batch, as those use one who have no need of each message by itself."""
        data, size = batch.data, self._size
        if not self._stamped or not self._all_right(batch):
            for one in batch:
                self(one)
            return
        self.last_ns = time.monotonic_ns()
        self.messages += len(batch)
        marks = data[::size].tobytes()  # the first byte of each
        at = marks.find(MARK)
        while at >= 0:
            self._keep(data, at * size)
            at = marks.find(MARK, at + 1)

    def _all_right(self, batch: Batch) -> bool:
        """Whether every message has the right size, without a look at each in Python."""
        messages, size = len(batch), self._size
        if len(batch.data) != messages * size:
            return False
        if messages >= len(self._expected):
            self._expected = array("i", range(0, messages * size + 1, size))
        return batch.offsets.tobytes() == memoryview(self._expected)[: messages + 1].tobytes()

    def add(self, messages: int, size: int, wrong: int, last_ns: int, stamps: bytes) -> None:
        """Many at once, which the core has counted: ``size`` bytes in all, the last at that time.

        ``stamps`` are those of the stamped ones, each with the time at which it was there.
        """
        self.last_ns = last_ns or self.last_ns
        self.messages += messages
        self._excess += size - messages * self._size
        self.wrong += wrong
        for _, source, sequence, intended, sent, received in _RECEIVED.iter_unpack(stamps):
            self.times.add(sequence, source, intended, sent, received)


class TimedReader(Reader):
    """Knows in ``last_ns`` when the last message came, for the price of a clock with every one."""

    def __call__(self, data: bytes) -> None:
        # Before it counts: whoever sees the last message counted sees its time.
        self.last_ns = time.monotonic_ns()
        super().__call__(data)


class SlowReader(TimedReader):
    """Takes so many messages a second and no more: whoever hands it one waits until it is done.

    Time that it had nothing to do is not made up for, as it would not be in a handler to which
    each message costs something.
    """

    def __init__(self, size: int, per_second: float, most: int = MOST_PER_SECOND) -> None:
        super().__init__(size, most)
        self._gap = int(1e9 / per_second)
        self._free = time.monotonic_ns()

    def __call__(self, data: bytes) -> None:
        super().__call__(data)
        now = time.monotonic_ns()
        self._free = max(self._free, now) + self._gap
        time.sleep((self._free - now) / 1e9)

    def batch(self, batch: Batch) -> None:
        for one in batch:
            self(one)

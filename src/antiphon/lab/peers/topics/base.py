"""What a system has to offer for its topics to be measured: two of them, and senders for each.

One topic, ``LOAD``, is published as fast as it goes; the other, ``PACED``, on a timetable, with the
time at which a message was due in it. Which of them a run has is its pattern:

==============  ====================================================================================
``one-way``     the load alone
``paced``       the other alone, at a given rate
``half``        the same at half of what the system can do on such a timetable
``isolation``   both, between the same two processes
==============  ====================================================================================

A message of the timetable is timed from when it was due, not from when it was sent: a publisher
that is held up delays all that it should have sent meanwhile, and each of them says so.
"""

from __future__ import annotations

import struct
import time
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from antiphon.lab.peers.base import Endpoint, EndpointConfig, OnData, Sender, payload_of

__all__ = [
    "LOAD",
    "PACED",
    "SPIN_NS",
    "STAMP",
    "UNTIMED",
    "WARMING_UP",
    "Pace",
    "TopicEndpoint",
    "TopicSender",
    "timetable",
]

LOAD, PACED = 0, 1
NANOS = 1_000_000_000
# The time at which a message was due, before the pattern.
STAMP = struct.Struct("<q")
# In its place, in a message that is counted and not timed, and in one that is not even counted.
UNTIMED, WARMING_UP = 2**63 - 1, 0
# Nearer than this the sender spins: a sleep ends late by about as much.
SPIN_NS = 50_000
# Sent at most before the next look whether to stop.
MOST = 1000


@dataclass(frozen=True, slots=True)
class Pace:
    """A timetable: ``rate`` messages per second from ``start_ns`` until before ``end_ns``.

    Times are those of ``time.monotonic_ns``, which is one clock for all processes of a machine.
    What is due before ``begin_ns`` warms up, and is not counted. One in ``every`` carries its
    time, where to write and to read it in all of them would take what the system has left.
    """

    start_ns: int
    begin_ns: int
    end_ns: int
    rate: int
    every: int = 1

    def _before(self, moment: int) -> int:
        return max(0, -((self.start_ns - moment) * self.rate // NANOS))

    @property
    def first(self) -> int:
        """The number of the first message that counts."""
        return self._before(self.begin_ns)

    @property
    def total(self) -> int:
        """How many messages there are, those that warm up included."""
        return self._before(self.end_ns)

    def when(self, number: int) -> int:
        """When a message is due."""
        return self.start_ns + number * NANOS // self.rate

    def due(self, now: int) -> int:
        """How many are due by ``now``."""
        return min(self.total, self._before(now + 1))


class TopicSender(Sender):
    """A sender of one topic."""

    @abstractmethod
    def publish(self, data: bytes) -> None:
        """Publish one message; may wait. The less it adds to the system's own call, the better."""

    def send(self, target: int, data: bytes) -> None:
        self.publish(data)

    def send_on_time(
        self, pace: Pace, size: int, stopped: Callable[[], bool], late: array[int]
    ) -> int:
        """Publish by the timetable, what is overdue at once; returns how many were published.

        Adds to ``late`` by how many nanoseconds the sender itself was late.
        """
        publish = self.publish
        sent = 0
        for messages, wait in timetable(pace, size, stopped, late):
            for message in messages:
                publish(message)
            sent += len(messages)
            if wait > SPIN_NS:
                time.sleep((wait - SPIN_NS) / NANOS)
        return sent


class TopicEndpoint(Endpoint):
    """One process's share of a run of topics, as an :class:`Endpoint` of messages.

    ``received`` counts the load. Every message of the other topic goes to ``on_paced``, on the
    thread that received it.
    """

    def __init__(
        self,
        config: EndpointConfig,
        on_data: OnData | None = None,
        on_paced: OnData = lambda data: None,
    ) -> None:
        super().__init__(config, on_data)
        self.on_paced = on_paced
        self._reader: Callable[[], tuple[int, int | None]] = lambda: (0, None)

    @property
    def topics(self) -> tuple[int, ...]:
        """Which topics there are."""
        if self.config.pattern == "isolation":
            return (LOAD, PACED)
        return (LOAD,) if self.config.pattern == "one-way" else (PACED,)

    @abstractmethod
    def sender(self, topic: int = LOAD) -> TopicSender:
        """A new sender for the calling thread; there are subscribers when it returns."""

    def _count(self) -> tuple[int, int | None]:
        return self._reader()

    def begin(self) -> None:
        """What is to be counted begins about now."""

    def figures(self) -> dict[str, float]:
        """What else is known of the time since ``begin``."""
        return {}


def timetable(
    pace: Pace, size: int, stopped: Callable[[], bool], late: array[int]
) -> Iterator[tuple[list[bytes], int]]:
    """The messages that are due now, again and again, until all were.

    Without any, the second is how many nanoseconds are left until the next one.
    """
    clock, stamp = time.monotonic_ns, STAMP.pack
    start, rate, every = pace.start_ns, pace.rate, pace.every
    first, total = pace.first, pace.total
    tail = payload_of(max(0, size - STAMP.size))
    plain = stamp(WARMING_UP) + tail
    sent, look, limit = 0, first, first
    while sent < total and not stopped():
        if sent == first:
            plain, limit = stamp(UNTIMED) + tail, total
        now = clock()
        # As Pace.due, which would be too slow a call for a loop that spins.
        end = min(limit, -((start - now - 1) * rate // NANOS), sent + MOST)
        if end <= sent:
            yield [], start + sent * NANOS // rate - now
            continue
        if sent >= look:
            late.append(now - pace.when(sent))
            look = sent + every
        due = [plain] * (end - sent)
        for number in range(-(-sent // every) * every, end, every):
            due[number - sent] = stamp(start + number * NANOS // rate) + tail
        sent = end
        yield due, 0

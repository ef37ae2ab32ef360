"""One process of a probe of topics: handlers that are always busy, or very many subscriptions.

Run as ``python -m antiphon.lab.bench.topic_probe_worker``; ``orders`` says how it is spoken to.

====================  ===========================================================================
``busy``              subscribe with shares; the handlers use the processor for a while
``feed``              publish to all of those, more than they can take
``used``              processor time of every handler so far, and what waits for it
``scale``             topics with a source each in this process, and handlers that work per event
``answer``            time what arrives, and send a random sample of it back
``ask``               publish at a rate, with the time of each; time what comes back
``delays``            the times so far, in classes
``subscribe``         subscribe to many topics, one handler for all; how long that took
``publishers``        make a publisher for each of as many; how long that took
``found``             wait until those that are active have subscribers
``start``             publish to the active ones in turn, as fast as it goes
``sample``            time and messages received
``stop``              stop publishing
``close``             close everything and exit
====================  ===========================================================================
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.errors import SendTimeout
from antiphon.lab.bench.latency import classes
from antiphon.lab.bench.orders import Connectable, Orders, WorkingThread, carry_out
from antiphon.lab.peers.base import payload_of
from antiphon.lab.peers.topics.antiphon_bus import open_bus
from antiphon.lab.peers.topics.base import SPIN_NS, STAMP, Pace, timetable
from antiphon.topics import Bus, Event, EventBatch, Publisher, Subscription

__all__ = ["TopicProbeWorker", "burn"]

SIZE = 128
BURST = 1000
ROUNDS = 8
# Events for all busy handlers together, and how often: about three times what they can take.
FED, FED_EVERY = 200, 0.010


def burn(micros: int) -> Callable[[Any], None]:
    """A handler that uses the processor for ``micros`` to twice as many microseconds."""
    clock = time.thread_time_ns
    calls = 0

    def work(event: Any) -> None:
        nonlocal calls
        calls += 1
        until = clock() + (micros + calls * 37 % micros) * 1000
        while clock() < until:
            pass

    return work


def hash_batch(batch: EventBatch) -> None:
    """Work in C, which lets the interpreter's lock go: about as much per event as `hash_event`."""
    for _ in range(ROUNDS):
        hashlib.sha256(batch.data)


def hash_event(event: Event) -> None:
    """The same for one event: too short to let go of anything."""
    for _ in range(ROUNDS):
        hashlib.sha256(event.data)


class SourceThread(WorkingThread):
    """Publishes as much as its topic takes, many events at a time."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__("source")
        self._publisher = publisher

    def _open(self) -> None:
        """There is nothing to make."""

    def _work(self) -> None:
        events = payload_of(SIZE) * BURST
        offsets = array("i", range(0, SIZE * BURST + 1, SIZE))
        while not self._stop.is_set():
            with contextlib.suppress(SendTimeout):
                self._publisher.publish_packed(events, offsets)

    def _end(self) -> None:
        """The bus closes the publishers."""


class AskingThread(WorkingThread):
    """Publishes at a rate, each with the time at which it was due."""

    def __init__(self, publisher: Publisher, rate: int) -> None:
        super().__init__("ask")
        self._publisher = publisher
        self._rate = rate

    def _open(self) -> None:
        _await_subscribers([self._publisher], 20.0)

    def _work(self) -> None:
        clock = time.monotonic_ns
        now = clock()
        pace = Pace(now, now, now + 3600 * 10**9, self._rate)
        publish = self._publisher.publish
        for events, wait in timetable(pace, SIZE, self._stop.is_set, array("q")):
            for event in events:
                publish(event)
            if wait > SPIN_NS:
                time.sleep((wait - SPIN_NS) / 1e9)

    def _end(self) -> None:
        """The bus closes the publishers."""


class FeedingThread(WorkingThread):
    """Keeps the queues of busy handlers filled; what has no room is left out."""

    def __init__(self, publishers: Sequence[Publisher]) -> None:
        super().__init__("feed")
        self._publishers = publishers

    def _open(self) -> None:
        _await_subscribers(self._publishers, 20.0)

    def _work(self) -> None:
        events = [payload_of(SIZE)] * max(2, FED // len(self._publishers))
        while not self._stop.wait(FED_EVERY):
            for publisher in self._publishers:
                publisher.publish_many(events)

    def _end(self) -> None:
        """The bus closes the publishers."""


class RoundRobinThread(WorkingThread):
    """Publishes to some topics in turn, one event at a time."""

    def __init__(self, publishers: Sequence[Publisher]) -> None:
        super().__init__("publish")
        self._publishers = publishers

    def _open(self) -> None:
        """There is nothing to make."""

    def _work(self) -> None:
        payload = payload_of(SIZE)
        publishes = [publisher.publish for publisher in self._publishers]
        rounds = max(1, BURST // len(publishes))
        while not self._stop.is_set():
            for _ in range(rounds):
                for publish in publishes:
                    publish(payload)

    def _end(self) -> None:
        """The bus closes the publishers."""


class TopicProbeWorker(Orders):
    """Carries out the orders of the probes."""

    def __init__(self) -> None:
        super().__init__()
        self._bus: Bus
        self._subscriptions: list[Subscription] = []
        self._active: list[Publisher] = []
        self._kept: list[Publisher] = []
        self._count: Callable[[], int] = lambda: 0
        self._delays: array[int] = array("q")

    def _parts(self) -> list[Connectable]:
        return []

    def do_busy(self, folder: str, shares: list[float], micros: int) -> dict[str, Any]:
        self._bus = open_bus(folder, threads=1)
        self._subscriptions = [
            self._bus.subscribe(f"busy/{number}", burn(micros), share=share)
            for number, share in enumerate(shares)
        ]
        return {}

    def do_feed(self, folder: str, handlers: int) -> dict[str, Any]:
        self._bus = open_bus(folder)
        publishers = [
            self._bus.publisher(f"busy/{number}", when_full="drop_newest")
            for number in range(handlers)
        ]
        return self._start([FeedingThread(publishers)])

    def do_used(self) -> dict[str, Any]:
        cores: list[Any] = [subscription._core for subscription in self._subscriptions]
        return {
            "used": [core.meter()["used"] for core in cores],
            "pending": [subscription.pending for subscription in self._subscriptions],
        }

    def do_scale(self, folder: str, topics: int, batch: bool) -> dict[str, Any]:
        self._bus = open_bus(folder)
        self._subscriptions = [
            self._bus.subscribe(f"s/{number}", hash_batch if batch else hash_event, batch=batch)
            for number in range(topics)
        ]
        self._count = lambda: sum(one.statistics()["handled"] for one in self._subscriptions)
        publishers = [self._bus.publisher(f"s/{number}") for number in range(topics)]
        return self._start([SourceThread(publisher) for publisher in publishers])

    def do_answer(self, folder: str, sample: float) -> dict[str, Any]:
        self._bus = open_bus(folder)
        answer = self._bus.publisher("echo/back", when_full="drop_newest").publish
        keep, clock, draw = self._delays.append, time.monotonic_ns, random.random

        def take(event: Event) -> None:
            keep(clock() - STAMP.unpack_from(event.data)[0])
            if draw() < sample:
                answer(event.data)

        self._bus.subscribe("echo/there", take)
        return {}

    def do_ask(self, folder: str, rate: int) -> dict[str, Any]:
        self._bus = open_bus(folder)
        keep, clock = self._delays.append, time.monotonic_ns

        def back(event: Event) -> None:
            keep(clock() - STAMP.unpack_from(event.data)[0])

        self._bus.subscribe("echo/back", back)
        return self._start([AskingThread(self._bus.publisher("echo/there"), rate)])

    def do_delays(self) -> dict[str, Any]:
        delays, self._delays[:] = list(self._delays), array("q")
        return {"classes": list(classes(delays).items()), "maximum": max(delays, default=0)}

    def do_subscribe(self, folder: str, topics: int) -> dict[str, Any]:
        self._bus = open_bus(folder)
        n = 0

        def count(event: Any) -> None:
            nonlocal n
            n += 1

        self._count = lambda: n
        subscribe = self._bus.subscribe
        began = time.monotonic()
        self._subscriptions = [subscribe(f"t/{number}", count) for number in range(topics)]
        return {"seconds": time.monotonic() - began}

    def do_publishers(self, folder: str, topics: int, active: int) -> dict[str, Any]:
        self._bus = open_bus(folder)
        publisher = self._bus.publisher
        began = time.monotonic()
        self._kept = [publisher(f"t/{number}") for number in range(topics)]
        seconds = time.monotonic() - began
        self._active = self._kept[:: topics // active][:active]
        return {"seconds": seconds}

    def do_found(self, limit: float) -> dict[str, Any]:
        _await_subscribers(self._active, limit)
        return {}

    def do_start(self) -> dict[str, Any]:
        return self._start([RoundRobinThread(self._active)])

    def do_sample(self) -> dict[str, Any]:
        count = self._count()
        return {"time_ns": time.monotonic_ns(), "messages": count, **self._faults()}

    def do_close(self) -> dict[str, Any]:
        answer = super().do_close()
        with contextlib.suppress(AttributeError):
            self._bus.close(drain=0.0)
        return answer


def _await_subscribers(publishers: Sequence[Publisher], limit: float) -> None:
    deadline = time.monotonic() + limit
    for publisher in publishers:
        if not publisher.wait_for_subscribers(timeout=max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"nobody subscribed to {publisher.topic} within {limit:g} s")


if __name__ == "__main__":
    carry_out(TopicProbeWorker())

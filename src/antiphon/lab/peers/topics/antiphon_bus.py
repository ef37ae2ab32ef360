"""Antiphon itself: a ``Bus`` on ``local://`` in each process.

==========  ==========================  ===========================================================
variant     publishes with              subscribes with
==========  ==========================  ===========================================================
event       ``publish`` of bytes        a handler per event
batch       ``publish_many`` of lists   a ``batch=True`` handler
shares      ``publish`` of bytes        a handler per event, and a share for the paced topic
==========  ==========================  ===========================================================
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import antiphon
from antiphon.lab.peers.base import EndpointConfig, OnData, payload_of
from antiphon.lab.peers.topics.base import LOAD, PACED, TopicEndpoint, TopicSender
from antiphon.node.config import Insecure
from antiphon.topics import Bus, Publisher

__all__ = ["ENDPOINT", "PERIOD", "SHARE", "BusEndpoint", "open_bus", "start_bus"]

NAMES = {LOAD: "bench/load", PACED: "bench/paced"}
CHANNEL = "local://bench"
PERIOD = 0.010
SHARE = 0.2
FOUND_TIMEOUT = 20.0


def open_bus(folder: str, threads: int | None = None) -> Bus:
    """A bus that runs, on a channel whose files are in ``folder`` and go with it.

    For good: later buses of this process are there too. A channel leaves its directory behind, and
    a benchmark has no business in the one of the user's own programs.
    """
    os.environ["XDG_RUNTIME_DIR"] = folder
    return start_bus(CHANNEL, threads)


def start_bus(channel: str, threads: int | None = None, secret: Insecure | None = None) -> Bus:
    """A bus that runs, with the schedule that all of them have."""
    config = antiphon.NodeConfig(schedule=antiphon.Schedule(period=PERIOD, threads=threads))
    return Bus(channel, node_config=config, secret=secret).start()


class BusSender(TopicSender):
    """One publisher. ``burst`` is the loop that the figures are about."""

    def __init__(self, publisher: Publisher, config: EndpointConfig) -> None:
        if not publisher.wait_for_subscribers(timeout=FOUND_TIMEOUT):
            raise TimeoutError(f"no subscriber found within {FOUND_TIMEOUT:g} s")
        self._publisher = publisher
        self._config = config
        self._payload = payload_of(config.size)
        self._list = [self._payload] * config.batch
        self._batches = config.variant == "batch"
        if not self._batches:
            # Without a call of ours around it.
            self.publish = publisher.publish  # type: ignore[method-assign]

    def burst(self) -> int:
        if self._batches:
            publish_many = self._publisher.publish_many
            events = self._list
            rounds = max(1, self._config.burst // len(events))
            for _ in range(rounds):
                publish_many(events)
            return rounds * len(events)
        publish = self._publisher.publish
        payload = self._payload
        for _ in range(self._config.burst):
            publish(payload)
        return self._config.burst

    def publish(self, data: bytes) -> None:
        self._publisher.publish_many([data])

    def close(self) -> None:
        self._publisher.close()


class BusEndpoint(TopicEndpoint):
    """One bus: the variant's subscriptions, and publishers."""

    def __init__(
        self,
        config: EndpointConfig,
        on_data: OnData | None = None,
        on_paced: OnData = lambda data: None,
    ) -> None:
        super().__init__(config, on_data, on_paced)
        self._bus = self._open(config)
        self._longest = 0

    def _open(self, config: EndpointConfig) -> Bus:
        return open_bus(config.folder)

    def listen(self) -> str:
        options: dict[str, Any] = {}
        if self.config.capacity is not None:
            options["capacity"] = self.config.capacity
        for topic in self.topics:
            if topic == PACED:
                share = SHARE if self.config.variant == "shares" else None
                handler = self._paced_handler()
                self._bus.subscribe(NAMES[topic], handler, share=share, **options)
            elif self.config.variant == "batch":
                self._bus.subscribe(NAMES[topic], self._batch_handler(), batch=True, **options)
            else:
                self._bus.subscribe(NAMES[topic], self._handler(), **options)
        return self._bus.address

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: buses of one channel find each other."""

    def sender(self, topic: int = LOAD) -> BusSender:
        return BusSender(self._bus.publisher(NAMES[topic]), self.config)

    def _handler(self) -> Callable[[Any], None]:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))

        def count(event: Any) -> None:
            nonlocal n, last
            last = event.data
            n += 1

        if (on_data := self.on_data) is None:
            return self._timed(count) if PACED in self.topics else count

        def deliver(event: Any) -> None:
            nonlocal n
            on_data(event.data)
            n += 1

        return deliver

    def _batch_handler(self) -> Callable[[Any], None]:
        n = 0
        size: int | None = None
        self._reader = lambda: (n, size)

        def count(batch: Any) -> None:
            nonlocal n, size
            # Keeping the batch itself would pin its receive buffer.
            size = len(batch[0])
            n += len(batch)

        if (on_data := self.on_data) is None:
            return count

        def deliver(batch: Any) -> None:
            nonlocal n
            for data in batch:
                on_data(data)
            n += len(batch)

        return deliver

    def _paced_handler(self) -> Callable[[Any], None]:
        on_paced = self.on_paced

        def deliver(event: Any) -> None:
            on_paced(event.data)

        return self._timed(deliver) if LOAD in self.topics else deliver

    def _timed(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """The same, and how long the longest call took: what a share cannot shorten."""
        clock = time.monotonic_ns

        def call(event: Any) -> None:
            began = clock()
            handler(event)
            took = clock() - began
            if took > self._longest:
                self._longest = took

        return call

    def begin(self) -> None:
        self._longest = 0

    def figures(self) -> dict[str, float]:
        if len(self.topics) < 2:
            return {}
        return {"longest_call_us": self._longest / 1e3, "period_us": PERIOD * 1e6}

    def close(self) -> None:
        self._bus.close()


ENDPOINT = BusEndpoint

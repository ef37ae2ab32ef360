"""Antiphon's topics: a ``Bus`` in each process, a topic from each to each.

On one host the buses find each other through ``local://`` and speak over unix sockets; between
hosts by multicast, and speak TCP.

========  =======================  ====================================================
variant   publishes with           subscribes with
========  =======================  ====================================================
callback  ``publish`` of bytes     a handler per event
batch     ``publish_many``         a ``batch=True`` handler
shares    ``publish`` of bytes     a handler per event, and a share for the first topic
========  =======================  ====================================================

A receiver that knows who sends to it has a subscription for each; the first topic is that of the
first of them. One that does not has a single one for all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import antiphon
from antiphon._core import Handle
from antiphon.lab.peers.base import (
    LOOPBACK,
    Endpoint,
    EndpointConfig,
    OnData,
    Sender,
    payload_of,
)
from antiphon.lab.peers.depths import depths_of
from antiphon.lab.peers.readers import ManyReaders
from antiphon.lab.peers.topics.antiphon_bus import FOUND_TIMEOUT, SHARE, open_bus, start_bus
from antiphon.lab.stamps import Reader
from antiphon.topics import Bus, Publisher, Subscription

__all__ = ["ENDPOINT", "TopicEndpoint", "TopicSender"]


GROUP = "239.255.77.78"
PORTS = range(20_000, 30_000)


def _open_bus(config: EndpointConfig) -> Bus:
    if config.host == LOOPBACK:
        return open_bus(config.folder)
    # The folder's name is the same for all processes of a run, and for those of no other.
    port = PORTS[zlib.crc32(config.folder.encode()) % len(PORTS)]
    # Plain like its peers. Off the loopback that has to be said.
    return start_bus(f"mcast://{GROUP}:{port}?interface={config.host}", secret=antiphon.INSECURE)


def _name(target: int, source: int | str) -> str:
    return f"lab/{target}/{source}"


class TopicSender(Sender):
    """A publisher per target; there are subscribers when it is made."""

    def __init__(self, bus: Bus, config: EndpointConfig, *, record: bool = False) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._list = [self._payload] * config.batch
        self._publishers: dict[int, Publisher] = {
            target: bus.publisher(_name(target, config.index), record=record)
            for target in config.targets
        }
        for publisher in self._publishers.values():
            if not publisher.wait_for_subscribers(timeout=FOUND_TIMEOUT):
                raise TimeoutError(f"no subscriber found within {FOUND_TIMEOUT:g} s")

    def burst(self) -> int:
        publishers = list(self._publishers.values())
        if self._config.variant == "batch":
            for publisher in publishers:
                publisher.publish_many(self._list)
            return len(self._list) * len(publishers)
        payload = self._payload
        rounds = max(1, self._config.burst // len(publishers))
        calls = [publisher.publish for publisher in publishers]
        for _ in range(rounds):
            for publish in calls:
                publish(payload)
        return rounds * len(calls)

    def send(self, target: int, data: bytes) -> None:
        self._publishers[target].publish(data)

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.close()


class TopicEndpoint(ManyReaders):
    """One bus; every message is handed to ``on_data``, or counted."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        if len(config.sources) < 2:
            self.on_data = on_data  # a single subscription calls on one thread at a time
        self._bus = self._open(config)
        self._subscriptions: dict[str, Subscription] = {}

    def _open(self, config: EndpointConfig) -> Bus:
        return _open_bus(config)

    def listen(self) -> str:
        own = self.config.index
        names = [_name(own, source) for source in self.config.sources] or [_name(own, "*")]
        batch = self.config.variant == "batch"
        for number, name in enumerate(names):
            share = SHARE if self.config.variant == "shares" and number == 0 else None
            handler = self._batch_handler() if batch else self._handler()
            self._subscriptions[name] = self._bus.subscribe(
                name, handler, batch=batch, share=share, **self._options()
            )
        return self._bus.address

    def _options(self) -> dict[str, Any]:
        """What else subscriptions are made with."""
        return {}

    def _handler(self) -> Callable[[Any], None]:
        take = self._taker()
        return lambda event: take(event.data)

    def _batch_handler(self) -> Callable[[Any], None]:
        if isinstance(self.on_data, Reader):
            reader = self.on_data
            self._readers.append(lambda: (reader.messages, self.expected_size))
            return reader.batch
        take = self._taker()

        def handler(batch: Any) -> None:
            for data in batch:
                take(data)

        return handler

    def _taker(self) -> OnData:
        """Counts for one subscription: those of a bus run on several threads, one on one."""
        n = 0
        last: int | None = None
        on_data = self.on_data
        self._readers.append(lambda: (n, last))

        def take(data: bytes) -> None:
            nonlocal n, last
            n += 1
            last = len(data)
            if on_data is not None:
                on_data(data)

        return take

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: buses of one channel find each other."""

    def sender(self) -> TopicSender:
        return TopicSender(self._bus, self.config)

    def depths(self) -> dict[str, int]:
        return depths_of(self._bus.node)

    def topic_of(self, source: int) -> str:
        return _name(self.config.index, source)

    def topic_facts(self) -> list[dict[str, Any]]:
        return [self._facts_of(name, one) for name, one in self._subscriptions.items()]

    def _facts_of(self, topic: str, subscription: Subscription) -> dict[str, Any]:
        """All that the model of a delay is made from, so that it can be made again later, for any
        stretch of time."""
        handle = subscription._core
        assert isinstance(handle, Handle)  # all of them have a handler
        sums, delays = handle.meter(), handle.delays()
        whole = ("slices", "busy_slices", "full_slices", "resumed_slices", "overruns", "dropped")
        return {
            "topic": topic,
            "arrivals": int(sums["arrived"]),
            "service_seconds": sums["service"],
            "queue_length": int(sums["pending"]),
            **{name: int(sums[name]) for name in whole},
            "handled": int(sums["events"]),
            "service_squares": sums["service_squares"],
            "resumed_seconds": sums["resumed"],
            "resumed_squares": sums["resumed_squares"],
            "waited_seconds": sums["waited"],
            "waited_squares": sums["waited_squares"],
            "queue_seen": int(sums["found"]),
            "responses": int(delays["events"]),
            "response_seconds": delays["sum"],
            "response_classes": list(delays["classes"].items()),
            "capacity": int(sums["capacity"]),
            "share": subscription.share,
            "period": self._bus.node.config.schedule.period,
        }

    def close(self) -> None:
        self._bus.close(drain=1.0)


ENDPOINT: type[Endpoint] = TopicEndpoint

"""Antiphon's topics: a ``Bus`` on ``local://`` in each process, one topic per receiver.

========  =======================  ====================================================
variant   publishes with           subscribes with
========  =======================  ====================================================
callback  ``publish`` of bytes     a handler per event
batch     ``publish_many``         a ``batch=True`` handler
========  =======================  ====================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.lab.peers.base import Endpoint, EndpointConfig, OnData, Sender, payload_of
from antiphon.lab.peers.topics.antiphon_bus import FOUND_TIMEOUT, open_bus
from antiphon.topics import Bus, Publisher, Subscription

__all__ = ["ENDPOINT", "TopicEndpoint"]


def _name(index: int) -> str:
    return f"lab/{index}"


class TopicSender(Sender):
    """A publisher per target; there are subscribers when it is made."""

    def __init__(self, bus: Bus, config: EndpointConfig) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._list = [self._payload] * config.batch
        self._publishers: dict[int, Publisher] = {
            target: bus.publisher(_name(target)) for target in config.targets
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


class TopicEndpoint(Endpoint):
    """One bus; every message is handed to ``on_data``, or counted."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._bus = open_bus(config.folder)
        self._subscription: Subscription | None = None
        self._messages = 0
        self._last: int | None = None

    def listen(self) -> str:
        take = self._take
        handler: Any
        if self.config.variant == "batch":

            def handler(batch: Any) -> None:
                for data in batch:
                    take(data)

        else:

            def handler(event: Any) -> None:
                take(event.data)

        self._subscription = self._bus.subscribe(
            _name(self.config.index), handler, batch=self.config.variant == "batch"
        )
        return self._bus.address

    def _take(self, data: bytes) -> None:
        self._messages += 1
        self._last = len(data)
        if self.on_data is not None:
            self.on_data(data)

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: buses of one channel find each other."""

    def sender(self) -> TopicSender:
        return TopicSender(self._bus, self.config)

    def _count(self) -> tuple[int, int | None]:
        return self._messages, self._last

    def topic_facts(self) -> list[dict[str, Any]]:
        if self._subscription is None:
            return []
        counts = self._subscription.statistics()
        return [
            {
                "topic": _name(self.config.index),
                "arrivals": counts["messages"],
                "service_seconds": counts["handler_ns"] / 1e9,
                "queue_length": counts["pending"],
                "overruns": counts.get("overruns", 0),
            }
        ]

    def close(self) -> None:
        self._bus.close(drain=1.0)


ENDPOINT = TopicEndpoint

"""zenoh, publishers to subscribers between two peers over TCP, reliable and blocking.

As for messages: no scouting, no shared memory, and ``CongestionControl.BLOCK``, which waits where
the default would drop. Both topics share a session and so a link, with one priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from antiphon.lab.peers.base import EndpointConfig, OnData
from antiphon.lab.peers.topics.base import LOAD, PACED, TopicEndpoint, TopicSender
from antiphon.lab.peers.zenoh_pubsub import (
    PublisherSender,
    key_of,
    listening_session,
    open_session,
)

__all__ = ["ENDPOINT", "ZenohTopics"]


class KeySender(PublisherSender, TopicSender):
    """A publisher of one key, which is the topic's number."""

    def __init__(self, session: Any, config: EndpointConfig, topic: int) -> None:
        super().__init__(session, replace(config, targets=(topic,)))

    def publish(self, data: bytes) -> None:
        self._puts[0](data)

    def send(self, target: int, data: bytes) -> None:
        self.publish(data)


class ZenohTopics(TopicEndpoint):
    """One session with the subscribers, one with the publishers."""

    def __init__(
        self,
        config: EndpointConfig,
        on_data: OnData | None = None,
        on_paced: OnData = lambda data: None,
    ) -> None:
        super().__init__(config, on_data, on_paced)
        self._session: Any = None
        self._sending: Any = None

    def listen(self) -> str:
        self._session, address = listening_session()
        for topic in self.topics:
            handler = self._paced_handler() if topic == PACED else self._handler()
            self._session.declare_subscriber(key_of(topic), handler)
        return address

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._sending = open_session([], [addresses[0]])

    def sender(self, topic: int = LOAD) -> KeySender:
        return KeySender(self._sending, self.config, topic)

    def _handler(self) -> Any:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))

        def count(sample: Any) -> None:
            nonlocal n, last
            last = sample.payload.to_bytes()
            n += 1

        if (on_data := self.on_data) is None:
            return count

        def deliver(sample: Any) -> None:
            nonlocal n
            on_data(sample.payload.to_bytes())
            n += 1

        return deliver

    def _paced_handler(self) -> Any:
        on_paced = self.on_paced
        return lambda sample: on_paced(sample.payload.to_bytes())

    def close(self) -> None:
        for session in (self._sending, self._session):
            if session is not None:
                session.close()


ENDPOINT = ZenohTopics

"""MQTT at quality of service 0 with paho-mqtt, through a mosquitto started for the run.

The broker holds no publisher back for a slow subscriber, so a point may report losses; a publisher
waits after each burst until its last message is written, which is the pacing that the client has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from antiphon.lab.peers.base import LOOPBACK, EndpointConfig, OnData
from antiphon.lab.peers.mqtt_mosquitto import (
    START_TIMEOUT,
    Connection,
    PublishSender,
    PubSub,
    topic_of,
)
from antiphon.lab.peers.topics.base import LOAD, PACED, TopicEndpoint, TopicSender

__all__ = ["ENDPOINT", "MqttTopics"]


class TopicPublisher(PublishSender, TopicSender):
    """A publisher of one topic, which is its number."""

    def __init__(self, config: EndpointConfig, topic: int) -> None:
        super().__init__(replace(config, targets=(topic,)))

    def publish(self, data: bytes) -> None:
        self._last = self._publish(self._topics[0], data, self._qos)

    def send(self, target: int, data: bytes) -> None:
        self.publish(data)


class MqttTopics(TopicEndpoint):
    """A client whose network thread calls back for every message."""

    def __init__(
        self,
        config: EndpointConfig,
        on_data: OnData | None = None,
        on_paced: OnData = lambda data: None,
    ) -> None:
        super().__init__(config, on_data, on_paced)
        self._connection: Connection | None = None
        self._subscribed = threading.Event()

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        return PubSub.serve(host)

    def listen(self) -> str:
        (topic,) = self.topics
        self._connection = Connection(self.config.service)
        client = self._connection.client
        client.on_message = self._handler(self.on_paced if topic == PACED else self.on_data)
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.subscribe(topic_of(topic), 0)
        if not self._subscribed.wait(START_TIMEOUT):
            raise TimeoutError(f"mosquitto did not subscribe: {self.fault() or 'no reason given'}")
        return topic_of(topic)

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: the broker is the address."""

    def sender(self, topic: int = LOAD) -> TopicPublisher:
        return TopicPublisher(self.config, topic)

    def _handler(self, on_data: OnData | None) -> Any:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))

        def count(client: Any, data: Any, message: Any) -> None:
            nonlocal n, last
            last = message.payload
            n += 1

        if on_data is None:
            return count

        def deliver(client: Any, data: Any, message: Any) -> None:
            nonlocal n
            on_data(message.payload)
            n += 1

        return deliver

    def fault(self) -> str:
        return self._connection.fault if self._connection is not None else ""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


ENDPOINT = MqttTopics

"""NATS core publish and subscribe with nats-py, through a nats-server started for the run.

NATS delivers at most once and does not hold a publisher back for a slow subscriber, so a point may
report losses; under load, ``flush`` after each burst is the pacing that its documentation offers.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import nats

from antiphon.lab.peers.base import LOOPBACK, EndpointConfig, OnData
from antiphon.lab.peers.nats_core import PublishSender, PubSub, subject_of
from antiphon.lab.peers.requests.loops import LoopThread
from antiphon.lab.peers.topics.base import (
    LOAD,
    NANOS,
    PACED,
    SPIN_NS,
    Pace,
    TopicEndpoint,
    TopicSender,
    timetable,
)

__all__ = ["ENDPOINT", "NatsTopics"]


class SubjectSender(PublishSender, TopicSender):
    """A publisher of one subject, which is the topic's number, with a loop and a client."""

    def __init__(self, config: EndpointConfig, topic: int) -> None:
        super().__init__(replace(config, targets=(topic,)))

    def publish(self, data: bytes) -> None:
        self._run(self._client.publish(self._subjects[0], data))

    def send(self, target: int, data: bytes) -> None:
        self.publish(data)

    def send_on_time(
        self, pace: Pace, size: int, stopped: Callable[[], bool], late: array[int]
    ) -> int:
        # All of it in one run of the loop: nats-py writes in a task of its own.
        return self._loop.run_until_complete(self._send_on_time(pace, size, stopped, late))

    async def _send_on_time(
        self, pace: Pace, size: int, stopped: Callable[[], bool], late: array[int]
    ) -> int:
        publish = self._client.publish
        subject = self._subjects[0]
        sent = 0
        for messages, wait in timetable(pace, size, stopped, late):
            for message in messages:
                await publish(subject, message)
            sent += len(messages)
            # Now its task writes what was published. A sleep of asyncio ends at whole milliseconds
            # of epoll, too late for this: nothing else is to be done here, so the thread sleeps.
            await asyncio.sleep(0)
            if wait > SPIN_NS:
                time.sleep((wait - SPIN_NS) / NANOS)
        return sent


class NatsTopics(TopicEndpoint):
    """Subscriptions with coroutines for callbacks, on a loop in its own thread."""

    def __init__(
        self,
        config: EndpointConfig,
        on_data: OnData | None = None,
        on_paced: OnData = lambda data: None,
    ) -> None:
        super().__init__(config, on_data, on_paced)
        self._loop: LoopThread | None = None
        self._client: Any = None

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        return PubSub.serve(host)

    def listen(self) -> str:
        self._loop = LoopThread()
        self._client = self._loop.run(self._subscribe())
        return subject_of(self.config.index)

    async def _subscribe(self) -> Any:
        client = await nats.connect(self.config.service, allow_reconnect=False)
        for topic in self.topics:
            handler = self._paced_handler() if topic == PACED else self._handler()
            await client.subscribe(subject_of(topic), cb=handler)
        await client.flush()
        return client

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: the server is the address, and the subjects are the topics' numbers."""

    def sender(self, topic: int = LOAD) -> SubjectSender:
        return SubjectSender(self.config, topic)

    def _handler(self) -> Any:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))

        async def count(message: Any) -> None:
            nonlocal n, last
            last = message.data
            n += 1

        if (on_data := self.on_data) is None:
            return count

        async def deliver(message: Any) -> None:
            nonlocal n
            on_data(message.data)
            n += 1

        return deliver

    def _paced_handler(self) -> Any:
        on_paced = self.on_paced

        async def deliver(message: Any) -> None:
            on_paced(message.data)

        return deliver

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._client.close())
            self._loop.close()


ENDPOINT = NatsTopics

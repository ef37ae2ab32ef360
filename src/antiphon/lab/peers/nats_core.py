"""NATS core publish and subscribe with nats-py, through a nats-server started for the run.

NATS delivers at most once and does not hold a publisher back for a slow subscriber, so a point may
report losses; ``flush`` after each burst, a round trip to the server, is the pacing that its
documentation offers. The server listens on a free port of the loopback, logs nothing and stores
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import nats

from antiphon.lab.peers.base import (
    LOOPBACK,
    Endpoint,
    EndpointConfig,
    OnData,
    PullEndpoint,
    Sender,
    payload_of,
)
from antiphon.lab.peers.nats_server import serve_nats

__all__ = ["ENDPOINT", "PubSub"]

START_TIMEOUT = 10.0
STUCK = 20.0


def subject_of(index: int) -> str:
    """The subject that the endpoint ``index`` subscribes to."""
    return f"antiphon.bench.{index}"


class PublishSender(Sender):
    """One loop and one client per sending thread."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._subjects = [subject_of(target) for target in config.targets]
        self._loop = asyncio.new_event_loop()
        self._client: Any = self._run(nats.connect(config.service, allow_reconnect=False))

    def _run(self, work: Coroutine[Any, Any, Any], timeout: float = STUCK) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, timeout))

    def burst(self) -> int:
        rounds = max(1, self._config.burst // len(self._subjects))
        self._run(self._publish(rounds))
        return rounds * len(self._subjects)

    async def _publish(self, rounds: int) -> None:
        publish = self._client.publish
        payload = self._payload
        subjects = self._subjects
        for _ in range(rounds):
            for subject in subjects:
                await publish(subject, payload)
        await self._client.flush()

    def send(self, target: int, data: bytes) -> None:
        self._run(self._client.publish(subject_of(target), data))

    def flush(self, timeout: float) -> None:
        self._run(self._client.flush(), timeout)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._run(self._client.close())
        self._loop.close()


class PubSub(PullEndpoint):
    """A subscriber with a coroutine for a callback, on a loop in its own thread."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._subscribed = threading.Event()

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        return serve_nats(host)

    def listen(self) -> str:
        self._start_receiving()
        if not self._subscribed.wait(START_TIMEOUT) or self.fault():
            raise TimeoutError(f"nats did not subscribe: {self.fault() or 'no reason given'}")
        return subject_of(self.config.index)

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: the server is the address, and the subjects follow from the indexes."""

    def sender(self) -> PublishSender:
        return PublishSender(self.config)

    def _receive(self) -> None:
        try:
            asyncio.run(self._subscribe())
        finally:
            self._subscribed.set()

    async def _subscribe(self) -> None:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        on_data = self.on_data

        async def count(message: Any) -> None:
            nonlocal n, last
            last = message.data
            n += 1

        async def deliver(message: Any) -> None:
            nonlocal n
            if on_data is not None:
                on_data(message.data)
            n += 1

        client: Any = await nats.connect(self.config.service, allow_reconnect=False)
        try:
            handler = count if on_data is None else deliver
            await client.subscribe(subject_of(self.config.index), cb=handler)
            await client.flush()
            self._subscribed.set()
            while not self._stop.is_set():
                await asyncio.sleep(0.1)
        finally:
            await client.close()

    def close(self) -> None:
        self._stop_receiving()


ENDPOINT: type[Endpoint] = PubSub

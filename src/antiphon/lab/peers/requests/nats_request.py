"""NATS requests with nats-py, through a nats-server started for the run.

nats-py knows only coroutines: threads hand theirs to a loop in another thread, as a program with
threads has to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import nats

from antiphon.lab.peers.base import LOOPBACK, EndpointConfig
from antiphon.lab.peers.nats_core import PubSub, subject_of
from antiphon.lab.peers.requests.base import STUCK, Call, Caller, RequestEndpoint, TaskCaller
from antiphon.lab.peers.requests.loops import LoopThread

__all__ = ["ENDPOINT", "NatsRequest"]


class NatsRequest(RequestEndpoint):
    """A subscription that responds, and clients that request."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self._loop = LoopThread()
        self._answering: Any = None
        self._asking: Any = None

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        return PubSub.serve(host)

    def listen(self) -> str:
        self._answering = self._loop.run(self._subscribe())
        return subject_of(self.config.index)

    async def _connect(self) -> Any:
        return await nats.connect(self.config.service, allow_reconnect=False)

    async def _subscribe(self) -> Any:
        async def respond(message: Any) -> None:
            await message.respond(message.data)

        client = await self._connect()
        await client.subscribe(subject_of(self.config.index), cb=respond)
        await client.flush()
        return client

    def connect(self, addresses: Any) -> None:
        if not self.config.tasks:
            self._asking = self._loop.run(self._connect())

    def caller(self) -> Caller:
        return Caller([self._call(subject_of(target)) for target in self.config.targets])

    def _call(self, subject: str) -> Call:
        run = self._loop.run
        client = self._asking
        return lambda data: run(_request(client, subject, data))

    async def task_caller(self) -> TaskCaller:
        client = await self._connect()
        calls = [partial(_request, client, subject_of(target)) for target in self.config.targets]
        return TaskCaller(calls, client.close)

    def close(self) -> None:
        for client in (self._asking, self._answering):
            if client is not None:
                self._loop.run(client.close())
        self._loop.close()


async def _request(client: Any, subject: str, data: bytes) -> bytes:
    message = await client.request(subject, data, timeout=STUCK)
    answer: bytes = message.data
    return answer


ENDPOINT = NatsRequest

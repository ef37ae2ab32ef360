"""zenoh: a queryable that replies with the payload it was asked with, and ``session.get``.

Two peers over TCP, without scouting or shared memory. The Python API has no coroutines: a task
waits for a future that zenoh's callback resolves on the task's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from antiphon.lab.peers.base import EndpointConfig
from antiphon.lab.peers.requests.base import STUCK, Caller, RequestEndpoint, TaskCaller
from antiphon.lab.peers.zenoh_pubsub import key_of, listening_session, open_session

__all__ = ["ENDPOINT", "Queryable"]

FOUND_TIMEOUT = 10.0


class Queryable(RequestEndpoint):
    """One session that answers, one that asks."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self._session: Any = None
        self._asking: Any = None

    def listen(self) -> str:
        self._session, address = listening_session(host=self.config.host)
        self._session.declare_queryable(key_of(self.config.index), _echo)
        return address

    def connect(self, addresses: Mapping[int, str]) -> None:
        # A session cannot dial once it is open, so asking has a session of its own.
        self._asking = open_session([], [addresses[target] for target in self.config.targets])
        deadline = time.monotonic() + FOUND_TIMEOUT
        for target in self.config.targets:
            # Before the queryable is known, a query ends without an answer.
            while not self._found(target):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no queryable found within {FOUND_TIMEOUT:g} s")
                time.sleep(0.02)

    def _found(self, target: int) -> bool:
        try:
            return self._get(key_of(target), b"found") == b"found"
        except LookupError:
            return False

    def _get(self, key: str, data: bytes) -> bytes:
        for reply in self._asking.get(key, payload=data, timeout=STUCK):
            return _payload(reply)
        raise LookupError("the query ended without an answer")

    def caller(self) -> Caller:
        return Caller([partial(self._get, key_of(target)) for target in self.config.targets])

    async def task_caller(self) -> TaskCaller:
        loop = asyncio.get_running_loop()

        async def get(key: str, data: bytes) -> bytes:
            answer: asyncio.Future[bytes] = loop.create_future()

            def on_reply(reply: Any) -> None:
                loop.call_soon_threadsafe(_settle, answer, reply)

            self._asking.get(key, on_reply, payload=data, timeout=STUCK)
            return await answer

        return TaskCaller([partial(get, key_of(target)) for target in self.config.targets])

    def close(self) -> None:
        for session in (self._asking, self._session):
            if session is not None:
                session.close()


def _echo(query: Any) -> None:
    # As bytes, which is what every other adapter's handler gets.
    query.reply(query.key_expr, query.payload.to_bytes())


def _settle(answer: asyncio.Future[bytes], reply: Any) -> None:
    try:
        answer.set_result(_payload(reply))
    except LookupError as error:
        answer.set_exception(error)


def _payload(reply: Any) -> bytes:
    if reply.ok is None:
        raise LookupError(f"the query failed: {reply.err.payload.to_string()}")
    data: bytes = reply.ok.payload.to_bytes()
    return data


ENDPOINT = Queryable

"""What the adapters of asyncio libraries share: a loop in a thread, and answers by their number."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from antiphon.lab.peers.requests.base import STUCK

__all__ = ["LoopThread", "Waiting"]

T = TypeVar("T")


class LoopThread:
    """An event loop on its own thread: what serves there goes on until ``close``."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, done on the loop while the calling thread waits."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(STUCK)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)


class Waiting:
    """The calls of one connection that wait for their answers. Used on one loop."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[bytes]] = {}
        self._next = 0
        self._create = asyncio.get_running_loop().create_future

    def add(self) -> tuple[int, asyncio.Future[bytes]]:
        """A number for a new call, and the future of its answer."""
        self._next += 1
        future = self._futures[self._next] = self._create()
        return self._next, future

    def answer(self, number: int, data: bytes) -> None:
        """The answer has come."""
        self._futures.pop(number).set_result(data)

    def fail(self, error: Exception) -> None:
        """No answer will come any more."""
        for future in self._futures.values():
            future.set_exception(error)
        self._futures.clear()

"""Messages for whoever iterates over a group, in a bounded queue.

The core's task puts them in. When the queue is full, by number or by bytes, it pauses until half of
that is left, and senders wait by and by. Before anybody has begun to iterate, the oldest are lost
instead and counted: a member that only sends must not hold up the group.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from antiphon.groups.view import Member
from antiphon.node.loops import refuse_to_block

__all__ = ["Reading"]

_CAPACITY = 4096
_CAPACITY_BYTES = 16 << 20  # and one message more, of whatever size


class Reading:
    """An iterator of ``(source, data)``, for several threads and coroutines at once."""

    def __init__(self, pause: Callable[[bool], None]) -> None:
        self._pause = pause
        self._messages: deque[tuple[Member, bytes]] = deque()
        self._bytes = 0
        self._came = threading.Condition()
        self._waiting = 0
        self._awaiting: deque[asyncio.Future[None]] = deque()
        self._paused = self._closed = False
        self._stalled = 0.0  # since when nobody has taken anything, while it is paused
        self.begun = False
        self.unread = 0

    def put(self, source: Member, data: bytes) -> None:
        """On a scheduler thread."""
        with self._came:
            self._messages.append((source, data))
            self._bytes += len(data)
            if self._holds(_CAPACITY, _CAPACITY_BYTES):
                if self.begun:
                    self._paused = True
                    self._stalled = time.monotonic()
                    self._pause(True)
                else:
                    self._drop_oldest()
            self._wake_one()

    def _holds(self, number: int, size: int) -> bool:
        return len(self._messages) >= number or self._bytes >= size

    def _drop_oldest(self) -> None:
        while len(self._messages) > 1 and self._holds(_CAPACITY, _CAPACITY_BYTES):
            self._bytes -= len(self._messages.popleft()[1])
            self.unread += 1

    @property
    def stalled(self) -> float:
        """Seconds for which nobody has taken anything, although no more would fit."""
        with self._came:
            return time.monotonic() - self._stalled if self._paused else 0.0

    def close(self) -> None:
        """What is here can still be read; then it ends."""
        with self._came:
            self._closed = True
            self._came.notify_all()
            while self._awaiting:
                self._wake_one()

    def _take(self) -> tuple[Member, bytes] | None:
        """With the lock."""
        if not self._messages:
            return None
        taken = self._messages.popleft()
        self._bytes -= len(taken[1])
        if self._paused:
            self._stalled = time.monotonic()
            if not self._holds(_CAPACITY // 2 + 1, _CAPACITY_BYTES // 2 + 1):
                self._paused = False
                self._pause(False)
        return taken

    # --- threads ----------------------------------------------------------------------------

    def _next(self) -> tuple[Member, bytes] | None:
        with self._came:
            while True:
                taken = self._take()
                if taken is not None or self._closed:
                    return taken
                self._waiting += 1
                try:
                    self._came.wait(0.5)
                finally:
                    self._waiting -= 1

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Member, bytes]:
        with self._came:
            taken = self._take()
        if taken is None:
            refuse_to_block("iterating over a group", "'async for'")
            taken = self._next()
        if taken is None:
            raise StopIteration
        return taken

    # --- coroutines -------------------------------------------------------------------------

    def _wake_one(self) -> None:
        """With the lock. A thread and a coroutine, if both wait: who comes too late waits on."""
        if self._waiting:
            self._came.notify()
        while self._awaiting:
            future = self._awaiting.popleft()
            try:
                future.get_loop().call_soon_threadsafe(_settle, future)
                return
            except RuntimeError:
                continue  # its loop is closed, and nobody waits there

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Member, bytes]:
        """It is taken where it is returned: who is cancelled while it waits has taken nothing."""
        while True:
            with self._came:
                taken = self._take()
                if taken is not None:
                    return taken
                if self._closed:
                    raise StopAsyncIteration
                future = asyncio.get_running_loop().create_future()
                self._awaiting.append(future)
            try:
                await future
            except BaseException:
                self._give_up(future)
                raise

    def _give_up(self, future: asyncio.Future[None]) -> None:
        with self._came:
            if future in self._awaiting:
                self._awaiting.remove(future)
            elif self._messages:
                self._wake_one()  # it was woken for one that is another's now


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""Messages for whoever iterates over a group, in a bounded queue.

The core's task puts them in. When the queue is full it pauses until it is half empty, and
senders wait by and by. Before anybody has begun to iterate, the oldest are lost instead and
counted: a member that only sends must not hold up the group.
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


class Reading:
    """An iterator of ``(source, data)``, for several threads and coroutines at once."""

    def __init__(self, pause: Callable[[bool], None]) -> None:
        self._pause = pause
        self._messages: deque[tuple[Member, bytes]] = deque()
        self._came = threading.Condition()
        self._waiting = 0
        self._paused = self._closed = False
        self._stalled = 0.0  # since when nobody has taken anything, while it is paused
        self.begun = False
        self.unread = 0

    def put(self, source: Member, data: bytes) -> None:
        """On a scheduler thread."""
        with self._came:
            self._messages.append((source, data))
            if len(self._messages) >= _CAPACITY:
                if self.begun:
                    self._paused = True
                    self._stalled = time.monotonic()
                    self._pause(True)
                else:
                    self._messages.popleft()
                    self.unread += 1
            if self._waiting:
                self._came.notify()

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

    def _take(self) -> tuple[Member, bytes] | None:
        """With the lock."""
        if not self._messages:
            return None
        taken = self._messages.popleft()
        if self._paused:
            self._stalled = time.monotonic()
            if len(self._messages) <= _CAPACITY // 2:
                self._paused = False
                self._pause(False)
        return taken

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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Member, bytes]:
        with self._came:
            taken = self._take()
        if taken is None:
            taken = await asyncio.to_thread(self._next)
        if taken is None:
            raise StopAsyncIteration
        return taken

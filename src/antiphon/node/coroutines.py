"""Handlers that are coroutines: run on the event loop that was running when the node started."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from antiphon._core import FeedCore, HeldCore
from antiphon.node.loops import door_of

__all__ = ["CoroutineHandler", "numbers"]

numbers = itertools.count()
"""Through an event loop's door, beside the ids of requests, which begin somewhere in 64 bits."""

_PER_TURN = 256
"""Messages taken before the loop has another turn."""

AsyncHandler = Callable[[int, Any], Coroutine[Any, Any, Any]]


class CoroutineHandler:
    """Takes messages from the core and runs a coroutine for each, one at a time if ``ordered``.

    A message counts as handled when its coroutine ends, so no more are under way than the
    registration's capacity. Everything here but `start` and `close` happens on the loop's thread.
    """

    def __init__(
        self,
        core: FeedCore,
        handler: AsyncHandler,
        ordered: bool,
        on_error: Callable[[int, BaseException], None],
    ) -> None:
        self._core = core
        self._handler = handler
        self._ordered = ordered
        self._on_error = on_error
        self._number = next(numbers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop's own thread."""
        self._loop = loop
        door = door_of(loop)
        door.calls[self._number] = self._ready.set if self._ordered else self._spread
        self._core.tell(door.core, self._number)
        if self._ordered:
            self._keep(loop.create_task(self._one_by_one()))

    def close(self) -> None:
        """No coroutine begins after this; those that run are left to end. Any thread."""
        self._core.close()

    def statistics(self) -> dict[str, Any]:
        return self._core.statistics()

    @property
    def closed(self) -> bool:
        return self._core.closed

    async def _one_by_one(self) -> None:
        while not self._core.closed:
            self._ready.clear()  # before looking: what comes afterwards sets it again
            taken = self._core.take(_PER_TURN)
            for item in taken:
                await self._handle(*item)
            if not taken:
                await self._ready.wait()

    def _spread(self) -> None:
        assert self._loop is not None
        taken = self._core.take(_PER_TURN)
        for item in taken:
            self._keep(self._loop.create_task(self._handle(*item)))
        if len(taken) == _PER_TURN:
            self._loop.call_soon(self._spread)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(
        self, source: int, message: Any, held: HeldCore, error: BaseException | None
    ) -> None:
        if error is None:
            try:
                result = await self._handler(source, message)
            except asyncio.CancelledError as cancelled:
                held.fail(cancelled)
                raise
            except Exception as failure:
                error = failure
            else:
                held.finish(result)
                return
        held.fail(error)
        self._on_error(source, error)

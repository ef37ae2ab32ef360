"""Handlers that are coroutines: run on the event loop that was running when the node started."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Coroutine, Iterator
from types import FunctionType
from typing import Any, cast

from antiphon._core import FeedCore, HeldCore
from antiphon.errors import Closed, ConfigError, QueueFull
from antiphon.node.later import Later
from antiphon.node.loops import close_door, door_of

__all__ = ["CoroutineHandler", "is_coroutine", "no_loop", "numbers"]

numbers = itertools.count()
"""Through an event loop's door, beside the ids of requests, which begin somewhere in 64 bits."""

_PER_TURN = 256
"""Messages taken before the loop has another turn."""

_ALL = 1 << 20

_ANSWERS = 1 << 20
"""Answers to a peer queue apart from what is sent to it."""

AsyncHandler = Callable[[int, Any], Coroutine[Any, Any, Any]]


class _Task(asyncio.Task[None]):
    """Of a handler. Tells the end of its loop from a cancellation by something that runs there.

    The first is the end of the handler too: whoever ends a loop cancels its tasks while it stands
    still, as `asyncio.run` does, and waits for them. The second is the failure of one message.
    """

    ends = False

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.get_loop().is_running():
            self.ends = True
        return super().cancel(msg)

    async def calm(self) -> None:
        """What is left of a cancellation is not the next message's. In this task."""
        while self.cancelling() and not self.ends:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # one that is still to be raised is raised here
            self.uncancel()
        if self.ends:
            raise asyncio.CancelledError


def _this() -> _Task:
    return cast("_Task", asyncio.current_task())


def is_coroutine(handler: object) -> bool:
    """Whether calling it makes a coroutine: an ``async def``, or an object whose call is one."""
    if type(handler) is FunctionType:
        return bool(handler.__code__.co_flags & inspect.CO_COROUTINE)
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        type(handler).__call__
    )


def no_loop(what: str = "node") -> ConfigError:
    """For a handler that has no event loop to run on."""
    return ConfigError(
        f"an 'async def' handler runs on the event loop that is running when the {what} starts, "
        f"and there is none here; start it in a coroutine, with 'async with {what}:'",
        setting="handler",
    )


class CoroutineHandler:
    """Takes messages from the core and runs a coroutine for each, one at a time if ``ordered``.

    A message counts as handled when its coroutine ends, so no more are under way than the
    registration's capacity. Everything here but `close` and `leave` happens on the loop's thread.
    """

    def __init__(
        self,
        core: FeedCore,
        handler: AsyncHandler,
        ordered: bool,
        on_error: Callable[[int, BaseException], None],
        later: Later,
    ) -> None:
        self._core = core
        self._handler = handler
        self._ordered = ordered
        self._on_error = on_error
        self._later = later
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
            self._keep(_Task(self._one_by_one(), loop=loop))

    def close(self) -> None:
        """No coroutine begins after this; those that run are left to end. Any thread."""
        self._core.close()
        self.leave()

    def leave(self) -> None:
        """The event loop forgets it. Any thread."""
        loop = self._loop
        if loop is not None:
            close_door(loop, self._number, lambda: self._leave(loop))
            if loop.is_closed():
                self._loop = None

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        door_of(loop).calls.pop(self._number, None)
        self._ready.set()
        self._loop = None

    def statistics(self) -> dict[str, Any]:
        return self._core.statistics()

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def busy(self) -> bool:
        """Whether messages wait for it, or coroutines run, on a loop that can run them."""
        return self._loop is not None and self._loop.is_running() and self._core.busy

    async def _one_by_one(self) -> None:
        task = _this()
        while not self._core.closed:
            left: Iterator[Any] = iter(())
            try:
                await task.calm()  # whatever has cancelled its wait
                self._ready.clear()  # before looking: what comes afterwards sets it again
                taken = self._core.take(_PER_TURN)
                left = iter(taken)
                for item in left:
                    await self._handle(*item)
                    await task.calm()
                if taken:
                    await asyncio.sleep(0)  # handlers that never wait leave the loop its turns
                else:
                    await self._ready.wait()
            except asyncio.CancelledError as cancelled:
                if task.ends:  # and so do those behind it
                    for source, _, held, _ in itertools.chain(left, self._core.take(_ALL)):
                        self._deliver(source, held, held.fail(cancelled))
                    raise

    def _spread(self) -> None:
        if self._loop is None:
            return
        taken = self._core.take(_PER_TURN)
        for item in taken:
            self._keep(_Task(self._handle(*item), loop=self._loop))
        if len(taken) == _PER_TURN:
            self._loop.call_soon(self._spread)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(
        self, source: int, message: Any, held: HeldCore, error: BaseException | None
    ) -> None:
        if self._core.closed:  # taken before it was
            error = Closed("the handler was closed", what="handler")
        if error is None:
            try:
                result = await self._handler(source, message)
                self._deliver(source, held, held.finish(result))
                return
            except asyncio.CancelledError as cancelled:
                if _this().ends:
                    self._deliver(source, held, held.fail(cancelled))
                    raise
                # It has cancelled itself, or everything here, or what it awaited was cancelled:
                # this message has failed, and the next is handled.
                error = cancelled
            except Exception as failure:
                error = failure
        self._deliver(source, held, held.fail(error))
        if not isinstance(error, Closed):
            self._on_error(source, error)

    def _deliver(self, source: int, held: HeldCore, sent: bool) -> None:
        """An answer that must wait does so elsewhere, and not on the loop.

        One that nobody can wait for is counted as lost when ``held`` goes.
        """
        if not sent:
            with contextlib.suppress(Closed, QueueFull):
                self._later.add(-_ANSWERS - source, held.deliver, sender=held)

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
    still, as `asyncio.run` does, and waits for them. The second is the end of this task, and the
    failure of the message that it has in hand; another task goes on with the next.
    """

    ends = False
    source: int | None = None
    """Of its only message, before that is handled."""

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.get_loop().is_running():
            self.ends = True
        return super().cancel(msg)


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
        self._running: set[_Task] = set()
        self._ready = asyncio.Event()
        self._left: Iterator[Any] = iter(())
        """What the task of an ordered handler has taken and not begun."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop's own thread."""
        self._loop = loop
        door = door_of(loop)
        door.calls[self._number] = self._ready.set if self._ordered else self._spread
        self._core.tell(door.core, self._number)
        if self._ordered:
            self._begin(loop)

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

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        task = _Task(self._one_by_one(), loop=loop)
        self._running.add(task)
        task.add_done_callback(self._go_on)

    def _go_on(self, task: asyncio.Task[None]) -> None:
        """When the task of an ordered handler is over."""
        over = cast("_Task", task)
        self._running.discard(over)
        if over.ends:  # and so do those behind it
            for source, _, held, _ in itertools.chain(self._left, self._core.take(_ALL)):
                self._deliver(source, held, held.fail(asyncio.CancelledError()))
        elif self._loop is not None and not self._core.closed:
            self._begin(self._loop)

    async def _one_by_one(self) -> None:
        task = _this()
        taken: Any = ()
        while not self._core.closed:
            for item in self._left:
                await self._handle(*item)
                if task.cancelling():  # what is left of that is not the next message's
                    raise asyncio.CancelledError
            if taken:
                await asyncio.sleep(0)  # handlers that never wait leave the loop its turns
            self._ready.clear()  # before looking: what comes afterwards sets it again
            taken = self._core.take(_PER_TURN)
            self._left = iter(taken)
            if not taken:
                await self._ready.wait()

    def _spread(self) -> None:
        if self._loop is None:
            return
        taken = self._core.take(_PER_TURN)
        for item in taken:
            task = _Task(self._handle(*item), loop=self._loop)
            task.source = item[0]
            self._running.add(task)
            task.add_done_callback(self._let_go)
        if len(taken) == _PER_TURN:
            self._loop.call_soon(self._spread)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        """When the task of one message is over, perhaps cancelled before it began."""
        over = cast("_Task", task)
        self._running.discard(over)
        if over.source is not None and not over.ends:
            self._on_error(over.source, asyncio.CancelledError())

    async def _handle(
        self, source: int, message: Any, held: HeldCore, error: BaseException | None
    ) -> None:
        task = _this()
        task.source = None
        if self._core.closed:  # taken before it was
            error = Closed("the handler was closed", what="handler")
        if error is None:
            try:
                result = await self._handler(source, message)
                self._deliver(source, held, held.finish(result))
                return
            except asyncio.CancelledError as cancelled:
                if task.ends:
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

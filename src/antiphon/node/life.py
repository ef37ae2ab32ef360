"""Beginning and end, the same for a node and for what owns one: ``with``, `close` and its twin."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from antiphon._core import on_scheduler_thread
from antiphon.errors import Closed, WouldBlock
from antiphon.node.future import Future, Job
from antiphon.node.loops import refuse_to_block
from antiphon.node.waits import check_drain

if TYPE_CHECKING:
    from antiphon.node.node import Node

__all__ = ["Life", "Owner", "begin", "end"]

log = logging.getLogger("antiphon.node")

_PAUSE = 0.25


class Life:
    """From `start` to `close`: ``_state`` is new, then running, then closed."""

    _name: str
    """What messages call it."""

    _state: str

    if TYPE_CHECKING:

        @property
        def _forked(self) -> bool: ...

        def _close_now(self, drain: float) -> None:
            """The end itself, on a thread that may wait."""

    def start(self) -> Self:
        """Begins. ``with`` does it."""
        raise NotImplementedError

    def close(self, drain: float = 5.0) -> None:
        """Ends it; blocks for at most about ``drain`` seconds, plus one.

        What came is handled and what was sent or published goes on its way, for at most ``drain``
        seconds. Everyone who waits wakes with `Closed`, and all threads are joined; a handler
        that does not return in time is left to itself and logged. A second call does nothing.
        Inside a handler it raises `WouldBlock`: the handler would wait for itself.
        """
        if on_scheduler_thread():
            raise WouldBlock(
                "close() inside a handler would wait for that handler; close from another thread"
            )
        if self._forked:
            return
        seconds = check_drain(drain)
        if self._state == "running":
            refuse_to_block("close()", "close_async() or 'async with'")
        self._close_now(seconds)

    def close_async(self, drain: float = 5.0) -> Future[None]:
        """`close` for a coroutine; the work is done by a thread of its own."""
        if self._forked:
            return Job.of(None)  # as `close`: the parent's, and its threads are not here
        job: Job[None] = Job()
        work = functools.partial(self._close_now, check_drain(drain))
        threading.Thread(target=job.run, args=(work,), name="ap-close").start()
        return job

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is closing."""
        return self._state == "closed"

    def __enter__(self) -> Self:
        # Leaving would wait: better to say so before anything has begun.
        refuse_to_block(f"'with {self._name}:'", f"'async with {self._name}:'")
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=5.0 if kind is None else 0.0)

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close_async(drain=5.0 if kind is None else 0.0)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} holds sockets and threads; make one in each process instead"
        )


class Owner(Life):
    """A bus or a broker: something over a node, with a thread that does its rounds."""

    node: Node
    """The node that everything runs over."""

    _asks = False
    """Whether `start` has to wait for somebody's answer first."""

    def __init__(self) -> None:
        self._state = "new"
        self._ended = threading.Event()  # its node may go on
        self._waiting: list[Job[None]] = []

    @property
    def _forked(self) -> bool:
        return self.node._forked

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is closing, by itself or with a node that it shares."""
        return self._state == "closed" or self.node.closed

    def _prepare(self) -> None:
        """Asks and waits for it; where a loop runs, on another thread."""

    def _turn(self) -> None:
        """What its own thread does again and again; waits by itself when there is nothing."""
        raise NotImplementedError

    def _run(self) -> None:
        while self._state == "running":
            try:
                self._turn()
            except Exception:  # everybody relies on this thread
                log.exception("a %s could not do its rounds; it goes on trying", self._name)
                time.sleep(_PAUSE)

    def wait(self) -> None:
        """Blocks until it is closed, or SIGINT or SIGTERM arrives (on the main thread)."""
        self.node._wait(self._ended)

    def wait_async(self) -> Future[None]:
        """Done when it is closed. Signals are the event loop's to handle."""
        self.node._check_process()
        job: Job[None] = Job()
        self._waiting.append(job)
        if self._ended.is_set():
            job.set(None)
        self.node._tell_closed(job)
        return job

    def _end_waits(self) -> None:
        """It was closed: who waits for that is told."""
        self._ended.set()
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            job.set(None)

    async def __aenter__(self) -> Self:
        if self._asks:
            self.node.start()  # here: it remembers the loop for handlers that are coroutines
            await asyncio.to_thread(self._prepare)
        return self.start()

    def _check_open(self) -> None:
        self.node._check_process()
        if self._state == "closed":
            raise Closed(f"this {self._name} is closed; make a new one", what=self._name)
        if self.node.closed:
            raise Closed(
                f"the node of this {self._name} was closed, and so is the {self._name}; make both "
                "anew",
                what=self._name,
            )


_running: dict[Owner, None] = {}


def begin(one: Owner) -> None:
    """It is closed when the interpreter ends, if nobody has done it before."""
    _running[one] = None


def end(one: Owner) -> None:
    """It was closed."""
    _running.pop(one, None)


def _close_running() -> None:
    for one in reversed(list(_running)):  # clients before their broker
        one.close(drain=1.0)


# As with nodes: before `threading` joins its own threads.
threading._register_atexit(_close_running)  # type: ignore[attr-defined]

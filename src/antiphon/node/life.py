"""Beginning and end of whatever owns a node: ``with``, ``async with``, `close` and its twin."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, NoReturn, Self

from antiphon._core import on_scheduler_thread
from antiphon.errors import Closed, WouldBlock
from antiphon.node.future import Future, Job
from antiphon.node.loops import refuse_to_block
from antiphon.node.node import Node

__all__ = ["Life", "begin", "end"]

log = logging.getLogger("antiphon.node")

_PAUSE = 0.25


class Life(ABC):
    """A bus or a broker, from `start` to `close`. All methods are thread-safe."""

    _name: ClassVar[str]
    """What messages call it."""

    node: Node
    """The node that everything runs over."""

    def __init__(self) -> None:
        self._state = "new"  # then running, then closed

    @abstractmethod
    def start(self) -> Self:
        """Begins. ``with`` does it."""

    _asks = False
    """Whether `start` has to wait for somebody's answer first."""

    def _prepare(self) -> None:
        """Asks and waits for it; where a loop runs, on another thread."""

    @abstractmethod
    def _close_now(self, drain: float) -> None:
        """The end itself, on a thread that may wait."""

    @abstractmethod
    def _turn(self) -> None:
        """What its own thread does again and again; waits by itself when there is nothing."""

    def _run(self) -> None:
        while self._state == "running":
            try:
                self._turn()
            except Exception:  # everybody relies on this thread
                log.exception("a %s could not do its rounds; it goes on trying", self._name)
                time.sleep(_PAUSE)

    def close(self, drain: float = 5.0) -> None:
        """Ends it, and its node if that is its own; blocks for about ``drain`` seconds at most.

        What was published is delivered and what came is handled in that time. A second call does
        nothing; inside a handler it raises `WouldBlock`.
        """
        if on_scheduler_thread():
            raise WouldBlock(
                "close() inside a handler would wait for that handler; close from another thread"
            )
        if self.node._forked:
            return
        if self._state == "running":
            refuse_to_block("close()", "close_async() or 'async with'")
        self._close_now(drain)

    def close_async(self, drain: float = 5.0) -> Future[None]:
        """`close` for a coroutine; the work is done by a thread of its own."""
        job: Job[None] = Job()
        work = functools.partial(self._close_now, drain)
        threading.Thread(target=job.run, args=(work,), name="ap-close").start()
        return job

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is closing."""
        return self._state == "closed"

    def wait(self) -> None:
        """Blocks until its node is closed, or SIGINT or SIGTERM arrives."""
        self.node.wait()

    def wait_async(self) -> Future[None]:
        """Done when its node is closed. Signals are the event loop's to handle."""
        return self.node.wait_async()

    def __enter__(self) -> Self:
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
        if self._asks:
            self.node.start()  # here: it remembers the loop for handlers that are coroutines
            await asyncio.to_thread(self._prepare)
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

    def _check_open(self) -> None:
        self.node._check_process()
        if self._state == "closed":
            raise Closed(f"this {self._name} is closed; make a new one", what=self._name)


_running: dict[Life, None] = {}


def begin(one: Life) -> None:
    """It is closed when the interpreter ends, if nobody has done it before."""
    _running[one] = None


def end(one: Life) -> None:
    """It was closed."""
    _running.pop(one, None)


def _close_running() -> None:
    for one in reversed(list(_running)):  # clients before their broker
        one.close(drain=1.0)


# As with nodes: before `threading` joins its own threads.
threading._register_atexit(_close_running)  # type: ignore[attr-defined]

"""The future of a message that is yet to come.

It takes nothing from its inbox before it is asked: by ``await``, ``result()`` or ``done()``. One
that took a message by itself, when it comes, would lose it with a task that is cancelled between
the message and the task's next turn; and one that is never asked would keep it from other readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon._core import InboxCore
from antiphon.errors import Closed, ReceiveTimeout, RequestCancelled
from antiphon.node.future import Future, wake, wake_all
from antiphon.node.loops import refuse_to_block
from antiphon.node.waits import check_timeout

if TYPE_CHECKING:
    from antiphon.node.inbox import Inbox

__all__ = ["ReceiveFuture"]

T = TypeVar("T")


class ReceiveFuture(Future[T]):
    """What `Inbox.receive_async` returns."""

    __slots__ = (
        "_began",
        "_blocked",
        "_core",
        "_deadline",
        "_inbox",
        "_lock",
        "_outcome",
        "_process",
        "_timeout",
        "_waiting",
    )

    def __init__(self, inbox: Inbox[Any], core: InboxCore, timeout: float | None) -> None:
        self._inbox = inbox
        self._core = core
        self._timeout = patience = check_timeout(timeout)
        self._began = time.monotonic()
        self._deadline = None if patience is None else self._began + patience
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal handler may cancel what its thread looks at
        self._outcome: tuple[T] | BaseException | None = None
        self._blocked = 0  # threads inside result()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    # --- the outcome --------------------------------------------------------------------------

    def done(self) -> bool:
        """Takes a message if there is one: whoever holds this future has it then."""
        if self._ended():
            return True
        self._check_process()
        with self._lock:
            if self._ended():
                return True
            try:
                item: Any = self._core.try_receive()
            except Exception as error:
                outcome: tuple[T] | BaseException = error
            else:
                if item is not None:
                    outcome = (item,)
                elif self._deadline is None or time.monotonic() < self._deadline:
                    return False
                else:
                    outcome = self._late()
            waiting = self._end(outcome)
        self._tell(waiting)
        return True

    def cancel(self) -> bool:
        if self._ended() or os.getpid() != self._process:
            return False
        with self._lock:
            if self._ended():
                return False
            what = self._inbox._what
            waiting = self._end(
                RequestCancelled(
                    f"receiving for {what} was cancelled; what comes is for others",
                    kind=self._core.kind,
                )
            )
        self._tell(waiting)
        return True

    def _ended(self) -> bool:
        return self._outcome is not None

    def _end(
        self, outcome: tuple[T] | BaseException
    ) -> list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]:
        self._outcome = outcome
        waiting, self._waiting = self._waiting, []
        return waiting

    def _tell(self, waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]) -> None:
        """Wakes everybody who waits for this future, wherever it is."""
        if self._blocked:
            self._core.nudge()
        wake_all(waiting)

    def _late(self) -> ReceiveTimeout:
        return ReceiveTimeout(
            f"nothing came for {self._inbox._what} in {self._timeout} s; wait longer, or look "
            "whether anybody sends",
            waited=time.monotonic() - self._began,
        )

    def _check_process(self) -> None:
        # Before the lock: in a forked child a thread that is not there may hold it.
        if os.getpid() != self._process:
            raise Closed("this future belongs to the process that this one was forked from")

    def _take(self) -> T:
        outcome = self._outcome
        if isinstance(outcome, tuple):
            return outcome[0]
        assert outcome is not None
        raise outcome

    # --- whoever waits for it -----------------------------------------------------------------

    def result(self, timeout: float | None = None) -> T:
        timeout = check_timeout(timeout)
        if self.done():
            return self._take()
        refuse_to_block("result()", "await")
        until = None if timeout is None else time.monotonic() + timeout
        points = [point for point in (until, self._deadline) if point is not None]
        with self._lock:
            self._blocked += 1
        try:
            while True:
                nudges = self._core.nudges  # before looking: what comes afterwards ends the wait
                if self.done():
                    return self._take()
                now = time.monotonic()
                if until is not None and now >= until:
                    raise TimeoutError(f"no result in {timeout} s; it may still come")
                self._core.wait(nudges, max(0.0, min(points) - now) if points else None)
        finally:
            with self._lock:
                self._blocked -= 1
            if self._core.pending:
                # A message may have woken this thread, which leaves without it: the next one is to.
                self._core.nudge()

    def __await__(self) -> Generator[Any, None, T]:
        while not self.done():
            loop = asyncio.get_running_loop()
            came: asyncio.Future[None] = loop.create_future()
            mine = (loop, came)
            with self._lock:
                if self._ended():
                    break
                self._waiting.append(mine)
            timer = None
            if self._deadline is not None:
                timer = loop.call_later(max(0.0, self._deadline - time.monotonic()), wake, came)
            self._inbox._expect(loop, came)
            try:
                yield from came
            except BaseException:
                self.cancel()
                raise
            finally:
                self._inbox._waiting.discard(came)
                if timer is not None:
                    timer.cancel()
                with self._lock, contextlib.suppress(ValueError):
                    self._waiting.remove(mine)
        return self._take()

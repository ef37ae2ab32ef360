"""What every ``*_async`` call returns: one future for threads and for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, NoReturn, Self, TypeVar

from antiphon._core import RequestCore
from antiphon.errors import (
    AntiphonError,
    Closed,
    RequestCancelled,
    RequestTimeout,
    together,
)
from antiphon.node.loops import door_of, refuse_to_block
from antiphon.node.waits import check_timeout

__all__ = ["Future", "Job", "RequestFuture", "Several", "wake"]

T = TypeVar("T")

_UNKNOWN = object()
"""In place of a result that nobody has asked the core for yet."""


class Future(ABC, Generic[T]):
    """A result that comes later: ``result(timeout)`` in a thread, ``await`` in a coroutine.

    ``cancel()`` gives it up: who waits gets `RequestCancelled`, and in a coroutine whose task is
    cancelled it is given up by itself. An error is raised where the result is asked for.
    """

    __slots__ = ("__weakref__",)

    @abstractmethod
    def result(self, timeout: float | None = None) -> T:
        """Blocks until it is there. TimeoutError after ``timeout`` s: ask again, or cancel."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `result` would return or raise at once."""

    @abstractmethod
    def cancel(self) -> bool:
        """Gives it up. False when it was done already. Never blocks."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Blocks like `result`; the error, or None."""
        if not self.done():
            refuse_to_block("exception()", "await")
        try:
            self.result(timeout)
        except AntiphonError as error:
            return error
        except (TimeoutError, asyncio.CancelledError):
            raise  # it is not there yet
        except Exception as error:
            return error
        return None

    @abstractmethod
    def __await__(self) -> Generator[Any, None, T]: ...

    def __repr__(self) -> str:
        return f"<Future {'done' if self._ended() else 'waiting'}>"

    def _ended(self) -> bool:
        """As `done`, without taking anything."""
        return self.done()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Future belongs to its node and process; await it where it was made")


class RequestFuture(Future[T]):
    """The answer to a request that is on its way."""

    __slots__ = ("_convert", "_core", "_error", "_value", "_waiting", "deadline")

    def __init__(
        self,
        core: RequestCore,
        deadline: float,
        convert: Callable[[int, bytes], T] | None,
    ) -> None:
        self._core = core
        self.deadline = deadline
        self._convert = convert
        self._error: BaseException | None = None
        self._value: Any = _UNKNOWN
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def done(self) -> bool:
        return self._core.done

    def cancel(self) -> bool:
        return self._core.cancel()

    def result(self, timeout: float | None = None) -> T:
        patience = check_timeout(timeout)
        if not self._core.done:
            refuse_to_block("result()", "await")
            left = self.deadline - time.monotonic()
            if patience is not None and patience < left:
                if not self._core.wait(patience):
                    raise TimeoutError(f"no result in {timeout} s; it may still come")
            elif not self._core.wait(max(0.0, left)):
                self._time_out()
        return self._take()

    def __await__(self) -> Generator[Any, None, T]:
        core = self._core
        if not self._core.done:
            loop = asyncio.get_running_loop()
            came: asyncio.Future[None] = loop.create_future()
            mine = (loop, came)
            waiting = self._waiting
            # Each loop has a door of its own: another one may have stopped, or be closed, by then.
            first = not waiting or not self._waits_on(loop)
            waiting.append(mine)
            if first:
                door = door_of(loop)
                door.expect(core.id, self)
                core.tell(door.core)
            try:
                yield from came
            except BaseException:
                core.cancel()
                raise
            finally:
                waiting.remove(mine)
                done = core.done
                if not done and not self._waits_on(loop):
                    door = door_of(loop)
                    core.forget(door.core)
                    door.forget(core.id)
            if not done:
                self._time_out()
        return self._take()

    def _waits_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """On its own thread. Of a copy: others come and go on other threads."""
        return any(one is loop for one, _ in self._waiting[:])

    def wake(self) -> None:
        """The answer is here, or too late: whoever waits for it looks."""
        wake_all(self._waiting[:])

    def _time_out(self) -> None:
        try:
            self._core.time_out()
        except AntiphonError as error:
            if self._error is None:
                self._error = error
            raise

    def _take(self) -> T:
        value: T = self._value
        if value is not _UNKNOWN:
            return value
        if self._error is not None:
            raise self._error
        try:
            kind, answer = self._core.result()
            data: Any = answer
            value = data if self._convert is None else self._convert(kind, data)
        except BaseException as error:
            self._error = error
            raise
        self._value = value
        return value


class Job(Future[T]):
    """A result that a thread of ours works out, or that was there from the start."""

    def __init__(self, peer: int | None = None, kind: int | None = None) -> None:
        self._peer, self._kind = peer, kind
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._outcome: tuple[T] | BaseException | None = None
        self._inner: Future[T] | None = None
        self._cancelled = False
        self._deadline: float | None = None
        self._give_up: Callable[[], object] = _nothing
        self._late: Callable[[], object] = _nothing
        self._dropped: Callable[[], object] = _nothing
        self._began = time.monotonic()

    @classmethod
    def of(cls, value: T) -> Self:
        """One that is done."""
        job = cls()
        job.set(value)
        return job

    @classmethod
    def of_error(cls, error: AntiphonError) -> Self:
        """One that has failed."""
        job = cls()
        job._end(error)
        return job

    def limit(
        self, deadline: float, give_up: Callable[[], object], time_out: Callable[[], object]
    ) -> None:
        """It has timed out at the deadline; ``give_up`` ends the work when nobody wants it.

        ``time_out`` ends it too, and raises what whoever waits is to be told.
        """
        self._deadline, self._give_up, self._late = deadline, give_up, time_out

    def when_dropped(self, tell: Callable[[], object]) -> None:
        """Called when nobody wants it any more, though nobody has worked on it. Must not wait."""
        self._dropped = tell

    # --- whoever works on it -----------------------------------------------------------------

    def run(self, work: Callable[[], T | Future[T]]) -> None:
        """Does the work here and now, unless nobody wants it any more."""
        if self._cancelled or self._done.is_set():
            return
        try:
            value = work()
        except BaseException as error:
            self._end(error)
            return
        if isinstance(value, Future):
            self.follow(value)
        else:
            self.set(value)

    def set(self, value: T) -> None:
        self._end((value,))

    def follow(self, inner: Future[T]) -> None:
        """The rest is another future's to tell."""
        self._wake(self._follow(inner))

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for it, or may."""
        return not self._cancelled and not self._done.is_set()

    @staticmethod
    def settle_all(settled: Iterable[tuple[Job[Any], Any]]) -> None:
        """Gives each its value, the rest of which a future may tell, or its error.

        Every event loop is woken once for all of its own.
        """
        told: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for job, value in settled:
            if isinstance(value, Future):
                waiting = job._follow(value)
            else:
                waiting = job._finish(value if isinstance(value, BaseException) else (value,))
            for loop, came in waiting:
                told.setdefault(loop, []).append(came)
        for loop, came_all in told.items():
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there
                loop.call_soon_threadsafe(_wake_all, came_all)

    def _end(self, outcome: tuple[T] | BaseException) -> None:
        self._wake(self._finish(outcome))

    def _wake(self, waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]) -> None:
        for loop, came in waiting:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake, came)

    def _follow(
        self, inner: Future[T]
    ) -> list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]:
        """Those who wait for it: ``inner`` has the rest, which nobody wants if it has ended."""
        waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        with self._lock:
            wanted = self.wanted
            if wanted:
                self._inner = inner
                self._dropped = _nothing
                self._done.set()
                waiting, self._waiting = self._waiting, []
        if not wanted:
            inner.cancel()
        return waiting

    def _finish(
        self, outcome: tuple[T] | BaseException
    ) -> list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]:
        """Those who wait for it, and are to be woken.

        What was cancelled ends as cancelled, even if its work has just been done, or its time.
        """
        with self._lock:
            if self._done.is_set():
                return []
            self._outcome = self._when_cancelled() if self._cancelled else outcome
            self._dropped = _nothing
            self._done.set()
            waiting, self._waiting = self._waiting, []
        return waiting

    # --- whoever waits for it ------------------------------------------------------------------

    def done(self) -> bool:
        if not self._done.is_set():
            return False
        return self._inner is None or self._inner.done()

    def cancel(self) -> bool:
        if os.getpid() != self._process:
            return False
        with self._lock:
            inner = self._inner
            if inner is None:
                if self._done.is_set() or self._cancelled:
                    return False
                self._cancelled = True
        if inner is not None:
            return inner.cancel()
        dropped = self._dropped
        self._give_up()
        self._end(self._when_cancelled())
        dropped()
        return True

    def _when_cancelled(self) -> RequestCancelled:
        to = "" if self._peer is None else f" to node {self._peer}"
        return RequestCancelled(
            f"a call{to} was cancelled while it waited; it may have been made",
            peer=self._peer,
            kind=self._kind,
        )

    def result(self, timeout: float | None = None) -> T:
        if os.getpid() != self._process and not self._done.is_set():
            raise Closed("this future belongs to the process that this one was forked from")
        timeout = check_timeout(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        if not self._done.is_set():
            refuse_to_block("result()", "await")
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            first = left is not None and (timeout is None or left <= timeout)
            if not self._done.wait(left if first else timeout):
                if not first:
                    raise TimeoutError(f"no result in {timeout} s; it may still come")
                self._time_out()
        if self._inner is not None:
            left = None if until is None else max(0.0, until - time.monotonic())
            return self._inner.result(left)
        return self._take()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done.is_set():
            loop = asyncio.get_running_loop()
            came: asyncio.Future[None] = loop.create_future()
            with self._lock:
                if self._done.is_set():
                    came.set_result(None)
                else:
                    self._waiting.append((loop, came))
            timer = None
            if self._deadline is not None:
                left = max(0.0, self._deadline - time.monotonic())
                timer = loop.call_later(left, wake, came)
            try:
                yield from came
            except BaseException:
                self.cancel()
                raise
            finally:
                if timer is not None:
                    timer.cancel()
            if not self._done.is_set():
                self._time_out()
        if self._inner is not None:
            return (yield from self._inner.__await__())
        return self._take()

    def _time_out(self) -> None:
        dropped = self._dropped
        try:
            self._late()
        except RequestCancelled:
            pass  # by whoever makes it, and has yet to say what became of it
        except AntiphonError as error:
            self._end(error)
            dropped()
            return
        # Or it was sent, and answered, at the last moment. Its time is over all the same.
        waited = time.monotonic() - self._began
        self._end(
            RequestTimeout(
                f"a request of kind {self._kind} to node {self._peer} could not be sent in "
                f"{waited:.3g} s; wait longer (timeout=), or look at what its handler does",
                peer=self._peer,
                kind=self._kind,
                waited=waited,
            )
        )
        dropped()

    def _take(self) -> T:
        outcome = self._outcome
        if isinstance(outcome, tuple):
            return outcome[0]
        assert outcome is not None
        raise outcome


class Several(Future[None]):
    """One future over those of several peers, done when all are.

    As with `Node.send` to several it raises one error, whose ``failed`` names each of them.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Iterable[tuple[int, Future[None]]]) -> None:
        self._parts = tuple(parts)

    def done(self) -> bool:
        return all(part.done() for _, part in self._parts)

    def cancel(self) -> bool:
        cancelled = [part.cancel() for _, part in self._parts]  # all of them
        return any(cancelled)

    def result(self, timeout: float | None = None) -> None:
        if not self.done():
            refuse_to_block("result()", "await")
        timeout = check_timeout(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        failed: dict[int, AntiphonError] = {}
        for peer, part in self._parts:
            try:
                part.result(None if until is None else max(0.0, until - time.monotonic()))
            except AntiphonError as error:
                failed[peer] = error
        _raise_first(failed)

    def __await__(self) -> Generator[Any, None, None]:
        failed: dict[int, AntiphonError] = {}
        for peer, part in self._parts:
            try:
                yield from part.__await__()
            except AntiphonError as error:
                failed[peer] = error
            except BaseException:  # the task was cancelled, in the wait for one of them
                self.cancel()
                raise
        _raise_first(failed)


def _raise_first(failed: dict[int, AntiphonError]) -> None:
    if failed:
        raise together(failed)


def _nothing() -> None:
    pass


def _wake_all(came_all: list[asyncio.Future[None]]) -> None:
    for came in came_all:
        wake(came)


def wake(came: asyncio.Future[None]) -> None:
    """Ends the wait of a coroutine, unless that has ended already. On its loop's thread."""
    if not came.done():
        came.set_result(None)


def wake_all(waiting: Iterable[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]) -> None:
    """Those of every loop, each on its own thread. Any thread."""
    here = asyncio._get_running_loop()
    for loop, came in waiting:
        if loop is here:
            if not came.done():
                came.set_result(None)
        else:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(wake, came)

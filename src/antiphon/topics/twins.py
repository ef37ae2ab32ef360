"""Calls of a bus that ask its broker, as futures: for event loops, which must not wait for it."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from antiphon.errors import Closed, QueueFull, RequestCancelled
from antiphon.node import Future
from antiphon.node.future import Job

if TYPE_CHECKING:
    from antiphon.topics.bus import Bus

__all__ = ["as_future", "close_later"]

P = ParamSpec("P")
T = TypeVar("T")

_keys = itertools.count(1)  # queues of their own: the calls do not wait for each other


class _Asked(Job[T]):
    """A call to come. What it has made and nobody takes, since it was cancelled, is closed."""

    def __init__(self, drop: Callable[[T], object]) -> None:
        super().__init__()
        self._drop = drop
        self._taken = False

    def _finish(
        self, outcome: tuple[T] | BaseException
    ) -> list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]:
        made: tuple[T] | None = None
        waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        with self._lock:
            if self._cancelled and isinstance(outcome, tuple):
                made, outcome = outcome, RequestCancelled("a call was cancelled while it was made")
            if not self._done.is_set():
                self._outcome = outcome
                self._done.set()
                waiting, self._waiting = self._waiting, []
        if made is not None:
            self._drop(made[0])
        return waiting

    def cancel(self) -> bool:
        if super().cancel():
            return True
        with self._lock:
            made = self._outcome
            # What cannot be closed has happened, and cannot be given up.
            if self._taken or not isinstance(made, tuple) or not hasattr(made[0], "close"):
                return False
            self._outcome = RequestCancelled("a call was cancelled when it had been made")
        self._drop(made[0])
        return True

    def _take(self) -> T:
        with self._lock:
            self._taken = isinstance(self._outcome, tuple)
        return super()._take()


def close_later(bus: Bus, close: Callable[[], object]) -> None:
    """Elsewhere: it may wait for a handler. Never blocks."""
    try:
        bus._asking.add(-next(_keys), close)
    except QueueFull:  # so many calls wait: the bus's thread tries again
        bus._unwanted.append(close)
    except Closed:
        pass  # with the bus this is closed too


def as_future(
    call: Callable[Concatenate[Bus, P], T],
) -> Callable[Concatenate[Bus, P], Future[T]]:
    """The same as a `Future`, done when the broker has answered. Never blocks.

    One that is cancelled, or whose task is, leaves nothing open.
    """

    def later(bus: Bus, /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        bus._check_open()

        def drop(made: Any) -> None:
            close = getattr(made, "close", None)
            if close is not None:
                close_later(bus, close)

        asked: _Asked[T] = _Asked(drop)
        work = functools.partial(call, bus, *args, **kwargs)
        bus._asking.add(-next(_keys), work, job=asked)
        return asked

    name = f"{call.__name__}_async"
    functools.update_wrapper(later, call)
    later.__name__, later.__qualname__ = name, f"Bus.{name}"
    later.__doc__ = (
        f"`{call.__name__}` as a `Future`, done when the broker has answered. Never blocks."
    )
    return later

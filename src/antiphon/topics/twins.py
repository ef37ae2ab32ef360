"""Calls of a bus that ask its broker, as futures: for event loops, which must not wait for it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from antiphon.node import Future
from antiphon.node.future import Job

if TYPE_CHECKING:
    from antiphon.topics.bus import Bus

__all__ = ["as_future"]

P = ParamSpec("P")
T = TypeVar("T")

# Queues of their own among those of the node: they do not wait for each other.
_keys = itertools.count(1 << 43)


class _Made(Job[T]):
    """What a call has made. If nobody wants it any more, it is closed."""

    waiting: list[Job[Any]]

    def cancel(self) -> bool:
        """Only before it was handed over."""
        if self.waiting and self.waiting[0]._inner is not self:
            close = getattr(self.result(), "close", None)
            if close is not None:
                close()
        return False


def as_future(
    call: Callable[Concatenate[Bus, P], T],
) -> Callable[Concatenate[Bus, P], Future[T]]:
    """The same as a `Future`, done when the broker has answered. Never blocks.

    One that is cancelled leaves nothing open.
    """

    def later(bus: Bus, /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        bus._check_open()
        waiting: list[Job[Any]] = []

        def work() -> Future[T]:
            made: _Made[T] = _Made.of(call(bus, *args, **kwargs))
            made.waiting = waiting
            return made

        waiting.append(bus.node._later.add(-next(_keys), work))
        return waiting[0]

    name = f"{call.__name__}_async"
    functools.update_wrapper(later, call)
    later.__name__, later.__qualname__ = name, f"Bus.{name}"
    later.__doc__ = (
        f"`{call.__name__}` as a `Future`, done when the broker has answered. Never blocks."
    )
    return later

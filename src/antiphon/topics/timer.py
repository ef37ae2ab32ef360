"""Timers: functions that are called at equal distances, with a share of the time like any task."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, NoReturn, Self

from antiphon._core import TimerCore
from antiphon.errors import Closed, ConfigError
from antiphon.node import Node
from antiphon.node.coroutines import is_coroutine

__all__ = ["Timer", "make_timer"]

log = logging.getLogger("antiphon.topics")


class Timer:
    """What `Bus.every` returns: ``close()`` ends it, `statistics` tells how punctual it was."""

    def __init__(self, core: TimerCore, name: str) -> None:
        self._core = core
        self._closed = False
        self.name = name
        """Of the function, for people."""

    @property
    def period(self) -> float:
        """Seconds between two calls."""
        return self._core.period

    @property
    def active(self) -> bool:
        """Whether it goes on; also before its bus has started."""
        return self._core.active

    def _start(self) -> None:
        if not self._closed and not self._core.start():
            raise Closed("this bus is closed, or no thread could be started", what="bus")

    def statistics(self) -> dict[str, Any]:
        """``calls``, ``failed``, ``late`` (begun over a tenth of a period, and over 1 ms, after
        their time), ``missed``, ``longest_lateness`` in seconds, the ``lateness`` of all calls as
        counts by upper bound in nanoseconds; ``slices``, its turns, and ``overruns`` of its
        share."""
        return self._core.statistics()

    def close(self) -> None:
        """No call begins after this returns; a running one is waited for, unless it is this."""
        self._closed = True
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)  # which may wait for a call, as the loop must not

    def __repr__(self) -> str:
        return f"<Timer {self.name} every {self.period:g} s>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Timer belongs to its bus; make one in each process instead")


def make_timer(node: Node, period: object, function: Callable[..., Any]) -> Timer:
    """A timer that is not started yet. Raises `ConfigError`."""
    number = isinstance(period, int | float) and not isinstance(period, bool)
    if not number or not 1e-5 <= period <= 86_400:  # type: ignore[operator]
        raise ConfigError(
            f"period is {period!r}; it must be a number of seconds from 0.00001 to 86400",
            setting="period",
            value=period,
        )
    call: object = function
    if not callable(call) or is_coroutine(call):
        raise ConfigError(f"{call!r} is no plain function", setting="function")
    name = getattr(function, "__qualname__", type(function).__name__)

    def report(error: BaseException) -> None:
        log.error("the timer %s failed", name, exc_info=error)

    takes = _takes_argument(function)
    core = node._timer(float(period), function, report, takes)  # type: ignore[arg-type]
    return Timer(core, name)


def _takes_argument(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a method of C, such as the append of a deque
    needed = [one for one in signature.parameters.values() if one.default is one.empty]
    takes = any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in needed)
    try:
        signature.bind(*(None,) * takes)
    except TypeError:
        names = [
            one.name for one in needed if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        raise ConfigError(
            f"a timer calls its function with one argument or none, and {function!r} needs "
            f"{', '.join(names)}; give it the others with functools.partial",
            setting="function",
            value=function,
        ) from None
    return takes

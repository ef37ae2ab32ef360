"""Looking again until something holds.

A test that sleeps for a fixed time is either slow or wrong on a busy machine. These wait exactly as
long as needed, and fail with what they waited for.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["Collected", "eventually", "readable", "writable"]

T = TypeVar("T")

_PAUSE = 0.005


def eventually(condition: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """What ``condition`` returns, once that is true. Blocks; AssertionError after ``timeout``."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or condition}; last: {value!r}")
        time.sleep(_PAUSE)
    return value


class _Descriptor(Protocol):
    def fileno(self) -> int: ...


def readable(what: int | _Descriptor, timeout: float | None) -> bool:
    """Whether something can be read there. Blocks; ``select`` would end at descriptor 1024."""
    return _ready(what, select.POLLIN, timeout)


def writable(what: int | _Descriptor, timeout: float | None) -> bool:
    """Whether something can be written there. Blocks."""
    return _ready(what, select.POLLOUT, timeout)


def _ready(what: int | _Descriptor, wanted: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(what, wanted)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))


class Collected(Generic[T]):
    """A list to which callbacks append and on which a test waits. Thread-safe."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._changed = threading.Condition()

    def add(self, item: T) -> None:
        """Never blocks."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> list[T]:
        """What is here now, as a copy."""
        with self._changed:
            return list(self._items)

    def first(self, count: int, timeout: float = 10.0) -> list[T]:
        """The first ``count`` items. Blocks until they are here; AssertionError otherwise."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self._items) >= count, timeout)
            if not enough:
                last = self._items[-3:]
                raise AssertionError(
                    f"{len(self._items)} of {count} came within {timeout:g} s; the last are {last}"
                )
            return self._items[:count]

    def none_within(self, seconds: float) -> bool:
        """Whether nothing at all comes for so long. Returns early if something does."""
        with self._changed:
            return not self._changed.wait_for(lambda: bool(self._items), seconds)

"""One door from the core into an event loop.

The core's threads never touch Python. What an event loop waits for, an answer or a message in an
inbox, is put on a list in the core, and one eventfd says that the list is not empty: the loop wakes
once for all that is on it. asyncio and uvloop alike, through ``loop.add_reader``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from antiphon._core import DoorCore
from antiphon.errors import WouldBlock

__all__ = ["Awaited", "Door", "close_door", "door_of", "refuse_to_block"]

log = logging.getLogger("antiphon.node")


class Awaited(Protocol):
    """Something that comes once, or is too late at its deadline."""

    deadline: float

    def wake(self) -> None:
        """Whoever waits for it looks again. On the loop's thread."""


class Door:
    """The eventfd of one loop, and whom to tell of each number that comes through it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.core = DoorCore()
        self.calls: dict[int, Callable[[], None]] = {}
        self.loop = weakref.ref(loop)
        self.awaited: dict[int, Awaited] = {}
        self._due = math.inf  # when the next timer goes off, unless there is none
        loop.add_reader(self.core.fileno(), self._ready)

    def expect(self, number: int, awaited: Awaited) -> None:
        """Wakes it when its number comes, or at its deadline. On the loop's thread.

        One timer for all of them: most are answered long before, and a timer for each would cost
        as much as the rest of its request. It is left to go off in vain when nothing is awaited any
        more, and the door does not keep it, since it knows the loop.
        """
        self.awaited[number] = awaited
        if awaited.deadline < self._due:
            self._set_timer(awaited.deadline)

    def forget(self, number: int) -> None:
        """Tells nobody of it any more. On the loop's thread, or when the loop is closed."""
        self.calls.pop(number, None)
        self.awaited.pop(number, None)

    def _set_timer(self, deadline: float) -> None:
        loop = self.loop()
        if loop is not None:
            self._due = deadline
            loop.call_later(max(0.0, deadline - time.monotonic()), self._remind, deadline)

    def _remind(self, due: float) -> None:
        if due != self._due:
            return  # another one, for something that was awaited for less long, has done it
        self._due = math.inf
        now = time.monotonic()  # may be a little before: loops count in milliseconds
        late = [number for number, one in self.awaited.items() if one.deadline <= now]
        for number in late:
            try:
                self.awaited.pop(number).wake()
            except Exception:
                _could_not_tell()
        if self.awaited:
            self._set_timer(min(one.deadline for one in self.awaited.values()))

    def _ready(self) -> None:
        awaited, calls = self.awaited, self.calls
        for number in self.core.take():
            one = awaited.pop(number, None)
            call = calls.get(number) if one is None else one.wake
            if call is None:
                continue
            try:
                call()
            except Exception:
                _could_not_tell()


def _could_not_tell() -> None:
    """The others that came are not to suffer."""
    log.exception("what an event loop was told could not be handled")


_doors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Door] = weakref.WeakKeyDictionary()


class _Here(threading.local):
    """The door that this thread asked for last, as long as it is there."""

    door: Callable[[], Door | None] = staticmethod(lambda: None)


_here = _Here()


def door_of(loop: asyncio.AbstractEventLoop) -> Door:
    """The door of a loop; made when it is first asked for. On the loop's own thread."""
    door = _here.door()
    if door is not None and door.loop() is loop:
        return door
    door = _doors.get(loop)
    if door is None:
        door = _doors[loop] = Door(loop)
    _here.door = weakref.ref(door)
    return door


def close_door(loop: asyncio.AbstractEventLoop, number: int, leave: Callable[[], object]) -> None:
    """Has ``leave()`` called on the loop's thread; if the loop is closed, just forgets the number.

    Any thread. What a closed loop still called would keep it, and its descriptor, for ever.
    """
    try:
        loop.call_soon_threadsafe(leave)
    except RuntimeError:
        door = _doors.get(loop)
        if door is not None:
            door.forget(number)


def refuse_to_block(call: str, twin: str) -> None:
    """Raises `WouldBlock` on a thread whose event loop is running: waiting would stop the loop."""
    if asyncio._get_running_loop() is not None:
        raise WouldBlock(
            f"{call} would wait and stop the event loop of this thread; use {twin}", twin=twin
        )

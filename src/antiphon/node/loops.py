"""One door from the core into an event loop.

The core's threads never touch Python. What an event loop waits for, an answer or a message in an
inbox, is put on a list in the core, and one eventfd says that the list is not empty: the loop wakes
once for all that is on it. asyncio and uvloop alike, through ``loop.add_reader``.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable

from antiphon._core import DoorCore
from antiphon.errors import WouldBlock

__all__ = ["Door", "close_door", "door_of", "refuse_to_block"]

log = logging.getLogger("antiphon.node")


class Door:
    """The eventfd of one loop, and what to call for each number that comes through it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.core = DoorCore()
        self.calls: dict[int, Callable[[], None]] = {}
        self._loop = weakref.ref(loop)
        self._deadlines: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        loop.add_reader(self.core.fileno(), self._ready)

    def remind(self, number: int, deadline: float) -> None:
        """Calls ``number`` at the deadline too, unless it was forgotten. On the loop's thread.

        One timer for all of them: most are answered long before, and a timer for each would cost
        as much as the rest of its request.
        """
        self._deadlines[number] = deadline
        timer = self._timer
        if timer is None or self._due > deadline:
            self._set_timer(deadline)

    def forget(self, number: int) -> None:
        """Calls it no more. On the loop's thread, or when the loop is closed."""
        self.calls.pop(number, None)
        self._deadlines.pop(number, None)
        if self._timer is not None and not self._deadlines:
            self._timer.cancel()
            self._timer = None  # which knows the loop, and would keep it

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = self._loop()
        if loop is not None:
            self._due = deadline
            self._timer = loop.call_later(max(0.0, deadline - time.monotonic()), self._remind)

    def _remind(self) -> None:
        self._timer = None
        now = time.monotonic()
        late = [number for number, deadline in self._deadlines.items() if deadline <= now]
        for number in late:
            del self._deadlines[number]
            self._call(number)
        if self._deadlines:
            self._set_timer(min(self._deadlines.values()))

    def _ready(self) -> None:
        for number in self.core.take():
            self._call(number)

    def _call(self, number: int) -> None:
        call = self.calls.get(number)
        if call is None:
            return
        try:
            call()
        except Exception:  # the others that came are not to suffer
            log.exception("what an event loop was told could not be handled")


_doors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Door] = weakref.WeakKeyDictionary()


def door_of(loop: asyncio.AbstractEventLoop) -> Door:
    """The door of a loop; made when it is first asked for. On the loop's own thread."""
    door = _doors.get(loop)
    if door is None:
        door = _doors[loop] = Door(loop)
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

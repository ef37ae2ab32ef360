"""One door from the core into an event loop.

The core's threads never touch Python. What an event loop waits for, an answer or a message in an
inbox, is put on a list in the core, and one eventfd says that the list is not empty: the loop wakes
once for all that is on it. asyncio and uvloop alike, through ``loop.add_reader``.
"""

from __future__ import annotations

import asyncio
import logging
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
        loop.add_reader(self.core.fileno(), self._ready)

    def _ready(self) -> None:
        calls = self.calls
        for number in self.core.take():
            call = calls.get(number)
            if call is None:
                continue
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
            door.calls.pop(number, None)


def refuse_to_block(call: str, twin: str) -> None:
    """Raises `WouldBlock` on a thread whose event loop is running: waiting would stop the loop."""
    if asyncio._get_running_loop() is not None:
        raise WouldBlock(
            f"{call} would wait and stop the event loop of this thread; use {twin}", twin=twin
        )

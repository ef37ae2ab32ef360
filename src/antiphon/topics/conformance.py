"""Whether those with a share keep to it: what the sums of about one second say.

Receives from a bus whoever holds a share on its node; hands a `Conformance` to those who asked
for it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antiphon.node.shares import Shared

__all__ = ["OFTEN_FULL", "Conduct", "Conformance", "judge"]

log = logging.getLogger("antiphon.topics")

OFTEN_FULL = 0.1
"""The fraction of turns that begin with a full queue, above which a task is not stable."""

_COUNTED = ("slices", "full_slices", "overruns")


@dataclass(frozen=True)
class Conformance:
    """How one with a share has kept to it, in about one second."""

    pattern: str
    """Of a subscription; empty for a timer, a publisher or a handler of the node."""
    conformant: bool
    """It did not overrun what its share allows."""
    stable: bool
    """Its queue was not often full."""
    overruns: int
    longest_overrun: float
    """In seconds, since it began."""
    full: float
    """The fraction of its turns that began with a full queue; of a timer, after a missed call."""
    name: str
    """As in ``bus.statistics().shares``: ``subscription 'a/*'``, ``timer tick``, ``kind 200``."""


def judge(name: str, pattern: str, sums: dict[str, float]) -> Conformance:
    """What the sums of a while say."""
    full = sums["full_slices"] / sums["slices"] if sums["slices"] else 0.0
    return Conformance(
        pattern=pattern,
        conformant=sums["overruns"] == 0,
        stable=full <= OFTEN_FULL,
        overruns=int(sums["overruns"]),
        longest_overrun=sums["longest_overrun"],
        full=full,
        name=name,
    )


class Conduct:
    """Of all that hold a share, and who is told of it. Its bus looks, from one thread."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Conformance], Any]] = []
        self.patterns: weakref.WeakKeyDictionary[Shared, str] = weakref.WeakKeyDictionary()
        """Of those that are subscriptions."""
        self._seen: weakref.WeakKeyDictionary[Shared, dict[str, float]] = (
            weakref.WeakKeyDictionary()
        )

    def look(self, holder: Shared, name: str) -> None:
        """What one has done since the last look at it, told if there is something to tell."""
        now = holder.meter()
        before = self._seen.get(holder)
        self._seen[holder] = now
        sums = {one: now[one] - (before[one] if before else 0.0) for one in _COUNTED}
        verdict = judge(name, self.patterns.get(holder, ""), {**now, **sums})
        if verdict.conformant and verdict.stable:
            return
        for callback in tuple(self.callbacks):
            try:
                callback(verdict)
            except BaseException:  # SystemExit too: announcements rely on this thread
                log.exception("a callback of on_conformance failed")

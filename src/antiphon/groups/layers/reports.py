"""Who has told how often, of late, that it does not reach a member which others may reach."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

__all__ = ["Reports"]

_FORGOTTEN = 30.0


class Reports:
    """Counts them by reporter and suspect. One false alarm now and another tomorrow are not two:
    without another one for so many seconds they count no more."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], tuple[int, float]] = {}  # how many, and the last when

    def add(self, reporter: int, suspect: int, now: float) -> int:
        """How many there are with this one."""
        count, last = self._counts.get((reporter, suspect), (0, now))
        count = count + 1 if now - last < _FORGOTTEN else 1
        self._counts[reporter, suspect] = count, now
        return count

    def keep(self, lives: AbstractSet[int]) -> None:
        """Those of, and about, others than these are forgotten."""
        self._counts = {key: one for key, one in self._counts.items() if lives >= set(key)}

    def clear(self) -> None:
        """All are forgotten."""
        self._counts.clear()

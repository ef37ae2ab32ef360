"""A run of a given number of messages: it is over when all of them have come.

Receives from `antiphon.lab.conduct` what the processes of a run answer when they are asked for a
sample; hands back whether it is over, and its window: from the first message sent to the last that
came, by the clocks of those that sent and received it. That is known from the receivers themselves.
Members of a group also tell each sender when they have all that it sends; so each knows how long it
took by its own clock, as the senders of the measurements of 2004 did.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.lab.plan import Run
from antiphon.lab.protocols import Protocol

__all__ = ["Count", "receivers"]

NANOS = 1_000_000_000
# What may be lost is lost when nothing has come for so long.
SETTLE = 1.0
# Nobody acknowledges if none has after the first of these. A lost one is repaired within the
# second: the paper's stacks take five seconds for that.
TOLD, ALL_TOLD = 1.0, 15.0
# Between two looks: a tenth of the time that has gone by, within these bounds.
SOONEST, LATEST = 0.02, 0.5


def receivers(run: Run, protocol: Protocol) -> int:
    """Of each message: of a group all other members, elsewhere one."""
    grouped = protocol.group and run.pattern != "one-way"
    return max(1, run.nodes - 1) if grouped else 1


class Count:
    """Follows the messages of one run, from before the first is sent."""

    def __init__(self, run: Run, protocol: Protocol) -> None:
        self.planned = (run.messages or 0) * run.senders
        self._each = receivers(run, protocol)
        self.sent = 0
        self.received = 0
        self.bytes = 0
        self.still = False
        """Whether all was sent and nothing came between the last two looks."""
        # Of a group, how many acknowledge to each sender that all has come.
        self._told = self._each if protocol.group and run.pattern != "one-way" else 0
        self.slowest: int | None = None
        """Nanoseconds from the first message of a sender to the last acknowledgement, of the one
        for which that is the longest; None where they are not acknowledged."""
        self._lossy = protocol.lossy
        self._done = False
        self._begun = time.monotonic_ns()
        self._first = 0
        self._last = 0
        self._changed = self._begun

    def see(self, answers: Iterable[Mapping[str, Any]]) -> bool:
        """Whether it is over, from what every process says of itself."""
        said = list(answers)
        now = time.monotonic_ns()
        received = sum(one["received"] for one in said)
        none_came = received == self.received
        if not none_came:
            self._changed = now
        self._last = max((one["last_ns"] for one in said), default=0)
        self.sent = sum(one["sent"] for one in said)
        self.received = received
        self.bytes = sum(one["received_bytes"] for one in said)
        self._first = min((one["begun_ns"] for one in said if one["begun_ns"]), default=0)
        self._done = all(one.get("done", True) for one in said)
        self.still = self._done and none_came
        if not self._done:
            return False
        if received >= self.sent * self._each:
            patience = ALL_TOLD if any(one.get("acks") for one in said) else TOLD
            return self._all_told(said) or now - self._changed >= patience * NANOS
        return self._lossy and now - self._changed >= SETTLE * NANOS

    def _all_told(self, said: list[Mapping[str, Any]]) -> bool:
        """Whether every sender knows that all of its messages have come."""
        senders = [one for one in said if one["begun_ns"]]
        if not self._told or any(one.get("acks", 0) < self._told for one in senders):
            return not self._told
        self.slowest = max((one["acked_ns"] - one["begun_ns"] for one in senders), default=None)
        return True

    @property
    def window(self) -> tuple[int, int]:
        """Of all that has come: nanoseconds of the monotonic clock."""
        first = self._first or self._begun
        return first, max(self._last, first)

    @property
    def missing(self) -> str:
        """What has not come, in words; empty when all has, or what has not may be lost."""
        wanted = max(self.planned, self.sent) * self._each
        if self.received >= wanted or (self._lossy and self._done and self.received):
            return ""
        return f"{self.received} of {wanted} messages had come by the end"

    def rates(self) -> tuple[float, float]:
        """Messages and bytes per second of the window."""
        first, last = self.window
        seconds = max(1, last - first) / NANOS
        return self.received / seconds, self.bytes / seconds

    def pause(self) -> float:
        """Until the next look."""
        return min(LATEST, max(SOONEST, (time.monotonic_ns() - self._begun) / NANOS / 10))

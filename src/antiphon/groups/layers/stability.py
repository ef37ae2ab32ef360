"""Stability: what everybody has is released; a member that holds it up for too long is put out.

What is not released is kept for whoever lacks it, so a member that acknowledges nothing makes the
window of every sender full. The core (``native/window``) tells for how long senders have waited for
it; this layer says when that is too long.

Over datagrams receivers say how far they are: after so many bytes that the sender is not held up,
when they are asked, and some time after something came at the latest. A sender that has become
quiet asks.
"""

from __future__ import annotations

from functools import partial

from antiphon.groups.checks import check_number
from antiphon.groups.protocol import Exclude, HeldUp, Layer, Signal

__all__ = ["Stability"]

_QUIET = 0.02


class Stability(Layer):
    """``timeout``: seconds that senders wait for a member that acknowledges nothing, before it is
    put out; 0: for ever. Over datagrams ``seconds`` (0.02): how long after its last one a sender
    says how far it is, and asks; half of it is how long a receiver may leave something without a
    word."""

    name = "stability"
    needs = ("membership", "fifo or nak")

    def __init__(self, *, timeout: float = 20.0, seconds: float | None = None) -> None:
        check = partial(check_number, layer=self.name, unit="seconds")
        check("timeout", timeout, 0.01, 3600, zero="for ever")
        if seconds is not None:
            check("seconds", seconds, 0.002, 60)
        self.timeout = timeout
        self.seconds = seconds
        self._longest = 0.0
        self._excluded: set[int] = set()
        self._count = 0

    @property
    def quiet(self) -> float:
        """``seconds``, or what holds without."""
        return _QUIET if self.seconds is None else self.seconds

    def up(self, event: Signal, now: float) -> None:
        """Somebody is behind."""
        if isinstance(event, HeldUp):
            self._longest = max(self._longest, event.seconds)
            if self.timeout and event.seconds >= self.timeout:
                if event.life not in self._excluded:
                    self._excluded.add(event.life)
                    self._count += 1
                self.pass_down(Exclude(event.life), now)
            else:
                self._excluded.discard(event.life)
            return
        self.pass_up(event, now)

    def statistics(self) -> dict[str, float]:
        """The ``longest`` that one member was waited for, and how many were to be ``excluded``."""
        return {"longest": self._longest, "excluded": self._count}

    def settings(self) -> dict[str, object]:
        """Without ``seconds`` where it was not given: over TCP it means nothing."""
        known = super().settings()
        if self.seconds is None:
            del known["seconds"]
        return known

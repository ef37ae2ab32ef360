"""Stability: a member that holds up others for too long is put out.

What everybody has is released from a sender's window by the core (``native/window``), as soon as
it is acknowledged. So a member that acknowledges nothing makes the window full, and every sender
wait. The core tells for how long; this layer says when it is too long.
"""

from __future__ import annotations

from antiphon.errors import ConfigError
from antiphon.groups.protocol import Exclude, HeldUp, Layer, Signal

__all__ = ["Stability"]


class Stability(Layer):
    """``timeout``: seconds that senders wait for a member that acknowledges nothing, before it is
    put out; 0: for ever."""

    name = "stability"
    needs = ("membership", "fifo")

    def __init__(self, *, timeout: float = 20.0) -> None:
        if not 0 <= timeout <= 3600:
            raise ConfigError(
                f"timeout of stability is {timeout}; it must be from 0 (never) to 3600 seconds",
                setting="timeout",
                value=timeout,
            )
        self.timeout = timeout
        self._longest = 0.0
        self._excluded: set[int] = set()
        self._count = 0

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

"""A layer to copy: it passes everything on, and counts what went by.

Give it a name, say what it needs below, and override what it is concerned with. Keep to three
rules. No clock, no socket, no thread: the time is an argument, and what is to be done is passed
down. What is not yours goes on, or the layers beyond never see it. Anything may be lost,
doubled or late: `tick` is where things are tried again.
"""

from __future__ import annotations

from antiphon.groups.protocol import Layer, Signal

__all__ = ["Template"]


class Template(Layer):
    """Counts events in both directions."""

    name = "template"
    needs = ()

    def __init__(self) -> None:
        self._ups = self._downs = 0

    def up(self, event: Signal, now: float) -> None:
        """From below."""
        self._ups += 1
        self.pass_up(event, now)

    def down(self, event: Signal, now: float) -> None:
        """From above."""
        self._downs += 1
        self.pass_down(event, now)

    def tick(self, now: float) -> None:
        """Nothing to try again."""

    def statistics(self) -> dict[str, float]:
        """Counts, for `Group.statistics`."""
        return {"ups": self._ups, "downs": self._downs}

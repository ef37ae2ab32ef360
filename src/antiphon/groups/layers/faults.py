"""Faults for tests: layers that lose, delay, double or cut what membership sends.

They stand right above the transport, over real nodes as in simulations. `Delay` with a spread also
shuffles. What the core moves by itself, data and acknowledgements, does not pass here: over TCP it
cannot be lost without its connection, and over UDP ``datagram_faults`` has layers for it. Only
`Partition` counts for datagrams too: nothing that comes from those nodes is heard.
"""

from __future__ import annotations

from antiphon.groups.protocol import Layer, Received, Send, Signal

__all__ = ["Delay", "Drop", "Duplicate", "Partition"]


class Drop(Layer):
    """Loses a fraction of the messages that are sent."""

    name = "drop"

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self._dropped = 0

    def down(self, event: Signal, now: float) -> None:
        """Some do not go on."""
        if isinstance(event, Send) and self.rng.random() < self.fraction:
            self._dropped += 1
            return
        self.pass_down(event, now)

    def statistics(self) -> dict[str, float]:
        """How many were ``dropped``."""
        return {"dropped": self._dropped}


class Duplicate(Layer):
    """Sends a fraction of the messages twice."""

    name = "duplicate"

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def down(self, event: Signal, now: float) -> None:
        """Some go twice."""
        if isinstance(event, Send) and self.rng.random() < self.fraction:
            self.pass_down(event, now)
        self.pass_down(event, now)


class Delay(Layer):
    """Holds every message for between ``least`` and ``most`` seconds, each by itself."""

    name = "delay"

    def __init__(self, least: float, most: float) -> None:
        self.least = least
        self.most = most
        self._held: list[tuple[float, int, Signal]] = []
        self._count = 0

    def down(self, event: Signal, now: float) -> None:
        """Messages wait; the rest goes on."""
        if isinstance(event, Send):
            self._count += 1
            self._held.append((now + self.rng.uniform(self.least, self.most), self._count, event))
            return
        self.pass_down(event, now)

    def tick(self, now: float) -> None:
        """What has waited goes on."""
        due = sorted(one[:2] for one in self._held if one[0] <= now)
        by_key = {one[:2]: one[2] for one in self._held}
        self._held = [one for one in self._held if one[0] > now]
        for key in due:
            self.pass_down(by_key[key], now)


class Partition(Layer):
    """Cuts this member off from ``nodes``, in both directions, until it is told otherwise."""

    name = "partition"

    def __init__(self, nodes: frozenset[int] = frozenset()) -> None:
        self.nodes = nodes

    def down(self, event: Signal, now: float) -> None:
        """Nothing goes to them."""
        if not (isinstance(event, Send) and event.node in self.nodes):
            self.pass_down(event, now)

    def up(self, event: Signal, now: float) -> None:
        """Nothing comes from them."""
        if not (isinstance(event, Received) and event.node in self.nodes):
            self.pass_up(event, now)

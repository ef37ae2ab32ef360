"""Faults for tests: layers that lose, delay, double or cut what membership sends.

They stand right above the transport, over real nodes as in simulations. `Delay` with a spread also
shuffles. What the core moves by itself, data and acknowledgements, does not pass here: over TCP it
cannot be lost without its connection, and over UDP ``datagram_faults`` has layers for it. Only
`Partition` counts for datagrams too: nothing that comes from those nodes is heard.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from antiphon.errors import ConfigError
from antiphon.groups.checks import check_number
from antiphon.groups.protocol import Layer, Received, Send, Signal

__all__ = ["Delay", "Drop", "Duplicate", "Partition"]


class Drop(Layer):
    """Loses a fraction of the messages that are sent."""

    name = "drop"
    fault = True

    def __init__(self, fraction: float) -> None:
        check_number("fraction", fraction, 0, 1, layer=self.name)
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
    fault = True

    def __init__(self, fraction: float) -> None:
        check_number("fraction", fraction, 0, 1, layer=self.name)
        self.fraction = fraction

    def down(self, event: Signal, now: float) -> None:
        """Some go twice."""
        if isinstance(event, Send) and self.rng.random() < self.fraction:
            self.pass_down(event, now)
        self.pass_down(event, now)


class Delay(Layer):
    """Holds every message for between ``least`` and ``most`` seconds, each by itself."""

    name = "delay"
    fault = True

    def __init__(self, least: float, most: float) -> None:
        check_number("least", least, 0, 3600, layer=self.name, unit="seconds")
        check_number("most", most, least, 3600, layer=self.name, unit="seconds")
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
    fault = True

    def __init__(self, nodes: AbstractSet[int] = frozenset()) -> None:
        given: object = nodes
        if not isinstance(given, AbstractSet):
            raise ConfigError(
                f"nodes of layer {self.name!r} is {given!r}; it must be a set of ids of nodes",
                setting="nodes",
                value=given,
            )
        for node in nodes:
            check_number("nodes", node, 1, 65535, layer=self.name, whole=True)
        self.nodes = nodes

    def down(self, event: Signal, now: float) -> None:
        """Nothing goes to them."""
        if not (isinstance(event, Send) and event.node in self.nodes):
            self.pass_down(event, now)

    def up(self, event: Signal, now: float) -> None:
        """Nothing comes from them."""
        if not (isinstance(event, Received) and event.node in self.nodes):
            self.pass_up(event, now)

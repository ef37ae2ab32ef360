"""The ways through a broker: a topic with its queue, and a route from each of its publishers."""

from __future__ import annotations

from collections import Counter

from antiphon._core import Handle, PublisherCore, RecorderCore

__all__ = ["COUNTS", "Route", "Topic", "missed_by"]

COUNTS = ("published", "dropped", "lost")
"""What a route counts."""


class Topic:
    """Something that clients publish, or did a moment ago."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.publishers: Counter[int] = Counter()
        self.subscribed = False
        self.recorded = False
        self.opened = False  # its log, if it is recorded: until then nobody is served
        self.complained = False  # somebody was told that it cannot be
        self.handle: Handle | None = None
        self.routes: dict[tuple[int, int], Route] = {}


class Route:
    """From one publisher to all who want what it publishes."""

    def __init__(
        self,
        core: PublisherCore | RecorderCore,
        topic: Topic,
        source: int,
        publisher: int,
        number: int,
        retains: bool,
        life: int,
    ) -> None:
        self.core = core
        self.topic = topic
        self.source = source
        self.publisher = publisher
        self.number = number
        self.retains = retains
        self.life = life
        self.allowed = True
        self.records = False  # its publisher asked for it, and waits for receipts

    def settled(self) -> bool:
        """Whether everybody has what it retains."""
        return not isinstance(self.core, PublisherCore) or self.core.settle()


def missed_by(route: Route, sums: dict[int, Counter[str]]) -> None:
    """Adds what each client did not get of what came that way, because it was slow or away."""
    if not route.allowed or not isinstance(route.core, PublisherCore):
        return
    for peer, (dropped, lost) in route.core.missed_by().items():
        sums.setdefault(peer, Counter()).update(dropped=dropped, lost=lost)

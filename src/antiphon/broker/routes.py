"""What a broker knows of a topic, and of the way of one publisher's events through it."""

from __future__ import annotations

from collections import Counter

from antiphon._core import Handle, PublisherCore, RecorderCore
from antiphon.topics.names import Pattern
from antiphon.topics.neighbours import Interest

__all__ = ["Route", "Topic", "meant", "named"]


class Topic:
    """Something that clients publish, or did a moment ago."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.publishers: Counter[int] = Counter()
        self.subscribed = False
        self.recorded = False
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

    def settled(self) -> bool:
        """Whether everybody has what it retains."""
        return not isinstance(self.core, PublisherCore) or self.core.settle()


def named(interest: Interest) -> bool:
    """Whether it is durable or in a group: then one of several gets an event."""
    wish = interest.wish
    return wish is not None and (wish.durable is not None or wish.group is not None)


def meant(pattern: Pattern, topic: Topic) -> bool:
    """Whoever wants the broker's own topics says so."""
    return not topic.name.startswith("$") or pattern.text.startswith("$")

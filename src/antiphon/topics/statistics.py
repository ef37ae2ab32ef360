"""What a bus has done and knows: frozen pictures, taken when asked for."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.topics.judge import ContentStatistics
from antiphon.topics.kinds import Topic

__all__ = ["BusStatistics", "TopicInfo"]


@dataclass(frozen=True)
class TopicInfo:
    """One topic, as far as this bus knows."""

    name: Topic
    """Its name; of a topic that is none, the number or the tag."""
    publishers: tuple[int, ...]
    """The nodes that publish it."""
    subscribers: tuple[int, ...]
    """The nodes with a subscription that matches."""


@dataclass(frozen=True)
class BusStatistics:
    """Counts of this moment."""

    publishers: int
    subscriptions: int
    peers: int
    """Other buses on the channel."""
    topics: int
    """Topics known, of all buses."""
    published: int
    dropped: int
    """Events that publishers here left out because a subscription had no room."""
    lost: int
    """Events for subscriptions that could not be reached."""
    content: ContentStatistics
    """Of filters on the content of what is published here."""
    shares: dict[str, float]
    """Who holds which part of this node's time."""
    threads: int
    """Scheduler threads of the node; 0 before the first work."""
    at_once: float
    """How many of them are in handlers at one time, on average, while any is; measured from the
    first share on, NaN before."""
    running: float
    """The fraction of that time for which such a thread has a processor."""
    largest_share: float
    """The most that one task can have of what they get done; see `queueing.largest_share`."""

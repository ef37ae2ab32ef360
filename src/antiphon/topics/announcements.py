"""What buses tell each other: which topics they publish, and what they subscribe to.

Every bus keeps a `Ledger` of its own, with a version that grows with each change, and a `Table` per
other bus of what that one has said. The version travels with every sign of life, so two that
disagree notice it; then only what has changed since is sent, or everything if that is not known any
more. Nothing here has a socket or a clock: `antiphon.topics.bus` moves the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

import msgspec

from antiphon.topics.content import MAX_CONDITIONS, Condition
from antiphon.topics.rights import Word

__all__ = [
    "Changes",
    "Ledger",
    "Subscribed",
    "Table",
    "Update",
    "Want",
    "Wish",
    "decode",
    "encode",
]

_HISTORY = 1024
"""Changes that are remembered one by one; a bus that is further behind gets everything."""

_NOTHING = -1
"""`Update.since` of an update that holds everything."""


T = TypeVar("T")

_Incarnation = Annotated[int, msgspec.Meta(ge=0)]
_U32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Version = Annotated[int, msgspec.Meta(ge=-1)]
_Name = Annotated[str, msgspec.Meta(max_length=1024)]
_U64 = Annotated[int, msgspec.Meta(ge=0)]
_Start = Literal["earliest", "latest"] | _U64


class Wish(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a subscription wants of a broker beyond events as they come."""

    start: _Start | None = None
    """``earliest``, ``latest`` or a sequence; None: as they come, or ``time_ns``."""
    time_ns: int | None = None
    speed: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    """Of the original spacing; 0: as fast as it goes."""
    durable: _Name | None = None
    group: _Name | None = None
    capacity: _U32 = 0
    """Events that may be out without an acknowledgement."""
    after: dict[_Name, _U64] = {}
    """By topic, the last sequence that was here before the connection was lost."""
    stores: dict[_Name, _U64] = {}
    """Of each of those, the store that it is a sequence of; 0 or none: not known."""


# Nothing in it can refer back to it, and there may be very many: the collector passes them by.
class Subscribed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A subscription as its bus announces it: where to send, and what."""

    flow: _U32
    pattern: _Name
    least_charge: _U32
    where: Annotated[str, msgspec.Meta(max_length=65536)] | None = None
    content: Annotated[tuple[Condition, ...], msgspec.Meta(max_length=MAX_CONDITIONS)] = ()
    disconnect: bool = False
    """For a broker: to end it when it has had no room for too long, and not to drop its events."""
    wish: Wish | None = None
    recorded: bool = False
    """Of a broker's: it records this topic, and sends it to everybody itself."""


class Update(msgspec.Struct, array_like=True, tag="update"):
    """What has changed from version ``since`` to ``version``; since -1: everything there is."""

    incarnation: _Incarnation
    since: _Version
    version: _Version
    topics: dict[_U32, _Name]
    gone_topics: list[_U32]
    subscriptions: list[Subscribed]
    gone_subscriptions: list[_U32]
    token: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    """For a broker, with everything there is: who says so."""


class Want(msgspec.Struct, array_like=True, tag="want"):
    """Tell me what has changed since ``have``, if that was of your present life."""

    incarnation: _Incarnation
    have: _Version


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Update | Want | Word] = msgspec.msgpack.Decoder(
    Update | Want | Word
)


def encode(message: Update | Want | Word) -> bytes:
    """For the wire."""
    return _encoder.encode(message)


def decode(data: bytes) -> Update | Want | Word:
    """From the wire. Raises msgspec.DecodeError or msgspec.ValidationError."""
    return _decoder.decode(data)


@dataclass(frozen=True, slots=True)
class _Change:
    version: int
    topic: tuple[int, str | None] | None = None
    subscription: tuple[int, Subscribed | None] | None = None


class Ledger:
    """What one bus publishes and subscribes to. Not thread-safe: its bus has a lock."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.version = 0
        self.topics: dict[int, str] = {}
        self.subscriptions: dict[int, Subscribed] = {}
        self.token: str | None = None
        """Shown to a broker."""
        self._history: deque[_Change] = deque(maxlen=_HISTORY)

    def publish(self, topic: int, name: str) -> None:
        """A topic of ours, by its number."""
        self.topics[topic] = name
        self._note(topic=(topic, name))

    def unpublish(self, topic: int) -> None:
        """It has no publisher here any more."""
        if self.topics.pop(topic, None) is not None:
            self._note(topic=(topic, None))

    def subscribe(self, subscribed: Subscribed) -> None:
        """A subscription of ours."""
        self.subscriptions[subscribed.flow] = subscribed
        self._note(subscription=(subscribed.flow, subscribed))

    def unsubscribe(self, flow: int) -> None:
        """It was closed."""
        if self.subscriptions.pop(flow, None) is not None:
            self._note(subscription=(flow, None))

    def _note(
        self,
        topic: tuple[int, str | None] | None = None,
        subscription: tuple[int, Subscribed | None] | None = None,
    ) -> None:
        self.version += 1
        self._history.append(_Change(self.version, topic, subscription))

    def since(self, version: int) -> Update:
        """What somebody needs who knows ``version`` of this life; 0 or -1: who knows nothing."""
        if 0 < version <= self.version and (
            version == self.version or self._history[0].version <= version + 1
        ):
            return self._changes(version)
        return Update(
            self.incarnation,
            _NOTHING,
            self.version,
            dict(self.topics),
            [],
            list(self.subscriptions.values()),
            [],
            self.token,
        )

    def _changes(self, version: int) -> Update:
        topics: dict[int, str | None] = {}
        subscriptions: dict[int, Subscribed | None] = {}
        for change in reversed(self._history):
            if change.version <= version:
                break
            # The latest word on each comes first on this way.
            if change.topic is not None:
                topics.setdefault(*change.topic)
            if change.subscription is not None:
                subscriptions.setdefault(*change.subscription)
        return Update(
            self.incarnation,
            version,
            self.version,
            {number: name for number, name in topics.items() if name is not None},
            [number for number, name in topics.items() if name is None],
            [one for one in subscriptions.values() if one is not None],
            [flow for flow, one in subscriptions.items() if one is None],
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """What an update has changed. Topics are by their number."""

    came: list[Subscribed]
    went: list[Subscribed]
    topics_came: dict[int, str]
    topics_went: dict[int, str]


@dataclass(slots=True)
class Table:
    """What another bus has said of itself. Not thread-safe."""

    incarnation: int
    version: int = 0
    topics: dict[int, str] = field(default_factory=dict)
    subscriptions: dict[int, Subscribed] = field(default_factory=dict)

    def apply(self, update: Update) -> Changes | None:
        """What came and what went; None: something before it is missing.

        An update of another life of that bus belongs into another table.
        """
        if update.since == _NOTHING:
            before, topics = self.subscriptions, self.topics
            self.topics = dict(update.topics)
            self.subscriptions = {one.flow: one for one in update.subscriptions}
            self.version = update.version
            return Changes(
                _without(self.subscriptions.values(), before),
                _without(before.values(), self.subscriptions),
                dict(self.topics.items() - topics.items()),
                dict(topics.items() - self.topics.items()),
            )
        if update.since > self.version:
            return None
        if update.version <= self.version:
            return Changes([], [], {}, {})  # heard before
        self.version = update.version
        # What is said of one that is known is a change: the old one went.
        topics, before = dict(self.topics), dict(self.subscriptions)
        for number in update.gone_topics:
            self.topics.pop(number, None)
        self.topics.update(update.topics)
        for flow in update.gone_subscriptions:
            self.subscriptions.pop(flow, None)
        self.subscriptions.update({one.flow: one for one in update.subscriptions})
        named = {*update.gone_topics, *update.topics}
        meant = {*update.gone_subscriptions, *(one.flow for one in update.subscriptions)}
        return Changes(
            _without(_some(self.subscriptions, meant).values(), before),
            _without(_some(before, meant).values(), self.subscriptions),
            dict(_some(self.topics, named).items() - topics.items()),
            dict(_some(topics, named).items() - self.topics.items()),
        )


def _some(those: dict[int, T], numbers: Iterable[int]) -> dict[int, T]:
    return {number: those[number] for number in numbers if number in those}


def _without(those: Iterable[Subscribed], known: dict[int, Subscribed]) -> list[Subscribed]:
    return [one for one in those if known.get(one.flow) != one]

"""A bus as the client of a broker: what the broker lets it do, and what the broker says.

Receives a `Welcome` from whoever found the broker, and later words from the bus; raises
`PermissionDenied` at the call, from what is known by then. The broker asks the same questions
again, for its clients are not to be trusted.
"""

from __future__ import annotations

import logging

from antiphon.errors import ConfigError, PermissionDenied
from antiphon.topics.announcements import Ledger
from antiphon.topics.brokered import BrokerFinder
from antiphon.topics.finder import Finder
from antiphon.topics.rights import (
    RESERVED,
    Ended,
    Refused,
    Rights,
    Stopped,
    Welcome,
    Word,
    denied,
)

__all__ = ["Client"]

log = logging.getLogger("antiphon.topics")

_NOTHING = -1, ""


class Client:
    """Where there is no broker, everything is allowed. With the bus's lock."""

    def __init__(self, finder: Finder, address: str) -> None:
        self.brokered = isinstance(finder, BrokerFinder)
        """Whether the channel is a broker's."""
        self._finder = finder
        self._address = address
        self._welcome: Welcome | None = None
        self._rights: Rights | None = None
        self.stopping = False
        """Whether the broker has said that it stops: what it wants no more then is ended."""
        if isinstance(finder, BrokerFinder):
            finder.on_welcome = self.welcomed

    def welcomed(self, welcome: Welcome) -> None:
        """The broker's word on what may be done there."""
        try:
            rights = welcome.rights
        except ConfigError as error:
            log.warning("the broker at %s names rights that are none: %s", self._address, error)
            return
        self._welcome, self._rights, self.stopping = welcome, rights, False

    def may_publish(self, topic: str, record: bool, known: int) -> None:
        """Raises `PermissionDenied`; ``known``: how many publishers there are already."""
        if self.brokered and topic.startswith(RESERVED):
            raise self._denied("publish", topic, "it is one of the broker's own topics")
        self._may("publish", topic)
        if record:
            self._may("record", topic)
        if self._welcome is not None and known >= self._welcome.max_topics:
            most = self._welcome.max_topics
            raise self._denied("publish", topic, f"a client may publish {most} topics there")

    def may_subscribe(self, pattern: str, known: int) -> None:
        """Raises `PermissionDenied`; ``known``: how many subscriptions there are already."""
        self._may("subscribe", pattern)
        if self._welcome is not None and known >= self._welcome.max_subscriptions:
            most = self._welcome.max_subscriptions
            raise self._denied("subscribe", pattern, f"a client may have {most} subscriptions")

    def check(self, ledger: Ledger) -> None:
        """What was asked for before the broker was found."""
        for topic in ledger.topics.values():
            self._may("publish", topic)
        for subscribed in ledger.subscriptions.values():
            self._may("subscribe", subscribed.pattern)

    def _may(self, action: str, topic: str) -> None:
        if self._rights is None or self._rights.allow(action, topic):
            return
        allowed = ", ".join(getattr(self._rights, action)[:5]) or "nothing"
        raise self._denied(action, topic, f"it may {action} {allowed}")

    def _denied(self, action: str, topic: str, reason: str) -> PermissionDenied:
        name = "this client" if self._welcome is None else self._welcome.client
        return denied(Refused(name, action, topic, reason), self._address)

    def hear(self, peer: int, word: Word) -> tuple[int, str]:
        """A word of the broker; the flow of a subscription that has ended and why, or -1."""
        if not isinstance(self._finder, BrokerFinder) or self._finder.broker != peer:
            return _NOTHING  # nobody else has a say
        if isinstance(word, Welcome):
            self.welcomed(word)
        elif isinstance(word, Refused):
            log.warning("%s", denied(word, self._address))
        elif isinstance(word, Stopped):
            self.stopping = True
            log.warning("the broker at %s stopped; it is looked for again", self._address)
        elif isinstance(word, Ended):
            return word.flow, word.reason
        return _NOTHING

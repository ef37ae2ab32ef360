"""Shares of a broker's time: topics that are passed on whatever the others bring.

Receives names and shares from the settings; gives them to the queue of each such topic while the
broker has one. Everything here happens with the broker's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.broker.routes import Topic
from antiphon.errors import ConfigError
from antiphon.frozen import FrozenDict
from antiphon.node.shares import Shares, check_share
from antiphon.topics.names import check_topic
from antiphon.topics.rights import SYSTEM

__all__ = ["TopicShares", "check_shares"]

log = logging.getLogger("antiphon.broker")


def check_shares(shares: object) -> Mapping[str, float]:
    """Shares by the names of topics; raises `ConfigError`."""
    if not isinstance(shares, Mapping):
        raise ConfigError(
            f"shares is {shares!r}; it must be a table of topics and their shares",
            setting="shares",
            value=shares,
        )
    checked: dict[str, float] = {}
    for name, share in shares.items():
        try:
            # None would be no share at all, and what the broker says of itself has no queue.
            checked[check_topic(name)] = check_share(0 if share is None else share)
            if name.startswith(SYSTEM):
                raise ConfigError("the broker publishes it itself; name a topic of clients")
        except ConfigError as error:
            raise ConfigError(f"shares, {name!r}: {error}", setting="shares", value=share) from None
    if sum(checked.values()) > 1 + 1e-9:
        listed = ", ".join(f"{name}: {share:g}" for name, share in sorted(checked.items()))
        raise ConfigError(
            f"shares sum to {sum(checked.values()):g}; together they are at most 1 ({listed})",
            setting="shares",
            value=dict(checked),
        )
    return FrozenDict(checked)


class TopicShares:
    """Those that the settings give, and what their topics make of them."""

    def __init__(self, shares: Shares, wanted: Mapping[str, float]) -> None:
        self._shares = shares
        self._wanted = wanted
        # What the meters showed when the shares were given.
        self._before: dict[str, dict[str, float]] = {}
        self._refused: dict[str, float] = {}  # what the node had no time left for

    def begin(self, topic: Topic) -> None:
        """The topic has a queue now."""
        share = self._wanted.get(topic.name, 0.0)
        if share:
            self._give(topic, share)

    def end(self, topic: Topic) -> None:
        """Its queue ends soon. The next one may come before that, and has the share then."""
        self._refused.pop(topic.name, None)
        if self._of(topic):
            self._give(topic, 0.0)

    def look(self, topics: Mapping[str, Topic]) -> None:
        """From time to time: others may have given up what was missing."""
        for name, share in list(self._refused.items()):
            topic = topics.get(name)
            if topic is not None and topic.handle is not None:
                self._give(topic, share)

    def change(self, wanted: Mapping[str, float], topics: Iterable[Topic]) -> None:
        """Others from now on."""
        self._wanted = wanted
        self._refused.clear()
        changes = [
            (wanted.get(topic.name, 0.0) - self._of(topic), topic)
            for topic in topics
            if topic.handle is not None
        ]
        # Those that get less come first: there is no more than all of it at any moment.
        for more, topic in sorted(changes, key=lambda one: one[0]):
            if more:
                self._give(topic, wanted.get(topic.name, 0.0))

    def facts(self, topic: Topic) -> dict[str, Any]:
        """What there is to say of the topic's share, and of its turns since it has it."""
        share = self._of(topic)
        if not share or topic.handle is None:
            return {"share": None}
        before = self._before.get(topic.name, {})
        meter = {name: one - before.get(name, 0.0) for name, one in topic.handle.meter().items()}
        turns, waited = meter["slices"], meter["waited"] + meter["resumed"]
        return {
            "share": share,
            "cpu_s": round(meter["used"], 6),
            "turns": int(turns),
            "mean_wait_us": round(1e6 * waited / turns, 3) if turns else None,
            "overruns": int(meter["overruns"]),
        }

    def _of(self, topic: Topic) -> float:
        return (topic.handle is not None and self._shares.share_of(topic.handle)) or 0.0

    def _give(self, topic: Topic, share: float) -> None:
        assert topic.handle is not None
        try:
            self._shares.give(topic.handle, share, f"topic {topic.name!r}")
        except ConfigError as error:  # a program has given some of this node's time to others
            held = self._of(topic)
            has = f"keeps its share of {held:g}" if held else "has no share"
            if self._refused.get(topic.name) != share:
                log.error(
                    "topic %r %s, and is given %g when it can be: %s", topic.name, has, share, error
                )
            self._refused[topic.name] = share
            return
        self._refused.pop(topic.name, None)
        self._before.pop(topic.name, None)
        if share:
            self._before[topic.name] = topic.handle.meter()

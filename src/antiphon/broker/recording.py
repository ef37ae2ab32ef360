"""Recorded topics of a broker: its store, the ways into the logs and the replays out of them.

A topic is recorded from the first publisher on that asks for it, or because the settings name it,
or because the store has it already. Its publishers then have a route into the log in place of one
to the subscriptions, and every subscription a replay, which begins at the end of the log if nobody
said otherwise: so all see the same order and the same sequences. Per event the core does it
(``native/bindings/recorder.cpp``, ``replay.cpp``).
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field

from antiphon._core import RecorderCore, ReplayCore, make_recorder, make_replay
from antiphon.broker.config import BrokerConfig
from antiphon.broker.store import LogInfo, Store
from antiphon.errors import ConfigError
from antiphon.node import Node
from antiphon.topics.announcements import Wish
from antiphon.topics.names import Pattern
from antiphon.topics.neighbours import Interest

__all__ = ["Recording", "beginning", "no_store", "open_store"]

log = logging.getLogger("antiphon.broker")

_FASTEST = 1e9
_TRIED_AGAIN = 5.0  # seconds: by then a publisher whose events found no space has tried again
_QUEUE = 16 << 20  # bytes that wait to be written, beside the largest event


def open_store(path: str | os.PathLike[str], config: BrokerConfig, largest: int) -> Store:
    """Raises `ConfigError` for a directory that another broker has, or that is no store.

    ``largest``: bytes of an event.
    """
    return Store(
        path,
        fsync=config.fsync,  # type: ignore[arg-type]
        interval=config.fsync_interval,
        segment_bytes=config.segment_bytes,
        keep_bytes=config.keep_bytes,
        keep_age=config.keep_age,
        queue_bytes=largest + _QUEUE,
    )


def no_store(setting: str) -> ConfigError:
    """Of a broker that is asked to remember, and cannot."""
    return ConfigError(
        f"{setting}= needs a broker with a store; start it with --store DIR, or Broker(store=DIR)",
        setting=setting,
    )


@dataclass(eq=False)
class _Recorded:
    number: int
    replays: dict[tuple[int, int], ReplayCore] = field(default_factory=dict)


class Recording:
    """The recorded topics of one broker. With the broker's lock, but for `open` and `close`."""

    def __init__(self, node: Node, store: Store, config: BrokerConfig) -> None:
        self._node = node
        self.store = store
        self._patterns = [Pattern(text) for text in config.record]
        self._topics: dict[str, _Recorded] = {}
        self._said_full = False
        self._no_space = 0  # as counted, when that last was more than before,
        self._refused_at = 0.0  # at that time,
        self._appended = 0  # and what had been recorded by then

    def known(self) -> list[str]:
        """Topics that have a log, of this life or of one before."""
        return self.store.topics()

    def wants(self, name: str) -> bool:
        """Whether the settings say that this topic is recorded."""
        return any(pattern.matches(name) for pattern in self._patterns)

    def add(self, name: str, number: int) -> None:
        """From now on; ``number`` is the broker's for it."""
        self._topics.setdefault(name, _Recorded(number))

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def is_open(self, name: str) -> bool:
        """Whether the log of a topic is open. Never waits for the disk."""
        return self.store.has_open(name)

    def open(self, name: str) -> LogInfo:
        """Opens the log of a topic. Without the broker's lock: the disk may take its time.

        Raises `OSError` and `StoreFull` when the disk fails, `ConfigError` for a name that no log
        can have.
        """
        return self.store.log(name)

    def route(self, name: str, source: int, number: int, producer: int) -> RecorderCore:
        """From one publisher into the log."""
        return make_recorder(self._node, self.store._core, name, source, number, producer)

    # --- replays ----------------------------------------------------------------------------

    def serve(self, name: str, interest: Interest) -> None:
        """Everything from where it wants to begin, to one subscription."""
        topic = self._topics[name]
        key = (interest.peer, interest.flow)
        before = topic.replays.pop(key, None)
        if before is not None:
            before.close()
        at, value = beginning(interest.wish, name, self.store.id)
        if at == "earliest" and interest.wish is not None and name in interest.wish.after:
            log.warning(
                "client %d was at %d of %r in another store; it gets this one from the beginning",
                interest.peer,
                interest.wish.after[name],
                name,
            )
        replay = make_replay(
            self._node,
            self.store._core,
            name,
            topic.number,
            *interest.place,
            interest.where.core if interest.where else None,
            at,
            value,
            min(interest.wish.speed, _FASTEST) if interest.wish else 0.0,
            interest.judge,
        )
        if replay is not None:
            topic.replays[key] = replay

    def leave(self, name: str, peer: int, flow: int) -> None:
        """That subscription has gone."""
        replay = self._topics[name].replays.pop((peer, flow), None)
        if replay is not None:
            replay.close()

    def look(self) -> None:
        """Says what is wrong with the disk, when that has changed. With the lock or without."""
        for name, what in self.store.take_damages():
            log.error("the log of %r is damaged, which is passed over: %s", name, what)
        full = self.full
        if full and not self._said_full:
            log.error(
                "%s has no space left: what is there can be read, and nothing is recorded until "
                "there is some",
                self.store.path,
            )
        elif self._said_full and not full:
            log.warning("%s has space again, and records", self.store.path)
        self._said_full = full

    @property
    def full(self) -> bool:
        """Whether there is no space: what came last found none, and nothing was recorded since.

        While some is recorded and some is not, that too. Never waits for the disk.
        """
        counts, now = self.store.statistics(), time.monotonic()
        if counts["no_space"] != self._no_space:
            self._no_space, self._appended = counts["no_space"], counts["appended"]
            self._refused_at = now
        if counts["waits"]:
            return True
        nothing_since = counts["appended"] == self._appended
        return self._no_space != 0 and (nothing_since or now - self._refused_at < _TRIED_AGAIN)

    def end(self) -> None:
        """No more is read; what is on its way goes on."""
        for topic in self._topics.values():
            for replay in topic.replays.values():
                replay.close()
            topic.replays.clear()

    def close(self) -> None:
        """Everything is written, and every log ended so that it goes on without a gap."""
        self.end()
        self.store.close()


def beginning(wish: Wish | None, topic: str, store: int) -> tuple[str, int]:
    """Where in a log a subscription begins: a word and a number, as the core takes them.

    One that was somewhere in another store, such as one that was emptied since, has had nothing of
    what is in this one.
    """
    if wish is None:
        return "latest", 0
    if topic in wish.after:
        if wish.stores.get(topic, 0) not in (0, store):
            return "earliest", 0
        return "sequence", wish.after[topic] + 1
    if wish.time_ns is not None:
        return "time", wish.time_ns
    if isinstance(wish.start, int):
        return "sequence", wish.start
    return wish.start or "latest", 0

"""A broker's figures as events: topics under ``$sys/``, published while somebody subscribes.

Receives what the broker counts; hands events (JSON) to those of its clients that ask for them. One
event per topic and interval, of at most so many topics; a subscriber without room misses some.
Everything here happens with the broker's lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from antiphon._core import PublisherCore
from antiphon.errors import AntiphonError
from antiphon.topics.names import MAX_NAME_BYTES
from antiphon.topics.neighbours import Interest, Interests
from antiphon.topics.rights import SYSTEM

__all__ = ["MOST_TOPICS", "SystemTopics", "process_facts"]

MOST_TOPICS = 1024
"""Topics of each sort that are told of: those of the first so many clients, and topics."""

_SOON = 0.1  # the first event of whoever has just subscribed

Facts = Mapping[str, Any]
Sort = Callable[[], Iterable[tuple[str, Facts]]]
"""Names below ``$sys/``, and what there is to say of each."""


class SystemTopics:
    """Publishes what it is given functions for, each asked only if somebody wants to know."""

    def __init__(
        self,
        make: Callable[[str], PublisherCore],
        interests: Interests,
        interval: float,
        sorts: Mapping[str, Sort],
    ) -> None:
        """``sorts``: by the first level below ``$sys``."""
        self._make = make
        self._interests = interests
        self._interval = interval
        self._sorts = sorts
        self._readers: dict[tuple[int, int], Interest] = {}
        self._cores: dict[str, PublisherCore] = {}
        self._due = 0.0

    def came(self, flow: int, interest: Interest) -> None:
        """A subscription that may be for us."""
        if interest.pattern.text.startswith(SYSTEM) or interest.pattern.text == SYSTEM[:-1]:
            self._readers[interest.peer, flow] = interest
            self._due = min(self._due, time.monotonic() + _SOON)

    def went(self, peer: int, flow: int) -> None:
        """One that is no more."""
        if self._readers.pop((peer, flow), None) is not None:
            for core in self._cores.values():
                core.leave(peer, flow)
            if not self._readers:
                self.close()

    def look(self, now: float) -> None:
        """Publishes what is due. Never blocks: who has no room misses it."""
        if not self._readers or now < self._due:
            return
        self._due = now + self._interval
        told = set()
        readers = set(self._readers.values())
        for sort, facts_of in self._sorts.items():
            if not any(self._may_mean(sort, one) for one in self._readers.values()):
                continue
            for name, facts in islice(facts_of(), MOST_TOPICS):
                topic = SYSTEM + name
                wanting = [one for one in self._interests.matching(topic) if one in readers]
                if not wanting or len(topic.encode()) > MAX_NAME_BYTES:
                    continue
                told.add(topic)
                self._publish(topic, facts, wanting)
        for topic in self._cores.keys() - told:  # of clients and topics that have gone
            self._cores.pop(topic).close()

    @staticmethod
    def _may_mean(sort: str, interest: Interest) -> bool:
        levels = interest.pattern.levels
        return len(levels) > 1 and levels[1] in (sort, "*", "**")

    def _publish(self, topic: str, facts: Facts, wanting: list[Interest]) -> None:
        core = self._cores.get(topic)
        if core is None:
            core = self._cores[topic] = self._make(topic)
        for interest in wanting:
            interest.serve(core)
        with contextlib.suppress(AntiphonError):  # the node is closing
            core.publish(json.dumps(facts).encode())

    def close(self) -> None:
        """Nothing more comes."""
        for core in self._cores.values():
            core.close()
        self._cores.clear()


def process_facts(began: float) -> dict[str, float | int]:
    """Of this process: how long it runs, what it holds, what it has used."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    times = os.times()
    return {
        "uptime_s": round(time.monotonic() - began, 3),
        "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "cpu_s": round(times.user + times.system, 3),
    }

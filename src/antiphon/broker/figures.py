"""What a broker counts: for programs that ask, and for its topics under ``$sys/``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from antiphon.broker.routes import COUNTS, missed_by
from antiphon.broker.system_topics import process_facts
from antiphon.topics.judge import ContentStatistics

if TYPE_CHECKING:
    from antiphon.broker.broker import Broker

__all__ = ["BrokerStatistics", "Figures"]


@dataclass(frozen=True)
class BrokerStatistics:
    """Counts of this moment."""

    clients: int
    """Buses that are connected."""
    topics: int
    """Topics that clients publish."""
    subscriptions: int
    """Subscriptions of all clients."""
    routes: int
    """Publishers whose events pass through here."""
    relayed: int
    """Events that came, whoever wanted them."""
    dropped: int
    """Events that a subscription missed because it had no room for too long."""
    lost: int
    """Events for subscriptions that could not be reached."""
    denied: int
    """Events of clients that may not publish them."""
    refused: int
    """Connections, topics and subscriptions that were not allowed."""
    limited: int
    """Events of clients that published more than they may."""
    ended: int
    """Subscriptions that were ended because they had no room for too long."""
    recorded: int
    """Events that were written to logs."""
    damaged: int
    """Places in logs that could not be read, and were passed over."""
    store_full: bool
    """Whether the store has no space: what is published to be recorded is not."""
    content: ContentStatistics
    """Of filters on the content of events."""


class Figures:
    """Looks into one broker, with its lock."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._began = time.monotonic()

    def statistics(self) -> BrokerStatistics:
        """Counts of this moment."""
        broker = self._broker
        every = broker._routes()
        routes = [route for route in every if route.allowed]
        counts = [broker._past, *(route.core.statistics() for route in routes)]
        denied = sum(route.core.sequence for route in every if not route.allowed)
        logs = broker._recording.store.statistics() if broker._recording else Counter[str]()
        return BrokerStatistics(
            clients=broker._neighbours.others,
            topics=sum(bool(topic.publishers) for topic in broker._topics.values()),
            subscriptions=len(broker._interests),
            routes=len(routes),
            relayed=sum(one["published"] for one in counts),
            dropped=sum(one["dropped"] for one in counts),
            lost=sum(one["lost"] for one in counts),
            denied=broker._past["denied"] + denied,
            refused=broker._gate.refused,
            limited=broker._gate.limited,
            ended=broker._subscriptions_ended,
            recorded=logs["appended"],
            damaged=logs["damaged"],
            store_full=broker._recording is not None and broker._recording.full,
            content=broker._interests.judge.statistics(),
        )

    def broker(self) -> Iterator[tuple[str, dict[str, Any]]]:
        counts = asdict(self.statistics())
        yield "broker", {"address": self._broker.address, **counts, **process_facts(self._began)}

    def clients(self) -> Iterator[tuple[str, dict[str, Any]]]:
        passed = {peer: Counter(sums) for peer, sums in self._broker._missed.items()}
        for route in self._broker._routes():
            counts = route.core.statistics()
            sums = passed.setdefault(route.source, Counter())
            sums["denied" if not route.allowed else "published"] += counts["published"]
            missed_by(route, passed)
        for peer, one in self._broker._neighbours.all.items():
            client = self._broker._gate.get(peer)
            if one.itself or client is None:
                continue
            sums = passed.get(peer, Counter())
            yield (
                f"clients/{peer}",
                {
                    "id": peer,
                    "name": client.name,
                    "topics": len(one.table.topics),
                    "subscriptions": len(one.table.subscriptions),
                    **{name: sums[name] for name in ("published", "denied", "dropped", "lost")},
                    "limited": 0 if client.quota is None else client.quota.dropped,
                },
            )

    def topics(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, topic in self._broker._topics.items():
            counts = [route.core.statistics() for route in topic.routes.values() if route.allowed]
            queue = {} if topic.handle is None else topic.handle.statistics()
            yield (
                f"topics/{name}",
                {
                    "topic": name,
                    "publishers": sum(topic.publishers.values()),
                    "subscriptions": len(self._broker._interests.matching(name)),
                    "waiting": queue.get("pending", 0),
                    **{fact: sum(one[fact] for one in counts) for fact in COUNTS},
                    **self._broker._shares.facts(topic),
                },
            )

"""Handlers and children for tests of buses.

Every test has a channel of its own (the ``channel`` fixture). ``resident`` is a process with one
bus that publishes, subscribes and reports as the test says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, Self

from antiphon.testing import Child, Collected, Control, eventually
from antiphon.topics import Event, Publisher, Subscription

PATIENCE = 20.0
"""Seconds after which something that should have happened has not: the machine may be busy."""


class Events(Collected[Event]):
    """A handler that keeps its events."""

    def __call__(self, event: Event) -> None:
        self.add(event)

    @property
    def data(self) -> list[bytes]:
        return [event.data for event in self.items]

    @property
    def sequences(self) -> list[int]:
        return [event.sequence for event in self.items]

    @property
    def missed(self) -> list[int]:
        return [event.missed for event in self.items]

    def wait(self, count: int) -> list[bytes]:
        """The data of the first ``count``. Blocks until they are here."""
        return [event.data for event in self.first(count, PATIENCE)]


class Held(Events):
    """The same, but each call stays in the handler until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, event: Event) -> None:
        self.add(event)
        self.entered.set()
        self._opened.wait(2 * PATIENCE)

    def open(self) -> None:
        self._opened.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.open()


class HeldBatches:
    """A batch handler that stays in its first call until it is opened; keeps what it was given."""

    def __init__(self) -> None:
        self.batches: Collected[Any] = Collected()
        self.entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, batch: Any) -> None:
        self.batches.add(batch)
        self.entered.set()
        self._opened.wait(2 * PATIENCE)

    def open(self) -> None:
        self._opened.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.open()


def serves(publisher: Publisher, count: int = 1) -> None:
    """Returns once the publisher knows so many subscriptions, and no more."""
    assert publisher.wait_for_subscribers(count, PATIENCE)
    assert publisher.subscribers == count


def came(subscription: Subscription, count: int, dropped: int = 0) -> None:
    """Returns once exactly so many events have come, and so many of them were dropped.

    They are counted before it is decided whether they are let into the queue.
    """
    eventually(
        lambda: subscription.statistics()["messages"] >= count, PATIENCE, f"{count} have come"
    )
    eventually(
        lambda: subscription.statistics()["dropped"] >= dropped, PATIENCE, f"{dropped} are dropped"
    )
    counts = subscription.statistics()
    assert (counts["messages"], counts["dropped"]) == (count, dropped)


def publish_each(publisher: Publisher, events: Iterable[bytes]) -> None:
    """One by one. May block."""
    for data in events:
        publisher.publish(data)


def burn(seconds: float) -> None:
    """Keeps a processor busy for so long, of this thread's own time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def resident(
    control: Control,
    address: str,
    id: int | None = None,
    topics: list[str] | None = None,
    patterns: list[str] | None = None,
    settings: dict[str, Any] | None = None,
    announce: float = 1.0,
    heartbeat: float = 1.0,
    secret: str | None = None,
) -> None:
    """A bus that publishes and subscribes, and tells what comes when it is asked."""
    import contextlib
    import tempfile
    from pathlib import Path

    from antiphon import Node, NodeConfig
    from antiphon.topics import Bus, BusConfig

    config = BusConfig(announce_interval=announce, announce_expiry=5 * announce)
    node_config = NodeConfig(heartbeat=heartbeat)
    with contextlib.ExitStack() as stack:
        node = None
        if id is not None:
            where = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "node"
            node = stack.enter_context(Node(id, listen=f"unix://{where}", config=node_config))
        own = None if node else node_config
        bus = stack.enter_context(
            Bus(address, node=node, secret=secret, config=config, node_config=own)
        )
        publishers = {topic: bus.publisher(topic) for topic in topics or ()}
        events: list[Any] = []
        subscriptions = [
            bus.subscribe(pattern, events.append, **(settings or {})) for pattern in patterns or ()
        ]
        control.tell("ready", id=bus.node.id)
        while True:
            order = control.hear()
            match order["order"]:
                case "serve":
                    publisher = publishers[order["topic"]]
                    served = publisher.wait_for_subscribers(order["count"], 20.0)
                    control.tell("served", well=served, count=publisher.subscribers)
                case "publish":
                    publisher = publishers[order["topic"]]
                    for number in range(order["first"], order["last"]):
                        publisher.publish(b"%d" % number)
                    control.tell("published")
                case "burst":  # without an end
                    publisher = publishers[order["topic"]]
                    control.tell("bursting")
                    number = 0
                    while True:
                        publisher.publish(b"%d" % number)
                        number += 1
                case "events":
                    control.tell(
                        "events",
                        data=[event.data.decode("latin-1") for event in list(events)],
                        topics=[event.topic for event in list(events)],
                        sources=[event.source for event in list(events)],
                        sequences=[event.sequence for event in list(events)],
                        missed=[event.missed for event in list(events)],
                    )
                case "count":
                    control.tell("count", count=len(events))
                case "topics":
                    control.tell("topics", names=[topic.name for topic in bus.topics()])
                case "unsubscribe":
                    subscriptions.pop().close()
                    control.tell("unsubscribed")
                case "unpublish":
                    publishers.pop(order["topic"]).close()
                    control.tell("unpublished")
                case "close":
                    bus.close()
                    control.tell("closed")
                case "leave":
                    break
    control.tell("left")


def count_of(child: Child) -> int:
    """How many events have come to a resident."""
    child.tell("count")
    count: int = child.expect("count", PATIENCE)["count"]
    return count


def events_of(child: Child) -> dict[str, list[Any]]:
    """What has come to a resident."""
    child.tell("events")
    return child.expect("events", PATIENCE)


def publish_from(child: Child, topic: str, first: int, last: int) -> None:
    """A resident publishes the numbers from ``first`` up to ``last``; returns when it has."""
    child.tell("publish", topic=topic, first=first, last=last)
    child.expect("published", 2 * PATIENCE)


def wait_served(child: Child, topic: str, count: int = 1) -> None:
    """A resident's publisher knows so many subscriptions."""
    child.tell("serve", topic=topic, count=count)
    served = child.expect("served", 2 * PATIENCE)
    assert (served["well"], served["count"]) == (True, count)

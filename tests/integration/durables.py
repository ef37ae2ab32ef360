"""Brokers with a store for tests: in this process, or in one of its own that may be killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphon import Broker, BrokerConfig, Bus
from antiphon.broker.store import Store
from antiphon.testing import Child, Control
from antiphon.topics import Event, Subscription
from integration.buses import PATIENCE


@contextlib.contextmanager
def recording(path: Path, **settings: Any) -> Iterator[Broker]:
    """A broker with a store there, on any port."""
    config = BrokerConfig(store=str(path), **settings)
    with Broker("tcp://127.0.0.1:0", config=config) as broker:
        yield broker


def broker_process(control: Control, listen: str, path: str, settings: dict[str, Any]) -> None:
    """A broker with a store, until it is killed or told to leave."""
    from antiphon import Broker, BrokerConfig

    with Broker(listen, config=BrokerConfig(store=path, **settings)) as broker:
        control.tell("ready", address=broker.address, id=broker.node.id)
        control.hear()


def standing(listen: str, path: Path, **settings: Any) -> Child:
    """The same as a child, ready; to be used with ``with``."""
    child = Child(broker_process, listen=listen, path=str(path), settings=settings)
    child.expect("ready", PATIENCE)
    return child


def take(subscription: Subscription, count: int) -> list[Event]:
    """The next events, so many."""
    return [subscription.receive(PATIENCE) for _ in range(count)]


def in_log(path: Path, topic: str) -> list[bytes]:
    """The data of all records of a topic, as they lie on the disk."""
    with Store(path, read_only=True) as store:
        if topic not in store.topics():
            return []
        return [record.data for record in store.reader(topic)]


def record(bus: Bus, topic: str, *data: bytes) -> None:
    """Publishes these, and returns when they are in the log."""
    with bus.publisher(topic, record=True) as publisher:
        publisher.publish_many(list(data))
        publisher.flush(PATIENCE)

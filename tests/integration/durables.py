"""Brokers with a store for tests: in this process, or in one of its own that may be killed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from antiphon import Broker, BrokerConfig, Bus
from antiphon.broker.store import Store
from antiphon.testing import Child, Control, eventually
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


def enlarge(disk: Path) -> None:
    """Makes room on the ``small_disk``."""
    subprocess.run(["mount", "-o", "remount,size=32m", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Takes all the room that the ``small_disk`` has; gives the file that can be removed."""
    file = disk / "filler"
    with file.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while out.write(bytes(4096)):
            pass
    return file


def lag(broker: Broker, name: str) -> int:
    """Events that a durable subscription has not acknowledged; -1: there is none."""
    known = {one["name"]: one for one in broker._answers.durables(0)}
    return int(known[name]["lag"]) if name in known else -1


def with_patience(holds: Callable[[Path, float], None], path: Path) -> None:
    """With little time for an acknowledgement, or with much, if that does not hold.

    The little may pass while the machine does something else, and then what comes again is right.
    """
    try:
        holds(path, 0.4)
    except AssertionError:
        holds(path.with_name("again"), 4.0)


def caught_up(broker: Broker, name: str) -> None:
    """Returns once everything is acknowledged."""
    eventually(lambda: lag(broker, name) == 0, PATIENCE, "nothing is left")

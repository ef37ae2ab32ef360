"""Brokers for tests: counts to wait for, one in a process of its own, and who talks nonsense to it.

Behind a broker a publisher serves one subscription for all the other clients together, so `serves`
says that the broker asks for the topic; who asks the broker, `settled` knows.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from antiphon import Broker, BrokerStatistics, Node
from antiphon.testing import Child, Control, eventually
from antiphon.topics import Publisher, Subscription
from integration.buses import PATIENCE, Events


def settled(broker: Broker, **counts: int) -> BrokerStatistics:
    """Returns once the broker counts just that."""

    def found() -> bool:
        now = broker.statistics()
        return all(getattr(now, name) == count for name, count in counts.items())

    try:
        eventually(found, PATIENCE)
    except AssertionError:
        raise AssertionError(f"{broker.statistics()}, not {counts}") from None
    return broker.statistics()


def stays(broker: Broker, *all: Events) -> list[int]:
    """How many events each has got, once nothing is on its way any more."""

    def still() -> list[int]:
        before = broker.statistics().relayed, [len(one) for one in all]
        broker.node.flush(PATIENCE)
        now = broker.statistics().relayed, [len(one) for one in all]
        return before[1] if before == now else []

    return eventually(still, PATIENCE) if all else []


def through(publisher: Publisher, subscription: Subscription) -> None:
    """Publishes until something comes: the way from the one to the other is open."""

    def came() -> bool:
        before = subscription.statistics()["messages"]
        publisher.publish(b"knock")
        return bool(subscription.statistics()["messages"] > before or before)

    eventually(came, PATIENCE, "an event has come through")


def announce(node: Node, broker: Broker, letter: bytes) -> None:
    """Says to a broker what only a bus should say; returns when it was heard."""
    node._tell(broker.node.id, letter, True)
    node.flush(PATIENCE)


def standing(control: Control, listen: str, secret: str | None = None) -> None:
    """A broker that tells its counts when it is asked."""
    import dataclasses

    from antiphon import Broker

    with Broker(listen, secret=secret) as broker:
        control.tell("ready", address=broker.address, id=broker.node.id)
        while True:
            match control.hear()["order"]:
                case "count":
                    control.tell("counts", **dataclasses.asdict(broker.statistics()))
                case "leave":
                    break
    control.tell("left")


def counts_of(child: Child) -> dict[str, Any]:
    """What a broker in a process of its own counts."""
    child.tell("count")
    return child.expect("counts", PATIENCE)


def open_files() -> int:
    """Descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def tasks() -> int:
    """Threads of this process, those of the core included."""
    return len(list(Path("/proc/self/task").iterdir()))


def leaves_nothing(files: int, threads: int) -> None:
    """Returns once there are no more than before: the kernel takes a moment for a thread."""
    gc.collect()
    eventually(lambda: open_files() <= files and tasks() <= threads, PATIENCE, "all is gone")

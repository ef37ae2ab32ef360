"""Act: a durable subscriber is killed while orders come in; started again, it misses none.

A broker with a store, somebody who publishes orders and somebody who bills them, each in a process
of its own. The one who bills is killed without a warning.
"""

from __future__ import annotations

import tempfile
import time

from antiphon.cli.acts.stage import Act, ActFailed, Scene, Stage
from antiphon.testing import Child, ChildFailed, Control

__all__ = ["ACT"]

CODE = """
# antiphon broker --store orders.store

orders = bus.publisher("orders/eu", record=True)
orders.publish(b"order 17")
orders.flush()                     # it is in the broker's log

# in another process: killed, and started again
bus.subscribe("orders/*", bill, durable="billing", start="earliest")
"""

RATE = 200.0
SECONDS = 3.0  # of each of: together, alone, together again
_PATIENCE = 20.0


def broker(control: Control, store: str) -> None:
    """Until it is told to end."""
    from antiphon import Broker

    with Broker("tcp://127.0.0.1:0", store=store) as running:
        control.tell("ready", address=running.address)
        control.hear()


def shop(control: Control, address: str, rate: float) -> None:
    """Publishes numbered orders at a rate, until it is asked how many it was."""
    import time

    from antiphon import Bus

    with Bus(address) as bus:
        orders = bus.publisher("orders/eu", record=True)
        count, due = 0, time.monotonic()
        control.tell("ready")
        while not control.heard():
            count += 1
            orders.publish(b"order %d" % count)
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        orders.flush(20.0)
        control.tell("recorded", count=count)
        control.hear()
        control.hear()


def billing(control: Control, address: str) -> None:
    """Bills orders; tells which, a few times a second."""
    import time

    from antiphon import Bus

    billed: list[int] = []

    def bill(event: object) -> None:
        billed.append(int(event.data.split()[1]))  # type: ignore[attr-defined]

    with Bus(address) as bus:
        bus.subscribe("orders/*", bill, durable="billing", start="earliest")
        control.tell("ready")
        told = 0
        while True:
            time.sleep(0.1)
            now = len(billed)
            if now > told:
                control.tell("billed", orders=billed[told:now])
            told = now


def perform(stage: Stage) -> dict[str, object]:
    """Kill, wait, start again, and count."""
    try:
        with tempfile.TemporaryDirectory() as store:
            return _perform(stage, store)
    except ChildFailed as error:
        raise ActFailed(str(error).splitlines()[0]) from None


def _perform(stage: Stage, store: str) -> dict[str, object]:
    with Child(broker, store=f"{store}/store") as running:
        address = running.expect("ready", _PATIENCE)["address"]
        with Child(shop, address=address, rate=RATE) as orders:
            orders.expect("ready", _PATIENCE)
            first: list[int] = []
            with Child(billing, address=address) as bills:
                bills.expect("ready", _PATIENCE)
                until = time.monotonic() + SECONDS
                while time.monotonic() < until or not first:
                    first += bills.expect("billed", _PATIENCE)["orders"]
                bills.kill()
            stage.say(f"  billed {len(first)} orders, up to number {first[-1]}; killed with -9")
            with stage.now("orders come in, and nobody bills them"):
                time.sleep(SECONDS)
            second: list[int] = []
            began = time.monotonic()
            with Child(billing, address=address) as bills:
                bills.expect("ready", _PATIENCE)
                second += bills.expect("billed", _PATIENCE)["orders"]
                stage.say(
                    f"  started again: from number {second[0]} on, {len(second)} orders at once "
                    f"after {time.monotonic() - began:.1f} s"
                )
                until = time.monotonic() + SECONDS
                while time.monotonic() < until:
                    second += bills.expect("billed", _PATIENCE)["orders"]
                orders.tell("count")
                total = int(orders.expect("recorded", _PATIENCE)["count"])
                while total not in second:
                    second += bills.expect("billed", _PATIENCE)["orders"]
                bills.kill()
    missed = set(range(1, total + 1)) - set(first) - set(second)
    twice = len(set(first) & set(second))
    stage.say(
        f"  {total} orders recorded, {total - len(missed)} billed, {len(missed)} missed, {twice} "
        "billed twice: it was killed before it could acknowledge them",
        style="bold",
    )
    if missed:
        raise ActFailed(f"{len(missed)} orders were missed, the first is {min(missed)}")
    return {"orders": total, "missed": len(missed), "twice": twice, "alone_s": SECONDS}


ACT = Act(
    name="orders",
    title="A durable subscriber is killed",
    seconds=15.0,
    scenes=(Scene(CODE, perform),),
)

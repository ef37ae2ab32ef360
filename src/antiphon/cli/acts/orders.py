"""Act: a durable subscriber is killed while orders come in; started again, it misses none.

A broker with a store, somebody who publishes orders and somebody who bills them, each in a process
of its own. The one who bills is killed without a warning.
"""

from __future__ import annotations

import contextlib
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
    """Bills orders, and tells of each before it is acknowledged."""
    from antiphon import Bus

    def bill(event: object) -> None:
        control.tell("billed", order=int(event.data.split()[1]))  # type: ignore[attr-defined]

    with Bus(address) as bus:
        bus.subscribe("orders/*", bill, durable="billing", start="earliest")
        control.hear()


def perform(stage: Stage) -> dict[str, object]:
    """Kill, wait, start again, and count."""
    try:
        with tempfile.TemporaryDirectory() as store:
            return _perform(stage, store)
    except ChildFailed as error:
        raise ActFailed(str(error).splitlines()[0]) from None


def _bill_until(bills: Child, seconds: float) -> list[int]:
    """What is billed in that time from the first order on."""
    billed = [int(bills.expect("billed", _PATIENCE)["order"])]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        billed.append(int(bills.expect("billed", _PATIENCE)["order"]))
    return billed


def _kill(bills: Child) -> list[int]:
    """What it had billed beyond what was heard of."""
    bills.kill()
    billed: list[int] = []
    with contextlib.suppress(ChildFailed):
        while True:
            billed.append(int(bills.hear(_PATIENCE)["order"]))
    return billed


def _perform(stage: Stage, store: str) -> dict[str, object]:
    with Child(broker, store=f"{store}/store") as running:
        address = running.expect("ready", _PATIENCE)["address"]
        with Child(shop, address=address, rate=RATE) as orders:
            orders.expect("ready", _PATIENCE)
            with Child(billing, address=address) as bills:
                first = _bill_until(bills, SECONDS)
                first += _kill(bills)
            stage.say(f"  billed {len(first)} orders, up to number {first[-1]}; killed with -9")
            with stage.now("orders come in, and nobody bills them"):
                time.sleep(SECONDS)
            with Child(billing, address=address) as bills:
                second = _bill_until(bills, 0.5)
                stage.say(
                    f"  started again: from number {second[0]} on, {len(second)} orders within "
                    "half a second"
                )
                second += _bill_until(bills, SECONDS)
                orders.tell("count")
                total = int(orders.expect("recorded", _PATIENCE)["count"])
                while total not in second:
                    second.append(int(bills.expect("billed", _PATIENCE)["order"]))
                bills.kill()
    missed = set(range(1, total + 1)) - set(first) - set(second)
    twice = len(set(first) & set(second))
    why = ": it was killed before it could acknowledge them" if twice else ""
    stage.say(
        f"  {total} orders recorded, {total - len(missed)} billed, {len(missed)} missed, {twice} "
        f"billed twice{why}",
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

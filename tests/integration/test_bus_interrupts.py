"""Ctrl-C in every call of a bus that waits: it ends the call, and the bus is as good as before."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from antiphon.testing import Child, Control
from integration.buses import PATIENCE

pytestmark = pytest.mark.timeout(120)


def block(control: Control, call: str, address: str) -> None:
    """Makes a call that would wait for a minute at the least, and tells how it ended.

    Nobody reads the subscription "full", so its publishers come to wait.
    """
    import threading
    import time
    from array import array
    from collections.abc import Callable

    from antiphon import Bus, NodeConfig

    config = NodeConfig(send_timeout=90.0, request_timeout=90.0)
    bus = Bus(address, node_config=config).start()
    unread = bus.subscribe("full", capacity=16)
    reader = bus.subscribe("nothing")
    after = bus.subscribe("after")
    last = bus.publisher("after")
    publisher = bus.publisher("full")
    queued = bus.publisher("full", share=0.1, capacity=4)
    lonely = bus.publisher("lonely")

    def again(publish: Callable[[], object]) -> Callable[[], object]:
        def without_end() -> None:
            while True:
                publish()

        return without_end

    def behind_another() -> None:
        """Whose turn lasts as long as it waits for room."""
        other = threading.Thread(target=again(lambda: publisher.publish(b"x")), daemon=True)
        other.start()
        while unread.pending < 16:
            time.sleep(0.01)
        publisher.publish(b"x")

    def drain() -> None:
        while unread.pending < 16 or queued.statistics()["pending"] < 2:
            if queued.statistics()["pending"] < 3:
                queued.publish(b"x")
            else:
                time.sleep(0.01)
        queued._core.close(90.0)

    offsets = array("i", range(0, 64 * 101, 64))
    calls: dict[str, Callable[[], object]] = {
        "publish": again(lambda: publisher.publish(b"x")),
        "publish of large events": again(lambda: publisher.publish(bytes(20_000_000))),
        "publish_many": again(lambda: publisher.publish_many([b"x"] * 100)),
        "publish_packed": again(lambda: publisher.publish_packed(bytes(6400), offsets)),
        "publish behind another": behind_another,
        "publish into a queue": again(lambda: queued.publish(b"x")),
        "close of a publisher": drain,
        "receive": reader.receive,
        "receive with a timeout": lambda: reader.receive(90.0),
        "iteration": lambda: list(reader),
        "wait_for_subscribers": lambda: lonely.wait_for_subscribers(timeout=90.0),
        "wait_for_subscribers for ever": lambda: lonely.wait_for_subscribers(timeout=None),
    }
    control.tell("blocking")
    try:
        calls[call]()
    except KeyboardInterrupt:
        control.tell("interrupted")
    else:
        control.tell("returned")
    last.publish(b"still there")
    came = after.receive(20.0).data.decode()
    began = time.monotonic()
    unread.close()
    bus.close(drain=0)
    control.tell("closed", came=came, took=time.monotonic() - began)
    control.hear()


@pytest.mark.parametrize(
    "call",
    [
        "publish",
        "publish of large events",
        "publish_many",
        "publish_packed",
        "publish behind another",
        "publish into a queue",
        "close of a publisher",
        "receive",
        "receive with a timeout",
        "iteration",
        "wait_for_subscribers",
        "wait_for_subscribers for ever",
    ],
)
def test_ctrl_c_ends(channel: str, call: str) -> None:
    with Child(block, call=call, address=channel) as child:
        interrupted(child)
        closed = child.expect("closed", 2 * PATIENCE)
        assert closed["came"] == "still there"
        assert closed["took"] < PATIENCE


def interrupted(child: Child) -> None:
    """Sends SIGINT to a child that blocks; returns when the call has ended by it."""
    child.expect("blocking", 2 * PATIENCE)
    child.asleep(PATIENCE)
    child.signal(signal.SIGINT)
    child.expect("interrupted", PATIENCE)


def calibrate(control: Control, address: str) -> None:
    """Looks for a share for which no share suffices, and tells when it has tried one."""
    import contextlib
    import threading
    import time

    from antiphon import Bus, Closed

    def work(event: object) -> None:
        until = time.thread_time() + 0.0005
        while time.thread_time() < until:
            pass

    with Bus(address) as bus:
        subscription = bus.subscribe("a", work, share=0.1)
        publisher = bus.publisher("a")

        def publish() -> None:
            with contextlib.suppress(Closed):
                while True:
                    publisher.publish(b"x")
                    time.sleep(0.001)

        def watch() -> None:
            while subscription.share == 0.1:
                time.sleep(0.01)
            control.tell("blocking", share=subscription.share)

        for thread in (publish, watch):
            threading.Thread(target=thread, daemon=True).start()
        try:
            subscription.calibrate(mean_delay=1e-9, timeout=36.0)
        except KeyboardInterrupt:
            control.tell("interrupted")
        control.tell("left", share=subscription.share, shares=bus.statistics().shares)
    control.hear()


def test_ctrl_c_in_calibrate_leaves_the_share_as_it_was(channel: str) -> None:
    with Child(calibrate, address=channel) as child:
        interrupted(child)
        left: dict[str, Any] = child.expect("left", PATIENCE)
        assert left["share"] == 0.1
        assert left["shares"] == {"subscription 'a'": 0.1}


def close(control: Control, address: str, how: str) -> None:
    """Closes a bus while one of its handlers would go on for a minute."""
    import asyncio
    import threading
    import time

    from antiphon import Bus, Node

    node = Node(1) if how == "shared" else None
    bus = Bus(address, node=node)
    entered = threading.Event()
    loop = asyncio.new_event_loop()
    if how == "coroutine":

        async def slow(event: object) -> None:
            entered.set()
            await asyncio.sleep(90)

        bus.subscribe("a", slow)

        async def begin() -> None:
            bus.start()

        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(begin(), loop).result(20)
    else:

        def sleepy(event: object) -> None:
            entered.set()
            for _ in range(900):
                time.sleep(0.1)

        bus.subscribe("a", sleepy)
        bus.start()
    publisher = bus.publisher("a")
    waiting = bus.subscribe("b")
    publisher.publish(b"x")
    entered.wait(20)
    control.tell("blocking")
    try:
        bus.close(drain=90.0)
    except KeyboardInterrupt:
        control.tell("interrupted")
    # Nothing is left of it on the channel, and nobody waits for it.
    began = time.monotonic()
    bus.close()
    with Bus(address) as other:
        time.sleep(0.3)
        control.tell(
            "closed",
            closed=bus.closed,
            node=bus.node.closed,
            waiting=waiting.closed,
            peers=other.statistics().peers,
            took=time.monotonic() - began,
        )
    loop.call_soon_threadsafe(loop.stop)
    control.hear()


@pytest.mark.parametrize("how", ["function", "coroutine", "shared"])
def test_ctrl_c_in_close_ends_the_patience_and_not_the_close(channel: str, how: str) -> None:
    with Child(close, address=channel, how=how) as child:
        interrupted(child)
        told: dict[str, Any] = child.expect("closed", 2 * PATIENCE)
        assert told.pop("took") < PATIENCE
        assert told == {
            "event": "closed",
            "closed": True,
            "node": how != "shared",
            "waiting": True,
            "peers": 0,
        }


def wait(control: Control, address: str) -> None:
    """Waits for the end, which is a signal: no exception."""
    import signal

    from antiphon import Bus

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Bus(address) as bus:
        control.tell("waiting")
        bus.wait()
        after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        control.tell("ended", closed=bus.closed, same=before == after)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_wait_of_a_bus_returns_with(channel: str, number: signal.Signals) -> None:
    with Child(wait, address=channel) as child:
        child.expect("waiting", 2 * PATIENCE)
        child.asleep(PATIENCE)
        child.signal(number)
        ended = child.expect("ended", PATIENCE)
        assert not ended["closed"]
        assert ended["same"]
        assert child.wait(PATIENCE) == 0

"""Large events to clients that take none of them: they are waited for, and nobody else waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon import Bus
from antiphon.testing import eventually
from integration.buses import PATIENCE, Events
from integration.durables import record, recording

pytestmark = pytest.mark.timeout(120)


def waited(condition: Callable[[], bool]) -> float:
    """Seconds until it holds, without those in which nobody here had a turn: all is one process."""
    passed, last, deadline = 0.0, time.monotonic(), time.monotonic() + PATIENCE
    while not condition():
        assert last < deadline
        time.sleep(0.005)
        now = time.monotonic()
        passed, last = passed + min(now - last, 0.1), now
    return passed


@pytest.mark.parametrize("durable", [False, True])
def test_many_who_take_no_large_events_leave_threads_for_the_others(
    tmp_path: Path, durable: bool
) -> None:
    """The scheduler has 32 threads, and each large event that is under way has one of them."""
    with (
        recording(tmp_path / "store", fsync="none") as broker,
        Bus(broker.address) as writer,
        Bus(broker.address) as idle,
        Bus(broker.address) as reader,
    ):
        record(writer, "big", *[bytes(3_000_000)] * 4)
        stuck = [
            idle.subscribe("big", start="earliest", durable=f"d{number}" if durable else None)
            for number in range(48)
        ]
        live = Events()
        reader.subscribe("live", live)
        publisher = writer.publisher("live")
        eventually(lambda: publisher.publish(b"x") or len(live) > 0, PATIENCE)
        until, slowest = time.monotonic() + 3.0, 0.0
        while time.monotonic() < until:  # they come to wait, one after the other
            before = len(live)
            publisher.publish(b"y")
            slowest = max(slowest, waited(lambda before=before: len(live) > before))
            time.sleep(0.01)
        assert slowest < 2.0
        events = Events()
        reader.subscribe("big", events, start="earliest")
        assert [len(data) for data in events.wait(4)] == [3_000_000] * 4
        assert stuck

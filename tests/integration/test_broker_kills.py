"""kill -9 of the broker under durable load at random moments: what was acknowledged is there once,
and no subscriber misses any of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon import Bus
from antiphon.broker.store import check_store
from antiphon.testing import eventually
from integration.buses import PATIENCE, Events
from integration.durables import in_log, standing
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(3000)

TOPICS = ("orders/eu", "orders/us")


class Shop:
    """Publishes numbered orders on each topic, and knows which of them were acknowledged."""

    def __init__(self, bus: Bus) -> None:
        self._publishers = {topic: bus.publisher(topic, record=True) for topic in TOPICS}
        self._stop = threading.Event()
        self.sent = dict.fromkeys(TOPICS, 0)
        self.acknowledged = dict.fromkeys(TOPICS, 0)
        self._threads = [threading.Thread(target=self._work, args=(topic,)) for topic in TOPICS]
        for thread in self._threads:
            thread.start()

    def _work(self, topic: str) -> None:
        publisher, choose = self._publishers[topic], random.Random(topic)
        while not self._stop.is_set():
            count = choose.randint(1, 20)
            first = self.sent[topic]
            self.sent[topic] += count
            publisher.publish_many(
                [
                    b"%d" % number + b"." * choose.randint(0, 300)
                    for number in range(first, first + count)
                ]
            )
            publisher.flush(10 * PATIENCE)  # over as many restarts as it takes
            self.acknowledged[topic] = self.sent[topic]

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10 * PATIENCE)
            assert not thread.is_alive()


def number(data: bytes) -> int:
    return int(data.rstrip(b"."))


def test_what_was_acknowledged_outlives_kills_of_the_broker_under_load(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    lives, choose = count(10, 200), random.Random(7)
    path, address = tmp_path / "store", free_address()
    durable, replayed = Events(), Events()
    with Bus(address) as here, Bus(address) as there:
        broker = standing(address, path, segment_bytes=50_000)
        try:
            shop = Shop(here)
            there.subscribe("orders/*", durable, durable="billing", start="earliest")
            there.subscribe("orders/*", replayed, start="earliest")
            try:
                for _ in range(lives):
                    before = dict(shop.acknowledged)
                    goal = {topic: before[topic] + choose.randint(1, 60) for topic in TOPICS}
                    eventually(
                        lambda: all(shop.acknowledged[t] >= goal[t] for t in TOPICS),  # noqa: B023
                        3 * PATIENCE,
                    )
                    with broker:
                        broker.kill()
                    acknowledged = dict(shop.acknowledged)
                    for topic in TOPICS:
                        there_now = [number(data) for data in in_log(path, topic)]
                        assert there_now == list(range(len(there_now)))  # each once, in order
                        assert len(there_now) >= acknowledged[topic] >= goal[topic]
                    fsync = choose.choice(["none", "interval", "always"])
                    broker = standing(address, path, segment_bytes=50_000, fsync=fsync)
            finally:
                shop.close()
            total = {topic: shop.sent[topic] for topic in TOPICS}

            def seen(events: Events, topic: str) -> list[int]:
                return [number(one.data) for one in events.items if one.topic == topic]

            for topic in TOPICS:
                eventually(
                    lambda: len(set(seen(durable, topic))) == total[topic],  # noqa: B023
                    3 * PATIENCE,
                    "the durable subscriber has all",
                )
                eventually(
                    lambda: len(seen(replayed, topic)) >= total[topic],  # noqa: B023
                    3 * PATIENCE,
                )
                # Without a name each comes once and in order; with one at least once.
                assert seen(replayed, topic) == list(range(total[topic]))
        finally:
            with broker:
                broker.tell("leave")
                broker.wait(PATIENCE)
    report = check_store(path)
    assert not report.damaged, report

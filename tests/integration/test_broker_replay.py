"""Subscriptions that begin in the past: what was recorded comes first, then what comes."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import Broker, BrokerConfig, Bus, ConfigError
from antiphon.broker.store import Store
from antiphon.testing import Collected, Proxy, eventually
from integration.brokers import settled
from integration.buses import PATIENCE, Events, Held
from integration.durables import in_log, record, recording, standing, take
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with recording(path, fsync="none") as running:
        yield running


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, end)]


def test_a_replay_goes_on_live_without_a_gap_or_a_duplicate(broker: Broker) -> None:
    """Events are published all the while: before the replay begins, during it, and after."""
    with Bus(broker.address) as here, Bus(broker.address) as there:
        publisher = here.publisher("t", record=True)
        publisher.publish_many(numbers(0, 20_000))
        publisher.flush(PATIENCE)
        stop = threading.Event()
        count = [20_000]

        def publish() -> None:
            while not stop.is_set():
                publisher.publish(b"%d" % count[0])
                count[0] += 1

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            subscribers = [there.subscribe("t", start="earliest") for _ in range(3)]
            for one in subscribers:
                take(one, 25_000)
        finally:
            stop.set()
            thread.join()
        for one in subscribers:
            last = take(one, count[0] - 25_000)
            assert [event.data for event in last] == numbers(25_000, count[0])
            assert last[-1].sequence == count[0]
            assert one.statistics()["missed"] == 0


def test_a_start_is_a_sequence_a_time_or_the_end(broker: Broker, path: Path) -> None:
    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 100))
        middle = datetime.datetime.now(datetime.UTC)
        while time.time_ns() < middle.timestamp() * 1e9 + 2_000_000:
            pass  # another millisecond: the times of events tell them apart
        record(bus, "t", *numbers(100, 200))
        assert take(bus.subscribe("t", start=51), 1)[0].sequence == 51
        assert take(bus.subscribe("t", start=middle), 1)[0].data == b"100"
        later = bus.subscribe("t", start="latest")
        plain = bus.subscribe("t")
        settled(broker, subscriptions=4)
        record(bus, "t", b"new")
        assert take(later, 1)[0].data == take(plain, 1)[0].data == b"new"


def test_many_topics_are_replayed_each_in_its_order(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        for topic in range(20):
            record(bus, f"orders/{topic}", *numbers(0, 50))
        record(bus, "other", b"no")
        sub = bus.subscribe("orders/*", start="earliest")
        by_topic: dict[str, list[bytes]] = {}
        for event in take(sub, 1000):
            by_topic.setdefault(event.topic, []).append(event.data)
        assert by_topic == {f"orders/{topic}": numbers(0, 50) for topic in range(20)}


def test_filters_apply_and_leave_no_gaps(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        publisher = bus.publisher("t", record=True)
        for i in range(300):
            publisher.publish(b"%d" % i, {"n": i, "even": i % 2 == 0})
        sub = bus.subscribe("t", start="earliest", where="even AND n >= 100")
        events = take(sub, 100)
        assert [event.properties["n"] for event in events] == list(range(100, 300, 2))
        assert all(event.missed == 0 for event in events)


def test_batches_have_sequences_and_sources(broker: Broker) -> None:
    batches: Collected[Any] = Collected()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        record(here, "t", *numbers(0, 500))
        record(there, "t", *numbers(500, 1000))
        there.subscribe("t", batches.add, batch=True, start="earliest")
        eventually(lambda: sum(map(len, batches.items)) == 1000, PATIENCE)
        sequences = [one for batch in batches.items for one in batch.sequences]
        sources = [one for batch in batches.items for one in batch.sources]
        assert sequences == list(range(1, 1001))
        assert sources == [here.node.id] * 500 + [there.node.id] * 500


def test_a_replay_at_a_speed_keeps_the_spacing(broker: Broker, path: Path) -> None:
    with Bus(broker.address) as bus:
        publisher = bus.publisher("t", record=True)
        for i in range(4):
            publisher.publish(b"%d" % i)
            time.sleep(0.2)
        publisher.flush(PATIENCE)
        times: list[float] = []
        began = time.monotonic()
        sub = bus.subscribe("t", lambda event: times.append(time.monotonic()), speed=2.0, start=0)
        eventually(lambda: len(times) == 4, PATIENCE)
        # Twice as fast as 0.6 s; a busy machine makes it longer, nothing makes it shorter. Not from
        # the first one on, which may be late itself.
        assert times[-1] - began > 0.25
        sub.close()
        fast = Events()
        began = time.monotonic()
        bus.subscribe("t", fast, start="earliest")
        fast.wait(4)
        assert time.monotonic() - began < 10


def test_a_slow_replay_delays_nobody(broker: Broker) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there, Held() as held:
        there.subscribe("t", held, capacity=10, start="earliest")
        publisher = here.publisher("t", record=True)
        quick = Events()
        there.subscribe("t", quick, start="earliest")
        for i in range(20_000):
            publisher.publish(b"%d" % i)
        publisher.flush(PATIENCE)
        assert quick.wait(20_000)[-1] == b"19999"
        assert len(held) < 20
        held.open()
        assert held.wait(20_000) == numbers(0, 20_000)  # it misses nothing for that


def test_a_subscriber_goes_on_where_it_was_after_its_connection_was_cut(broker: Broker) -> None:
    with Bus(broker.address) as bus, Proxy(broker.address) as proxy, Bus(proxy.address) as behind:
        publisher = bus.publisher("t", record=True)
        events = Events()
        behind.subscribe("t", events, start="earliest")
        for i in range(3000):
            publisher.publish(b"%d" % i)
            if i % 1000 == 500:
                events.wait(i // 2)
                proxy.cut()
        events.wait(3000)
        assert events.data == numbers(0, 3000)


def test_a_subscriber_that_has_nothing_yet_goes_on_where_it_began(path: Path) -> None:
    """At the end of the log as it was: not at that of the log that it finds later."""
    address = free_address()
    with Bus(address) as bus, Bus(address) as other:
        events = {start: Events() for start in (None, "latest", "earliest")}
        with standing(address, path) as broker:
            record(bus, "t", b"before")
            subs = [other.subscribe("t", one, start=start) for start, one in events.items()]
            empty = other.subscribe("empty")
            publisher = bus.publisher("empty", record=True)
            for sub in (*subs[:2], empty):
                eventually(sub._core.positions, PATIENCE)
            events["earliest"].wait(1)
            broker.kill()
        with Store(path) as store:
            for topic in ("t", "empty"):
                store.append(topic, b"between")
        with standing(address, path):
            record(bus, "t", b"after")
            publisher.publish(b"after")
            for start, one in events.items():
                one.wait(3 if start == "earliest" else 2)
                assert one.data[-2:] == [b"between", b"after"]
            assert [event.data for event in take(empty, 2)] == [b"between", b"after"]


def test_a_subscriber_goes_on_where_it_was_after_a_kill_of_the_broker(path: Path) -> None:
    address = free_address()
    with Bus(address) as bus, Bus(address) as other:
        events = Events()
        with standing(address, path) as broker:
            publisher = bus.publisher("t", record=True)
            other.subscribe("t", events, start="earliest")
            publisher.publish_many(numbers(0, 1000))
            events.wait(1000)
            broker.kill()
        publisher.publish_many(numbers(1000, 2000))
        with standing(address, path):
            events.wait(2000)
            publisher.flush(PATIENCE)
        assert events.data == numbers(0, 2000)
        assert events.sequences == sorted(set(events.sequences))


def test_what_a_log_no_longer_keeps_is_missed(path: Path) -> None:
    settings = {"segment_bytes": 10_000, "keep_bytes": 30_000}
    with recording(path, **settings) as broker, Bus(broker.address) as bus:
        for i in range(100):
            record(bus, "t", b"%d" % i + b"." * 1000)
        sub = bus.subscribe("t", start=1)
        first = take(sub, 1)[0]
        assert first.missed == first.sequence - 1 > 0
        with Store(path, read_only=True) as store:
            assert store.log("t").first == first.sequence


def test_a_replay_of_a_topic_of_an_earlier_life_needs_no_publisher(path: Path) -> None:
    with recording(path) as broker, Bus(broker.address) as bus:
        record(bus, "t", b"one")
    with recording(path) as broker, Bus(broker.address) as bus:
        event = take(bus.subscribe("*", start="earliest"), 1)[0]
        assert (event.data, event.sequence) == (b"one", 1)
    assert in_log(path, "t") == [b"one"]


def test_starts_and_speeds_that_mean_nothing_are_refused(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        for pattern, wrong in (
            ("orders/*", {"start": 5}),
            ("t", {"start": "yesterday"}),
            ("t", {"start": -1}),
            ("t", {"start": datetime.datetime(2026, 1, 1)}),
            ("t", {"start": "earliest", "speed": 0}),
            ("t", {"durable": "x", "speed": 1.0}),
            ("t", {"durable": "a/b"}),
            ("t", {"group": ""}),
            ("t", {"ack": "manual"}),
            ("t", {"durable": "x", "ack": "later"}),
        ):
            with pytest.raises(ConfigError):
                bus.subscribe(pattern, **wrong)  # type: ignore[arg-type]


def test_the_bus_is_the_same_with_small_segments(path: Path) -> None:
    """Replays cross many files while the log rolls."""
    with recording(path, fsync="none", segment_bytes=8192) as broker, Bus(broker.address) as bus:
        sub = bus.subscribe("t", start="earliest")
        publisher = bus.publisher("t", record=True)
        for i in range(5000):
            publisher.publish(b"%d" % i)
        assert [event.data for event in take(sub, 5000)] == numbers(0, 5000)
        assert BrokerConfig(store="x").segment_bytes == 64 << 20

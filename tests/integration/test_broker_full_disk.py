"""A full disk under a broker: what is read goes on, what is noted is noted when there is room."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphon import Bus, StoreFull
from antiphon.broker import check_health
from antiphon.testing import eventually
from integration.buses import PATIENCE, Events
from integration.durables import caught_up, enlarge, fill, in_log, record, recording, standing, take
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, end)]


def noted(store: Path, name: str, topic: str) -> int:
    """The first that the file of a durable subscription does not know to be acknowledged."""
    file = store / "subscriptions" / f"{name}.json"
    if not file.exists():
        return 0
    place = json.loads(file.read_bytes())["places"][topic]
    first: int = min([place["next"], *(first for first, _ in place.get("pending", []))])
    return first


def complaints(caplog: pytest.LogCaptureFixture) -> int:
    return sum("was not written" in one.getMessage() for one in caplog.records)


def test_positions_are_written_when_the_disk_has_room_again(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = small_disk / "store"
    with recording(store, fsync="none") as broker, Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 200))
        sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
        for event in take(sub, 100):
            event.ack()
        eventually(lambda: noted(store, "d", "t") >= 101, PATIENCE)
        before = (store / "subscriptions" / "d.json").read_bytes()
        filler = fill(small_disk)
        for event in take(sub, 100):  # reading and acknowledging go on
            event.ack()
        caught_up(broker, "d")
        eventually(lambda: complaints(caplog) >= 3, PATIENCE)
        assert (store / "subscriptions" / "d.json").read_bytes() == before
        # A new one is served all the same.
        events = Events()
        bus.subscribe("t", events, durable="late", start="earliest")
        events.wait(200)
        assert noted(store, "late", "t") == 0
        filler.unlink()
        eventually(lambda: noted(store, "d", "t") == 201, PATIENCE)
        eventually(lambda: noted(store, "late", "t") == 201, PATIENCE)
        assert not list(store.glob("subscriptions/*.new"))
    with recording(store, fsync="none") as broker, Bus(broker.address) as bus:
        for name in ("d", "late"):
            sub = bus.subscribe("t", durable=name)
            record(bus, "t", name.encode())
            assert take(sub, 1)[0].data in (b"d", b"late")


def test_a_full_disk_is_not_asked_ever_more_often(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(small_disk / "store", fsync="none") as broker, Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 100))
        sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
        for event in take(sub, 50):
            event.ack()
        eventually(lambda: noted(small_disk / "store", "d", "t") >= 51, PATIENCE)
        fill(small_disk)
        caplog.clear()
        until = time.monotonic() + 3.0
        for event in take(sub, 50):  # the position moves all the time
            event.ack()
            time.sleep(max(0.0, until - time.monotonic()) / 50)
        assert 1 <= complaints(caplog) <= 5


def test_a_broker_killed_on_a_full_disk_hands_out_again_and_loses_nothing(
    small_disk: Path,
) -> None:
    store, address = small_disk / "store", free_address()
    with Bus(address) as bus:
        with standing(address, store, fsync="none") as broker:
            record(bus, "t", *numbers(0, 200))
            sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
            for event in take(sub, 50):
                event.ack()
            eventually(lambda: noted(store, "d", "t") >= 51, PATIENCE)
            was = noted(store, "d", "t")
            fill(small_disk)
            for event in take(sub, 50):
                event.ack()
            broker.kill()
        enlarge(small_disk)
        events = Events()
        with standing(address, store, fsync="none"), Bus(address) as other:
            sub.close()
            other.subscribe("t", events, durable="d")
            eventually(lambda: events.data and events.data[-1] == b"199", PATIENCE)
            # All that the file did not know to be acknowledged, and nothing before.
            assert set(numbers(100, 200)) <= set(events.data) <= set(numbers(50, 200))
            assert was <= 201


def test_a_large_event_that_found_no_space_is_recorded_when_there_is(small_disk: Path) -> None:
    store = small_disk / "store"
    with recording(store, fsync="none") as broker, Bus(broker.address) as bus:
        publisher = bus.publisher("t", record=True)
        publisher.publish(b"first")
        publisher.flush(PATIENCE)
        filler = fill(small_disk)
        large = b"." * 2_000_000  # goes in fragments
        publisher.publish(large)
        with pytest.raises(StoreFull, match="no space left"):
            publisher.flush(PATIENCE)
        filler.unlink()
        eventually(lambda: publisher.statistics()["pending"] == 0, PATIENCE)
        assert in_log(store, "t") == [b"first", large]


def test_while_there_is_no_space_little_is_sent_again(small_disk: Path) -> None:
    """A publisher with much that waits tries with one event, and less and less often."""
    store = small_disk / "store"
    with recording(store, fsync="none") as broker, Bus(broker.address) as bus:
        publisher = bus.publisher("t", record=True)
        publisher.publish(b"first")
        publisher.flush(PATIENCE)
        filler = fill(small_disk)
        publisher.publish_many([b"." * 1000] * 1000)
        with pytest.raises(StoreFull):
            publisher.flush(PATIENCE)
        waiting = publisher.statistics()["pending"]
        assert waiting >= 100

        def came() -> int:
            return sum(route.core.sequence for route in broker._routes())

        def at_rest() -> bool:  # what was on its way when the word came that there is no space
            before = came()
            time.sleep(0.2)
            return came() - before <= 1

        eventually(at_rest, PATIENCE)
        before = came()
        time.sleep(3.0)
        assert came() - before <= 20
        eventually(lambda: came() > before, PATIENCE, "it is tried again")
        filler.unlink()
        eventually(lambda: publisher.statistics()["pending"] == 0, PATIENCE)
        assert len(in_log(store, "t")) == 1 + waiting


def test_dead_letters_wait_for_space(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "antiphon.topics")  # the handler fails on purpose
    store = small_disk / "store"

    def fails(event: object) -> None:
        raise ValueError

    with (
        recording(store, fsync="none", max_attempts=1) as broker,
        Bus(broker.address) as bus,
    ):
        record(bus, "t", *numbers(0, 50))
        filler = fill(small_disk)
        bus.subscribe("t", fails, durable="d", start="earliest")
        deliveries = broker._deliveries
        assert deliveries is not None

        def counts() -> dict[str, int]:
            one = deliveries._all.get(("durable", "d"))
            return {} if one is None or one.core is None else one.core.counts()

        eventually(lambda: counts().get("waiting") == 50, PATIENCE)
        assert counts()["dead"] == 0
        filler.unlink()
        eventually(lambda: counts()["dead"] == 50, PATIENCE)
        caught_up(broker, "d")
        assert sorted(in_log(store, "$dead/d")) == sorted(numbers(0, 50))


def test_a_broker_that_is_started_on_a_full_disk_reads_says_so_and_records_later(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = small_disk / "store"
    with recording(store, fsync="none") as broker, Bus(broker.address) as bus:
        record(bus, "t", b"one", b"two")
    filler = fill(small_disk)
    with recording(store, fsync="none") as broker, Bus(broker.address) as bus:
        events = Events()
        bus.subscribe("t", events, start="earliest")
        assert events.wait(2) == [b"one", b"two"]
        eventually(lambda: "has no space left" in caplog.text, PATIENCE)
        publisher = bus.publisher("t", record=True)
        publisher.publish(b"three")
        with pytest.raises(StoreFull):
            publisher.flush(PATIENCE)
        filler.unlink()
        eventually(lambda: len(events) == 3, PATIENCE)
        # An event may come before its receipt, and until then the disk is full for the publisher.
        eventually(lambda: publisher.statistics()["pending"] == 0, PATIENCE)
        publisher.flush(PATIENCE)
        eventually(lambda: "has space again" in caplog.text, PATIENCE)
    assert in_log(store, "t") == [b"one", b"two", b"three"]


def test_a_full_disk_is_told_by_health_and_under_sys(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Events()
    command = [str(Path(sys.executable).with_name("antiphon")), "broker", "health"]
    with (
        recording(small_disk / "store", fsync="none", system_interval=0.1) as broker,
        Bus(broker.address) as bus,
    ):
        bus.subscribe("$sys/broker", told)
        publisher = bus.publisher("t", record=True)
        publisher.publish(b"first")
        publisher.flush(PATIENCE)
        assert not broker.statistics().store_full
        assert not check_health(broker.address).store_full
        filler = fill(small_disk)
        publisher.publish(b"." * 2_000_000)
        with pytest.raises(StoreFull):
            publisher.flush(PATIENCE)
        assert broker.statistics().store_full
        found = check_health(broker.address)
        assert found.healthy
        assert found.store_full
        assert "no space left" in str(found)
        for more, code in ([], 0), (["--strict"], 1):
            done = subprocess.run(
                [*command, *more, broker.address], capture_output=True, text=True, timeout=PATIENCE
            )
            assert done.returncode == code, done.stderr
            assert "nothing is recorded" in done.stdout
        eventually(lambda: json.loads(told.items[-1].data)["store_full"], PATIENCE)
        eventually(lambda: "has no space left" in caplog.text, PATIENCE)
        filler.unlink()
        eventually(lambda: not broker.statistics().store_full, PATIENCE)
        eventually(lambda: publisher.statistics()["pending"] == 0, PATIENCE)
        assert not check_health(broker.address).store_full
        eventually(lambda: not json.loads(told.items[-1].data)["store_full"], PATIENCE)
        eventually(lambda: "has space again" in caplog.text, PATIENCE)

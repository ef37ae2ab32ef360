"""A store that was emptied: sequences begin anew, and nobody goes by those of the one before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from antiphon import Bus
from antiphon.broker.store import Store
from antiphon.testing import eventually
from integration.buses import PATIENCE, Events
from integration.durables import in_log, record, recording, standing
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, end)]


def test_a_store_has_an_id_that_stays_until_it_is_emptied(path: Path) -> None:
    with Store(path) as store:
        first = store.id
        assert 0 < first < 2**63
    with Store(path) as store:
        assert store.id == first
    with Store(path, read_only=True) as store:
        assert store.id == first
    shutil.rmtree(path)
    with Store(path) as store:
        assert store.id not in (0, first)


def test_a_store_of_an_earlier_version_gets_an_id_when_it_is_opened(path: Path) -> None:
    with Store(path):
        pass
    (path / "store").write_text("antiphon store 1\nepoch 5\n")
    with Store(path, read_only=True) as store:
        assert (store.epoch, store.id) == (5, 0)
    with Store(path) as store:
        assert store.epoch == 6
        assert store.id != 0


@pytest.mark.parametrize("start", [None, "earliest"])
def test_a_subscriber_gets_all_that_is_in_a_store_that_was_emptied(
    path: Path, start: str | None
) -> None:
    address = free_address()
    with Bus(address) as bus, Bus(address) as other:
        events = Events()
        with standing(address, path) as broker:
            publisher = bus.publisher("t", record=True)
            sub = other.subscribe("t", events, start=start)
            eventually(lambda: start or sub._core.positions(), PATIENCE)
            publisher.publish_many(numbers(0, 500))
            publisher.flush(PATIENCE)
            events.wait(500)
            broker.kill()
        shutil.rmtree(path)
        # Fewer than there were: by the old sequences none of them would ever come.
        publisher.publish_many(numbers(500, 600))
        with standing(address, path):
            publisher.flush(PATIENCE)
            events.wait(600)
            assert events.data == numbers(0, 600)
            assert in_log(path, "t") == numbers(500, 600)
            assert events.sequences[500:] == list(range(1, 101))


def test_a_subscriber_goes_on_in_the_new_store_when_its_connection_is_lost(path: Path) -> None:
    address = free_address()
    with Bus(address) as bus, Bus(address) as other:
        events = Events()
        first, last = 0, 300
        for emptied in (True, False, False):
            with standing(address, path) as broker:
                if first == 0:
                    publisher = bus.publisher("t", record=True)
                    other.subscribe("t", events, start="earliest")
                publisher.publish_many(numbers(first, last))
                publisher.flush(PATIENCE)
                events.wait(last)
                broker.kill()
            if emptied:
                shutil.rmtree(path)
            first, last = last, last + 50
        assert events.data == numbers(0, first)


def test_positions_of_another_store_are_not_gone_by(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(path) as broker, Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 100))
        events = Events()
        bus.subscribe("t", events, durable="d", start="earliest")
        events.wait(100)
    another = tmp_path / "another"
    with recording(another) as broker, Bus(broker.address) as bus:
        record(bus, "t", *numbers(100, 120))
    # As a copy of some of a backup would have it.
    shutil.copytree(path / "subscriptions", another / "subscriptions")
    with recording(another) as broker, Bus(broker.address) as bus:
        events = Events()
        bus.subscribe("t", events, durable="d")
        assert events.wait(20) == numbers(100, 120)
        assert "has positions of another store" in caplog.text

"""Filters on data of durable subscriptions and work groups: who looks, and what a position is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import AllOf, Broker, Bus, Regex, XPath
from antiphon.testing import eventually
from antiphon.topics.content import Filter
from integration.brokers import settled
from integration.buses import PATIENCE, Events
from integration.durables import caught_up, record, recording, take

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    """One that loses nothing where somebody is slow because the machine is."""
    with recording(path, fsync="none", max_block=10.0) as running:
        yield running


def order(number: int) -> bytes:
    return b"<order><total>%d</total></order>" % number


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Regex(r">\d*99<"), [99, 199, 299]),
        (XPath("/order[total > 297]"), [298, 299]),
        (AllOf("odd = TRUE", Regex(">29")), [29, 291, 293, 295, 297, 299]),
    ],
    ids=["regex", "xpath", "all-of"],
)
def test_a_durable_subscription_gets_what_its_filter_lets_pass(
    broker: Broker, where: Filter, expected: list[int]
) -> None:
    events = Events()
    with Bus(broker.address) as bus:
        publisher = bus.publisher("orders", record=True)
        for n in range(300):
            publisher.publish(order(n), {"odd": n % 2 == 1})
        publisher.publish(b"x" * (2 << 20))  # too large to be looked into
        publisher.flush(PATIENCE)
        bus.subscribe("orders", events, durable="d", start="earliest", where=where)
        assert events.wait(len(expected)) == [order(n) for n in expected]
        caught_up(broker, "d")  # what does not pass is done with as well
        assert events.data == [order(n) for n in expected]
        assert set(events.missed) == {0}


def test_a_filter_on_data_holds_after_a_restart_of_the_broker(path: Path) -> None:
    for life in range(2):
        with recording(path) as broker, Bus(broker.address) as bus:
            record(bus, "orders", *(order(n) for n in range(life * 100, life * 100 + 100)))
            events = Events()
            where = Regex(">(0|50|100|150)<")
            bus.subscribe("orders", events, durable="d", start="earliest", where=where)
            events.wait(2)
            caught_up(broker, "d")
            assert events.data == [order(life * 100), order(life * 100 + 50)]


def test_another_filter_on_data_counts_from_the_position_on(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        record(bus, "orders", *(order(n) for n in range(10)))
        events = Events()
        first = bus.subscribe("orders", events, durable="d", start="earliest", where=Regex(">3<"))
        events.wait(1)
        caught_up(broker, "d")
        first.close()
        settled(broker, subscriptions=0)
        record(bus, "orders", *(order(n) for n in range(10)))
        events = Events()
        bus.subscribe("orders", events, durable="d", where=Regex(">[45]<"))
        events.wait(2)
        caught_up(broker, "d")
        assert events.data == [order(4), order(5)]


def test_what_is_not_acknowledged_is_not_judged_away(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        record(bus, "orders", *(order(n) for n in range(20)))
        with Bus(broker.address) as other:
            sub = other.subscribe(
                "orders", durable="d", start="earliest", where=Regex(">1"), ack="manual"
            )
            assert [event.data for event in take(sub, 3)] == [order(1), order(10), order(11)]
        sub = bus.subscribe("orders", durable="d", where=Regex(">1"), ack="manual")
        again = take(sub, 11)
        assert sorted(event.data for event in again) == sorted(map(order, [1, *range(10, 20)]))
        for event in again:
            event.ack()
        caught_up(broker, "d")


@pytest.mark.parametrize("stored", [False, True], ids=["pushed", "recorded"])
def test_a_group_shares_what_its_filter_lets_pass(path: Path, stored: bool) -> None:
    with (
        recording(path) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        members = [Events(), Events()]
        for bus, events in zip((here, there), members, strict=True):
            bus.subscribe("jobs", events, group="workers", where=Regex(">[0-9]*7<"))
        others = Events()  # one of the same name with another filter is another group
        there.subscribe("jobs", others, group="workers", where=XPath("/order[total = 8]"))
        settled(broker, subscriptions=3)
        publisher = here.publisher("jobs", record=stored)
        assert publisher.wait_for_subscribers(1, PATIENCE)
        for n in range(500):
            publisher.publish(order(n))
        eventually(lambda: sum(map(len, members)) == 50, PATIENCE)
        assert others.wait(1) == [order(8)]
        counts = Counter(data for events in members for data in events.data)
        assert counts == Counter(order(n) for n in range(7, 500, 10))


def test_a_group_that_wants_nothing_of_it_holds_up_no_publisher(broker: Broker) -> None:
    """What waits to be looked at is bounded, and makes room when it was."""
    with Bus(broker.address) as here, Bus(broker.address) as there:
        events = Events()
        there.subscribe("jobs", events, group="workers", where=Regex("^last$"))
        settled(broker, subscriptions=1)
        publisher = here.publisher("jobs")
        assert publisher.wait_for_subscribers(1, PATIENCE)
        for _ in range(100):
            publisher.publish_many([b"no"] * 200)
        publisher.publish(b"last")
        assert events.wait(1) == [b"last"]
        assert broker.statistics().dropped == 0

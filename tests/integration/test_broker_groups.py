"""Work groups: each event goes to one member, and to another when that one dies."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import Broker, Bus, Event
from antiphon.testing import Child, Collected, Control, eventually
from integration.brokers import settled
from integration.buses import PATIENCE, Events
from integration.durables import caught_up, record, recording, with_patience

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker("tcp://127.0.0.1:0") as running:
        yield running


def worker(control: Control, address: str, settings: dict[str, str]) -> None:
    """Takes one event, tells of it and never acknowledges it."""
    from antiphon import Bus

    with Bus(address) as bus:
        sub = bus.subscribe("jobs", group="workers", ack="manual", capacity=5, **settings)
        control.tell("ready")
        control.tell("took", data=sub.receive().data.decode())
        control.hear()


def test_each_event_goes_to_one_member_without_a_store(broker: Broker) -> None:
    members = [Events() for _ in range(3)]
    with Bus(broker.address) as here, Bus(broker.address) as there:
        for bus, events in zip((here, there, there), members, strict=True):
            bus.subscribe("jobs", events, group="workers")
        everything = Events()
        there.subscribe("jobs", everything)  # beside the group
        publisher = here.publisher("jobs")
        settled(broker, subscriptions=4)
        assert publisher.wait_for_subscribers(1, PATIENCE)
        for i in range(600):
            publisher.publish(b"%d" % i)
        eventually(lambda: sum(map(len, members)) == 600, PATIENCE)
        everything.wait(600)
        counts = Counter(data for events in members for data in events.data)
        assert counts == Counter(b"%d" % i for i in range(600))


def test_members_take_turns_also_when_there_is_little_to_do(broker: Broker) -> None:
    members = [Events() for _ in range(3)]
    with Bus(broker.address) as bus:
        for events in members:
            bus.subscribe("jobs", events, group="workers")
        publisher = bus.publisher("jobs")
        settled(broker, subscriptions=3)
        assert publisher.wait_for_subscribers(1, PATIENCE)
        for i in range(30):  # each is done with before the next one comes
            publisher.publish(b"%d" % i)
            eventually(lambda i=i: sum(map(len, members)) == i + 1, PATIENCE)  # type: ignore[misc]
        assert all(len(events) >= 5 for events in members)


def test_events_keep_their_topic_though_its_number_is_used_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.broker.broker._NUMBER_RESTS", 0.0)
    monkeypatch.setattr("antiphon.broker.broker._LINGER", 0.0)
    with Bus(broker.address) as here, Bus(broker.address) as there:
        sub = there.subscribe("jobs/*", group="workers", ack="manual")
        settled(broker, subscriptions=1)
        numbers = []
        for i in range(6):
            with here.publisher(f"jobs/{i}") as publisher:
                assert publisher.wait_for_subscribers(1, PATIENCE)
                numbers.append(broker._topics[f"jobs/{i}"].number)
                publisher.publish(f"jobs/{i}".encode())
                event = sub.receive(PATIENCE)  # and never acknowledges it
                assert event.topic == event.data.decode()
            eventually(lambda: f"jobs/{i}" not in broker._topics, PATIENCE)  # noqa: B023
        assert len(set(numbers)) < len(numbers)


def test_what_a_member_that_hangs_has_is_done_by_others(tmp_path: Path) -> None:
    """One event is to blame for it at a time, and none of those that waited behind it."""

    def others_do_it(path: Path, ack_timeout: float) -> None:
        going_on = threading.Event()
        done = Events()

        def hangs(event: Event) -> None:
            going_on.wait(PATIENCE)

        with (
            recording(path, ack_timeout=ack_timeout, max_attempts=3) as broker,
            Bus(broker.address) as here,
            Bus(broker.address) as there,
        ):
            here.subscribe("t", hangs, group="g", durable="d", start="earliest")
            settled(broker, subscriptions=1)
            record(there, "t", *(b"%d" % i for i in range(300)))
            there.subscribe("t", done, group="g", durable="d")
            try:
                eventually(lambda: len(set(done.data)) == 300, PATIENCE)
            finally:
                going_on.set()
            caught_up(broker, "d")
            counts = broker._answers.durables(0)[0]["counts"]
            assert counts["dead"] == 0
            # What it had, and one now and then to see whether it is back.
            assert counts["again"] < 120

    with_patience(others_do_it, tmp_path / "s")


def test_two_groups_get_everything_each(broker: Broker) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there:
        groups = {name: [Events(), Events()] for name in ("a", "b")}
        for name, members in groups.items():
            for events in members:
                there.subscribe("jobs", events, group=name)
        publisher = here.publisher("jobs")
        settled(broker, subscriptions=4)
        assert publisher.wait_for_subscribers(1, PATIENCE)
        for i in range(100):
            publisher.publish(b"%d" % i)
        for members in groups.values():
            eventually(lambda: sum(map(len, members)) == 100, PATIENCE)  # noqa: B023


def out(broker: Broker) -> int:
    """Events that members have, and have not acknowledged."""
    assert broker._deliveries is not None
    return sum(one.core.counts()["out"] for one in broker._deliveries._all.values() if one.core)


def test_what_a_dead_member_had_goes_to_another(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        publisher = bus.publisher("jobs")
        with Child(worker, address=broker.address, settings={}) as child:
            child.expect("ready", PATIENCE)
            assert publisher.wait_for_subscribers(1, PATIENCE)
            for i in range(5):
                publisher.publish(b"%d" % i)
            assert child.expect("took", PATIENCE)["data"] == "0"
            eventually(lambda: out(broker) == 5, PATIENCE, "it has the others too")
            events = Events()
            bus.subscribe("jobs", events, group="workers")
            settled(broker, subscriptions=2)
            child.kill()
        assert sorted(events.wait(5)) == [b"%d" % i for i in range(5)]
        assert {event.attempt for event in events.items} == {2}


def test_without_a_store_an_event_that_always_fails_is_given_up(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "antiphon.topics")
    attempts: Collected[int] = Collected()

    def handler(event: Event) -> None:
        attempts.add(event.attempt)
        if event.data == b"bad":
            raise ValueError("always")

    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("jobs", handler, group="workers")
        publisher = here.publisher("jobs")
        settled(broker, subscriptions=1)
        assert publisher.wait_for_subscribers(1, PATIENCE)
        publisher.publish(b"bad")
        eventually(lambda: attempts.items == [1, 2, 3, 4, 5], PATIENCE)
        publisher.publish(b"good")
        eventually(lambda: len(attempts) == 6, PATIENCE)


def test_a_group_of_a_recorded_topic_shares_its_log(tmp_path: Path) -> None:
    with recording(tmp_path / "store") as broker, Bus(broker.address) as bus:
        record(bus, "jobs", *(b"%d" % i for i in range(300)))
        members = [Events(), Events()]
        for events in members:
            bus.subscribe("jobs", events, group="workers", durable="jobs", start="earliest")
        eventually(lambda: sum(map(len, members)) >= 300, PATIENCE)
        eventually(lambda: broker._answers.durables(0)[0]["lag"] == 0, PATIENCE)
        counts = Counter(data for events in members for data in events.data)
        assert counts == Counter(b"%d" % i for i in range(300))


def test_a_durable_group_goes_on_after_all_have_died(tmp_path: Path) -> None:
    with recording(tmp_path / "store") as broker, Bus(broker.address) as bus:
        record(bus, "jobs", b"one", b"two")
        with Child(
            worker, address=broker.address, settings={"durable": "jobs", "start": "earliest"}
        ) as child:
            child.expect("ready", PATIENCE)
            assert child.expect("took", PATIENCE)["data"] == "one"
            child.kill()
        record(bus, "jobs", b"three")
        events = Events()
        bus.subscribe("jobs", events, group="workers", durable="jobs")
        assert sorted(events.wait(3)) == [b"one", b"three", b"two"]

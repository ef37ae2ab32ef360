"""Buses that die, come back, come late or are many: what the others see of it."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter

import pytest

from antiphon import NodeConfig, Schedule
from antiphon.testing import Child, eventually
from antiphon.topics import Bus, Publisher, Subscription, TopicInfo
from integration.buses import (
    PATIENCE,
    Events,
    Held,
    count_of,
    events_of,
    publish_each,
    resident,
    serves,
    wait_served,
)
from unit.node.pairs import Running, go_on, numbered, stop

pytestmark = pytest.mark.timeout(60)


# By the loss: the silence, or the publisher's own patience, would take longer.
PATIENT = NodeConfig(heartbeat=20.0, connect_timeout=25.0, send_timeout=25.0)


def names(bus: Bus) -> list[str]:
    return [topic.name for topic in bus.topics()]


# --- subscribers ----------------------------------------------------------------------------------


def test_a_publisher_goes_on_when_a_subscriber_is_killed(channel: str) -> None:
    survivor = Events()
    with Bus(channel, node_config=PATIENT) as here, Bus(channel) as there:
        there.subscribe("a", survivor)
        publisher = here.publisher("a")
        stopped = threading.Event()

        def publish() -> int:
            number = 0
            while not stopped.is_set():
                publisher.publish(b"%d" % number)
                number += 1
            return number

        with Child(resident, address=channel, patterns=["a"]) as victim:
            victim.expect("ready")
            serves(publisher, 2)
            publishing = Running(publish)
            try:
                eventually(lambda: count_of(victim) > 100, PATIENCE)
                victim.kill()
                eventually(lambda: publisher.subscribers == 1, 15, "the dead one is left out")
                at = publisher.statistics()["published"]
                eventually(lambda: publisher.statistics()["published"] > at + 100, PATIENCE)
            finally:
                stopped.set()
        count = publishing.result(PATIENCE)
        assert survivor.wait(count) == numbered(count)
        assert set(survivor.missed) == {0}
        eventually(lambda: here.statistics().peers == 1, PATIENCE)


def test_a_publisher_that_waits_for_a_subscriber_wakes_when_that_is_killed(channel: str) -> None:
    with Bus(channel, node_config=PATIENT) as here:
        publisher = here.publisher("a")
        with Child(stalled, address=channel) as victim:
            victim.expect("ready")
            serves(publisher)
            publishing = Running(lambda: publish_each(publisher, [b"x"] * 100))
            victim.expect("stalled", PATIENCE)
            eventually(lambda: publisher.statistics()["published"] == 5, PATIENCE)
            assert not publishing.done
            victim.kill()
            publishing.result(15)  # and raises nothing: it is not the publisher's trouble
        eventually(lambda: publisher.subscribers == 0, PATIENCE)
        assert publisher.statistics()["published"] == 100


def stalled(control: object, address: str) -> None:
    import threading
    from typing import Any

    from antiphon.topics import Bus

    told: Any = control

    def hold(event: Any) -> None:
        told.tell("stalled")
        threading.Event().wait()

    with Bus(address) as bus:
        bus.subscribe("a", hold, capacity=4)
        told.tell("ready")
        told.hear()


def test_what_is_lost_with_a_connection_is_missed_by_the_next_event(channel: str) -> None:
    """A subscriber that stands still for so long that it counts as dead, and then goes on."""
    config = NodeConfig(heartbeat=0.3, connect_timeout=1.0)
    with Child(resident, address=channel, patterns=["a"], heartbeat=0.3) as child:
        child.expect("ready")
        with Bus(channel, node_config=config) as here:
            publisher = here.publisher("a", when_full="drop_newest")
            serves(publisher)
            eventually(lambda: placed(publisher), PATIENCE)
            stop(child.pid)
            lost = [False]
            here.node.on_disconnected(lambda peer, reason: lost.__setitem__(0, True))
            for _ in range(50):
                publisher.publish(b"into the void")
            eventually(lambda: lost[0], PATIENCE, "it counts as dead")
            go_on(child.pid)
            eventually(lambda: placed(publisher), PATIENCE, "it is back")
            published = publisher.statistics()["published"]
            eventually(lambda: events_of(child)["sequences"][-1:] == [published], PATIENCE)
            seen = events_of(child)
            assert seen["sequences"] == sorted(set(seen["sequences"]))
            # Every gap in the publisher's numbers is told by the event behind it.
            gaps = [b - a - 1 for a, b in itertools.pairwise(seen["sequences"])]
            assert seen["missed"][1:] == gaps


def placed(publisher: Publisher) -> bool:
    """Whether an event went to everybody."""
    before = publisher.statistics()
    publisher.publish(b"x")
    after = publisher.statistics()
    return (before["dropped"], before["lost"]) == (after["dropped"], after["lost"])


def all_handled(subscription: Subscription) -> bool:
    counts = subscription.statistics()
    return bool(counts["messages"] == counts["handled"])


# --- publishers -----------------------------------------------------------------------------------


def test_a_publisher_killed_in_a_burst_leaves_a_prefix_without_a_gap(channel: str) -> None:
    with Bus(channel) as here:
        for round_ in range(3):
            events = Events()
            subscription = here.subscribe("a", events, batch=False)
            with Child(resident, address=channel, topics=["a"]) as child:
                child.expect("ready")
                wait_served(child, "a")
                child.tell("burst", topic="a")
                child.expect("bursting")
                events.wait(500 * (round_ + 1))
                child.kill()
            eventually(lambda: here.topics() == [], PATIENCE, "its topic is gone")
            eventually(lambda: all_handled(subscription), PATIENCE)  # noqa: B023
            subscription.close()
            count = len(events)
            assert events.data == numbered(count)
            assert events.sequences == list(range(1, count + 1))
            assert set(events.missed) == {0}


# --- coming and going -----------------------------------------------------------------------------


def test_whoever_comes_late_gets_what_is_published_from_then_on(channel: str) -> None:
    first, late = Events(), Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", first)
        publisher = here.publisher("a")
        serves(publisher)
        for number in range(100):
            publisher.publish(b"%d" % number)
        with Bus(channel) as third:
            third.subscribe("a", late)
            serves(publisher, 2)
            for number in range(100, 200):
                publisher.publish(b"%d" % number)
            assert late.wait(100) == numbered(200)[100:]
            assert late.missed == [0] * 100
            assert late.sequences == list(range(101, 201))
        assert first.wait(200) == numbered(200)


def test_topics_follow_who_publishes_and_who_subscribes(channel: str) -> None:
    with Bus(channel) as here:
        mine = here.node.id
        with Child(resident, address=channel, topics=["x", "y"], patterns=["a/*"]) as child:
            other = child.expect("ready")["id"]
            eventually(lambda: names(here) == ["x", "y"], PATIENCE)
            publisher = here.publisher("a/1")
            both = tuple(sorted([mine, other]))
            eventually(lambda: TopicInfo("a/1", (mine,), (other,)) in here.topics(), PATIENCE)
            subscription = here.subscribe("**")
            eventually(lambda: TopicInfo("a/1", (mine,), both) in here.topics(), PATIENCE)
            assert TopicInfo("x", (other,), (mine,)) in here.topics()
            again = here.publisher("x")
            eventually(lambda: TopicInfo("x", both, (mine,)) in here.topics(), PATIENCE)
            eventually(lambda: topics_of(child) == ["a/1", "x", "y"], PATIENCE)
            subscription.close()
            assert TopicInfo("x", both, ()) in here.topics()
            publisher.close()
            again.close()
            eventually(lambda: topics_of(child) == ["x", "y"], PATIENCE)
            child.tell("unpublish", topic="y")
            child.expect("unpublished")
            eventually(lambda: names(here) == ["x"], PATIENCE)
            assert here.statistics().topics == 1
            child.kill()
            eventually(lambda: here.topics() == [], PATIENCE)
            assert (here.statistics().peers, here.statistics().topics) == (0, 0)


def topics_of(child: Child) -> list[str]:
    child.tell("topics")
    found: list[str] = child.expect("topics", PATIENCE)["names"]
    return found


def test_a_bus_that_left_before_its_word_was_heard_is_not_remembered(channel: str) -> None:
    """Its announcement waits behind a handler that holds the only thread."""
    config = NodeConfig(schedule=Schedule(threads=1))
    with Bus(channel, node_config=config) as here, Held() as held:
        here.subscribe("hold", held)
        here.publisher("hold").publish(b"x")
        assert held.entered.wait(PATIENCE)
        for _ in range(3):
            with Child(resident, address=channel, topics=["ghost"], patterns=["**"]) as child:
                child.expect("ready")
                eventually(lambda: here.statistics().peers == 1, PATIENCE)
                time.sleep(0.2)  # its letter comes, and is not read
                child.kill()
            eventually(lambda: here.statistics().peers == 0, PATIENCE)
        held.open()
        events = Events()
        here.subscribe("next", events)
        here.publisher("next").publish(b"x")
        events.wait(1)
        here.node.flush(PATIENCE)
        assert here.statistics().peers == 0
        assert names(here) == ["hold", "next"]


def test_twenty_buses_on_one_channel_hear_each_other(channel: str) -> None:
    count, each = 20, 10
    with contextlib.ExitStack() as stack:
        buses = [stack.enter_context(Bus(channel)) for _ in range(count)]
        heard = [Events() for _ in buses]
        for bus, events in zip(buses, heard, strict=True):
            bus.subscribe("ring/*", events)
        publishers = [bus.publisher(f"ring/{number}") for number, bus in enumerate(buses)]
        for publisher in publishers:
            serves(publisher, count)
        for number in range(each):
            for publisher in publishers:
                publisher.publish(b"%d" % number)
        for events in heard:
            events.first(count * each, PATIENCE)
        for bus in buses:
            # An event may come before the letter that tells of its topic.
            eventually(lambda bus=bus: bus.statistics().topics == count, PATIENCE)  # type: ignore[misc]
            assert bus.statistics().peers == count - 1
        for events in heard:
            assert len(events) == count * each
            assert Counter(event.topic for event in events.items) == {
                f"ring/{number}": each for number in range(count)
            }
            for number in range(count):
                mine = [event.data for event in events.items if event.topic == f"ring/{number}"]
                assert mine == numbered(each)
        # Half of them leave; the others know, and go on.
        for bus in buses[: count // 2]:
            bus.close()
        for publisher in publishers[count // 2 :]:
            eventually(lambda one=publisher: one.subscribers == count // 2, PATIENCE)  # type: ignore[misc]
            publisher.publish(b"after")
        for events in heard[count // 2 :]:
            assert events.wait(count * each + count // 2)[count * each :] == [b"after"] * (
                count // 2
            )

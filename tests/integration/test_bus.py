"""Topics between processes and within one: what is published arrives, in order, as it was given."""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter

import pytest

from antiphon import ReceiveTimeout
from antiphon.testing import Child, eventually
from antiphon.topics import Bus, Event
from integration.buses import (
    PATIENCE,
    Events,
    count_of,
    events_of,
    publish_from,
    resident,
    serves,
    wait_served,
)
from unit.node.pairs import Running, all_results, numbered

pytestmark = pytest.mark.timeout(60)

MANY = 3000


# --- two processes --------------------------------------------------------------------------------


def test_a_subscriber_in_another_process_gets_what_is_published_in_order(channel: str) -> None:
    with Child(resident, address=channel, patterns=["plant/7/temp"]) as child, Bus(channel) as bus:
        child.expect("ready")
        publisher = bus.publisher("plant/7/temp")
        serves(publisher)
        for number in range(MANY):
            publisher.publish(b"%d" % number)
        eventually(lambda: count_of(child) >= MANY, PATIENCE, "all have come")
        came = events_of(child)
        assert came["data"] == [str(number) for number in range(MANY)]
        assert set(came["topics"]) == {"plant/7/temp"}
        assert set(came["sources"]) == {bus.node.id}
        assert came["sequences"] == list(range(1, MANY + 1))
        assert set(came["missed"]) == {0}


def test_a_publisher_in_another_process_is_heard_here(channel: str) -> None:
    events = Events()
    with Bus(channel) as bus, Child(resident, address=channel, topics=["a", "b"]) as child:
        bus.subscribe("a", events)
        other = child.expect("ready")["id"]
        wait_served(child, "a")
        began = time.time_ns()
        publish_from(child, "b", 0, 10)
        publish_from(child, "a", 0, 10)
        assert events.wait(10) == numbered(10)
        assert {event.source for event in events.items} == {other}
        times = [event.time_ns for event in events.items]
        assert times == sorted(times)
        # One clock: both are on this machine.
        assert began <= times[0] <= times[-1] <= time.time_ns()


def test_every_field_of_an_event_is_what_the_publisher_gave(channel: str) -> None:
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("plant/**", events)
        publisher = here.publisher("plant/7")
        serves(publisher)
        before = time.time_ns()
        publisher.publish(b"first", {"site": "A"}, ttl=50.0)
        publisher.publish(b"second")
        first, second = events.first(2, PATIENCE)
        assert (first.data, first.topic, first.properties) == (b"first", "plant/7", {"site": "A"})
        assert (second.data, second.properties) == (b"second", {})
        assert before <= first.time_ns <= second.time_ns <= time.time_ns()
        assert first.source == second.source == here.node.id
        assert (first.sequence, second.sequence) == (1, 2)
        assert (first.missed, second.missed) == (0, 0)
        assert (first.late, second.late) == (0.0, 0.0)
        assert type(first.data) is bytes
        assert "plant/7" in repr(first)


def test_whoever_comes_first_waits_for_the_other(channel: str) -> None:
    """Publisher, then subscriber, and the reverse; nobody is told of the other by hand."""
    late = Events()
    with Bus(channel) as publishing:
        publisher = publishing.publisher("a")
        publisher.publish(b"for nobody")
        assert publisher.subscribers == 0
        with Bus(channel) as subscribing:
            subscribing.subscribe("a", late)
            serves(publisher)
            publisher.publish(b"x")
            assert late.wait(1) == [b"x"]
            # It numbers all its events, also those for nobody; what came before is not missed.
            assert (late.sequences, late.missed) == ([2], [0])
            early = Events()
            publishing.subscribe("b", early)
            second = subscribing.publisher("b")
            serves(second)
            second.publish(b"y")
            assert early.wait(1) == [b"y"]


def test_what_is_made_before_the_bus_is_started_is_there_when_it_is(channel: str) -> None:
    events = Events()
    here, there = Bus(channel), Bus(channel)
    publisher = here.publisher("a")
    there.subscribe("a", events)
    with here, there:
        serves(publisher)
        publisher.publish(b"x")
        assert events.wait(1) == [b"x"]


def test_one_topic_more_is_told_without_all_the_others(channel: str) -> None:
    """By what goes over the connection; three thousand names take over sixty thousand bytes."""

    def told(bus: Bus, names: int) -> int:
        """Bytes to the other bus, once that knows so many topics."""
        eventually(lambda: len(other.topics()) == names, PATIENCE, f"{names} topics are known")
        (connection,) = (one for one in bus.node.connections() if one.id == other.node.id)
        return connection.bytes_out

    with Bus(channel) as bus, Bus(channel) as other:
        publishers = [bus.publisher(f"plant/{number:06}/temp") for number in range(MANY)]
        everything = told(bus, MANY)
        assert everything > 20 * MANY
        publishers.append(bus.publisher("plant/one/more"))
        after = told(bus, MANY + 1)
        publishers.pop(0).close()
        last = told(bus, MANY)
    # Signs of life of the connection are a few bytes each.
    assert after - everything < 1000
    assert last - after < 1000


def test_channels_with_other_names_have_nothing_to_do_with_each_other(channel: str) -> None:
    ours, theirs = Events(), Events()
    with Bus(channel) as here, Bus(channel) as there, Bus("local://other") as stranger:
        there.subscribe("**", ours)
        stranger.subscribe("**", theirs)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x")
        ours.wait(1)
        assert publisher.subscribers == 1
        assert here.statistics().peers == there.statistics().peers == 1
        assert stranger.statistics().peers == 0
        assert stranger.topics() == []
        assert len(theirs) == 0


# --- who gets what --------------------------------------------------------------------------------


def test_each_pattern_gets_the_topics_it_means_and_no_others(channel: str) -> None:
    topics = ["plant", "plant/7", "plant/7/temp", "plant/8/temp", "office/7/temp", "$plant/7"]
    wanted = {
        "plant": ["plant"],
        "plant/*": ["plant/7"],
        "plant/*/temp": ["plant/7/temp", "plant/8/temp"],
        "*/7/*": ["plant/7/temp", "office/7/temp"],
        "plant/**": ["plant", "plant/7", "plant/7/temp", "plant/8/temp"],
        "**/temp": ["plant/7/temp", "plant/8/temp", "office/7/temp"],
        "**": topics,
        "*": ["plant"],
        "nothing/**": [],
    }
    heard = {pattern: Events() for pattern in wanted}
    with Bus(channel) as here, Bus(channel) as there:
        for text, events in heard.items():
            there.subscribe(text, events)
        publishers = [here.publisher(topic) for topic in topics]
        for publisher in publishers:
            serves(publisher, sum(publisher.topic in topics_ for topics_ in wanted.values()))
        for round_ in range(3):
            for publisher in publishers:
                publisher.publish(b"%d" % round_)
        here.node.flush(PATIENCE)
        for text, expected in wanted.items():
            events = heard[text]
            events.first(3 * len(expected), PATIENCE)
            counts = Counter(event.topic for event in events.items)
            assert counts == dict.fromkeys(expected, 3), text
            for topic in expected:
                of_topic = [event for event in events.items if event.topic == topic]
                assert [event.data for event in of_topic] == numbered(3)
                assert [event.sequence for event in of_topic] == [1, 2, 3]
                assert [event.missed for event in of_topic] == [0, 0, 0]


def test_several_publishers_and_subscriptions_of_one_topic_are_each_complete(channel: str) -> None:
    heard = [Events() for _ in range(4)]
    with Bus(channel) as first, Bus(channel) as second, Bus(channel) as third:
        for bus, events in zip((first, second, third, third), heard, strict=True):
            bus.subscribe("a", events)
        publishers = [bus.publisher("a") for bus in (first, first, second, third)]
        for publisher in publishers:
            serves(publisher, 4)

        def publish(number: int) -> None:
            for count in range(200):
                publishers[number].publish(struct.pack("<II", number, count))

        all_results([Running(lambda number=number: publish(number)) for number in range(4)])  # type: ignore[misc]
        for events in heard:
            events.first(800, PATIENCE)
        first.node.flush(PATIENCE)
        for events in heard:
            came = [struct.unpack("<II", data) for data in events.data]
            assert len(came) == 800
            for number in range(4):
                assert [count for who, count in came if who == number] == list(range(200))
            assert set(events.missed) == {0}


def test_many_threads_on_one_publisher_lose_nothing_and_double_nothing(channel: str) -> None:
    threads, each = 8, 500
    remote, local = Events(), Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", remote, capacity=64)
        here.subscribe("a", local)
        publisher = here.publisher("a")
        serves(publisher, 2)
        start = threading.Barrier(threads)

        def publish(thread: int) -> None:
            start.wait()
            for number in range(each):
                publisher.publish(struct.pack("<II", thread, number))

        all_results(
            [Running(lambda thread=thread: publish(thread)) for thread in range(threads)],  # type: ignore[misc]
            50,
        )
        total = threads * each
        for events in (remote, local):
            came = [struct.unpack("<II", data) for data in events.wait(total)]
            for thread in range(threads):
                assert [number for who, number in came if who == thread] == list(range(each))
            # Numbers are given in the order in which the events go.
            assert events.sequences == list(range(1, total + 1))
            assert set(events.missed) == {0}
        here.node.flush(PATIENCE)
        assert len(remote) == len(local) == total
        assert publisher.statistics()["published"] == total


# --- without a handler ----------------------------------------------------------------------------


def test_a_subscription_without_a_handler_is_iterated_until_it_is_closed(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("a/*")
        publisher = here.publisher("a/1")
        serves(publisher)
        got: list[Event] = []

        def read() -> None:
            for event in subscription:
                got.append(event)
                if len(got) == 500:
                    subscription.close()

        reading = Running(read)
        for number in range(500):
            publisher.publish(b"%d" % number)
        reading.result(PATIENCE)
        assert [event.data for event in got] == numbered(500)
        assert [event.sequence for event in got] == list(range(1, 501))
        assert {event.missed for event in got} == {0}
        assert subscription.closed
        eventually(lambda: publisher.subscribers == 0, PATIENCE, "the publisher is told")


def test_receive_times_out_and_the_next_event_is_still_there(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("a")
        publisher = here.publisher("a")
        serves(publisher)
        for timeout in (0, 0.05):
            began = time.monotonic()
            with pytest.raises(ReceiveTimeout, match="subscription"):
                subscription.receive(timeout)
            assert time.monotonic() - began >= timeout
        publisher.publish(b"x")
        assert subscription.receive(PATIENCE).data == b"x"
        eventually(lambda: subscription.pending == 0)


def test_closing_the_bus_ends_an_iteration_that_waits(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a")
        reading = Running(lambda: list(subscription))
        bus.publisher("a").publish(b"x")
        eventually(lambda: subscription.statistics()["messages"] == 1 and subscription.pending == 0)
        assert not reading.done
    assert [event.data for event in reading.result(PATIENCE)] == [b"x"]

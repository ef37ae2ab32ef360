"""Handlers of events: what they may do, what happens when they fail; nodes that are shared."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import Node, NodeConfig, Schedule, WouldBlock
from antiphon.testing import Child, Collected, eventually
from antiphon.topics import Bus, Event
from integration.buses import (
    PATIENCE,
    Events,
    Held,
    publish_each,
    publish_from,
    resident,
    serves,
    wait_served,
)
from unit.node.pairs import KIND, Running, failures, numbered

pytestmark = pytest.mark.timeout(60)


# --- closing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_a_handler_that_closes_its_own_subscription_gets_nothing_more(
    channel: str, batch: bool
) -> None:
    calls: Collected[Any] = Collected()
    others = Events()

    def handler(event: Any) -> None:
        calls.add(event)
        subscription.close()

    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("a", handler, batch=batch)
        there.subscribe("a", others)
        publisher = here.publisher("a")
        serves(publisher, 2)
        for number in range(200):
            publisher.publish(b"%d" % number)
        assert others.wait(200) == numbered(200)
        eventually(lambda: publisher.subscribers == 1, PATIENCE, "the publisher serves the other")
        assert len(calls) == 1
        assert subscription.closed
        assert "closed" in repr(subscription)
        # The slice in which it closed itself is counted when it has ended.
        eventually(lambda: subscription.statistics()["slices"] == 1, PATIENCE)
        assert subscription.statistics()["messages"] >= 1


def test_a_closed_subscription_gets_nothing_and_its_publisher_goes_on(channel: str) -> None:
    events = Events()
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        stalled = there.subscribe("a", held, capacity=4)
        publisher = here.publisher("a")
        serves(publisher)
        # It fills the queue of a handler that does not come back, and waits.
        publishing = Running(lambda: publish_each(publisher, [b"x"] * 100))
        eventually(lambda: publisher.statistics()["waits"] > 0 and held.entered.is_set(), PATIENCE)
        eventually(lambda: stalled.statistics()["messages"] == 4, PATIENCE, "it is full")
        assert not publishing.done
        closing = Running(stalled.close)  # waits for the call that runs
        publishing.result(PATIENCE)
        held.open()
        closing.result(PATIENCE)
        assert len(held) == 1
        stalled.close()
        eventually(lambda: publisher.subscribers == 0, PATIENCE)
        there.subscribe("a", events)
        serves(publisher)
        publisher.publish(b"y")
        assert events.wait(1) == [b"y"]
        assert events.sequences == [101]


def test_subscriptions_that_come_and_go_leave_the_others_whole(channel: str) -> None:
    steady = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", steady)
        publisher = here.publisher("a")
        serves(publisher)
        stop = threading.Event()

        def publish() -> int:
            number = 0
            while not stop.is_set():
                publisher.publish(b"%d" % number)
                number += 1
            return number

        publishing = Running(publish)
        for round_ in range(15):
            brief = Events()
            with there.subscribe("a", brief, capacity=8 if round_ % 2 else None):
                brief.wait(20)
            came = brief.sequences
            assert came == list(range(came[0], came[0] + len(came)))
            assert set(brief.missed) == {0}
        stop.set()
        count = publishing.result(PATIENCE)
        assert steady.wait(count) == numbered(count)
        assert set(steady.missed) == {0}
        # The letter that says that the last one has left comes by itself.
        eventually(lambda: publisher.subscribers == 1, PATIENCE)


def test_what_was_published_before_close_arrives(channel: str) -> None:
    """Time and again: a program that publishes something and ends."""
    events = Events()
    with Bus(channel) as there:
        there.subscribe("a", events)
        for round_ in range(1, 9):
            with Bus(channel) as here:
                publisher = here.publisher("a")
                serves(publisher)
                publisher.publish_many(numbered(1000))
            assert events.wait(1000 * round_)[-1000:] == numbered(1000)
        assert len(events) == 8000


def test_what_has_come_is_handled_although_its_publisher_has_left(channel: str) -> None:
    """The handler has not seen a single event of that topic when the other bus goes away."""
    with (
        Bus(channel) as there,
        Held() as held,
        Child(resident, address=channel, topics=["a", "b"]) as child,
    ):
        subscription = there.subscribe("*", held)
        child.expect("ready")
        wait_served(child, "a")
        wait_served(child, "b")
        publish_from(child, "a", 0, 1)
        assert held.entered.wait(PATIENCE)
        publish_from(child, "b", 0, 500)
        child.tell("leave")
        child.expect("left", PATIENCE)
        eventually(lambda: there.topics() == [], PATIENCE, "it has left")
        held.open()
        held.first(501, PATIENCE)
        assert held.data == [b"0", *numbered(500)]
        assert set(held.missed) == {0}
        assert subscription.statistics()["malformed"] == 0


def test_closing_a_bus_handles_what_has_come(channel: str) -> None:
    slow = Events()

    def handler(event: Event) -> None:
        time.sleep(0.001)
        slow(event)

    with Bus(channel) as here:
        publisher = here.publisher("a")
        with Bus(channel) as there:
            subscription = there.subscribe("a", handler)
            serves(publisher)
            publisher.publish_many(numbered(300))
            eventually(lambda: subscription.statistics()["messages"] == 300, PATIENCE)
        assert slow.data == numbered(300)


def test_closing_a_bus_inside_a_handler_is_refused(channel: str) -> None:
    errors: Collected[BaseException | None] = Collected()
    with Bus(channel) as bus:

        def handler(event: Event) -> None:
            try:
                bus.close()
            except BaseException as error:
                errors.add(error)
            else:
                errors.add(None)

        bus.subscribe("a", handler)
        publisher = bus.publisher("a")
        serves(publisher)
        publisher.publish(b"x")
        assert isinstance(errors.first(1, PATIENCE)[0], WouldBlock)
        assert not bus.closed


# --- failing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_a_handler_that_raises_is_logged_and_counted_and_the_next_event_is_handled(
    channel: str, batch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    done: Collected[bytes] = Collected()

    def handler(event: Any) -> None:
        data = event[0] if batch else event.data
        if int(data) % 2:
            raise ValueError("on purpose")
        done.add(data)

    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("plant/*", handler, batch=batch)
        publisher = here.publisher("plant/7")
        serves(publisher)
        for number in range(20):
            publisher.publish(b"%d" % number)
            if batch:  # one by one, so that each is a batch
                eventually(lambda count=number: subscription.statistics()["calls"] == count + 1)  # type: ignore[misc]
        assert done.first(10, PATIENCE) == numbered(20)[::2]
        eventually(lambda: subscription.statistics()["failed"] == 10, PATIENCE)
        assert subscription.statistics()["handled"] == 20
    records = failures(caplog)
    assert len(records) == 10
    assert records[0].levelno == logging.ERROR
    assert "plant/*" in records[0].getMessage()
    assert str(here.node.id) in records[0].getMessage()
    assert records[0].exc_info is not None
    assert records[0].exc_info[0] is ValueError


# --- publishing from handlers ---------------------------------------------------------------------


def test_a_handler_publishes_what_it_makes_of_an_event(channel: str) -> None:
    """A chain of three, the middle one in a process of its own."""
    results = Events()
    with Bus(channel) as here, Child(doubler, address=channel) as child:
        child.expect("ready")
        here.subscribe("out", results)
        publisher = here.publisher("in")
        serves(publisher)
        child.tell("go on")
        child.expect("served", PATIENCE)
        for number in range(1000):
            publisher.publish(b"%d" % number)
        assert results.wait(1000) == [b"%d" % (2 * number) for number in range(1000)]
        assert results.sequences == list(range(1, 1001))


def doubler(control: Any, address: str) -> None:
    from antiphon.topics import Bus

    with Bus(address) as bus:
        out = bus.publisher("out")
        bus.subscribe("in", lambda event: out.publish(b"%d" % (2 * int(event.data))))
        control.tell("ready")
        control.hear()
        assert out.wait_for_subscribers(1, 20.0)
        control.tell("served")
        control.hear()


def test_a_handler_publishes_to_its_own_subscription(channel: str) -> None:
    events = Events()
    with Bus(channel) as bus:

        def handler(event: Event) -> None:
            events(event)
            if int(event.data) < 500:
                publisher.publish(b"%d" % (int(event.data) + 1))

        bus.subscribe("a", handler)
        publisher = bus.publisher("a")
        serves(publisher)
        publisher.publish(b"0")
        assert events.wait(501) == numbered(501)


def test_a_handler_that_publishes_to_its_own_full_subscription_is_told_in_time(
    channel: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for room that only it can make: for the request timeout, not for ever."""
    config = NodeConfig(request_timeout=0.5)
    with Bus(channel, node_config=config) as bus:
        calls: Collected[bytes] = Collected()

        def handler(event: Event) -> None:
            calls.add(event.data)
            if len(calls) == 1:
                for number in range(20):
                    publisher.publish(b"%d" % number)

        bus.subscribe("a", handler, capacity=4)
        publisher = bus.publisher("a")
        serves(publisher)
        publisher.publish(b"first")
        eventually(lambda: failures(caplog), PATIENCE, "it fails")
        assert "SendTimeout" in str(failures(caplog)[0].exc_info)
        # What there was room for is handled.
        eventually(lambda: len(calls) > 1, PATIENCE)


# --- within one process ---------------------------------------------------------------------------


def test_a_subscription_on_the_bus_that_publishes_gets_everything_too(channel: str) -> None:
    with Bus(channel) as bus:
        handled = Events()
        bus.subscribe("plant/**", handled)
        read = bus.subscribe("plant/7")
        publisher = bus.publisher("plant/7")
        assert publisher.subscribers == 2  # at once: nobody has to be found
        for number in range(500):
            publisher.publish(b"%d" % number, {"number": number})
        assert handled.wait(500) == numbered(500)
        events = [read.receive(PATIENCE) for _ in range(500)]
        assert [event.properties["number"] for event in events] == list(range(500))
        assert {event.source for event in events} == {bus.node.id}
        assert [event.sequence for event in events] == list(range(1, 501))


@contextlib.contextmanager
def ringing(*buses: Bus) -> Iterator[list[Events]]:
    """Every bus subscribes to the topic of every other and its own."""
    heard = [Events() for _ in buses]
    for bus, events in zip(buses, heard, strict=True):
        bus.subscribe("ring/*", events)
    yield heard


def test_buses_share_a_process_and_all_hear_all(channel: str) -> None:
    with (
        Bus(channel) as one,
        Bus(channel) as two,
        Bus(channel) as three,
        ringing(one, two, three) as heard,
    ):
        publishers = [bus.publisher(f"ring/{bus.node.id}") for bus in (one, two, three)]
        for publisher in publishers:
            serves(publisher, 3)
        for number in range(100):
            for publisher in publishers:
                publisher.publish(b"%d" % number)
        for events in heard:
            events.first(300, PATIENCE)
            for publisher in publishers:
                mine = [event.data for event in events.items if event.topic == publisher.topic]
                assert mine == numbered(100)


# --- a node that does other things too ------------------------------------------------------------


def test_a_shared_node_carries_events_and_messages(channel: str) -> None:
    with Node(1) as first, Node(2) as second:
        inbox = second.inbox(KIND)
        answers = second.on(KIND + 1, lambda source, data: data[::-1])
        with Bus(channel, node=first) as here, Bus(channel, node=second) as there:
            assert here.node is first
            events = Events()
            there.subscribe("a", events)
            publisher = here.publisher("a")
            serves(publisher)
            for number in range(500):
                publisher.publish(b"%d" % number)
                first.send(2, b"%d" % number, kind=KIND)
                if number % 50 == 0:
                    assert first.request(2, b"ab", kind=KIND + 1) == b"ba"
            assert events.wait(500) == numbered(500)
            assert {event.source for event in events.items} == {1}
            assert [inbox.receive(PATIENCE) for _ in range(500)] == [
                (1, data) for data in numbered(500)
            ]
        # The bus has left; the nodes have not, nor do they forget whom they know.
        first.add_peer(2, second.address)
        first.send(2, b"after", kind=KIND)
        assert inbox.receive(PATIENCE) == (1, b"after")
        answers.close()


def test_a_peer_that_was_given_to_a_shared_node_stays_when_the_bus_forgets_it(channel: str) -> None:
    with Node(1) as first, Node(2) as second:
        first.add_peer(2, second.address)
        inbox = second.inbox(KIND)
        with Bus(channel, node=first) as here:
            with Bus(channel, node=second):
                eventually(lambda: here.statistics().peers == 1, PATIENCE)
            eventually(lambda: here.statistics().peers == 0, PATIENCE)
            first.send(2, b"still known", kind=KIND)
            assert inbox.receive(PATIENCE) == (1, b"still known")


def test_one_scheduler_thread_is_enough(channel: str) -> None:
    config = NodeConfig(schedule=Schedule(threads=1))
    events = Events()
    with Bus(channel, node_config=config) as here, Bus(channel, node_config=config) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many(numbered(500))
        assert events.wait(500) == numbered(500)

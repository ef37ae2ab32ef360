"""Full subscriptions: who waits, who does not, what is lost, and what tells of it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from antiphon import Closed, NodeConfig, SendTimeout
from antiphon.testing import Child, Control, eventually
from antiphon.topics import Bus, Publisher
from integration.buses import PATIENCE, Events, Held, came, publish_each, serves
from unit.node.pairs import Running, numbered

pytestmark = pytest.mark.timeout(60)

COUNT, CAPACITY = 500, 40


def fill(publisher: Publisher, held: Held) -> None:
    """One event that keeps the handler, and so many that its queue could not take them all."""
    publisher.publish(b"first")
    assert held.entered.wait(PATIENCE)
    for number in range(COUNT):
        publisher.publish(b"%d" % number)


# --- block ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 7, 40])
@pytest.mark.parametrize("how", ["handler", "iterated"])
def test_a_publisher_waits_for_a_full_subscription_and_nothing_is_lost(
    channel: str, capacity: int, how: str
) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        handler = held if how == "handler" else None
        subscription = there.subscribe("a", handler, capacity=capacity)
        publisher = here.publisher("a")
        serves(publisher)

        def publish() -> None:
            for number in range(COUNT):
                publisher.publish(b"%d" % number)

        publishing = Running(publish)
        came(subscription, capacity)
        time.sleep(0.1)  # whatever else would come in spite of it has come
        assert subscription.statistics()["messages"] == capacity
        assert not publishing.done
        assert publisher.statistics()["published"] <= capacity + 1
        held.open()
        if how == "iterated":
            events = [subscription.receive(PATIENCE) for _ in range(COUNT)]
        else:
            events = held.first(COUNT, PATIENCE)
        publishing.result(PATIENCE)
        assert [event.data for event in events] == numbered(COUNT)
        assert {event.missed for event in events} == {0}
        here.node.flush(PATIENCE)
        assert subscription.statistics()["messages"] == COUNT
        assert subscription.statistics()["dropped"] == 0
        statistics = publisher.statistics()
        assert (statistics["published"], statistics["dropped"], statistics["lost"]) == (COUNT, 0, 0)
        assert statistics["waits"] > 0


def test_the_others_get_an_event_while_its_publisher_waits_for_a_full_one(channel: str) -> None:
    quick = Events()
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        there.subscribe("a", held, capacity=2)
        there.subscribe("a", quick)
        publisher = here.publisher("a")
        serves(publisher, 2)
        publishing = Running(lambda: publish_each(publisher, numbered(10)))
        # The third waits for the first subscription, and has gone to the second.
        assert quick.wait(3) == numbered(3)
        time.sleep(0.1)
        assert not publishing.done
        assert len(quick) == publisher.statistics()["published"] == 3
        held.open()
        publishing.result(PATIENCE)
        assert quick.wait(10) == held.wait(10) == numbered(10)


def test_a_publisher_that_waits_too_long_raises_and_what_it_gave_up_is_missed(channel: str) -> None:
    # Long enough for the first event, which connects, and for the last, which waits for credit.
    config = NodeConfig(send_timeout=3.0)
    with Bus(channel, node_config=config) as here, Bus(channel) as there, Held() as held:
        subscription = there.subscribe("a", held, capacity=2)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"0")
        publisher.publish(b"1")
        for _ in range(2):
            with pytest.raises(SendTimeout) as late:
                publisher.publish(b"lost")
            assert late.value.peer == there.node.id
        held.open()
        held.first(2, PATIENCE)
        publisher.publish(b"last")
        assert held.wait(3) == [b"0", b"1", b"last"]
        assert held.missed == [0, 0, 2]
        assert held.sequences == [1, 2, 5]
        eventually(lambda: subscription.statistics()["missed"] == 2, PATIENCE)


def test_a_publisher_that_waits_wakes_when_its_bus_or_itself_is_closed(channel: str) -> None:
    with Bus(channel) as there, Held() as held:
        there.subscribe("*", held, capacity=1)
        for close in ("publisher", "bus"):
            here = Bus(channel)
            with here:
                publisher = here.publisher("a")
                serves(publisher)

                def publish(publisher: Publisher = publisher) -> None:
                    for _ in range(10):
                        publisher.publish(b"x")

                publishing = Running(publish)
                eventually(lambda: publisher.statistics()["waits"] > 0, PATIENCE)  # noqa: B023
                if close == "publisher":
                    publisher.close()
                else:
                    here.close(drain=0)
                assert isinstance(publishing.error(PATIENCE), Closed)
            eventually(lambda: there.topics() == [], PATIENCE)


@pytest.mark.parametrize("how", ["handler", "iterated"])
def test_a_full_topic_stops_its_own_publishers_only(channel: str, how: str) -> None:
    """Another topic between the same two nodes, over the same connection, goes on and on."""
    open_events = Events()
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        stuck = there.subscribe("full", held if how == "handler" else None, capacity=10)
        there.subscribe("free", open_events)
        full, free = here.publisher("full"), here.publisher("free")
        serves(full)
        serves(free)
        publishing = Running(lambda: publish_each(full, [bytes(1000)] * 100))
        came(stuck, 10)
        for number in range(5000):  # several windows of it
            free.publish(b"%d" % number + bytes(1000))
        open_events.wait(5000)
        assert not publishing.done
        assert stuck.statistics()["messages"] == 10
        held.open()
        if how == "iterated":
            for _ in range(100):
                stuck.receive(PATIENCE)
        publishing.result(PATIENCE)


def flooder(control: Control, address: str) -> None:
    from antiphon.topics import Bus

    with Bus(address) as bus:
        publisher = bus.publisher("a")
        assert publisher.wait_for_subscribers(1, 20.0)
        for number in range(20_000):
            publisher.publish(b"%d" % number)
        control.tell("published", waits=publisher.statistics()["waits"])
        control.hear()


def test_publishers_in_other_processes_wait_for_a_slow_handler_and_lose_nothing(
    channel: str,
) -> None:
    by_source: dict[int, list[int]] = {}
    missed = 0

    def slow(event: Any) -> None:
        nonlocal missed
        by_source.setdefault(event.source, []).append(int(event.data))
        missed += event.missed
        if event.sequence % 1000 == 0:
            time.sleep(0.005)

    with Bus(channel) as bus:
        bus.subscribe("a", slow, capacity=100)
        with (
            Child(flooder, address=channel) as first,
            Child(flooder, address=channel) as second,
        ):
            assert first.expect("published", 40)["waits"] > 0
            assert second.expect("published", 40)["waits"] > 0
            eventually(lambda: sum(map(len, by_source.values())) == 40_000, PATIENCE)
            assert list(map(len, by_source.values())) == [20_000, 20_000]
            assert all(numbers == list(range(20_000)) for numbers in by_source.values())
            assert missed == 0


# --- drop at the subscription ---------------------------------------------------------------------


def test_drop_newest_keeps_what_came_first(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        subscription = there.subscribe("a", held, capacity=CAPACITY, when_full="drop_newest")
        publisher = here.publisher("a")
        serves(publisher)
        fill(publisher, held)
        lost = COUNT - CAPACITY
        came(subscription, COUNT + 1, dropped=lost)
        assert subscription.pending == CAPACITY
        held.open()
        held.first(1 + CAPACITY, PATIENCE)
        publisher.publish(b"last")
        held.first(2 + CAPACITY, PATIENCE)
        assert held.data == [b"first", *numbered(CAPACITY), b"last"]
        assert held.missed == [0] * (1 + CAPACITY) + [lost]
        assert held.sequences == [*range(1, CAPACITY + 2), COUNT + 2]
        statistics = subscription.statistics()
        assert (statistics["missed"], statistics["dropped"]) == (lost, lost)
        eventually(lambda: subscription.statistics()["handled"] == CAPACITY + 2, PATIENCE)
        assert publisher.statistics()["dropped"] == 0  # it was not the publisher's doing


def test_what_a_subscription_drops_counts_among_the_drops_of_its_node(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("a", capacity=CAPACITY, when_full="drop_newest")
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many(numbered(COUNT))
        came(subscription, COUNT, dropped=COUNT - CAPACITY)
        assert there.node.statistics().drops["queue_full"] == COUNT - CAPACITY
        subscription.close()
        assert there.node.statistics().drops["queue_full"] == COUNT - CAPACITY  # it never falls


def test_drop_oldest_keeps_what_came_last(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        subscription = there.subscribe("a", held, capacity=CAPACITY, when_full="drop_oldest")
        publisher = here.publisher("a")
        serves(publisher)
        fill(publisher, held)
        lost = COUNT - CAPACITY
        came(subscription, COUNT + 1, dropped=lost)
        held.open()
        held.first(1 + CAPACITY, PATIENCE)
        publisher.publish(b"last")
        held.first(2 + CAPACITY, PATIENCE)
        assert held.data == [b"first", *numbered(COUNT)[-CAPACITY:], b"last"]
        assert held.missed == [0, lost] + [0] * CAPACITY
        statistics = subscription.statistics()
        assert (statistics["missed"], statistics["dropped"]) == (lost, lost)


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_a_subscription_that_drops_never_stops_its_publisher(channel: str, policy: str) -> None:
    """Nor one that is iterated by nobody; then the events tell how many were lost before them."""
    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("a", capacity=CAPACITY, when_full=policy)
        publisher = here.publisher("a")
        serves(publisher)
        count = 20_000
        for _ in range(count // 100):
            publisher.publish_many([bytes(500)] * 100)  # ten megabytes: several windows
        lost = count - CAPACITY
        came(subscription, count, dropped=lost)
        eventually(lambda: subscription.pending == CAPACITY, PATIENCE)
        first = subscription.receive(PATIENCE)
        assert (first.sequence, first.missed) == (
            (1, 0) if policy == "drop_newest" else (lost + 1, lost)
        )
        for _ in range(CAPACITY - 1):
            assert subscription.receive(PATIENCE).missed == 0
        publisher.publish(b"last")
        last = subscription.receive(PATIENCE)
        assert (last.data, last.missed) == (b"last", lost if policy == "drop_newest" else 0)
        assert subscription.statistics()["dropped"] == lost


def test_each_topic_of_a_dropping_subscription_tells_its_own_losses(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        subscription = there.subscribe("*", held, capacity=10, when_full="drop_newest")
        a, b = here.publisher("a"), here.publisher("b")
        serves(a)
        serves(b)
        a.publish(b"first")
        assert held.entered.wait(PATIENCE)
        for _ in range(10):
            a.publish(b"kept")
        for _ in range(30):
            a.publish(b"lost")
        for _ in range(5):
            b.publish(b"lost")
        came(subscription, 46, dropped=35)
        held.open()
        held.first(11, PATIENCE)
        a.publish(b"after")
        b.publish(b"after")
        held.first(13, PATIENCE)
        assert [(event.topic, event.missed) for event in held.items[11:]] == [("a", 30), ("b", 5)]
        assert subscription.statistics()["missed"] == 35


def test_a_dropping_and_a_blocking_subscription_of_one_topic_each_have_their_way(
    channel: str,
) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        dropping = there.subscribe("a", held, capacity=10, when_full="drop_oldest")
        everything = there.subscribe("a", capacity=COUNT + 1)
        publisher = here.publisher("a")
        serves(publisher, 2)
        fill(publisher, held)
        came(dropping, COUNT + 1, dropped=COUNT - 10)
        events = [everything.receive(PATIENCE) for _ in range(COUNT + 1)]
        assert [event.data for event in events] == [b"first", *numbered(COUNT)]
        assert {event.missed for event in events} == {0}
        held.open()
        held.first(11, PATIENCE)
        assert sum(held.missed) == dropping.statistics()["dropped"] == COUNT - 10


def test_what_a_publisher_with_a_queue_has_accepted_is_sent_before_it_is_closed(
    channel: str,
) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("a")
        for number in range(100):
            publisher = here.publisher("a", share=0.5)
            serves(publisher)
            publisher.publish(b"%d" % number)
            publisher.close()
        got = [subscription.receive(PATIENCE).data for _ in range(100)]
        assert got == numbered(100)

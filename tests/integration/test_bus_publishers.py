"""Publishers that drop, queue or wait, and who is not held up by them."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Closed, MessageTooLarge, Node, NodeConfig, SendTimeout
from antiphon.testing import Child, eventually
from antiphon.topics import Bus, Event, Publisher
from integration.buses import PATIENCE, Events, Held, publish_each, resident, serves
from unit.node.pairs import HERE, Running, all_results, go_on, numbered, stop

pytestmark = pytest.mark.timeout(60)

COUNT, CAPACITY = 500, 40


# --- drop at the publisher ------------------------------------------------------------------------


def test_a_publisher_that_drops_never_waits_and_the_books_balance(channel: str) -> None:
    quick = Events()
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        full = there.subscribe("a", held, capacity=CAPACITY)
        there.subscribe("a", quick, capacity=4 * COUNT)
        warm = here.publisher("a")  # opens the connection and the flows
        serves(warm, 2)
        warm.publish(b"first")
        assert held.entered.wait(PATIENCE)
        quick.wait(1)
        publisher = here.publisher("a", when_full="drop_newest")
        serves(publisher, 2)
        for number in range(COUNT):
            publisher.publish(b"%d" % number)
        statistics = publisher.statistics()
        assert statistics["published"] == COUNT
        assert statistics["waits"] == 0
        dropped = statistics["dropped"]
        assert COUNT - CAPACITY <= dropped < COUNT
        assert here.statistics().dropped == dropped
        assert quick.wait(COUNT + 1) == [b"first", *numbered(COUNT)]
        held.open()
        kept = COUNT - dropped
        held.first(1 + kept, PATIENCE)
        here.node.flush(PATIENCE)  # and the credit is back
        eventually(lambda: placed(publisher, b"last", dropped), PATIENCE)
        held.first(2 + kept, PATIENCE)
        assert held.data == [b"first", *numbered(kept), b"last"]
        assert sum(held.missed) == publisher.statistics()["dropped"]
        assert held.missed[-1] == sum(held.missed)
        assert full.statistics()["dropped"] == 0
        assert sum(quick.missed) == 0


def placed(publisher: Publisher, data: bytes, dropped: int) -> bool:
    """Whether an event went to everybody."""
    before = publisher.statistics()["dropped"]
    assert before >= dropped
    publisher.publish(data)
    return publisher.statistics()["dropped"] == before


def test_what_a_publisher_drops_before_it_is_connected_is_missed_by_the_first_event(
    channel: str,
) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("a")
        publisher = here.publisher("a", when_full="drop_newest")
        serves(publisher)
        # The first find no connection, or no room opened yet.
        while publisher.statistics()["published"] == publisher.statistics()["dropped"]:
            publisher.publish(b"x")
        event = subscription.receive(PATIENCE)
        assert event.missed == publisher.statistics()["dropped"]
        assert event.sequence == event.missed + 1


def test_a_publisher_that_drops_loses_nothing_to_a_way_that_is_not_open_yet(channel: str) -> None:
    """A queue that nobody has sent to yet is empty, not full."""

    def loses_nothing() -> bool:
        with Bus(channel) as here, Bus(channel) as there:
            far, near = there.subscribe("a"), here.subscribe("a")
            publisher = here.publisher("a", when_full="drop_newest")
            serves(publisher, 2)
            publisher.publish(b"first")
            if publisher.statistics()["dropped"]:
                return False
            for subscription in (far, near):
                event = subscription.receive(PATIENCE)
                assert (event.data, event.sequence, event.missed) == (b"first", 1, 0)
            return publisher.statistics()["dropped"] == 0

    # One of three: it waits for a fifth of a second, and the machine may be busy.
    assert any(loses_nothing() for _ in range(3))


def test_a_publisher_that_drops_and_rests_loses_nothing(channel: str) -> None:
    """A flow that is not used gives its window back; the next event opens it again."""
    hasty = NodeConfig(heartbeat=0.1)

    def loses_nothing() -> bool:
        with Bus(channel, node_config=hasty) as here, Bus(channel, node_config=hasty) as there:
            subscription = there.subscribe("a")
            publisher = here.publisher("a", when_full="drop_newest")
            serves(publisher)

            def window() -> int:
                to_it = (one for one in here.node.connections() if one.id == there.node.id)
                return sum(flow.window for one in to_it for flow in one.flows_out if flow.kind < 64)

            for number in range(3):
                publisher.publish(b"%d" % number)
                if publisher.statistics()["dropped"]:
                    return False
                event = subscription.receive(PATIENCE)
                assert (event.data, event.missed) == (b"%d" % number, 0)
                eventually(lambda: window() == 0, PATIENCE, "it has given its window back")
            return True

    # One of three, as above.
    assert any(loses_nothing() for _ in range(3))


def test_a_publisher_that_drops_waits_once_for_a_subscriber_that_stands_still(channel: str) -> None:
    with Child(resident, address=channel, patterns=["a"]) as child, Bus(channel) as here:
        child.expect("ready")
        publisher = here.publisher("a", when_full="drop_newest")
        serves(publisher)
        stop(child.pid)
        try:
            began = time.monotonic()
            for _ in range(200):
                publisher.publish(b"x")
            # 40 s if it waited every time.
            assert time.monotonic() - began < 10
        finally:
            go_on(child.pid)


# --- events that are too large --------------------------------------------------------------------


@pytest.mark.parametrize("config", [{}, {"ring_bytes": 1 << 16}], ids=["whole", "fragments"])
@pytest.mark.parametrize("share", [None, 0.2])
def test_an_event_of_the_largest_size_arrives_and_a_larger_one_uses_no_number_up(
    channel: str, config: dict[str, Any], share: float | None
) -> None:
    limits = NodeConfig(max_message_bytes=200_000, **config)
    with Bus(channel, node_config=limits) as here, Bus(channel, node_config=limits) as there:
        subscription = there.subscribe("a")
        publisher = here.publisher("a", share=share)
        serves(publisher)
        publisher.publish(bytes(200_000), {"site": "A"})
        for refused in (
            lambda: publisher.publish(bytes(200_001)),
            lambda: publisher.publish_many([b"x", bytes(200_001)]),
        ):
            with pytest.raises(MessageTooLarge, match="200001 bytes on a is over") as error:
                refused()
            assert (error.value.size, error.value.limit) == (200_001, 200_000)
        publisher.publish(b"next")
        events = [subscription.receive(PATIENCE) for _ in range(2)]
        assert [len(event.data) for event in events] == [200_000, 4]
        assert [(event.sequence, event.missed) for event in events] == [(1, 0), (2, 0)]
        assert publisher.statistics()["published"] == 2


def test_a_large_event_does_not_make_a_publisher_wait_that_drops(channel: str) -> None:
    impatient = NodeConfig(send_timeout=2.0)
    with Bus(channel, node_config=impatient) as here, Bus(channel) as there, Held() as held:
        there.subscribe("a", held, capacity=4)
        warm = here.publisher("a")
        serves(warm)
        warm.publish(b"first")
        assert held.entered.wait(PATIENCE)
        publisher = here.publisher("a", when_full="drop_newest")
        serves(publisher)
        for _ in range(20):
            publisher.publish(bytes(3_000_000))
        assert publisher.statistics()["dropped"] >= 15


# --- a queue at the publisher ---------------------------------------------------------------------


def test_a_publisher_that_drops_the_oldest_keeps_what_is_new(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        there.subscribe("a", held, capacity=4)
        publisher = here.publisher("a", capacity=CAPACITY, when_full="drop_oldest")
        serves(publisher)
        publisher.publish(b"first")
        assert held.entered.wait(PATIENCE)
        for number in range(COUNT):
            publisher.publish(b"%d" % number)
        statistics = publisher.statistics()
        assert statistics["published"] == COUNT + 1
        assert statistics["waits"] == 0 or statistics["pending"] > 0
        held.open()
        eventually(lambda: held.data[-1] == b"%d" % (COUNT - 1), PATIENCE)
        dropped = publisher.statistics()["dropped"]
        assert len(held) == COUNT + 1 - dropped
        # Its queue, the subscription's, and what was on its way between the two.
        assert CAPACITY <= len(held) - 1 <= CAPACITY + 4 + 1
        assert held.data[-CAPACITY:] == numbered(COUNT)[-CAPACITY:]
        assert sum(held.missed) == dropped
        assert held.sequences == sorted(held.sequences)
        assert here.statistics().dropped == dropped


@pytest.mark.parametrize("when_full", ["block", "drop_newest"])
def test_a_publisher_with_a_share_has_a_queue_of_its_own(channel: str, when_full: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        there.subscribe("a", held, capacity=4)
        publisher = here.publisher("a", share=0.3, capacity=CAPACITY, when_full=when_full)
        assert here.statistics().shares == {"publisher 'a'": 0.3}
        serves(publisher)
        publisher.publish(b"first")
        assert held.entered.wait(PATIENCE)
        publishing = Running(lambda: publish_each(publisher, numbered(COUNT)))
        if when_full == "block":
            eventually(lambda: publisher.statistics()["waits"] > 0, PATIENCE)
            time.sleep(0.1)
            assert not publishing.done
            assert publisher.statistics()["published"] <= CAPACITY + 4 + 2
        else:
            publishing.result(PATIENCE)
        held.open()
        publishing.result(PATIENCE)
        eventually(lambda: publisher.statistics()["pending"] == 0, PATIENCE)
        publisher.publish(b"last")
        eventually(lambda: held.data[-1] == b"last", PATIENCE)
        dropped = publisher.statistics()["dropped"]
        assert len(held) + dropped == COUNT + 2
        assert sum(held.missed) == dropped
        if when_full == "block":
            assert held.data == [b"first", *numbered(COUNT), b"last"]
        else:
            assert held.data[1 : CAPACITY + 1] == numbered(CAPACITY)
        publisher.close()
        assert here.statistics().shares == {}


# --- who is not held up ---------------------------------------------------------------------------


def test_many_publishers_that_wait_for_their_subscribers_hold_up_nobody_else(channel: str) -> None:
    """More of them than a node has threads, each with an event in hand."""
    many = 50
    quick = Events()
    config = NodeConfig(send_timeout=60.0)
    with Bus(channel, node_config=config) as here, Bus(channel) as there:
        unread = [there.subscribe(f"stuck/{n}", capacity=1) for n in range(many)]
        stuck = [here.publisher(f"stuck/{n}", share=0.01, capacity=CAPACITY) for n in range(many)]
        here.subscribe("b", quick)
        other = there.publisher("b")
        serves(other, 1)
        for publisher in stuck:
            serves(publisher, 1)
            for number in range(CAPACITY):
                publisher.publish(b"%d" % number)
        eventually(lambda: all(one.statistics()["waits"] > 0 for one in stuck), PATIENCE)
        other.publish_many(numbered(COUNT))
        assert quick.wait(COUNT) == numbered(COUNT)
        # And nothing that waited is lost.
        for subscription in unread:
            got = [bytes(subscription.receive(PATIENCE).data) for _ in range(CAPACITY)]
            assert got == numbered(CAPACITY)
        assert sum(one.statistics()["dropped"] for one in stuck) == 0


def test_nobody_on_the_bus_waits_with_a_publisher_that_waits(channel: str) -> None:
    """It may wait for half a minute: what others do with the bus meanwhile takes no part of it."""
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        there.subscribe("a", held, capacity=1)
        publisher = here.publisher("a")
        serves(publisher)
        publishing = Running(lambda: publish_each(publisher, [b"x"] * 10))
        assert held.entered.wait(PATIENCE)
        eventually(lambda: publisher.statistics()["published"] == 2, PATIENCE)
        quick = Events()

        def look() -> None:
            here.topics()
            here.statistics()
            with here.publisher("b") as other, here.subscribe("b", quick):
                other.publish(b"y")
                quick.wait(1)
            # Of the very topic, too.
            here.subscribe("a").close()

        Running(look).result(8)
        with Bus(channel) as third:
            Running(lambda: third.subscribe("a")).result(8)
            eventually(lambda: publisher.subscribers == 2, 8, "a newcomer is served")
        eventually(lambda: publisher.subscribers == 1, 8, "and has left")
        assert not publishing.done
        held.open()
        publishing.result(PATIENCE)


# --- all together --------------------------------------------------------------------------------


def test_policies_hold_with_many_threads_at_one_publisher(channel: str) -> None:
    """Whatever is lost is told: what came and what was missed sum to what was published."""
    with Bus(channel) as here, Bus(channel) as there:
        seen: list[tuple[int, int]] = []

        def handler(event: Any) -> None:
            seen.append((event.sequence, event.missed))
            if event.sequence % 100 == 0:
                time.sleep(0.002)

        subscription = there.subscribe("a", handler, capacity=16, when_full="drop_oldest")
        publisher = here.publisher("a", when_full="drop_newest")
        publisher_block = here.publisher("b")
        there.subscribe("b", lambda event: None)
        serves(publisher)
        serves(publisher_block)
        publisher_block.publish(b"x")
        eventually(lambda: placed(publisher, b"x", 0), PATIENCE)

        def publish() -> None:
            for _ in range(1000):
                publisher.publish(b"x")

        all_results([Running(publish) for _ in range(4)], 40)
        eventually(lambda: placed(publisher, b"last", 0), PATIENCE)
        last = publisher.statistics()["published"]
        eventually(lambda: bool(seen) and seen[-1][0] == last, PATIENCE)
        sequences = [sequence for sequence, _ in seen]
        assert sequences == sorted(set(sequences))
        first = seen[0][0] - seen[0][1]
        assert len(seen) + sum(missed for _, missed in seen) == last - first + 1
        lost = publisher.statistics()["dropped"] + subscription.statistics()["dropped"]
        assert len(seen) + lost == last


# --- what waits in its queue ----------------------------------------------------------------------


def test_a_flush_waits_for_the_queue_of_the_publisher(channel: str) -> None:
    got = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", got, capacity=16)
        publisher = here.publisher("a", share=0.1)
        serves(publisher)
        for times in range(1, 6):
            for number in range(200):
                publisher.publish(b"%d" % number)
            if times % 2:
                publisher.flush(PATIENCE)
            else:
                publisher.flush_async(PATIENCE).result(PATIENCE)
            assert len(got.items) == 200 * times


def test_a_flush_waits_for_the_queue_no_longer_than_it_may(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        there.subscribe("a", held, capacity=2)
        publisher = here.publisher("a", when_full="drop_oldest")
        serves(publisher)
        for number in range(50):
            publisher.publish(b"%d" % number)
        for flush in (publisher.flush, lambda limit: publisher.flush_async(limit).result()):
            began = time.monotonic()
            with pytest.raises(SendTimeout, match="in the queue of the publisher of a"):
                flush(0.2)
            assert 0.15 <= time.monotonic() - began < PATIENCE / 2
        held.open()
        publisher.flush(PATIENCE)
        assert held.data[-1] == b"49"
        assert len(held.items) + sum(held.missed) == 50


def test_a_flush_does_not_wait_for_what_is_published_later(channel: str) -> None:
    stops = threading.Event()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", lambda event: None)
        publisher = here.publisher("a", share=0.1, capacity=64)
        serves(publisher)

        def publish() -> None:
            while not stops.is_set():
                publisher.publish(b"x")

        publishing = Running(publish)
        for _ in range(10):
            publisher.flush(PATIENCE)
        stops.set()
        publishing.result(PATIENCE)


@pytest.mark.parametrize("shared", [False, True])
def test_what_waits_in_the_queue_of_a_publisher_is_sent_before_its_bus_is_closed(
    channel: str, shared: bool
) -> None:
    got = Events()

    def slowly(event: Event) -> None:
        time.sleep(0.001)
        got(event)

    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Node(HERE)) if shared else None
        there = stack.enter_context(Bus(channel))
        here = stack.enter_context(Bus(channel, node=node))
        there.subscribe("a", slowly, capacity=4)
        publisher = here.publisher("a", share=0.1)
        serves(publisher)
        for number in range(200):
            publisher.publish(b"%d" % number)
        here.close(PATIENCE)
        assert got.wait(200) == numbered(200)


# --- before the bus is started --------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"share": 0.1}, {"when_full": "drop_newest"}])
@pytest.mark.parametrize("shared", [False, True])
def test_publishing_before_the_bus_is_started_is_refused(
    channel: str, settings: dict[str, Any], shared: bool
) -> None:
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Node(HERE)) if shared else None
        bus = Bus(channel, node=node)
        stack.callback(bus.close)
        subscription = bus.subscribe("a")
        publisher = bus.publisher("a", **settings)
        calls: list[Callable[[], object]] = [
            lambda: publisher.publish(b"early"),
            lambda: publisher.publish_many([b"early"]),
            lambda: publisher.publish_packed(b"early", array("i", [0, 5])),
            lambda: publisher.publish_async(b"early"),
        ]
        for call in calls:
            with pytest.raises(Closed, match="not been started"):
                call()
        assert publisher.statistics()["published"] == 0
        bus.start()
        publisher.publish(b"in time")
        event = subscription.receive(PATIENCE)
        assert (event.data, event.missed, event.sequence) == (b"in time", 0, 1)


def test_a_publisher_that_retains_keeps_what_is_published_before_the_start(channel: str) -> None:
    bus = Bus(channel)
    publisher = bus.publisher("a", retain=True)
    publisher.publish(b"early")
    with bus:
        assert bus.subscribe("a").receive(PATIENCE).data == b"early"

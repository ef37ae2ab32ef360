"""Brokers and their clients that die, come back, are slow or talk nonsense: what the others see."""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import (
    AuthenticationFailed,
    Broker,
    BrokerConfig,
    Node,
    NodeConfig,
    PeerUnreachable,
    RequestTimeout,
)
from antiphon.testing import Child, Control, Proxy, Stranger, eventually
from antiphon.topics import Bus, Event, Publisher
from antiphon.topics.announcements import Subscribed, Update, Want, encode
from integration.brokers import (
    announce,
    counts_of,
    leaves_nothing,
    open_files,
    settled,
    standing,
    stays,
    tasks,
)
from integration.buses import (
    PATIENCE,
    Events,
    Held,
    count_of,
    events_of,
    publish_each,
    publish_from,
    resident,
    serves,
    wait_served,
)
from integration.commands import serving
from unit.node.pairs import Running, free_address, go_on, numbered, stop

pytestmark = pytest.mark.timeout(60)

# By the loss of the connection: the silence would take longer.
PATIENT = NodeConfig(heartbeat=20.0, connect_timeout=25.0, send_timeout=25.0)

# A broker that is asked while it closes is waited for as long as that, in vain.


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One that loses nothing where a client is slow because the machine is."""
    with Broker("tcp://127.0.0.1:0", config=BrokerConfig(max_block=10.0)) as running:
        yield running


def without_gap(events: list[Event]) -> None:
    """Each event of a publisher comes after the one before it, or says how many it missed."""
    by_source: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        by_source.setdefault((event.source, event.topic), []).append(event)
    for mine in by_source.values():
        gaps = [b.sequence - a.sequence - 1 for a, b in itertools.pairwise(mine)]
        assert gaps == [event.missed for event in mine[1:]]


class Stream:
    """Publishes on and on, until it is stopped."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._stopped = threading.Event()
        self._running = Running(self._publish)

    def _publish(self) -> int:
        for number in itertools.count():
            if self._stopped.wait(0.0005):
                return number
            self._publisher.publish(b"%d" % number)
        raise AssertionError

    def stop(self) -> int:
        """How many it has published."""
        self._stopped.set()
        return self._running.result(PATIENCE)


# --- clients that die -----------------------------------------------------------------------------


def test_a_subscriber_killed_in_a_burst_is_forgotten_and_the_others_get_everything() -> None:
    survivor = Events()
    with (
        Broker(
            "tcp://127.0.0.1:0", config=BrokerConfig(max_block=10.0), node_config=PATIENT
        ) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
        Child(resident, address=broker.address, topics=["gone"], patterns=["a", "**"]) as victim,
    ):
        there.subscribe("a", survivor)
        publisher = here.publisher("a")
        victim.expect("ready")
        serves(publisher)
        settled(broker, clients=3, topics=2, subscriptions=3)
        stream = Stream(publisher)
        try:
            eventually(lambda: count_of(victim) > 200, PATIENCE)
            victim.kill()
            settled(broker, clients=2, topics=1, subscriptions=1)
            at = len(survivor)
            eventually(lambda: len(survivor) > at + 100, PATIENCE)
        finally:
            count = stream.stop()
        assert survivor.wait(count) == numbered(count)
        assert set(survivor.missed) == {0}
        settled(broker, relayed=count, dropped=0)
        eventually(lambda: [topic.name for topic in there.topics()] == ["a"], PATIENCE)


def test_a_publisher_killed_in_a_burst_leaves_a_prefix_without_a_gap(broker: Broker) -> None:
    events, others = Events(), Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        here.subscribe("a", events)
        here.subscribe("b", others)
        steady = there.publisher("b")
        serves(steady)
        stream = Stream(steady)
        for round_ in range(2):
            before = len(events)
            with Child(resident, address=broker.address, topics=["a"]) as child:
                child.expect("ready")
                wait_served(child, "a")
                child.tell("burst", topic="a")
                child.expect("bursting")
                events.wait(before + 500 * (round_ + 1))
                child.kill()
            settled(broker, clients=2, topics=1)
            stays(broker, events)
            came = events.items[before:]
            assert [event.data for event in came] == numbered(len(came))
            assert [event.sequence for event in came] == list(range(1, len(came) + 1))
            assert {event.missed for event in came} == {0}
        count = stream.stop()
        assert others.wait(count) == numbered(count)
        assert set(others.missed) == {0}


def test_a_client_that_comes_back_under_its_id_is_served_anew(broker: Broker) -> None:
    with Bus(broker.address) as here:
        publisher, heard = here.publisher("a"), Events()
        here.subscribe("b", heard)
        for life in range(3):
            with Child(
                resident, address=broker.address, id=5, topics=["b"], patterns=["a"]
            ) as child:
                child.expect("ready")
                serves(publisher)
                publisher.publish_many(numbered(100))
                eventually(lambda: count_of(child) == 100, PATIENCE)
                seen = events_of(child)
                assert seen["data"] == [str(number) for number in range(100)]
                assert seen["sequences"] == list(range(100 * life + 1, 100 * life + 101))
                assert set(seen["missed"]) == {0}
                wait_served(child, "b")
                publish_from(child, "b", 0, 50)
                heard.first(50 * (life + 1), PATIENCE)
                child.kill()
            settled(broker, clients=1, topics=1, subscriptions=1)
            eventually(lambda: publisher.subscribers == 0, PATIENCE)
        assert heard.data == numbered(50) * 3
        assert heard.sequences == list(range(1, 51)) * 3
        assert set(heard.missed) == {0}


def test_a_client_that_stands_still_is_forgotten_and_served_again_when_it_goes_on() -> None:
    quick = NodeConfig(heartbeat=0.4)
    steady = Events()
    with (
        Broker("tcp://127.0.0.1:0", node_config=quick) as broker,
        Bus(broker.address, node_config=quick) as here,
        Bus(broker.address, node_config=quick) as there,
        Child(resident, address=broker.address, patterns=["a"], heartbeat=0.4) as child,
    ):
        child.expect("ready")
        there.subscribe("a", steady)
        settled(broker, clients=3, subscriptions=2)
        publisher = here.publisher("a")
        serves(publisher)
        stream = Stream(publisher)
        try:
            eventually(lambda: count_of(child) > 20, PATIENCE)
            stop(child.pid)
            settled(broker, clients=2, subscriptions=1)
            at = len(steady)
            eventually(lambda: len(steady) > at + 50, PATIENCE)
            go_on(child.pid)
            settled(broker, clients=3, subscriptions=2)
            before = count_of(child)
            eventually(lambda: count_of(child) > before + 50, PATIENCE)
        finally:
            count = stream.stop()
        assert steady.wait(count) == numbered(count)
        sequences = events_of(child)["sequences"]
        assert sequences == sorted(set(sequences))


# --- brokers that die -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["killed", "closed"])
def test_clients_find_a_broker_again_that_comes_back_at_its_address(way: str) -> None:
    address = free_address()
    first, second, own = Events(), Events(), Events()
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(Child(standing, listen=address))
        child.expect("ready")
        here, there = (stack.enter_context(Bus(address)) for _ in range(2))
        there.subscribe("a", first)
        here.subscribe("a", own)
        publisher = here.publisher("a")
        kept = here.publisher("kept", retain=True)
        kept.publish(b"kept")
        serves(publisher, 2)
        publisher.publish_many(numbered(100))
        first.wait(100)
        for round_ in range(1, 3):
            if way == "killed":
                child.kill()
            else:
                child.tell("leave")
                child.expect("left", PATIENCE)
            child.close()
            eventually(lambda: publisher.subscribers == 1, PATIENCE, "it is known to have gone")
            eventually(lambda: there.statistics().peers == 0, PATIENCE)
            publisher.publish(b"for this client only")
            child = stack.enter_context(Child(standing, listen=address))
            child.expect("ready")
            eventually(lambda: counts_of(child)["subscriptions"] == 2, PATIENCE)  # noqa: B023
            serves(publisher, 2)
            publisher.publish_many(numbered(100))
            assert first.wait(100 * (round_ + 1))[-100:] == numbered(100)
            counts = counts_of(child)
            assert (counts["clients"], counts["topics"], counts["relayed"]) == (2, 2, 100)
        assert own.wait(302) == [
            *numbered(100),
            *itertools.chain.from_iterable([b"for this client only", *numbered(100)] for _ in "ab"),
        ]
        assert set(own.missed) == {0}
        # What was kept for those who come later is kept through all that.
        there.subscribe("kept", second)
        assert second.wait(1) == [b"kept"]


def test_clients_may_be_there_before_their_broker(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    events, own = Events(), Events()
    with Bus(address) as here, Bus(address) as there:
        there.subscribe("a", events)
        here.subscribe("a", own)
        publisher = here.publisher("a", retain=True)
        publisher.publish(b"early")
        assert own.wait(1) == [b"early"]  # a bus without a broker is still a bus
        assert here.statistics().peers == 0
        with Broker(address) as broker:
            assert events.wait(1) == [b"early"]
            publisher.publish(b"x")
            assert events.wait(2) == [b"early", b"x"]
            settled(broker, clients=2, relayed=2)
        eventually(lambda: here.statistics().peers == 0, PATIENCE)
        publisher.publish(b"late")
        assert own.wait(3) == [b"early", b"x", b"late"]
    assert "no broker at" in caplog.text


def test_a_broker_that_is_closed_passes_on_what_it_has(broker: Broker) -> None:
    """First publishers send no more, then what is here goes on its way."""
    slow = Events()

    def handler(event: Event) -> None:
        time.sleep(0.0005)
        slow(event)

    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("a", handler)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many(numbered(1000))
        here.node.flush(PATIENCE)  # the broker has them
        broker.close()
        assert slow.wait(1000) == numbered(1000)
        assert set(slow.missed) == {0}
        eventually(lambda: publisher.subscribers == 0, PATIENCE)
        publisher.publish(b"for nobody")  # and raises nothing


def test_publishing_goes_on_while_a_broker_is_killed() -> None:
    address = free_address()
    events = Events()
    with Child(standing, listen=address) as child:
        child.expect("ready")
        with Bus(address) as here, Bus(address) as there:
            there.subscribe("a", events)
            publisher = here.publisher("a")
            serves(publisher)
            stream = Stream(publisher)
            events.wait(100)
            child.kill()
            published = publisher.statistics()["published"]
            eventually(lambda: publisher.statistics()["published"] > published + 100, PATIENCE)
            eventually(lambda: publisher.subscribers == 0, PATIENCE)
            with Child(standing, listen=address) as again:
                again.expect("ready")
                at = len(events)
                eventually(lambda: len(events) > at + 100, PATIENCE)
                stream.stop()
                sequences = events.sequences
                assert sequences == sorted(set(sequences))


def test_nothing_is_left_of_clients_whose_broker_has_come_and_gone() -> None:
    address = free_address()

    def once() -> None:
        with Broker(address) as broker, Bus(address) as here:
            events = Events()
            for _ in range(2):
                with Bus(address) as there, here.publisher("a") as publisher:
                    there.subscribe("a", events)
                    serves(publisher)
                    publisher.publish(bytes(700_000))
                    events.first(1, PATIENCE)
                broker.close()
                eventually(lambda: here.statistics().peers == 0, PATIENCE)
                broker = stack.enter_context(Broker(address))
            settled(broker, clients=1)
            broker.close()

    with contextlib.ExitStack() as stack:
        once()
    files, threads = open_files(), tasks()
    with contextlib.ExitStack() as stack:
        once()
    leaves_nothing(files, threads)


# --- links that break -----------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["publisher", "subscriber"])
@pytest.mark.parametrize("reset", [True, False])
def test_a_connection_that_is_cut_is_made_anew_and_the_events_tell_what_was_lost(
    broker: Broker, whose: str, reset: bool
) -> None:
    events, steady = Events(), Events()
    with (
        Proxy(broker.address) as proxy,
        Bus(proxy.address if whose == "publisher" else broker.address) as here,
        Bus(proxy.address if whose == "subscriber" else broker.address) as there,
        Bus(broker.address) as third,
    ):
        there.subscribe("a", events)
        third.subscribe("a", steady)
        settled(broker, subscriptions=2)
        publisher = here.publisher("a")
        serves(publisher)
        stream = Stream(publisher)
        try:
            for _ in range(3):
                at = len(events)
                eventually(lambda: len(events) > at + 50, PATIENCE)  # noqa: B023
                proxy.cut(reset)
                settled(broker, clients=3, subscriptions=2, topics=1)
            at = len(events)
            eventually(lambda: len(events) > at + 50, PATIENCE)
        finally:
            count = stream.stop()
        for heard in (events, steady):
            sequences = heard.sequences
            assert sequences == sorted(set(sequences)), "nothing twice, nothing out of order"
        if whose == "subscriber":
            assert steady.wait(count) == numbered(count)
            assert set(steady.missed) == {0}


def test_a_link_that_swallows_everything_is_noticed_and_made_anew() -> None:
    quick = NodeConfig(heartbeat=0.4)
    events = Events()
    with (
        Broker("tcp://127.0.0.1:0", node_config=quick) as broker,
        Proxy(broker.address) as proxy,
        Bus(broker.address, node_config=quick) as here,
        Bus(proxy.address, node_config=quick) as there,
    ):
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x")
        events.wait(1)
        proxy.swallow()
        settled(broker, clients=1, subscriptions=0)
        eventually(lambda: there.statistics().peers == 0, PATIENCE)
        eventually(lambda: publisher.subscribers == 0, PATIENCE)
        proxy.flow()
        proxy.cut()
        settled(broker, clients=2, subscriptions=1)
        serves(publisher)
        publisher.publish(b"y")
        assert events.wait(2) == [b"x", b"y"]


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", ["s", b"bytes", "x" * 500])
def test_a_secret_is_proven_on_loopback_too(secret: str | bytes) -> None:
    events = Events()
    with (
        Broker("tcp://127.0.0.1:0", secret=secret) as broker,
        Bus(broker.address, secret=secret) as here,
        Bus(broker.address, secret=secret) as there,
    ):
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x")
        assert events.wait(1) == [b"x"]
        for wrong in ("another", None):
            bus = Bus(broker.address, secret=wrong)
            with pytest.raises(AuthenticationFailed):
                bus.start()
            assert bus.closed
        settled(broker, clients=2)
        publisher.publish(b"y")
        assert events.wait(2) == [b"x", b"y"]


def test_a_client_with_a_secret_does_not_trust_a_broker_without(broker: Broker) -> None:
    with Bus(broker.address):  # the broker has all its threads
        settled(broker, clients=1)
    settled(broker, clients=0)
    files, threads = open_files(), tasks()
    for _ in range(3):
        with pytest.raises(AuthenticationFailed):
            Bus(broker.address, secret="s").start()
    settled(broker, clients=0)
    leaves_nothing(files, threads)


def test_a_secret_opens_a_broker_off_loopback() -> None:
    events = Events()
    with Broker("tcp://0.0.0.0:0", secret="s") as broker:
        address = f"tcp://127.0.0.1:{broker.address.rpartition(':')[2]}"
        with Bus(address, secret="s") as here, Bus(address, secret="s") as there:
            there.subscribe("a", events)
            publisher = here.publisher("a")
            serves(publisher)
            publisher.publish(b"x")
            assert events.wait(1) == [b"x"]


# --- two brokers ----------------------------------------------------------------------------------


def test_two_brokers_have_nothing_to_do_with_each_other(broker: Broker) -> None:
    ours, theirs = Events(), Events()
    with (
        Broker("tcp://127.0.0.1:0") as other,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
        Bus(other.address) as stranger,
        Bus(other.address) as strangers_friend,
    ):
        there.subscribe("**", ours)
        stranger.subscribe("**", theirs)
        publisher, second = here.publisher("a"), strangers_friend.publisher("a")
        serves(publisher)
        serves(second)
        publisher.publish_many(numbered(10))
        second.publish_many(numbered(5))
        assert ours.wait(10) == numbered(10)
        assert theirs.wait(5) == numbered(5)
        assert stays(broker, ours) == [10]
        assert stays(other, theirs) == [5]
        settled(broker, clients=2, relayed=10)
        settled(other, clients=2, relayed=5)
        other.close()
        publisher.publish(b"still")
        assert ours.wait(11)[-1] == b"still"


# --- slow subscribers -----------------------------------------------------------------------------


def test_a_subscription_that_is_a_little_slow_misses_nothing() -> None:
    """It holds its publishers up instead, each time for less than max_block."""
    count = 400
    slow, quick = Events(), Events()

    def handler(event: Event) -> None:
        time.sleep(0.001)
        slow(event)

    with (
        Broker("tcp://127.0.0.1:0", config=BrokerConfig(max_block=10)) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        there.subscribe("a", handler, capacity=4)
        there.subscribe("a", quick, capacity=4)
        settled(broker, subscriptions=2)
        publisher = here.publisher("a")
        serves(publisher)
        publish_each(publisher, numbered(count))
        assert slow.wait(count) == quick.wait(count) == numbered(count)
        assert set(slow.missed + quick.missed) == {0}
        settled(broker, relayed=count, dropped=0)


def test_a_full_broker_holds_up_the_publishers_of_that_topic_and_no_others() -> None:
    config = BrokerConfig(capacity=10, max_block=1.5)
    free = Events()
    with (
        Broker("tcp://127.0.0.1:0", config=config) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
        Held() as held,
    ):
        there.subscribe("a", held, capacity=2)
        there.subscribe("b", free)
        a, b = here.publisher("a"), here.publisher("b")
        serves(a)
        serves(b)
        publishing = Running(lambda: publish_each(a, numbered(300)))
        assert held.entered.wait(PATIENCE)
        eventually(lambda: a.statistics()["waits"] > 0, PATIENCE)
        began = time.monotonic()
        b.publish_many(numbered(2000))
        assert free.wait(2000) == numbered(2000)
        if time.monotonic() - began < 1.0:  # on a machine that is not too busy
            assert not publishing.done
            assert a.statistics()["published"] < 300
        publishing.result(PATIENCE)  # the broker's patience has ended
        held.open()
        published = 300

        def served() -> bool:
            """It has room as soon as the broker hears of it."""
            nonlocal published
            published += 1
            last = b"last %d" % published
            a.publish(last)
            with contextlib.suppress(AssertionError):
                eventually(lambda: held.data[-1] == last, 0.5)
            return held.data[-1] == last

        eventually(served, PATIENCE)
        assert len(held) + sum(held.missed) == published
        without_gap(held.items)
        assert sum(held.missed) == broker.statistics().dropped


# --- who is no client -----------------------------------------------------------------------------


def test_a_node_that_is_no_bus_harms_nothing(broker: Broker) -> None:
    events = Events()
    with (
        Node(9, peers={broker.node.id: broker.address}) as node,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        there.subscribe("**", events)
        publisher = here.publisher("a")
        serves(publisher)
        for number in range(50):
            publisher.publish(b"%d" % number)
            node.send(broker.node.id, b"hello", kind=200)
        # It is asked a few times whether it has something to say, and then let be.
        assert events.wait(50) == numbered(50)
        settled(broker, clients=2, relayed=50)
        assert [info.id for info in node.connections()] == [broker.node.id]


GARBAGE = {
    "noise": b"\xff\xfe\xfd",
    "nothing": b"",
    "a number": b"\x05",
    "another tag": b"\x92\xa4nope\x01",
    "a wish": encode(Want(3, 99)),
    "no topics": encode(
        Update(5, -1, 3, {1: "a//b", 2: "*", 3: "", 4: "\x00", -1: "x" * 2000}, [], [], [])
    ),
    "no patterns": encode(
        Update(5, -1, 3, {}, [], [Subscribed(7, "a//", 1), Subscribed(8, "***", 1)], [])
    ),
    "no filters": encode(
        Update(
            5,
            -1,
            3,
            {},
            [],
            [
                Subscribed(7, "**", 1, "site ="),
                Subscribed(8, "**", 1, "("),
                Subscribed(9, "**", 1, "x" * 100_000),
            ],
            [],
        )
    ),
    **{
        f"numbers that do not fit {number}": encode(letter)
        for number, letter in enumerate(
            [
                Update(5, -1, 3, {}, [], [Subscribed(-1, "**", 1)], []),
                Update(5, -1, 3, {}, [], [Subscribed(2**40, "**", 1)], []),
                Update(5, -1, 3, {}, [], [Subscribed(7, "**", -1)], []),
                Update(-1, -1, 3, {}, [], [Subscribed(7, "**", 1)], []),
                Update(5, -1, 3, {-1: "a", 2**63: "a"}, [-1], [], [-1]),
            ]
        )
    },
    "what is gone was never there": encode(Update(5, 0, 3, {}, [1, 2, 3], [], [4, 5, 6])),
    "what was before is missing": encode(Update(5, 100, 200, {1: "a"}, [], [], [])),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_announcements_that_are_none_harm_nobody_else(
    broker: Broker, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = Events()
    with (
        Node(9, peers={broker.node.id: broker.address}) as node,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        for number in range(20):
            announce(node, broker, GARBAGE[what])
            publisher.publish(b"%d" % number)
        assert events.wait(20) == numbered(20)
        assert set(events.missed) == {0}
        with Bus(broker.address) as late:  # whoever comes now is served as well
            more = Events()
            late.subscribe("*", more)
            settled(broker, subscriptions=2, topics=1)
            publisher.publish(b"x")
            assert more.wait(1) == [b"x"]
        settled(broker, relayed=21, dropped=0)
    settled(broker, clients=0, topics=0, subscriptions=0)
    assert all(record.levelno < logging.ERROR for record in caplog.records), caplog.text


def test_bytes_that_are_no_protocol_harm_nobody(broker: Broker) -> None:
    events = Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        for number, noise in enumerate([b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"\xff" * 64]):
            with Stranger.dial(broker.address) as stranger:
                stranger.say(noise)
            publisher.publish(b"%d" % number)
        assert events.wait(4) == numbered(4)
        settled(broker, clients=2, relayed=4)


def greedy(control: Control, address: str) -> None:
    """Subscribes and leaves, again and again."""
    from antiphon.topics import Bus

    control.tell("ready")
    for _ in range(30):
        with Bus(address) as bus:
            subscriptions = [bus.subscribe("**", lambda event: None) for _ in range(5)]
            publisher = bus.publisher("noise", retain=True)
            publisher.publish(b"noise")
            for subscription in subscriptions:
                subscription.close()
    control.tell("done")


def test_clients_that_come_and_go_all_the_time_disturb_nobody(broker: Broker) -> None:
    events = Events()
    with (
        Bus(broker.address) as here,
        Bus(broker.address) as there,
        Child(greedy, address=broker.address) as child,
    ):
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        child.expect("ready", PATIENCE)
        stream = Stream(publisher)
        child.expect("done", 2 * PATIENCE)
        count = stream.stop()
        assert events.wait(count) == numbered(count)
        assert set(events.missed) == {0}
        settled(broker, topics=1, subscriptions=1)


@pytest.mark.parametrize("how", ["handler", "iterated"])
def test_a_slow_subscription_holds_up_its_topic_for_a_while_and_then_misses_events(
    how: str,
) -> None:
    """For max_block at most; the others and other topics go on, and the books balance."""
    patience, count = 0.5, 2000
    quick, other = Events(), Events()
    with (
        Broker("tcp://127.0.0.1:0", config=BrokerConfig(max_block=patience)) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
        Bus(broker.address) as third,
        Held() as held,
    ):
        slow = third.subscribe("a", held if how == "handler" else None, capacity=8)
        there.subscribe("a", quick)
        there.subscribe("b", other)
        settled(broker, subscriptions=3)
        a, b = here.publisher("a"), here.publisher("b")
        serves(a)
        serves(b)
        publishing = Running(lambda: publish_each(a, numbered(count)))
        eventually(lambda: slow.statistics()["messages"] > 0, PATIENCE)
        began = time.monotonic()
        b.publish_many(numbered(500))
        assert other.wait(500) == numbered(500)
        assert quick.wait(count) == numbered(count)
        publishing.result(PATIENCE)
        # Held up once, not once for each event.
        assert time.monotonic() - began < PATIENCE < count * patience
        assert set(quick.missed) == set(other.missed) == {0}
        settled(broker, relayed=count + 500, lost=0)
        eventually(lambda: broker.statistics().dropped >= count - 8, PATIENCE)
        dropped = broker.statistics().dropped
        assert dropped + slow.statistics()["messages"] == count
        # With room again it gets what follows, and is told what it has missed.
        held.open()
        got = [slow.receive(PATIENCE) for _ in range(count - dropped)] if how == "iterated" else []
        if how == "handler":
            got = held.first(count - dropped, PATIENCE)
        assert [event.data for event in got] == numbered(count - dropped)

        def served() -> bool:
            before = slow.statistics()["messages"]
            a.publish(b"after")
            with contextlib.suppress(AssertionError):
                eventually(lambda: slow.statistics()["messages"] > before, 0.5)
            return bool(slow.statistics()["messages"] > before)

        eventually(served, PATIENCE, "it gets events again")
        last = slow.receive(PATIENCE) if how == "iterated" else held.first(len(got) + 1)[-1]
        assert (last.data, last.missed) == (b"after", last.sequence - len(got) - 1)
        assert last.missed >= dropped


@pytest.mark.parametrize("back", [False, True], ids=["gone", "comes back"])
def test_a_broker_killed_while_a_subscription_is_asked_of_it(tmp_path: Path, back: bool) -> None:
    """Whoever asks hears soon that nobody answers, or is served by the next broker there."""
    address, store = free_address(), str(tmp_path / "store")
    with serving("--listen", address, "--store", store) as broker, Bus(address) as bus:
        bus.publisher("t", record=True).publish(b"before")
        bus.publisher("t", record=True).flush(PATIENCE)
        broker.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        asked = Running(lambda: bus.subscribe("t", durable="d", start="earliest"))
        time.sleep(0.3)
        broker.process.kill()
        broker.process.wait(PATIENCE)
        if not back:
            with pytest.raises((PeerUnreachable, RequestTimeout)):
                asked.result(PATIENCE)
            assert time.monotonic() - began < 20  # five seconds, on a machine that has time
            assert bus.statistics().subscriptions == 0
            return
        with serving("--listen", address, "--store", store):
            sub = asked.result(PATIENCE)
            assert sub.receive(PATIENCE).data == b"before"


def test_ctrl_c_in_the_middle_of_a_close_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its worst: where it waits for a log that is being opened, before anything is closed."""
    broker = Broker("tcp://127.0.0.1:0", store=tmp_path / "store").start()
    waiting = Running(broker.wait)
    opening = broker._opening
    assert opening is not None
    end = opening.close

    def interrupted() -> None:
        end()
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broker.close()
    assert broker.node.closed
    waiting.result(PATIENCE)
    with Broker("tcp://127.0.0.1:0", store=tmp_path / "store"):
        pass  # nobody has the store any more


def stuck_client(control: Control, address: str) -> None:
    """One that takes nothing from its broker any more, when it is stopped."""
    from antiphon import Bus

    with Bus(address) as bus:
        bus.subscribe("t", lambda event: None)
        control.tell("ready")
        control.hear()


def test_ctrl_c_ends_a_broker_that_waits_for_a_client_which_hangs() -> None:
    """The first one closes it in good order, the second ends the patience for that."""
    with (
        serving("--listen", "tcp://127.0.0.1:0") as broker,
        Child(stuck_client, address=broker.address) as client,
        Bus(broker.address) as bus,
    ):
        client.hear(PATIENCE, "ready")
        publisher = bus.publisher("t", when_full="drop_newest")
        serves(publisher, 1)
        client.signal(signal.SIGSTOP)
        # More than goes into the sockets: what is left is what a drain waits for.
        for _ in range(400):
            publisher.publish(bytes(100_000))
        broker.process.send_signal(signal.SIGINT)
        # Signals that come together are one: the first was taken when this client has been told.
        eventually(lambda: publisher.subscribers == 0, PATIENCE)
        assert broker.process.poll() is None  # it waits for the one that hangs
        broker.process.send_signal(signal.SIGINT)
        broker.process.communicate(timeout=PATIENCE)
        assert broker.process.returncode == 130  # in good order, after five seconds, it is 0
        client.kill()

"""Buses that know only a broker: what holds on a local channel holds through it as well."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    Broker,
    BrokerConfig,
    Closed,
    ConfigError,
    Message,
    Node,
    NodeConfig,
    ReceiveTimeout,
    WouldBlock,
)
from antiphon.testing import Child, Control, eventually
from antiphon.topics import Bus
from integration import (
    test_bus,
    test_bus_asyncio,
    test_bus_batches,
    test_bus_filters,
    test_bus_handlers,
    test_bus_policies,
)
from integration.brokers import leaves_nothing, open_files, settled, stays, tasks
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
from integration.loops import LOOPS, run_on
from unit.node.pairs import Running, all_results, numbered, pattern

pytestmark = pytest.mark.timeout(60)


class Reading(Message, kind=62101):
    site: str
    value: float = 0.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One that loses nothing where a client is slow because the machine is."""
    with Broker("tcp://127.0.0.1:0", config=BrokerConfig(max_block=10.0)) as running:
        yield running


@pytest.fixture(params=["tcp", "unix", "inproc"])
def any_broker(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Broker]:
    """At each kind of address."""
    listen = {
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tmp_path_factory.mktemp('b') / 's'}",
        "inproc": "inproc://broker-under-test",
    }
    with Broker(listen[request.param], config=BrokerConfig(max_block=10.0)) as running:
        yield running


# --- as on a local channel ------------------------------------------------------------------------

RUN: Any = partial(run_on, LOOPS["uvloop"])

SAME: list[Callable[..., None]] = [
    test_bus.test_every_field_of_an_event_is_what_the_publisher_gave,
    test_bus.test_whoever_comes_first_waits_for_the_other,
    test_bus.test_what_is_made_before_the_bus_is_started_is_there_when_it_is,
    test_bus.test_many_threads_on_one_publisher_lose_nothing_and_double_nothing,
    test_bus.test_a_subscription_without_a_handler_is_iterated_until_it_is_closed,
    test_bus_batches.test_a_batch_has_everything_that_is_known_of_its_events,
    test_bus_batches.test_properties_in_a_batch_stand_at_their_events,
    test_bus_batches.test_a_hundred_thousand_packed_events_of_another_process_come_in_batches,
    test_bus_batches.test_a_large_event_comes_in_a_batch_too,
    test_bus_batches.test_batches_of_several_publishers_are_complete_and_in_each_ones_order,
    test_bus_filters.test_a_last_event_that_has_outlived_its_use_is_not_handed_out,
    test_bus_handlers.test_what_was_published_before_close_arrives,
    test_bus_handlers.test_what_has_come_is_handled_although_its_publisher_has_left,
    test_bus_handlers.test_closing_a_bus_handles_what_has_come,
    test_bus_handlers.test_a_handler_publishes_what_it_makes_of_an_event,
    test_bus_handlers.test_one_scheduler_thread_is_enough,
    test_bus_policies.test_drop_newest_keeps_what_came_first,
    test_bus_policies.test_drop_oldest_keeps_what_came_last,
]
SAME_ON_LOOPS: list[Callable[..., None]] = [
    test_bus_asyncio.test_a_coroutine_iterates_a_subscription_and_publishes_meanwhile,
    test_bus_asyncio.test_a_coroutine_handler_gets_one_event_at_a_time_in_order,
    test_bus_asyncio.test_what_has_come_for_a_coroutine_handler_is_handled_when_the_bus_is_closed,
]


def name_of(function: Callable[..., None]) -> str:
    return function.__name__.removeprefix("test_")


@pytest.mark.parametrize("behaviour", SAME, ids=name_of)
def test_what_holds_on_a_local_channel_holds_through_a_broker(
    broker: Broker, behaviour: Callable[..., None]
) -> None:
    behaviour(broker.address)
    settled(broker, topics=0, subscriptions=0, dropped=0, lost=0)


@pytest.mark.parametrize("behaviour", SAME_ON_LOOPS, ids=name_of)
def test_what_holds_on_an_event_loop_holds_through_a_broker(
    broker: Broker, behaviour: Callable[..., None]
) -> None:
    behaviour(broker.address, RUN)
    settled(broker, clients=0, topics=0, subscriptions=0, dropped=0, lost=0)


@pytest.mark.parametrize("how", ["handler", "iterated", "batch"])
def test_an_event_that_has_outlived_its_use_is_not_handed_out(broker: Broker, how: str) -> None:
    # Longer than a broker is ever behind: it passes on only what has not ended yet.
    test_bus_filters.outlived(broker.address, how, 3.0)


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_a_subscription_that_drops_stops_nobody(broker: Broker, policy: str) -> None:
    test_bus_policies.test_a_subscription_that_drops_never_stops_its_publisher(
        broker.address, policy
    )
    assert broker.statistics().dropped == 0  # it is the subscription that drops


# --- between processes ----------------------------------------------------------------------------


def test_events_go_from_one_process_through_another_into_a_third(broker: Broker) -> None:
    count = 3000
    with (
        Child(resident, address=broker.address, patterns=["plant/*/temp"]) as there,
        Child(resident, address=broker.address, topics=["plant/7/temp"]) as here,
    ):
        there.expect("ready")
        source = here.expect("ready")["id"]
        wait_served(here, "plant/7/temp")
        publish_from(here, "plant/7/temp", 0, count)
        eventually(lambda: count_of(there) >= count, PATIENCE, "all have come")
        seen = events_of(there)
        assert seen["data"] == [str(number) for number in range(count)]
        assert set(seen["topics"]) == {"plant/7/temp"}
        assert set(seen["sources"]) == {source}
        assert seen["sequences"] == list(range(1, count + 1))
        assert set(seen["missed"]) == {0}
        settled(broker, clients=2, topics=1, subscriptions=1, routes=1, relayed=count, dropped=0)


def test_a_broker_may_listen_at_any_kind_of_address(any_broker: Broker) -> None:
    events = Events()
    with Bus(any_broker.address) as here, Bus(any_broker.address) as there:
        there.subscribe("a/**", events)
        publisher = here.publisher("a/b/c")
        serves(publisher)
        before = time.time_ns()
        publisher.publish(b"first", {"site": "A"})
        publisher.publish(pattern(3_000_000))
        first, second = events.first(2, PATIENCE)
        assert (first.data, first.topic, first.properties) == (b"first", "a/b/c", {"site": "A"})
        assert first.source == second.source == here.node.id
        assert (first.sequence, second.sequence) == (1, 2)
        assert before <= first.time_ns <= second.time_ns <= time.time_ns()
        assert second.data == pattern(3_000_000)
        assert (first.missed, second.missed) == (0, 0)


# --- who gets what --------------------------------------------------------------------------------


def test_each_pattern_gets_the_topics_it_means_and_no_others(broker: Broker) -> None:
    topics = ["plant", "plant/7", "plant/7/temp", "plant/8/temp", "office/7/temp", "$plant/7"]
    wanted = {
        "plant": ["plant"],
        "plant/*": ["plant/7"],
        "plant/*/temp": ["plant/7/temp", "plant/8/temp"],
        "*/7/*": ["plant/7/temp", "office/7/temp"],
        "plant/**": ["plant", "plant/7", "plant/7/temp", "plant/8/temp"],
        "**/temp": ["plant/7/temp", "plant/8/temp", "office/7/temp"],
        "**": topics,
        "nothing/**": [],
    }
    heard = {pattern: Events() for pattern in wanted}
    with Bus(broker.address) as here, Bus(broker.address) as there:
        for text, events in heard.items():
            there.subscribe(text, events)
        settled(broker, subscriptions=len(wanted))
        publishers = [here.publisher(topic) for topic in topics]
        for publisher in publishers:
            serves(publisher)
        for number in range(3):
            for publisher in publishers:
                publisher.publish(b"%d" % number)
        for text, expected in wanted.items():
            of_pattern = heard[text].first(3 * len(expected), PATIENCE)
            for topic in expected:
                of_topic = [event for event in of_pattern if event.topic == topic]
                assert [event.data for event in of_topic] == numbered(3)
                assert [event.sequence for event in of_topic] == [1, 2, 3]
                assert [event.missed for event in of_topic] == [0, 0, 0]
        assert stays(broker, *heard.values()) == [3 * len(topics) for topics in wanted.values()]
        settled(broker, topics=6, routes=6, relayed=18)


def test_filters_are_applied_by_the_broker_and_what_they_leave_out_does_not_travel(
    broker: Broker,
) -> None:
    size = 10_000
    everything = Events()
    with (
        Bus(broker.address) as here,
        Bus(broker.address) as there,
        Child(test_bus_filters.filtering, address=broker.address) as child,
    ):
        child.expect("ready")
        there.subscribe("a", everything)
        settled(broker, subscriptions=2)
        publisher = here.publisher("a")
        serves(publisher)
        child.tell("read")
        for number in range(1000):
            publisher.publish(bytes(size), {"wanted": number % 100 == 0, "number": number})
        everything.first(1000, PATIENCE)
        child.tell("count")
        counted = child.expect("counted", PATIENCE)
        assert counted["numbers"] == list(range(0, 1000, 100))
        assert counted["messages"] == 10
        assert 10 * size <= counted["bytes"] < 11 * size
        assert counted["bytes_in"] < 12 * size
        assert set(everything.missed) == {0}


def test_subscriptions_with_other_filters_get_each_their_own(broker: Broker) -> None:
    heard = {site: Events() for site in "ABC"}
    local = Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        for site, events in heard.items():
            there.subscribe("plant/*", events, where=f"site = '{site}'")
        here.subscribe("plant/7", local, where="number >= 290")
        settled(broker, subscriptions=4)
        publisher = here.publisher("plant/7")
        serves(publisher, 2)
        for number in range(300):
            publisher.publish(b"%d" % number, {"site": "ABC"[number % 3], "number": number})
        publisher.publish(b"without properties")
        for offset, events in enumerate(heard.values()):
            assert events.wait(100) == numbered(300)[offset::3]
            assert events.sequences == list(range(offset + 1, 301, 3))
            assert set(events.missed) == {0}  # what it did not want it has not missed
        assert local.wait(10) == numbered(300)[290:]
        assert stays(broker, *heard.values(), local) == [100, 100, 100, 10]


@pytest.mark.parametrize("others", [0, 60], ids=["few", "many"])
def test_a_filter_means_the_same_through_a_broker(broker: Broker, others: int) -> None:
    """With many of them the broker looks them up, and does not ask each."""
    wheres = {
        "price > 100 AND region IN ('EU', 'UK')": [1, 2, 3],
        "price * qty >= 500 OR region LIKE 'U_'": [3, 4, 5],
        "price BETWEEN 50 AND 150 AND NOT gift": [0, 1],
        "qty IS NULL": [2, 6],
        "price / qty > 20": [1, 3, 4, 5],
    }
    events: list[dict[str, Any]] = [
        {"price": 90, "region": "EU", "qty": 5, "gift": False},
        {"price": 110, "region": "EU", "qty": 4, "gift": False},
        {"price": 110, "region": "EU", "gift": True},
        {"price": 250.0, "region": "UK", "qty": 2, "gift": True},
        {"price": 500, "region": "US", "qty": 1, "gift": True},
        {"price": 50, "region": "UK", "qty": 2, "gift": True},
        {},
    ]
    with Bus(broker.address) as here, Bus(broker.address) as there:
        heard = {where: Events() for where in wheres}
        for where, handler in heard.items():
            there.subscribe("orders/*", handler, where=where)
        more = [there.subscribe("orders/eu", where=f"price = {n}") for n in range(others)]
        everything = Events()
        there.subscribe("**", everything)
        settled(broker, subscriptions=len(wheres) + others + 1)
        publisher = here.publisher("orders/eu")
        serves(publisher)
        for number, properties in enumerate(events):
            publisher.publish(b"%d" % number, properties)
        everything.wait(len(events))
        for where, wanted in wheres.items():
            assert heard[where].wait(len(wanted)) == [b"%d" % number for number in wanted], where
            assert set(heard[where].missed) == {0}
        for one in more[51:]:
            assert one.pending == 0
        if others:
            assert more[50].receive(PATIENCE).data == b"5"


def test_a_client_gets_its_own_events_once_and_none_comes_back(broker: Broker) -> None:
    own, second, other = Events(), Events(), Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        here.subscribe("a", own)
        here.subscribe("*", second)
        publisher = here.publisher("a")
        serves(publisher, 2)
        publisher.publish_many(numbered(100))
        assert own.wait(100) == second.wait(100) == numbered(100)
        # Nobody else wants it: the broker has not asked for it.
        settled(broker, topics=1, subscriptions=2, routes=0, relayed=0)
        there.subscribe("**", other)
        serves(publisher, 3)
        bytes_in = here.node.statistics().bytes_in
        for number in range(100, 200):
            publisher.publish(b"%d" % number + bytes(10_000))
        # Its own do not go over the broker, whose flush would wait for them.
        for events, count in ((own, 200), (second, 200), (other, 100)):
            events.first(count, PATIENCE)
        assert stays(broker, own, second, other) == [200, 200, 100]
        assert own.sequences == second.sequences == list(range(1, 201))
        assert other.sequences == list(range(101, 201))
        assert set(own.missed + second.missed + other.missed) == {0}
        bytes_in = here.node.statistics().bytes_in - bytes_in
        assert bytes_in < 2 * 100 * 10_100 + 10_000, "its own two got them, and none came back"
        settled(broker, routes=1, relayed=100)


def test_two_buses_in_one_process_that_both_publish_and_subscribe_hear_each_other_once(
    broker: Broker,
) -> None:
    heard = [Events(), Events()]
    with Bus(broker.address) as here, Bus(broker.address) as there:
        for bus, events in zip((here, there), heard, strict=True):
            bus.subscribe("a", events)
        publishers = [here.publisher("a"), there.publisher("a")]
        for publisher in publishers:
            serves(publisher, 2)
        for number in range(200):
            for publisher in publishers:
                publisher.publish(b"%d" % number)
        for events in heard:
            events.first(400, PATIENCE)
        assert stays(broker, *heard) == [400, 400]
        for events, bus in itertools.product(heard, (here, there)):
            mine = [event.data for event in events.items if event.source == bus.node.id]
            assert mine == numbered(200)
        settled(broker, relayed=400)


def test_several_publishers_and_subscriptions_of_one_topic_are_each_complete(
    broker: Broker,
) -> None:
    heard = [Events() for _ in range(4)]
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(Bus(broker.address)) for _ in range(3))
        for bus, events in zip((first, second, third, third), heard, strict=True):
            bus.subscribe("a", events)
        settled(broker, subscriptions=4)
        publishers = [bus.publisher("a") for bus in (first, first, second, third)]
        for publisher, count in zip(publishers, (2, 2, 2, 3), strict=True):
            serves(publisher, count)

        def publish(number: int) -> None:
            for count in range(200):
                publishers[number].publish(struct.pack("<II", number, count))

        all_results([Running(partial(publish, number)) for number in range(4)])
        for events in heard:
            events.first(800, PATIENCE)
        assert stays(broker, *heard) == [800] * 4
        for events in heard:
            came = [struct.unpack("<II", data) for data in events.data]
            for number in range(4):
                assert [count for who, count in came if who == number] == list(range(200))
            assert set(events.missed) == {0}
        settled(broker, clients=3, topics=1, routes=4, relayed=800, dropped=0)


def test_whoever_comes_late_gets_what_is_published_from_then_on(broker: Broker) -> None:
    first, late = Events(), Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("a", first)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many(numbered(100))
        first.wait(100)
        with Bus(broker.address) as third:
            third.subscribe("a", late)
            settled(broker, subscriptions=2)
            publisher.publish_many(numbered(100, 100))
            assert late.wait(100) == numbered(100, 100)
            assert late.sequences == list(range(101, 201))
            assert late.missed == [0] * 100
        assert first.wait(200) == numbered(200)
        settled(broker, clients=2, subscriptions=1)


def test_a_subscription_that_is_closed_gets_nothing_more_and_the_others_do(broker: Broker) -> None:
    steady, brief = Events(), Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        first = there.subscribe("a", steady)
        publisher = here.publisher("a")
        for round_ in range(5):
            subscription = there.subscribe("*", brief)
            settled(broker, subscriptions=2)
            serves(publisher)
            publisher.publish_many(numbered(20, 40 * round_))
            brief.first(20 * (round_ + 1), PATIENCE)
            subscription.close()
            settled(broker, subscriptions=1)
            publisher.publish_many(numbered(20, 40 * round_ + 20))
        assert steady.wait(200) == numbered(200)
        assert set(steady.missed + brief.missed) == {0}
        assert len(brief) == 100
        first.close()
        eventually(lambda: publisher.subscribers == 0, PATIENCE, "the broker wants it no more")
        publisher.publish(b"for nobody")
        settled(broker, subscriptions=0, topics=1, relayed=200)


# --- what is published ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_536, 600_000, 9_000_000])
def test_data_of_any_size_arrives_whole(broker: Broker, size: int) -> None:
    events = Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        sent = [pattern(size, seed) for seed in range(1, 4)]
        for number, data in enumerate(sent):
            publisher.publish(data, {"number": number})
        assert events.wait(3) == sent
        assert [event.properties for event in events.items] == [{"number": n} for n in range(3)]
        assert events.sequences == [1, 2, 3]
        assert events.missed == [0, 0, 0]


def test_large_events_and_small_ones_keep_their_order_for_all(broker: Broker) -> None:
    """Larger than a ring and a window, which are the smallest here."""
    small = NodeConfig(ring_bytes=64 << 10, flow_window_bytes=16 << 10)
    sizes = [10, 3_000_000, 0, 700_000, 1, 5_000_000, 2, 20_000]
    heard = [Events(), Events(), Events()]
    with (
        Bus(broker.address, node_config=small) as here,
        Bus(broker.address, node_config=small) as there,
        Bus(broker.address) as third,
    ):
        there.subscribe("a", heard[0])
        third.subscribe("a", heard[1])
        third.subscribe("*", heard[2])
        settled(broker, subscriptions=3)
        publisher = here.publisher("a")
        serves(publisher)
        for seed, size in enumerate(sizes):
            publisher.publish(pattern(size, seed))
        for events in heard:
            assert events.wait(len(sizes)) == [
                pattern(size, seed) for seed, size in enumerate(sizes)
            ]
            assert events.sequences == list(range(1, len(sizes) + 1))
            assert set(events.missed) == {0}
        settled(broker, relayed=len(sizes), dropped=0, lost=0)


def test_messages_properties_and_times_arrive_as_they_were_given(broker: Broker) -> None:
    properties: dict[str, str | int | float | bool] = {
        "text": "plant A, 温度",
        "least": -(2**63),
        "float": 31.5,
        "whole": 2.0,
        "yes": True,
        "no": False,
    }
    here_events, there_events = Events(), Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        here.subscribe("a", here_events)
        there.subscribe("a", there_events)
        publisher = here.publisher("a")
        serves(publisher, 2)
        publisher.publish(Reading("A", 31.5), properties)
        publisher.publish_many([Reading("B"), b"raw"])
        publisher.publish_async(b"later", {"n": 1}, 30.0).result(PATIENCE)
        here_events.first(4, PATIENCE)
        first, second, third, fourth = there_events.first(4, PATIENCE)
        assert first.decode(Reading) == Reading("A", 31.5)
        assert first.properties == properties
        assert [type(first.properties[name]) for name in properties] == [
            type(value) for value in properties.values()
        ]
        assert second.decode(Reading) == Reading("B", 0.0)
        assert (third.data, third.properties) == (b"raw", {})
        assert (fourth.data, fourth.properties) == (b"later", {"n": 1})
        # The publisher's numbers and its clock, not those of the broker.
        assert [(e.source, e.sequence, e.time_ns) for e in there_events.items] == [
            (e.source, e.sequence, e.time_ns) for e in here_events.items
        ]


@pytest.mark.parametrize("when_full", ["block", "drop_newest", "drop_oldest"])
def test_what_a_publisher_drops_on_its_way_to_the_broker_is_missed_behind_it(
    broker: Broker, when_full: str
) -> None:
    """The broker's own thread is held up by a slow subscription, so the publisher has no room."""
    count = 3000
    with (
        Broker("tcp://127.0.0.1:0", config=BrokerConfig(capacity=16, max_block=30)) as narrow,
        Bus(narrow.address) as here,
        Bus(narrow.address) as there,
        Held() as held,
    ):
        subscription = there.subscribe("a", held, capacity=16)
        warm = here.publisher("a")  # opens the connection and the flows
        serves(warm)
        warm.publish(b"first")
        assert held.entered.wait(PATIENCE)
        publisher = here.publisher("a", when_full=when_full, capacity=16)
        serves(publisher)
        publishing = Running(lambda: publish_each(publisher, numbered(count)))
        if when_full != "block":
            publishing.result(PATIENCE)
        held.open()
        publishing.result(PATIENCE)

        def arrived() -> bool:
            publisher.publish(b"end")
            return any(data == b"end" for data in held.data)

        eventually(arrived, PATIENCE)
        last = next(event for event in held.items if event.data == b"end")
        until = held.items[1 : held.items.index(last) + 1]
        assert len(until) + sum(event.missed for event in until) == last.sequence
        assert [event.sequence for event in until] == sorted({e.sequence for e in until})
        if when_full == "block":
            assert [event.data for event in until[:count]] == numbered(count)
        else:
            assert sum(event.missed for event in until) > count // 2
        assert subscription.statistics()["dropped"] == narrow.statistics().dropped == 0


# --- the last one ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 600_000, 5_000_000])
def test_whoever_subscribes_later_gets_the_last_event_first(broker: Broker, size: int) -> None:
    """Published before anybody was there to want it, and again through the broker alone."""
    with Bus(broker.address) as here:
        publisher = here.publisher("a", retain=True)
        publisher.publish(b"before")
        publisher.publish(pattern(size), {"site": "A"})
        with Bus(broker.address) as there:
            late = there.subscribe("*")
            event = late.receive(PATIENCE)
            assert (event.sequence, event.missed, event.source) == (2, 0, here.node.id)
            assert (event.data, event.properties) == (pattern(size), {"site": "A"})
            with Bus(broker.address) as third:
                later = [third.subscribe("a") for _ in range(3)]
                for one in later:
                    event = one.receive(PATIENCE)
                    assert (event.sequence, event.missed, event.source) == (2, 0, here.node.id)
                    assert (event.data, event.properties) == (pattern(size), {"site": "A"})
                publisher.publish(b"next")
                for one in (late, *later):
                    event = one.receive(PATIENCE)
                    assert (event.data, event.sequence, event.missed) == (b"next", 3, 0)
                publisher.publish(b"end")  # and nobody has got anything twice
                assert [one.receive(PATIENCE).sequence for one in (late, *later)] == [4] * 4


def test_a_filter_holds_for_the_last_event_of_everybody(broker: Broker) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there, Bus(broker.address) as third:
        publisher = here.publisher("a", retain=True)
        publisher.publish(b"unwanted", {"site": "B"})
        filtered = there.subscribe("a", where="site = 'A'")
        everything = there.subscribe("a")
        assert everything.receive(PATIENCE).data == b"unwanted"
        later = third.subscribe("a", where="site = 'A'")
        other = third.subscribe("a", where="site = 'B'")
        assert other.receive(PATIENCE).data == b"unwanted"
        settled(broker, subscriptions=4)
        publisher.publish(b"wanted", {"site": "A"})
        for one in (everything, filtered, later):
            assert one.receive(PATIENCE).data == b"wanted"
        last = third.subscribe("a", where="site = 'A'")
        assert last.receive(PATIENCE).data == b"wanted"
        for one in (filtered, later, other, last):
            with pytest.raises(ReceiveTimeout):
                one.receive(0.02)


def test_the_last_event_comes_once_when_nobody_wanted_the_topic_for_a_moment(
    broker: Broker,
) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there:
        publisher = here.publisher("a", retain=True)
        publisher.publish(b"last")
        for _ in range(3):
            with there.subscribe("a") as subscription:
                assert subscription.receive(PATIENCE).sequence == 1
                serves(publisher)
                with pytest.raises(ReceiveTimeout):
                    subscription.receive(0.1)
            eventually(lambda: publisher.subscribers == 0, PATIENCE)


def test_each_publisher_of_a_topic_has_a_last_event(broker: Broker) -> None:
    with Bus(broker.address) as first, Bus(broker.address) as second, Bus(broker.address) as there:
        publishers = [bus.publisher("a", retain=True) for bus in (first, first, second)]
        for number, publisher in enumerate(publishers):
            publisher.publish(b"%d" % number)
        for _ in range(2):  # from the publishers, and then from the broker
            late = there.subscribe("a")
            assert {late.receive(PATIENCE).data for _ in range(3)} == set(numbered(3))
            with pytest.raises(ReceiveTimeout):
                late.receive(0.05)


# --- shared nodes, topics and counts --------------------------------------------------------------


def test_a_node_can_have_a_bus_again_after_the_first_was_closed(broker: Broker) -> None:
    events = Events()
    with Node(1) as node, Bus(broker.address) as there:
        there.subscribe("topic/*", events)
        for round_ in range(1, 5):
            with Bus(broker.address, node=node) as here:
                heard = Events()
                here.subscribe("back", heard)
                # Numbers of topics begin anew: this one had another name before.
                publisher = here.publisher(f"topic/{round_}")
                serves(publisher)
                publisher.publish_many(numbered(10))
                events.first(10 * round_, PATIENCE)
                back = there.publisher("back")
                serves(back)
                back.publish(b"x")
                assert heard.wait(1) == [b"x"]
                back.close()
            settled(broker, topics=0, subscriptions=1)
        assert [event.topic for event in events.items] == [
            f"topic/{round_}" for round_ in range(1, 5) for _ in range(10)
        ]
        assert events.data == numbered(10) * 4
        assert set(events.missed) == {0}


def test_topics_are_known_to_all_clients(broker: Broker) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there:

        def names(bus: Bus) -> list[str]:
            return [topic.name for topic in bus.topics()]

        publishers = [here.publisher(name) for name in ("a", "b/1", "b/1", "c")]
        mine = there.publisher("d")
        for bus in (here, there):
            eventually(lambda bus=bus: names(bus) == ["a", "b/1", "c", "d"], PATIENCE)  # type: ignore[misc]
        assert here.statistics().peers == there.statistics().peers == 1  # the broker
        settled(broker, clients=2, topics=4, subscriptions=0, routes=0)
        publishers[1].close()
        publishers[3].close()
        eventually(lambda: names(there) == ["a", "b/1", "d"], PATIENCE)
        publishers[2].close()
        mine.close()
        for bus in (here, there):
            eventually(lambda bus=bus: names(bus) == ["a"], PATIENCE)  # type: ignore[misc]
        settled(broker, topics=1)


def test_the_counts_of_a_broker_are_exact(broker: Broker) -> None:
    zero = dict.fromkeys(("clients", "topics", "subscriptions", "routes", "relayed"), 0)
    settled(broker, **zero, dropped=0, lost=0)
    heard = [Events() for _ in range(3)]
    with Bus(broker.address) as here, Bus(broker.address) as there:
        settled(broker, clients=2)
        for events in heard:
            there.subscribe("*", events)
        settled(broker, subscriptions=3)
        a, b, unwanted = here.publisher("a"), here.publisher("b"), here.publisher("c/d")
        serves(a)
        serves(b)
        settled(broker, topics=3, routes=0, relayed=0)
        a.publish_many(numbered(70))
        b.publish(b"x")
        unwanted.publish_many(numbered(100))
        for events in heard:
            events.first(71, PATIENCE)
        settled(broker, clients=2, topics=3, subscriptions=3, routes=2, relayed=71)
        a.close()
        settled(broker, topics=2, relayed=71)
    settled(broker, clients=0, topics=0, subscriptions=0, relayed=71, dropped=0, lost=0)


# --- many -----------------------------------------------------------------------------------------


def test_an_id_that_was_drawn_and_is_taken_is_drawn_again(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        buses = [stack.enter_context(Bus(broker.address)) for _ in range(40)]
        taken = {bus.node.id for bus in buses}
        settled(broker, clients=len(buses))
        while (bus := Bus(broker.address)).node.id not in taken:
            bus.close()
        own, other = bus.subscribe("a"), buses[0].subscribe("a")
        publisher = bus.publisher("a")
        with bus:
            serves(publisher, 2)
            assert bus.node.id not in taken
            publisher.publish(b"x")
            for event in (own.receive(PATIENCE), other.receive(PATIENCE)):
                assert (event.data, event.source, event.sequence) == (b"x", bus.node.id, 1)


def test_two_thousand_topics_pass_through_one_broker(broker: Broker) -> None:
    count = 2000
    events, few = Events(), Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("many/*", events, capacity=2 * count)
        there.subscribe("many/7", few)
        publishers = [here.publisher(f"many/{number}") for number in range(count)]
        for publisher in publishers:
            serves(publisher)
        settled(broker, topics=count, subscriptions=2)
        for publisher in publishers:
            publisher.publish(publisher.topic.encode())
        events.first(count, PATIENCE)
        settled(broker, routes=count, relayed=count, dropped=0)
        assert {event.topic for event in events.items} == {one.topic for one in publishers}
        assert all(event.data == event.topic.encode() for event in events.items)
        assert few.wait(1) == [b"many/7"]
        for publisher in publishers:
            publisher.close()
        settled(broker, topics=0)
    settled(broker, clients=0, subscriptions=0, relayed=count)


# --- settings -------------------------------------------------------------------------------------


def test_settings_come_from_arguments_variables_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BrokerConfig.load() == BrokerConfig() == BrokerConfig(capacity=4096, max_block=1.0)
    settings = tmp_path / "some.toml"
    settings.write_text("[broker]\ncapacity = 100\nmax_block = 2.5\n")
    monkeypatch.setenv("ANTIPHON_CONFIG", str(settings))
    assert Broker("tcp://127.0.0.1:0").config == BrokerConfig(capacity=100, max_block=2.5)
    monkeypatch.setenv("ANTIPHON_BROKER_CAPACITY", "50")
    assert BrokerConfig.load() == BrokerConfig(capacity=50, max_block=2.5)
    assert BrokerConfig.load(capacity=7) == BrokerConfig(capacity=7, max_block=2.5)
    given = BrokerConfig(capacity=9)
    in_force = Broker("tcp://127.0.0.1:0", config=given).config
    assert in_force == BrokerConfig(capacity=9, max_block=2.5)
    monkeypatch.setenv("ANTIPHON_BROKER_MAX_BLOCK", "for long")
    with pytest.raises(ConfigError) as refused:
        Broker("tcp://127.0.0.1:0")
    assert refused.value.setting == "max_block"
    monkeypatch.delenv("ANTIPHON_BROKER_MAX_BLOCK")
    settings.write_text("[broker]\ncolour = 'red'\n")
    with pytest.raises(ConfigError, match="colour"):
        Broker("tcp://127.0.0.1:0")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("capacity", value) for value in (0, -1, 1.5, "10", True, 2**24 + 1, None)),
        *(("max_block", value) for value in (-0.1, 3601, "1", True, float("nan"), None)),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting) as refused:
        BrokerConfig(**{setting: value})
    assert refused.value.setting == setting


def test_a_setting_from_a_variable_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTIPHON_BROKER_CAPACITY", "0")
    with pytest.raises(ConfigError, match="ANTIPHON_BROKER_CAPACITY"):
        BrokerConfig.load()


@pytest.mark.parametrize(
    "listen",
    ["", "127.0.0.1:7000", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:many", 5, "local://a"],
)
def test_what_is_no_address_is_refused(listen: Any) -> None:
    with pytest.raises(ConfigError):
        Broker(listen).start()


def test_a_broker_off_loopback_needs_a_proof(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="secret"):
        Broker("tcp://0.0.0.0:0").start()


def test_an_address_that_is_taken_is_an_error_and_leaves_nothing(broker: Broker) -> None:
    files, threads = open_files(), tasks()
    second = Broker(broker.address)
    with pytest.raises(OSError, match="in use"):
        second.start()
    second.close()
    del second
    leaves_nothing(files, threads)


def test_what_needs_a_store_is_refused_at_the_call(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        several: list[dict[str, Any]] = [{"durable": "d"}, {"start": "earliest"}]
        for settings in several:
            with pytest.raises(ConfigError) as refused:
                bus.subscribe("a", **settings)
            assert refused.value.setting in settings
        with pytest.raises(ConfigError) as refused:
            bus.publisher("a", record=True)
        assert refused.value.setting == "record"
        assert (bus.statistics().publishers, bus.statistics().subscriptions) == (0, 0)
    settled(broker, topics=0, subscriptions=0)


# --- life -----------------------------------------------------------------------------------------


def test_a_broker_is_started_and_closed_as_often_as_one_likes() -> None:
    broker = Broker("tcp://127.0.0.1:0")
    with broker:
        address = broker.address
        assert not address.endswith(":0")
        assert broker.start() is broker
        assert broker.address == address
        assert address in repr(broker)
    assert "closed" in repr(broker)
    for _ in range(2):
        broker.close()
    assert broker.closed
    with pytest.raises(Closed):
        broker.start()
    Broker("tcp://127.0.0.1:0").close()  # one that was never started


def test_closing_a_broker_inside_a_handler_is_refused(broker: Broker) -> None:
    raised: list[BaseException] = []
    done = Events()

    def handler(event: Any) -> None:
        try:
            broker.close()
        except BaseException as error:
            raised.append(error)
        done(event)

    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("a", handler)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many(numbered(2))
        done.first(2, PATIENCE)
        assert [type(error) for error in raised] == [WouldBlock, WouldBlock]
        assert not broker.closed


def test_a_broker_lives_on_an_event_loop(run: Any) -> None:
    async def main() -> None:
        async with Broker("tcp://127.0.0.1:0") as broker:
            async with Bus(broker.address) as here, Bus(broker.address) as there:
                subscription = there.subscribe("a")
                publisher = here.publisher("a", retain=True)
                await publisher.publish_async(b"x")
                assert (await subscription.receive_async(PATIENCE)).data == b"x"
                with pytest.raises(WouldBlock):
                    broker.close()
            assert not broker.closed
            waiting = asyncio.ensure_future(broker.wait_async())
            await asyncio.sleep(0)
            assert not waiting.done()
        await asyncio.wait_for(waiting, PATIENCE)
        assert broker.closed

    run(main)


def test_a_broker_refuses_to_be_pickled(broker: Broker) -> None:
    with pytest.raises(TypeError, match="in each process"):
        pickle.dumps(broker)


def forking(control: Control) -> None:
    import os

    from antiphon import AntiphonError, Broker, Bus

    with (
        Broker("tcp://127.0.0.1:0") as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        reader = there.subscribe("a")
        publisher = here.publisher("a")
        assert publisher.wait_for_subscribers(1, 20.0)
        publisher.publish(b"before")
        reader.receive(20.0)
        pid = os.fork()
        if pid == 0:
            for name in ("statistics", "start", "close"):
                try:
                    getattr(broker, name)()
                    outcome = "fine"
                except AntiphonError as error:
                    outcome = f"{type(error).__name__}: {error}"
                except BaseException as error:
                    outcome = f"wrong: {error!r}"
                control.tell("child", call=name, outcome=outcome)
            os._exit(0)
        os.waitpid(pid, 0)
        publisher.publish(b"after")
        data = reader.receive(20.0).data.decode()
        control.tell("parent", data=data, clients=broker.statistics().clients)
    control.tell("closed")


def test_a_forked_child_is_told_to_make_its_own_and_the_parent_goes_on() -> None:
    with Child(forking) as child:
        outcomes = {}
        while (told := child.hear(PATIENCE))["event"] == "child":
            outcomes[told["call"]] = told["outcome"]
        assert (told["data"], told["clients"]) == ("after", 2)
        assert "fork" in outcomes["statistics"]
        assert "fork" in outcomes["start"]
        assert outcomes["close"] == "fine"
        child.expect("closed", PATIENCE)


def test_nothing_is_left_behind_when_all_is_closed(broker: Broker) -> None:
    def once() -> None:
        events = Events()
        with Broker("tcp://127.0.0.1:0") as own:
            with Bus(own.address) as here, Bus(own.address) as there:
                there.subscribe("**", events)
                publishers = [here.publisher(f"a/{number}", retain=True) for number in range(20)]
                for publisher in publishers:
                    serves(publisher)
                    publisher.publish(bytes(700_000))
                events.first(20, PATIENCE)
            settled(own, clients=0)
            # And with clients that are still there when it goes.
            with Bus(own.address) as here:
                here.subscribe("a", events)
                settled(own, clients=1)
                own.close()

    once()  # what is made once and kept
    files, threads = open_files(), tasks()
    for _ in range(3):
        once()
    leaves_nothing(files, threads)


def test_a_broker_in_a_process_of_its_own_that_nobody_closes_ends_with_it() -> None:
    with Child(careless) as child:
        child.expect("ready", PATIENCE)
        assert child.wait(PATIENCE) == 0
        assert child.errors == ""


def careless(control: Control) -> None:
    from antiphon import Broker, Bus

    broker = Broker("tcp://127.0.0.1:0").start()
    here, there = Bus(broker.address).start(), Bus(broker.address).start()
    subscription = there.subscribe("a")
    publisher = here.publisher("a", retain=True)
    publisher.publish(b"x")
    subscription.receive(20.0)
    control.tell("ready")


def test_a_program_that_publishes_and_ends_at_once_loses_nothing(broker: Broker) -> None:
    events = Events()
    with Bus(broker.address) as there:
        there.subscribe("a", events)
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(Child(hasty, address=broker.address)) for _ in range(3)]
            for child in children:
                assert child.wait(PATIENCE) == 0, child.errors
        events.first(15_000, PATIENCE)
        by_source: dict[int, list[bytes]] = {}
        for event in events.items:
            by_source.setdefault(event.source, []).append(event.data)
        assert list(by_source.values()) == [numbered(5000)] * 3
        assert set(events.missed) == {0}
        settled(broker, clients=1, topics=0, relayed=15_000, dropped=0, lost=0)


def hasty(control: Control, address: str) -> None:
    from antiphon.topics import Bus

    with Bus(address) as bus:
        publisher = bus.publisher("a")
        assert publisher.wait_for_subscribers(1, 20.0)
        for number in range(5000):
            publisher.publish(b"%d" % number)


def test_a_bus_can_share_a_node_that_does_other_things_too(broker: Broker) -> None:
    events, heard = Events(), Events()
    with Node(1) as first, Node(2) as second:
        inbox = second.inbox(200)
        first.add_peer(2, second.address)
        with Bus(broker.address, node=first) as here, Bus(broker.address, node=second) as there:
            there.subscribe("a", events)
            here.subscribe("b", heard)
            publisher, back = here.publisher("a"), there.publisher("b")
            serves(publisher)
            serves(back)
            for number in range(300):
                publisher.publish(b"%d" % number)
                first.send(2, b"%d" % number, kind=200)
                back.publish(b"%d" % number)
            assert events.wait(300) == heard.wait(300) == numbered(300)
            assert {event.source for event in events.items} == {1}
            assert {event.source for event in heard.items} == {2}
            assert [inbox.receive(PATIENCE)[1] for _ in range(300)] == numbered(300)
            settled(broker, clients=2, topics=2, subscriptions=2)
        settled(broker, topics=0, subscriptions=0)
        first.send(2, b"after", kind=200)  # the buses have left, the nodes have not
        assert inbox.receive(PATIENCE) == (1, b"after")
    settled(broker, clients=0)


def test_a_hundred_clients_hear_each_other(broker: Broker) -> None:
    count = 100
    small = NodeConfig(ring_bytes=64 << 10, flow_window_bytes=16 << 10)
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(Node(number, listen=None, config=small))
            for number in range(1, count + 1)
        ]
        buses = [stack.enter_context(Bus(broker.address, node=node)) for node in nodes]
        heard = [Events() for _ in buses]
        for bus, events in zip(buses, heard, strict=True):
            bus.subscribe("ring/*", events)
        settled(broker, clients=count, subscriptions=count)
        publishers = [bus.publisher(f"ring/{number}") for number, bus in enumerate(buses)]
        for publisher in publishers:
            serves(publisher, 2)
        for number in range(2):
            for publisher in publishers:
                publisher.publish(b"%d" % number)
        for events in heard:
            events.first(2 * count, 2 * PATIENCE)
        settled(broker, topics=count, routes=count, relayed=2 * count, dropped=0, lost=0)
        for events in heard:
            assert Counter(event.topic for event in events.items) == {
                f"ring/{number}": 2 for number in range(count)
            }
            assert set(events.missed) == {0}
        for bus in buses[: count // 2]:
            bus.close()
            bus.node.close()
        settled(broker, clients=count // 2, topics=count // 2, subscriptions=count // 2)
    settled(broker, clients=0, topics=0, subscriptions=0)

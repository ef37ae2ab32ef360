"""Which events a subscription gets: filters on properties, lives of events, the last one kept."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from antiphon import ConfigError
from antiphon.testing import Child, Control, eventually
from antiphon.topics import Bus
from integration.buses import PATIENCE, Events, Held, came, serves
from unit.node.pairs import Running, numbered

pytestmark = pytest.mark.timeout(60)


# --- filters --------------------------------------------------------------------------------------

PROPERTIES: list[dict[str, Any]] = [
    {"site": "A", "temp": 31.5, "on": True},
    {"site": "A", "temp": 30, "on": True},
    {"site": "B", "temp": 40, "on": True},
    {"site": "A", "on": True},
    {"site": "A", "temp": "31.5", "on": True},
    {"site": "A", "temp": 100, "on": False},
    {"site": "it's", "temp": -(2**63), "on": True},
    {"site": "a", "temp": math.nan, "on": True},
    {},
]
WITHOUT = len(PROPERTIES)
"""The event after those, which has no properties."""


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("site = 'A' AND temp > 30", [0, 5]),
        ("site = 'A' and temp >= 30 and on = TRUE", [0, 1]),
        ("(site = 'A') AND (temp < 50 AND on <> FALSE)", [0, 1]),
        ("site <> 'A'", [2, 6, 7]),
        ("temp <> 30", [0, 2, 5, 6]),
        ("site = 'it''s'", [6]),
        ("temp = -9223372036854775808", [6]),
        ("temp = 31.5", [0]),
        ("temp = '31.5'", [4]),
        ("on = FALSE", [5]),
        ("nothing = 1", []),
        ("SITE = 'A'", []),
        ("site = 'B' OR temp > 30", [0, 2, 5]),
        ("site IN ('B', 'it''s')", [2, 6]),
        ("site NOT IN ('A', 'a')", [2, 6]),
        ("temp BETWEEN 31 AND 40", [0, 2]),
        ("temp + 10 < 45 AND on", [0, 1, 6]),
        ("site LIKE '_' AND NOT site LIKE 'A%'", [2, 7]),
        ("temp IS NULL", [3, 7, 8, WITHOUT]),
        ("site IS NOT NULL AND temp IS NULL", [3, 7]),
        ("NOT on", [5]),
        ("temp / 0 IS NULL OR site = 'A'", [*range(9), WITHOUT]),
    ],
)
def test_a_filter_lets_pass_what_it_says(channel: str, where: str, wanted: list[int]) -> None:
    """A property that is absent, or of another type, matches nothing, not even <>."""
    filtered, everything = Events(), Events()
    with Bus(channel) as here, Bus(channel) as there:
        subscription = there.subscribe("a", filtered, where=where)
        there.subscribe("a", everything)
        assert subscription.where == where
        publisher = here.publisher("a")
        serves(publisher, 2)
        for number, properties in enumerate(PROPERTIES):
            publisher.publish(b"%d" % number, properties)
        publisher.publish(b"%d" % WITHOUT)
        everything.wait(len(PROPERTIES) + 1)
        here.node.flush(PATIENCE)
        assert subscription.statistics()["messages"] == len(wanted)
        assert [int(data) for data in filtered.data] == wanted
        # What it did not want it has not missed.
        assert filtered.missed == [0] * len(wanted)
        assert filtered.sequences == [number + 1 for number in wanted]


def filtering(control: Control, address: str) -> None:
    from antiphon.topics import Bus

    with Bus(address) as bus:
        subscription = bus.subscribe("a", where="wanted = TRUE")
        control.tell("ready")
        control.hear()
        numbers = [int(subscription.receive(20.0).properties["number"]) for _ in range(10)]
        control.hear()
        statistics = bus.node.statistics()
        counts = subscription.statistics()
        control.tell(
            "counted",
            numbers=numbers,
            bytes_in=statistics.bytes_in,
            messages=counts["messages"],
            bytes=counts["bytes"],
        )
        control.hear()


def test_what_a_filter_leaves_out_does_not_travel(channel: str) -> None:
    size = 10_000
    with Bus(channel) as here, Child(filtering, address=channel) as child:
        child.expect("ready")
        publisher = here.publisher("a")
        serves(publisher)
        child.tell("read")
        for number in range(1000):
            publisher.publish(bytes(size), {"wanted": number % 100 == 0, "number": number})
        here.node.flush(PATIENCE)
        child.tell("count")
        counted = child.expect("counted", PATIENCE)
        assert counted["numbers"] == list(range(0, 1000, 100))
        assert counted["messages"] == 10
        assert 10 * size <= counted["bytes"] < 11 * size
        assert counted["bytes_in"] < 12 * size
        statistics = here.node.statistics()
        assert statistics.bytes_out < 12 * size
        assert publisher.statistics()["published"] == 1000


def test_events_without_properties_pass_no_filter_however_they_are_published(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        filtered = there.subscribe("a", where="site = 'A'")
        everything = there.subscribe("a")
        publisher = here.publisher("a")
        serves(publisher, 2)
        publisher.publish(b"0")
        publisher.publish_many([b"1", b"2"])
        publisher.publish_packed(b"34", array("i", [0, 1, 2]))
        publisher.publish_async(b"5").result(PATIENCE)
        publisher.publish(b"6", {"site": "A"})
        assert [everything.receive(PATIENCE).data for _ in range(7)] == numbered(7)
        event = filtered.receive(PATIENCE)
        assert (event.data, event.sequence, event.missed) == (b"6", 7, 0)


def test_a_full_filtered_subscription_stops_only_what_it_wants(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        subscription = there.subscribe("a", held, where="site = 'A'", capacity=2)
        publisher = here.publisher("a")
        serves(publisher)
        for number in range(2):
            publisher.publish(b"%d" % number, {"site": "A"})
        came(subscription, 2)
        for _ in range(1000):
            publisher.publish(b"x", {"site": "B"})
        publishing = Running(lambda: publisher.publish(b"2", {"site": "A"}))
        time.sleep(0.1)
        assert not publishing.done
        held.open()
        publishing.result(PATIENCE)
        assert held.wait(3) == numbered(3)
        assert held.missed == [0, 0, 0]


def test_subscriptions_with_other_filters_get_each_their_own(channel: str) -> None:
    heard = {site: Events() for site in "ABC"}
    with Bus(channel) as here, Bus(channel) as there:
        for site, events in heard.items():
            there.subscribe("plant/*", events, where=f"site = '{site}'")
        local = Events()
        here.subscribe("plant/7", local, where="number >= 290")
        publisher = here.publisher("plant/7")
        serves(publisher, 4)
        for number in range(300):
            publisher.publish(b"%d" % number, {"site": "ABC"[number % 3], "number": number})
        for offset, events in enumerate(heard.values()):
            assert events.wait(100) == numbered(300)[offset::3]
            assert set(events.missed) == {0}
        assert local.wait(10) == numbered(300)[290:]


def test_very_many_subscriptions_with_filters_get_each_their_own(channel: str) -> None:
    """More than are asked one by one: they are looked up."""
    with Bus(channel) as here, Bus(channel) as there:
        heard = [
            there.subscribe("a", where=f"number = {number} AND site IN ('A', 'B')")
            for number in range(100)
        ]
        above = there.subscribe("a", where="number >= 90 AND number < 95 OR site LIKE 'C%'")
        everything = there.subscribe("a")
        publisher = here.publisher("a")
        serves(publisher, 102)
        for number in range(100):
            publisher.publish(b"%d" % number, {"number": number, "site": "A"})
        publisher.publish(b"c", {"site": "CC"})
        publisher.publish_many([b"none"] * 3)
        assert [subscription.receive(PATIENCE).data for subscription in heard] == numbered(100)
        assert [above.receive(PATIENCE).data for _ in range(6)] == [*numbered(95)[90:], b"c"]
        assert len([everything.receive(PATIENCE) for _ in range(104)]) == 104
        for subscription in heard[5:]:  # few are left
            subscription.close()
        eventually(lambda: publisher.subscribers == 7, PATIENCE, "they have left")
        for number in range(100):
            publisher.publish(b"%d" % number, {"number": number, "site": "B"})
        assert [one.receive(PATIENCE).data for one in heard[:5]] == numbered(5)
        assert [above.receive(PATIENCE).data for _ in range(5)] == numbered(95)[90:]
        assert [one.pending for one in (*heard[:5], above)] == [0] * 6


# --- lives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["handler", "iterated", "batch"])
def test_an_event_that_has_outlived_its_use_is_not_handed_out(channel: str, how: str) -> None:
    outlived(channel, how, 0.05)


def outlived(channel: str, how: str, life: float) -> None:
    """``life``, in seconds, is that of the events that end in the queue of a subscription."""
    batches: list[Any] = []
    with Bus(channel) as here, Bus(channel) as there, Held() as held:

        def handler(event: Any) -> None:
            if how == "batch":
                batches.append(event)
                held.entered.set()
                held._opened.wait(PATIENCE)
            else:
                held(event)

        if how == "iterated":
            subscription = there.subscribe("a")
        else:
            subscription = there.subscribe("a", handler, batch=how == "batch")
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"first", ttl=30.0)
        assert how == "iterated" or held.entered.wait(PATIENCE)
        publisher.publish(b"stale", ttl=life)
        publisher.publish_many([b"stale"] * 3, ttl=life)
        publisher.publish(b"fresh", {"a": 1}, ttl=60.0)
        publisher.publish(b"for ever")
        came(subscription, 7)
        time.sleep(life + 0.15)  # their lives end; nothing else tells
        held.open()
        wanted = [(b"first", 0, 1), (b"fresh", 4, 6), (b"for ever", 0, 7)]
        if how == "iterated":
            events = [subscription.receive(PATIENCE) for _ in range(3)]
            assert [(one.data, one.missed, one.sequence) for one in events] == wanted
        elif how == "handler":
            events = held.first(3, PATIENCE)
            assert [(one.data, one.missed, one.sequence) for one in events] == wanted
        else:
            eventually(lambda: sum(map(len, batches)) == 3, PATIENCE)
            assert [data for batch in batches for data in batch] == [one for one, _, _ in wanted]
            # The last two may come apart.
            assert [batch.missed for batch in batches] in ([0, 4], [0, 4, 0])
        assert subscription.statistics()["expired"] == 4
        assert subscription.statistics()["missed"] == 4
        subscription.close()
        assert subscription.statistics()["expired"] == 4
        assert subscription.statistics()["missed"] == 4


def test_the_time_that_an_event_waits_at_its_publisher_counts(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        subscription = there.subscribe("a", held, capacity=1)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"first")
        assert held.entered.wait(PATIENCE)
        waiting = Running(lambda: publisher.publish(b"stale", ttl=0.1))
        eventually(lambda: publisher.statistics()["published"] == 2, PATIENCE)
        time.sleep(0.3)  # its life ends
        assert not waiting.done
        held.open()
        waiting.result(PATIENCE)
        publisher.publish(b"last")
        assert held.wait(2) == [b"first", b"last"]
        assert held.missed == [0, 1]
        assert subscription.statistics()["expired"] == 1


def test_a_life_may_be_very_long(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a")
        publisher = bus.publisher("a")
        for ttl in (5000.0, 1e6, 1e12, 1e300):  # the wire has 71 minutes; more is for ever
            publisher.publish(b"x", ttl=ttl)
            assert subscription.receive(PATIENCE).data == b"x"


@pytest.mark.parametrize("ttl", [0, -1, math.nan, -math.inf])
def test_a_life_that_is_none_is_refused(channel: str, ttl: float) -> None:
    with Bus(channel) as bus:
        publisher = bus.publisher("a")
        calls: list[Callable[[], None]] = [
            lambda: publisher.publish(b"x", ttl=ttl),
            lambda: publisher.publish_many([b"x"], ttl=ttl),
            lambda: publisher.publish_packed(b"x", array("i", [0, 1]), ttl=ttl),
        ]
        for call in calls:
            with pytest.raises(ConfigError) as refused:
                call()
            assert refused.value.setting == "ttl"


# --- the last one ---------------------------------------------------------------------------------


def test_whoever_subscribes_later_gets_the_last_event_first(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        publisher = here.publisher("a", retain=True)
        publisher.publish_many(numbered(10))
        publisher.publish(b"last", {"site": "A"})
        late = there.subscribe("*")
        event = late.receive(PATIENCE)
        assert (event.data, event.properties, event.sequence) == (b"last", {"site": "A"}, 11)
        assert (event.topic, event.missed) == ("a", 0)
        publisher.publish(b"next")
        event = late.receive(PATIENCE)
        assert (event.data, event.sequence, event.missed) == (b"next", 12, 0)
        same_bus = here.subscribe("a")
        assert same_bus.receive(PATIENCE).data == b"next"
        publisher.publish(b"end")
        assert late.receive(PATIENCE).data == b"end"  # and nobody gets it twice
        assert same_bus.receive(PATIENCE).data == b"end"


def test_a_filter_holds_for_the_last_event_too(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        publisher = here.publisher("a", retain=True)
        publisher.publish(b"unwanted", {"site": "B"})
        filtered = there.subscribe("a", where="site = 'A'")
        everything = there.subscribe("a")
        assert everything.receive(PATIENCE).data == b"unwanted"
        serves(publisher, 2)
        publisher.publish(b"wanted", {"site": "A"})
        assert everything.receive(PATIENCE).data == b"wanted"
        assert filtered.receive(PATIENCE).data == b"wanted"


@pytest.mark.parametrize("size", [0, 600_000, 5_000_000])
def test_the_last_event_may_have_any_size(channel: str, size: int) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        publisher = here.publisher("a", retain=True)
        publisher.publish(bytes(size))
        assert there.subscribe("a").receive(8).data == bytes(size)


def test_a_last_event_that_has_outlived_its_use_is_not_handed_out(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        publisher = here.publisher("a", retain=True)
        publisher.publish(b"stale", ttl=0.05)
        time.sleep(0.2)  # its life ends
        late = there.subscribe("a")
        serves(publisher)
        publisher.publish(b"fresh")
        assert late.receive(PATIENCE).data == b"fresh"

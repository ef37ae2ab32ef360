"""Recorded topics and durable subscriptions beside all else: rights, limits, filters and tags."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    AllOf,
    Broker,
    BrokerConfig,
    Bus,
    Node,
    NodeConfig,
    Regex,
    Schedule,
    Tag,
    XPath,
)
from antiphon._core import make_outbox
from antiphon.broker import Limits, Rights, Token
from antiphon.broker.tokens import hash_token
from antiphon.errors import PermissionDenied, SendTimeout
from antiphon.testing import eventually
from antiphon.topics.announcements import Subscribed, Wish
from antiphon.topics.asking import Forget, NotAdmitted, Record, Replay, Tell, ask
from integration.brokers import settled
from integration.buses import PATIENCE, Events
from integration.durables import in_log, record, recording, take
from unit.node.pairs import numbered

pytestmark = pytest.mark.timeout(120)

RIGHTS = {
    "clerk": Rights(publish=("a/**", "b"), subscribe=("a/**",), record=("a/**",)),
    "writer": Rights(publish=("a/**",)),
    "reader": Rights(subscribe=("a/**",)),
    "deputy": Rights(subscribe=("a/*",)),
    "chief": Rights(publish=("**",), subscribe=("**",), record=("**",), admin=("**",)),
    "warden": Rights(admin=("a/**",), subscribe=("$dead/*",)),
}


def rules(path: Path, **settings: Any) -> BrokerConfig:
    tokens = {
        name: Token(
            hash=hash_token(f"token of {name}"),
            publish=rights.publish,
            subscribe=rights.subscribe,
            record=rights.record,
            admin=rights.admin,
        )
        for name, rights in RIGHTS.items()
    }
    return BrokerConfig(tokens=tokens, store=str(path), fsync="none", **settings)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with Broker("tcp://127.0.0.1:0", config=rules(path, max_attempts=1)) as one:
        yield one


def bus_of(broker: Broker, name: str) -> Bus:
    return Bus(broker.address, token=f"token of {name}")


def allowed(call: Callable[[], Any]) -> bool:
    try:
        call()
    except PermissionDenied as refused:
        return not (refused.client and refused.reason)
    return True


def trusting(bus: Bus) -> Bus:
    """One that does not ask itself what it may do, so that the broker has to."""
    bus._client._rights = None
    return bus


def leave_behind(broker: Broker, bus: Bus) -> None:
    """A durable subscription that the broker has heard of, and that nobody holds any more."""
    before = broker.statistics().subscriptions
    subscription = bus.subscribe("a/*", durable="billing")
    settled(broker, subscriptions=before + 1)
    subscription.close()
    settled(broker, subscriptions=before)


# --- who may do what ------------------------------------------------------------------------------

MATRIX = {
    #          record a/x  record b  replay a/*  replay **  durable a/*  group a/*
    "clerk": (True, False, True, False, True, True),
    "writer": (False, False, False, False, False, False),
    "reader": (False, False, True, False, True, True),
    "deputy": (False, False, True, False, True, True),
    "chief": (True, True, True, True, True, True),
    "warden": (False, False, False, False, False, False),
}


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("name", RIGHTS)
def test_the_matrix(broker: Broker, name: str, honest: bool) -> None:
    with bus_of(broker, name) as bus:
        if not honest:
            trusting(bus)
        found = (
            allowed(lambda: bus.publisher("a/x", record=True)),
            allowed(lambda: bus.publisher("b", record=True)),
            allowed(lambda: bus.subscribe("a/*", start="earliest")),
            allowed(lambda: bus.subscribe("**", start="earliest")),
            allowed(lambda: bus.subscribe("a/*", durable=f"of {name}")),
            allowed(lambda: bus.subscribe("a/*", group="workers")),
        )
        assert found == MATRIX[name]
        if not honest:
            assert broker.statistics().refused >= found.count(False)


@pytest.mark.parametrize("topic", ["$dead/billing", "$sys/broker"])
def test_nobody_records_the_brokers_own_topics(broker: Broker, topic: str) -> None:
    with bus_of(broker, "chief") as bus:
        for honest in (True, False):
            if not honest:
                trusting(bus)
                bus._client.brokered = False
            with pytest.raises(PermissionDenied, match="broker's own"):
                bus.publisher(topic, record=True)
        bus.publisher(topic)
        eventually(lambda: broker.statistics().refused >= 2, PATIENCE)
        assert broker.statistics().topics == 0


def test_events_that_say_they_are_to_be_recorded_need_the_right(broker: Broker, path: Path) -> None:
    """A client that may publish sends frames of one that records, without having asked."""
    with bus_of(broker, "writer") as liar, bus_of(broker, "clerk") as clerk:
        record(clerk, "a/x", b"honest")
        plain = liar.publisher("a/x")  # so that it hears where the broker wants it
        eventually(lambda: plain.subscribers == 1, PATIENCE)
        (interest,) = (one for one in liar._interests.matching("a/x") if one.peer == broker.node.id)
        core = make_outbox(liar.node, 99, "a/x", 7, 100, 1 << 20, lambda properties: b"")
        core.serve(*interest.place)
        for data in numbered(10):
            core.publish(data)
        eventually(lambda: broker.statistics().denied >= 10, PATIENCE)
        assert core.statistics()["acknowledged"] == 0
        core.close()
        plain.publish(b"allowed")  # the topic is recorded, whoever publishes
        eventually(lambda: in_log(path, "a/x") == [b"honest", b"allowed"], PATIENCE)
        record(clerk, "a/x", b"still")
    assert in_log(path, "a/x") == [b"honest", b"allowed", b"still"]


def test_one_that_was_not_let_in_is_not_answered(broker: Broker) -> None:
    with Node(7, listen=None, peers={broker.node.id: broker.address}) as stranger:
        for question in (Record("a/x"), Forget("billing"), Tell(), Replay("billing")):
            with pytest.raises(NotAdmitted):
                ask(stranger, broker.node.id, question, PATIENCE)
        assert broker.statistics().refused >= 4


def test_a_durable_subscription_belongs_to_who_made_it(broker: Broker) -> None:
    with bus_of(broker, "reader") as reader:
        leave_behind(broker, reader)
    settled(broker, clients=0)
    with bus_of(broker, "deputy") as other, bus_of(broker, "warden") as warden:
        tell = other._behind("durable").ask
        assert tell(Tell(), "tell") == []
        with pytest.raises(PermissionDenied, match="belongs to 'reader'") as refused:
            other.subscribe("a/*", durable="billing")
        assert refused.value.client == "deputy"
        assert refused.value.action == "subscribe"
        for call in (
            lambda: other.forget("billing"),
            lambda: tell(Replay("billing"), "replay"),
        ):
            with pytest.raises(PermissionDenied, match="belongs to 'reader'"):
                call()
        (found,) = warden._behind("durable").ask(Tell(), "tell")
        assert found["name"] == "billing"
        with bus_of(broker, "reader") as reader:
            leave_behind(broker, reader)
        eventually(lambda: allowed(lambda: warden.forget("billing")), PATIENCE)
        assert warden._behind("durable").ask(Tell(), "tell") == []


def test_whose_it_is_outlives_the_broker(path: Path) -> None:
    with Broker("tcp://127.0.0.1:0", config=rules(path)) as broker, bus_of(broker, "reader") as bus:
        leave_behind(broker, bus)
    with Broker("tcp://127.0.0.1:0", config=rules(path)) as broker:
        with bus_of(broker, "deputy") as bus, pytest.raises(PermissionDenied):
            bus.subscribe("a/*", durable="billing")
        with bus_of(broker, "reader") as bus:
            bus.subscribe("a/*", durable="billing")


def test_announcements_that_take_the_name_of_another_are_refused(broker: Broker) -> None:
    with bus_of(broker, "reader") as reader, bus_of(broker, "clerk") as clerk:
        leave_behind(broker, reader)
        liar = trusting(bus_of(broker, "deputy"))
        with liar:
            handle = liar.node._subscribe_inbox(16, "block")
            wish = Wish(durable="billing")
            before = broker.statistics().refused
            with liar._lock:
                liar._ledger.subscribe(Subscribed(handle.flow, "a/*", 1, wish=wish))
                liar._changed.notify_all()
            eventually(lambda: broker.statistics().refused > before, PATIENCE)
        events = Events()
        reader.subscribe("a/*", events, durable="billing")
        record(clerk, "a/x", b"for the reader")
        assert events.wait(1) == [b"for the reader"]


def test_dead_letters_are_read_by_those_who_may_and_not_by_everything(broker: Broker) -> None:
    everything = Events()
    with bus_of(broker, "chief") as chief, bus_of(broker, "reader") as reader:

        def fail(event: object) -> None:
            raise ValueError("no")

        chief.subscribe("**", everything, start="earliest")
        reader.subscribe("a/*", fail, durable="billing")
        record(chief, "a/x", b"bad")
        with bus_of(broker, "warden") as warden:
            letters = warden.subscribe("$dead/billing", start="earliest")
            assert take(letters, 1)[0].data == b"bad"
        with pytest.raises(PermissionDenied):
            reader.subscribe("$dead/billing", start="earliest")
        record(chief, "b", b"last")
        assert everything.wait(2) == [b"bad", b"last"]


def test_a_right_to_record_that_is_taken_away_ends_it(path: Path) -> None:
    config = rules(path)
    with Broker("tcp://127.0.0.1:0", config=config) as broker, bus_of(broker, "clerk") as clerk:
        publisher = clerk.publisher("a/x", record=True)
        publisher.publish(b"before")
        publisher.flush(PATIENCE)
        less = dict(config.tokens)
        less["clerk"] = Token(hash=less["clerk"].hash, publish=("a/**",))
        changed, kept = broker.reload(
            BrokerConfig(tokens=less, store=config.store, fsync=config.fsync)
        )
        assert (changed, kept) == (["tokens"], [])
        publisher.publish(b"after")
        eventually(lambda: broker.statistics().denied >= 1, PATIENCE)
        assert in_log(path, "a/x") == [b"before"]
        broker.reload(config)
        publisher.publish(b"later")  # not taken without the one before, nor acknowledged
        with pytest.raises(SendTimeout):
            publisher.flush(1.0)
        record(clerk, "a/x", b"anew")
        assert in_log(path, "a/x") == [b"before", b"anew"]
        clerk.close(0.0)


# --- limits ---------------------------------------------------------------------------------------


def test_above_the_rate_a_publisher_that_records_waits_and_loses_nothing(path: Path) -> None:
    limits = Limits(max_events_per_s=200)
    with recording(path, fsync="none", limits=limits) as broker, Bus(broker.address) as bus:
        publisher = bus.publisher("a", record=True)
        began = time.monotonic()
        publisher.publish_many(numbered(500))
        publisher.flush(PATIENCE)
        assert time.monotonic() - began > 1.4  # one second's worth at once, then 200 a second
        assert broker.statistics().limited == 0
    assert in_log(path, "a") == numbered(500)


def test_above_the_rate_nothing_is_forgotten_where_receipts_come_late(path: Path) -> None:
    """The log is faster than the broker's word here: that all before is written comes with it that
    the rest was refused, again and again."""
    done = threading.Event()
    config = BrokerConfig(store=str(path), fsync="none", limits=Limits(max_events_per_s=100))
    schedule = Schedule(threads=1)
    broker = Broker("tcp://127.0.0.1:0", config=config, node_config=NodeConfig(schedule=schedule))

    @broker.node.on(200)
    def busy(source: int, data: bytes) -> None:
        done.wait(0.02)  # before each slice of the others, of which there is one at a time

    with broker, Bus(broker.address) as bus:
        try:
            publisher = bus.publisher("a", record=True)
            bus.node.send_many(broker.node.id, [b""] * 2000, kind=200)
            publisher.publish_many(numbered(300))
            publisher.flush(PATIENCE)
        finally:
            done.set()
    assert in_log(path, "a") == numbered(300)


def test_above_the_rate_events_of_others_on_a_recorded_topic_are_dropped(path: Path) -> None:
    config = BrokerConfig(
        store=str(path), fsync="none", record=("a",), limits=Limits(max_events_per_s=100)
    )
    with Broker("tcp://127.0.0.1:0", config=config) as broker, Bus(broker.address) as bus:
        publisher = bus.publisher("a")
        eventually(lambda: publisher.subscribers == 1, PATIENCE)
        publisher.publish_many(numbered(2000))
        settled(broker, relayed=2000)
        limited = broker.statistics().limited
        assert 100 < limited <= 1900
    assert len(in_log(path, "a")) == 2000 - limited


def test_a_group_gets_no_more_than_the_rate(path: Path) -> None:
    """An event counts once, also where a group and others want it."""
    shared, all_of_it = Events(), Events()
    with (
        Broker(
            "tcp://127.0.0.1:0", config=BrokerConfig(limits=Limits(max_events_per_s=100))
        ) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        there.subscribe("a", shared, group="workers")
        there.subscribe("a", all_of_it)
        publisher = here.publisher("a")
        eventually(lambda: publisher.subscribers == 1, PATIENCE)
        settled(broker, subscriptions=2)
        publisher.publish_many(numbered(2000))

        def all_counted() -> bool:
            return len(all_of_it) + broker.statistics().limited == 2000

        eventually(all_counted, PATIENCE)
        eventually(lambda: len(shared) == len(all_of_it), PATIENCE)
        assert 100 <= len(shared) < 1000


# --- filters on data, numbers and tags ------------------------------------------------------------


def test_filters_on_data_hold_in_replays_and_after(path: Path) -> None:
    with recording(path, fsync="none") as broker, Bus(broker.address) as bus:
        publisher = bus.publisher("a", record=True)
        for n in range(300):
            publisher.publish(b"<order><total>%d</total></order>" % n, {"odd": n % 2 == 1})
        publisher.publish(b"x" * (2 << 20))  # too large to be looked into
        publisher.flush(PATIENCE)
        some = bus.subscribe("a", start="earliest", where=Regex(r">\d*99<"))
        few = bus.subscribe("a", start=100, where=XPath("/order[total > 297]"))
        both = bus.subscribe("*", start="earliest", where=AllOf("odd = TRUE", Regex(">29")))
        live = bus.subscribe("a", where=Regex(">1000<"))
        with Bus(broker.address) as other:
            outside = other.subscribe("a", where=Regex(">1000<"))
            settled(broker, subscriptions=5)
            publisher.publish_many(
                [b"<order><total>%d</total></order>" % n for n in (999, 1000, 1001, 2999)]
            )
            publisher.flush(PATIENCE)
            assert _totals(take(outside, 1)) == [1000]
        assert _totals(take(some, 5)) == [99, 199, 299, 999, 2999]
        assert _totals(take(few, 6)) == [298, 299, 999, 1000, 1001, 2999]
        assert _totals(take(both, 6)) == [29, 291, 293, 295, 297, 299]
        assert _totals(take(live, 1)) == [1000]
        assert broker.statistics().content.too_large >= 2


def _totals(events: list[Any]) -> list[int]:
    assert {event.missed for event in events} == {0}
    return [int(event.data.split(b"total>")[1].rstrip(b"</")) for event in events]


@pytest.mark.parametrize("topic", [42, -7, Tag("room", "blue/green *"), Tag("ä", "%2F")])
def test_numbers_and_tags_are_recorded_and_replayed(path: Path, topic: int | Tag) -> None:
    with recording(path, fsync="none") as broker, Bus(broker.address) as bus:
        publisher = bus.publisher(topic, record=True)
        publisher.publish_many(numbered(3))
        publisher.flush(PATIENCE)
    with recording(path, fsync="none") as broker, Bus(broker.address) as bus:
        replay = take(bus.subscribe(topic, start="earliest"), 3)
        assert [(one.topic, one.data, one.sequence) for one in replay] == [
            (topic, data, place) for place, data in enumerate(numbered(3), start=1)
        ]
        named = bus.subscribe(topic, durable="billing", start="earliest", ack="manual")
        for event in take(named, 3):
            assert event.topic == topic
            event.ack()
        everything = bus.subscribe("**", start="earliest")
        if isinstance(topic, Tag):
            any_value = bus.subscribe(Tag(topic.name), start="earliest")
            assert {one.topic for one in take(any_value, 3)} == {topic}
        record(bus, "a name", b"x")
        assert [one.topic for one in take(everything, 1)] == ["a name"]

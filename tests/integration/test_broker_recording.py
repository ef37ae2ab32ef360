"""Topics that a broker records: what is acknowledged is in its log, once, and stays there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import (
    Broker,
    BrokerConfig,
    Bus,
    Closed,
    ConfigError,
    Message,
    MessageTooLarge,
    Node,
    NodeConfig,
    PeerUnreachable,
    StoreFull,
    WouldBlock,
)
from antiphon.broker.store import Store
from antiphon.testing import Child, Control, Proxy, eventually
from antiphon.topics import Publisher
from integration.brokers import settled
from integration.buses import PATIENCE, Events
from integration.durables import enlarge, in_log, record, recording, standing, take
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with recording(path) as running:
        yield running


def test_what_is_flushed_is_in_the_log_though_nobody_subscribes(broker: Broker, path: Path) -> None:
    with Bus(broker.address) as bus:
        publisher = bus.publisher("orders/eu", record=True)
        publisher.publish(b"one", {"price": 3})
        publisher.publish_many([b"two", b"three"])
        publisher.publish_packed(b"fourfive", array("i", [0, 4, 8]))
        publisher.flush(PATIENCE)
        assert in_log(path, "orders/eu") == [b"one", b"two", b"three", b"four", b"five"]
        counts = publisher.statistics()
        assert (counts["published"], counts["acknowledged"], counts["pending"]) == (5, 5, 0)
        with Store(path, read_only=True) as store:
            first = next(iter(store.reader("orders/eu")))
            assert (first.sequence, first.source) == (1, bus.node.id)
    assert broker.statistics().recorded == 5


@pytest.mark.parametrize("fsync", ["none", "interval", "always"])
def test_every_fsync_setting_acknowledges(path: Path, fsync: str) -> None:
    with recording(path, fsync=fsync, fsync_interval=0.005) as broker, Bus(broker.address) as bus:
        record(bus, "a", *(b"%d" % i for i in range(500)))
        assert in_log(path, "a") == [b"%d" % i for i in range(500)]


def test_messages_and_large_events_are_recorded(broker: Broker, path: Path) -> None:
    class Order(Message, kind=4711):
        number: int

    large = bytes(range(256)) * 20_000
    with Bus(broker.address) as bus:
        events = Events()
        bus.subscribe("orders", events, start="earliest")
        publisher = bus.publisher("orders", record=True)
        publisher.publish(Order(7))
        publisher.publish(large, {"large": True})
        publisher.publish(b"after")
        publisher.flush(PATIENCE)
        assert in_log(path, "orders")[1:] == [large, b"after"]
        events.wait(3)
        assert events.items[0].decode(Order) == Order(7)
        assert events.items[1].data == large
        assert events.items[1].properties == {"large": True}


def test_the_sequence_is_the_place_in_the_log_whoever_publishes(broker: Broker) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there:
        seen = [Events(), Events()]
        first = here.publisher("t", record=True)
        here.subscribe("t", seen[0], start="earliest")
        there.subscribe("*", seen[1], start="earliest")
        second = there.publisher("t", record=True)
        for i in range(200):
            (first if i % 2 else second).publish(b"%d" % i)
        first.flush(PATIENCE)
        second.flush(PATIENCE)
        for events in seen:
            events.wait(200)
            assert events.sequences == list(range(1, 201))
            assert {event.source for event in events.items} == {here.node.id, there.node.id}
        assert seen[0].data == seen[1].data  # one order for all


def test_a_publisher_that_does_not_ask_is_recorded_too(broker: Broker, path: Path) -> None:
    """Recording belongs to the topic. Its own bus gets the events once, with their places."""
    with Bus(broker.address) as there:
        record(there, "t", b"first")
    settled(broker, topics=0)
    with Bus(broker.address) as here:
        events = Events()
        here.subscribe("t", events)
        plain = here.publisher("t")
        eventually(lambda: only_the_broker(plain, here), PATIENCE)
        settled(broker, subscriptions=1)
        for i in range(50):
            plain.publish(b"%d" % i)
        assert events.wait(50) == [b"%d" % i for i in range(50)]
        assert events.sequences == list(range(2, 52))
    assert len(in_log(path, "t")) == 51


def only_the_broker(publisher: Publisher, bus: Bus) -> bool:
    """Whether it has heard that its topic is recorded, and is asked for it."""
    with bus._lock:
        assert bus._recorded is not None
        return publisher.subscribers == 1 and publisher.topic in bus._recorded.topics


def test_what_is_known_to_be_recorded_never_goes_around_the_log(broker: Broker, path: Path) -> None:
    """Also while the broker asks for none of it, since it knows of nobody who publishes it."""
    events = Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        here.subscribe("t", events)
        settled(broker, subscriptions=1)
        first = there.publisher("t", record=True)
        first.publish(b"first")
        assert events.wait(1) == [b"first"]
        eventually(lambda: [one.name for one in here.topics()] == ["t"], PATIENCE)
        first.close()
        eventually(lambda: here.topics() == [], PATIENCE)
        plain = here.publisher("t")
        assert plain.wait_for_subscribers(1, PATIENCE)
        for i in range(50):
            plain.publish(b"%d" % i)
        assert events.wait(51)[1:] == [b"%d" % i for i in range(50)]
        assert events.sequences == list(range(1, 52))
    assert len(in_log(path, "t")) == 51


def test_without_its_broker_a_bus_gets_its_own_events_of_a_recorded_topic(path: Path) -> None:
    """Straight from the publisher, also when the next broker at the address records nothing."""
    address = free_address()
    events = Events()
    with Bus(address) as bus:
        bus.subscribe("t", events)
        plain = bus.publisher("t")
        config = BrokerConfig(store=str(path), record=("t",))
        with Broker(address, config=config) as broker:
            eventually(lambda: only_the_broker(plain, bus), PATIENCE)
            settled(broker, subscriptions=1)
            plain.publish(b"recorded")
            assert events.wait(1) == [b"recorded"]
        eventually(lambda: not only_the_broker(plain, bus) and plain.subscribers == 1, PATIENCE)
        plain.publish(b"alone")
        assert events.wait(2) == [b"recorded", b"alone"]
        with Broker(address) as broker:
            settled(broker, subscriptions=1, topics=1)
            assert plain.subscribers == 1
            plain.publish(b"relayed to nobody")
            assert events.wait(3)[2] == b"relayed to nobody"
    assert in_log(path, "t") == [b"recorded"]


def test_the_settings_name_topics_to_record(path: Path) -> None:
    with (
        recording(path, record=("orders/**",)) as broker,
        Bus(broker.address) as bus,
        Bus(broker.address) as other,
    ):
        publisher = bus.publisher("orders/eu")
        eventually(lambda: publisher.subscribers == 1, PATIENCE)
        for i in range(20):
            publisher.publish(b"%d" % i)
        sub = other.subscribe("orders/*", start="earliest")
        assert [event.data for event in take(sub, 20)] == [b"%d" % i for i in range(20)]
        assert in_log(path, "orders/eu") == [b"%d" % i for i in range(20)]


def test_a_topic_that_begins_to_be_recorded_keeps_its_subscribers(broker: Broker) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there:
        sub = there.subscribe("t")
        plain = here.publisher("t")
        eventually(lambda: plain.subscribers == 1, PATIENCE)
        plain.publish(b"before")
        assert sub.receive(PATIENCE).data == b"before"
        record(here, "t", b"after")
        event = sub.receive(PATIENCE)
        assert (event.data, event.sequence) == (b"after", 1)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["local://recording-refused", "mcast://239.77.0.9:17790"])
def test_without_a_broker_nothing_can_be_recorded(address: str) -> None:
    with Bus(address, secret="for the group") as bus:
        with pytest.raises(ConfigError, match=r"record= needs a broker"):
            bus.publisher("t", record=True)
        for setting, value in (("durable", "x"), ("start", "earliest"), ("group", "g")):
            with pytest.raises(ConfigError, match=f"{setting}= needs a broker"):
                bus.subscribe("t", **{setting: value})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="durable= needs a broker"):
            bus.forget("x")


def test_a_broker_without_a_store_refuses_at_the_call() -> None:
    with Broker("tcp://127.0.0.1:0") as broker, Bus(broker.address) as bus:
        with pytest.raises(ConfigError, match="--store"):
            bus.publisher("t", record=True)
        with pytest.raises(ConfigError, match="--store"):
            bus.subscribe("t", start="earliest")
        with pytest.raises(ConfigError, match="--store"):
            bus.subscribe("t", durable="x")


def test_what_does_not_go_with_recording_is_said(broker: Broker) -> None:
    bus = Bus(broker.address)
    with pytest.raises(ConfigError, match="start the bus first"):
        bus.publisher("t", record=True)
    with bus:
        with pytest.raises(ConfigError, match="do not go with record"):
            bus.publisher("t", record=True, retain=True)
        publisher = bus.publisher("t", record=True)
        with pytest.raises(ConfigError, match="ttl="):
            publisher.publish(b"", ttl=1.0)
        with pytest.raises(TypeError, match="an event is bytes"):
            publisher.publish(5)  # type: ignore[arg-type]
        publisher.close()
        with pytest.raises(Closed):
            publisher.publish(b"")


def test_settings_that_make_no_sense_are_refused(path: Path) -> None:
    for wrong in ({"fsync": "often"}, {"keep_age": -1.0}, {"record": ("a/**/",)}):
        with pytest.raises(ConfigError):
            BrokerConfig(store="x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no store to record them in"):
        BrokerConfig(record=("a",))
    with recording(path), pytest.raises(ConfigError, match="in use"):
        Broker("tcp://127.0.0.1:0", store=path).start()


# --- brokers that go and come ---------------------------------------------------------------------


def test_a_publisher_outlives_its_broker_and_nothing_is_there_twice(path: Path) -> None:
    address = free_address()
    with standing(address, path) as broker, Bus(address) as bus:
        publisher = bus.publisher("t", record=True)
        publisher.publish_many([b"%d" % i for i in range(100)])
        publisher.flush(PATIENCE)
        broker.kill()
        for i in range(100, 200):  # kept here
            publisher.publish(b"%d" % i)
        eventually(lambda: publisher.subscribers == 0, PATIENCE, "it is known to have gone")
        with pytest.raises(PeerUnreachable, match="are kept"):
            publisher.flush(0.2)
        with standing(address, path):
            publisher.flush(PATIENCE)
            assert in_log(path, "t") == [b"%d" % i for i in range(200)]


def test_a_connection_that_is_cut_again_and_again_loses_and_repeats_nothing(
    broker: Broker, path: Path
) -> None:
    with Proxy(broker.address) as proxy, Bus(proxy.address) as bus:
        publisher = bus.publisher("t", record=True)
        for i in range(3000):
            publisher.publish(b"%d" % i)
            if i % 700 == 350:
                proxy.cut()
        publisher.flush(PATIENCE)
        assert in_log(path, "t") == [b"%d" % i for i in range(3000)]


def test_a_full_buffer_makes_publish_wait_for_the_broker(path: Path) -> None:
    address = free_address()
    with standing(address, path) as broker, Bus(address) as bus:
        publisher = bus.publisher("t", record=True)
        publisher.publish(b"")
        publisher.flush(PATIENCE)
        broker.kill()
        eventually(lambda: publisher.subscribers == 0, PATIENCE)
        chunk = [b"." * 1024] * 1024
        for _ in range(29):
            publisher.publish_many(chunk)  # 32 MiB is the bound
        blocked = threading.Thread(target=lambda: [publisher.publish_many(chunk) for _ in range(4)])
        blocked.start()
        eventually(lambda: publisher.statistics()["waits"] > 0, PATIENCE)
        with standing(address, path):
            blocked.join(PATIENCE)
            assert not blocked.is_alive()
            publisher.flush(PATIENCE)
            assert len(in_log(path, "t")) == 1 + 33 * 1024


def test_a_broker_that_comes_back_without_its_store_is_said_to_publishers(path: Path) -> None:
    address = free_address()
    with Bus(address) as bus:
        with Broker(address, store=path):
            publisher = bus.publisher("t", record=True)
            publisher.publish(b"one")
            publisher.flush(PATIENCE)
        with Broker(address):

            def refused() -> bool:
                try:
                    publisher.publish(b"two")
                except ConfigError as error:
                    return "--store" in str(error)
                return False

            eventually(refused, PATIENCE)
        with Broker(address, store=path):
            eventually(lambda: _flushed(publisher), PATIENCE)
    data = in_log(path, "t")
    assert data[0] == b"one"
    assert set(data[1:]) <= {b"two"}


def _flushed(publisher: Publisher) -> bool:
    try:
        publisher.flush(1.0)
    except (ConfigError, PeerUnreachable):
        return False
    return True


def test_closing_a_bus_waits_until_all_is_recorded(broker: Broker, path: Path) -> None:
    with Bus(broker.address) as bus:
        publisher = bus.publisher("t", record=True)
        publisher.publish_many([b"%d" % i for i in range(5000)])
    assert len(in_log(path, "t")) == 5000


def test_flush_and_publish_wait_in_coroutines_by_their_twins(broker: Broker, path: Path) -> None:
    async def main() -> None:
        async with Bus(broker.address) as bus:
            publisher = await bus.publisher_async("t", record=True)
            await publisher.publish_async(b"one")
            await publisher.flush_async(PATIENCE)
            publisher.publish(b"two")
            with pytest.raises(WouldBlock, match="flush_async"):
                publisher.flush()
            await publisher.flush_async(PATIENCE)

    asyncio.run(main())
    assert in_log(path, "t") == [b"one", b"two"]


def test_a_series_that_is_too_long_for_a_coroutine_says_how_much_of_it_went(
    broker: Broker, path: Path
) -> None:
    events = [b"%d" % number for number in range(200_000)]
    sent: list[int] = []

    async def main() -> None:
        async with Bus(broker.address) as bus:
            publisher = await bus.publisher_async("t", record=True)
            with pytest.raises(WouldBlock, match=r"^publish_many\(\).* its first") as refused:
                publisher.publish_many(events)
            sent.append(refused.value.sent)
            await asyncio.to_thread(publisher.publish_many, events[sent[0] :])

    asyncio.run(main())
    assert 0 < sent[0] < len(events)
    assert in_log(path, "t") == events


def _full(publisher: Publisher) -> bool:
    """Publishes one; whether there was no space for it."""
    publisher.publish(b"." * 10_000)
    try:
        publisher.flush(PATIENCE)
    except StoreFull:
        return True
    return False


def test_a_full_disk_refuses_new_events_and_lets_the_old_ones_be_read(small_disk: Path) -> None:
    with (
        recording(small_disk / "store", fsync="none", segment_bytes=1 << 20) as broker,
        Bus(broker.address) as bus,
    ):
        publisher = bus.publisher("t", record=True)
        taken = 0
        while not _full(publisher):
            taken += 1
            assert taken < 1000
        taken += 1  # the one that found no space is kept
        assert taken > 100
        with pytest.raises(StoreFull, match="no space left"):
            publisher.publish(b"more")
        sub = bus.subscribe("t", start="earliest")
        assert len(take(sub, taken - 1)) == taken - 1  # reading goes on
        # More room: what was kept is recorded, and nothing twice.
        enlarge(small_disk)
        eventually(lambda: publisher.statistics()["pending"] == 0, PATIENCE)
        publisher.publish(b"again")
        publisher.flush(PATIENCE)
        data = in_log(small_disk / "store", "t")
        assert data.count(b"again") == 1
        assert len(data) == taken + 1


def test_what_was_written_before_the_disk_was_full_hides_nothing(small_disk: Path) -> None:
    """It is acknowledged when it is synced, behind the word that what follows found no space."""
    with (
        recording(small_disk / "store", fsync="interval", fsync_interval=1.0) as broker,
        Bus(broker.address) as bus,
    ):
        publisher = bus.publisher("t", record=True)
        # In parts, so that some of it is written well before there is no space left.
        with contextlib.suppress(StoreFull):
            for _ in range(64):
                publisher.publish_many([b"." * 10_000] * 16)
        eventually(lambda: publisher.statistics()["acknowledged"] > 0, PATIENCE)
        with pytest.raises(StoreFull, match="no space left"):
            publisher.flush(PATIENCE)
        enlarge(small_disk)
        published = publisher.statistics()["published"]
        eventually(lambda: publisher.statistics()["pending"] == 0, PATIENCE)
        assert len(in_log(small_disk / "store", "t")) == published


def test_an_event_that_the_broker_cannot_take_is_refused_at_once(path: Path) -> None:
    small = NodeConfig(max_message_bytes=100_000)
    config = BrokerConfig(store=str(path))
    with (
        Broker("tcp://127.0.0.1:0", config=config, node_config=small) as broker,
        Bus(broker.address) as bus,
    ):
        publisher = bus.publisher("t", record=True)
        publisher.publish(b"first")
        publisher.flush(PATIENCE)
        with pytest.raises(MessageTooLarge):
            publisher.publish(b"." * 100_000)
        publisher.publish(b"." * 99_000)
        publisher.flush(PATIENCE)
    assert [len(data) for data in in_log(path, "t")] == [5, 99_000]


def test_what_a_closed_publisher_gives_up_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = free_address()
    with Bus(address) as bus:
        with standing(address, path) as broker:
            publisher = bus.publisher("t", record=True)
            publisher.publish(b"first")
            publisher.flush(PATIENCE)
            broker.kill()
        publisher.publish_many([b"second", b"third"])
        with caplog.at_level(logging.WARNING, "antiphon.topics"):
            publisher.close()
        assert "closed with 2 events" in caplog.text
        with pytest.raises(Closed):
            publisher.publish(b"late")


def test_nothing_is_published_behind_the_back_of_a_close(broker: Broker, path: Path) -> None:
    """What a call has taken is waited for, and one that comes too late is refused."""
    for attempt in range(20):
        with Bus(broker.address) as bus:
            publisher = bus.publisher("t", record=True)
            taken = [0]

            def work(publisher: Publisher = publisher, taken: list[int] = taken) -> None:
                with contextlib.suppress(Closed):
                    while True:
                        publisher.publish(b"%d" % attempt)  # noqa: B023
                        taken[0] += 1

            thread = threading.Thread(target=work)
            thread.start()
            eventually(lambda: taken[0] > 20, PATIENCE)  # noqa: B023
            bus.close()
            thread.join(PATIENCE)
            assert in_log(path, "t").count(b"%d" % attempt) == taken[0]


def publish_as(control: Control, address: str, id: int) -> None:
    """One life of a client with an id of its own, until it is killed."""
    from antiphon import Bus, Node

    with Node(id) as node, Bus(address, node=node) as bus:
        bus.publisher("other", record=True).close()
        publisher = bus.publisher("t", record=True)
        publisher.publish_many([b"before %d" % i for i in range(10)])
        publisher.flush(10)
        control.tell("flushed", number=publisher._number)
        control.hear()


def test_a_client_that_begins_another_life_is_recorded_from_its_first_event_on(
    broker: Broker, path: Path
) -> None:
    """Its publisher has the number of the one before, whose way into the log is still there."""
    with Bus(broker.address) as there:
        other = there.publisher("t", record=True)  # so the broker asks for the topic all the time
        other.publish(b"other")
        other.flush(PATIENCE)
        with Child(publish_as, address=broker.address, id=7) as child:
            number = child.expect("flushed", PATIENCE)["number"]
            child.kill()
        settled(broker, clients=1)
        with Node(7) as node, Bus(broker.address, node=node) as bus:
            with bus.publisher("other", record=True) as first:
                eventually(lambda: first.subscribers == 1, PATIENCE)
            publisher = bus.publisher("t", record=True)
            assert publisher._number == number
            publisher.publish_many([b"1", b"2", b"3"])  # perhaps before it is announced
            eventually(lambda: number in broker._neighbours.all[7].table.topics, PATIENCE)
            publisher.publish_many([b"4", b"5"])
            publisher.flush(PATIENCE)
            assert in_log(path, "t")[11:] == [b"1", b"2", b"3", b"4", b"5"]


def test_the_command_takes_a_store(path: Path) -> None:
    address = free_address()
    command = [sys.executable, "-m", "antiphon.cli.main", "broker", "--listen", address]
    with subprocess.Popen(
        [*command, "--store", str(path), "--fsync", "always"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "broker at" in process.stderr.readline()
            with Bus(address) as bus:
                record(bus, "t", b"one")
        finally:
            process.terminate()
        assert re.search(r"1 events relayed, 0 dropped, 1 recorded", process.stderr.read())
    assert in_log(path, "t") == [b"one"]

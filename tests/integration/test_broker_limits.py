"""Limits of a broker: what one client may take, and what it is told beyond that."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path

import pytest

from antiphon import Broker, BrokerConfig, NodeConfig
from antiphon.broker import Limits
from antiphon.errors import MessageTooLarge, PermissionDenied
from antiphon.testing import eventually
from antiphon.topics import Bus
from antiphon.topics.asking import Claim
from antiphon.topics.rights import Word
from integration.brokers import settled, stays
from integration.buses import PATIENCE, Events, serves
from integration.durables import lag, recording
from unit.node.pairs import free_address, numbered

pytestmark = pytest.mark.timeout(120)


def limited(**limits: float | int) -> Broker:
    return Broker(
        "tcp://127.0.0.1:0",
        config=BrokerConfig(limits=Limits(**limits)),  # type: ignore[arg-type]
    )


def test_one_client_too_many_is_told_so_and_the_others_go_on() -> None:
    events = Events()
    with limited(max_clients=2) as broker, contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(Bus(broker.address)) for _ in range(2))
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        for _ in range(3):
            with pytest.raises(PermissionDenied, match="2 clients, as many as it may") as refused:
                Bus(broker.address).start()
            assert refused.value.action == "connect"
            assert refused.value.reason is not None
        publisher.publish(b"x")
        assert events.wait(1) == [b"x"]
        there.close()
        settled(broker, clients=1)

        def comes_in() -> bool:
            try:
                stack.enter_context(Bus(broker.address))
            except PermissionDenied:
                return False
            return True

        eventually(comes_in, PATIENCE, "there is room again")
        settled(broker, clients=2)


def test_one_too_many_is_told_so_also_when_its_connection_is_noticed_late() -> None:
    """It may ask what it may do before the broker has heard that it is there."""
    noticed, go_on = threading.Event(), threading.Event()
    with limited(max_clients=1) as broker:

        @broker.node.on_connected
        def busy(peer: int, how: str) -> None:
            noticed.set()
            go_on.wait(PATIENCE)

        with Bus(broker.address):
            assert noticed.wait(PATIENCE)
            try:
                with pytest.raises(PermissionDenied, match="1 clients, as many as it may"):
                    Bus(broker.address).start()
            finally:
                go_on.set()


def test_one_too_many_is_told_so_also_when_it_is_late_to_ask() -> None:
    """Its connection has ended by then: it asks again."""
    late: list[int] = []
    with limited(max_clients=1) as broker, Bus(broker.address):
        settled(broker, clients=1)
        answer = broker._word

        def when_it_has_gone(peer: int, word: Word) -> bytes | None:
            if not late:
                late.append(peer)
                gone = broker._changed.wait_for(lambda: not connected(peer), PATIENCE)
                assert gone
            return answer(peer, word)

        def connected(peer: int) -> bool:
            return broker.node._is_connected(peer)

        broker._word = when_it_has_gone  # type: ignore[method-assign]
        with pytest.raises(PermissionDenied, match="1 clients, as many as it may"):
            Bus(broker.address).start()
        assert late


def test_one_that_was_turned_away_comes_in_by_itself_when_there_is_room() -> None:
    """Both were there before their broker, so neither raises, and both go on trying."""
    address = free_address()
    events = Events()
    with Bus(address) as one, Bus(address) as other:
        one.subscribe("a", events)
        other.subscribe("a", events)
        publishers = one.publisher("a"), other.publisher("a")
        config = BrokerConfig(limits=Limits(max_clients=1))
        with Broker(address, config=config) as broker:
            eventually(lambda: broker.statistics().refused >= 3, PATIENCE)
            settled(broker, clients=1, subscriptions=1)
            broker.reload(BrokerConfig(limits=Limits(max_clients=2)))
            settled(broker, clients=2, subscriptions=2, topics=1)
            for publisher in publishers:
                serves(publisher, 2)  # its own bus, and the broker
                publisher.publish(b"x")
            assert events.wait(4) == [b"x"] * 4


def test_topics_and_subscriptions_of_a_client_are_counted() -> None:
    with (
        limited(max_topics=3, max_subscriptions=2) as broker,
        Bus(broker.address) as bus,
        Bus(broker.address) as other,
    ):
        for number in range(3):
            last = bus.publisher(f"t/{number}")
        with pytest.raises(PermissionDenied, match="may publish 3 topics"):
            bus.publisher("t/3")
        last.close()
        bus.publisher("t/3")
        for number in range(2):
            bus.subscribe(f"s/{number}")
        with pytest.raises(PermissionDenied, match="may have 2 subscriptions"):
            bus.subscribe("s/2")
        other.subscribe("s/2")  # each client by itself
        settled(broker, topics=3, subscriptions=3, refused=0)


def test_what_is_too_large_is_refused_where_it_is_published() -> None:
    events = Events()
    with (
        limited(max_message_bytes=10_000) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        with pytest.raises(MessageTooLarge) as refused:
            publisher.publish(bytes(10_001))
        assert refused.value.limit <= 10_000
        publisher.publish(b"x")
        assert events.wait(1) == [b"x"]
        assert broker.node.config.max_message_bytes == 10_000


def test_events_above_the_rate_are_dropped_counted_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, others = Events(), Events()
    with (
        limited(max_events_per_s=200) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as beside,
        Bus(broker.address) as there,
        caplog.at_level(logging.WARNING, "antiphon"),
    ):
        there.subscribe("a", events)
        there.subscribe("b", others)
        publisher, steady = here.publisher("a"), beside.publisher("b")
        serves(publisher)
        serves(steady)
        publisher.publish_many(numbered(5000))
        for data in numbered(100):
            steady.publish(data)
        assert others.wait(100) == numbered(100)  # who keeps to it notices nothing
        assert set(others.missed) == {0}
        settled(broker, relayed=5100)
        stays(broker, events)
        counts = broker.statistics()
        # A second's worth at once, and what came in meanwhile.
        assert 200 <= len(events) < 5000
        assert len(events) + counts.limited == 5000
        assert events.data == numbered(5000)[: len(events)] or sum(events.missed) > 0
        eventually(lambda: "it may publish 200 events a second" in caplog.text, PATIENCE)
        # Later it may go on, and whoever reads is told what was missed.
        before = len(events)
        until = time.monotonic() + PATIENCE
        while len(events) == before and time.monotonic() < until:
            publisher.publish(b"again")
            stays(broker, events)
        got = events.items
        assert got[-1].data == b"again"
        assert sum(event.missed for event in got) == got[-1].sequence - len(got)
        assert broker.statistics().dropped == 0


def test_bytes_above_the_rate_are_dropped_and_a_large_event_passes_after_all() -> None:
    events = Events()
    config = NodeConfig()
    with (
        limited(max_bytes_per_s=100_000) as broker,
        Bus(broker.address, node_config=config) as here,
        Bus(broker.address) as there,
    ):
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(bytes(300_000))  # leaves it in debt for two seconds
        publisher.publish(b"x")
        settled(broker, relayed=2, limited=1)
        assert [len(data) for data in events.wait(1)] == [300_000]

        def passes() -> bool:
            publisher.publish(b"y")
            stays(broker, events)
            return len(events) > 1

        eventually(passes, PATIENCE)
        # Another may have passed before the first one was seen.
        assert sum(events.missed) == broker.statistics().limited


def test_limits_change_while_it_runs() -> None:
    events = Events()
    with (
        limited() as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many(numbered(1000))
        events.wait(1000)
        broker.reload(BrokerConfig(limits=Limits(max_events_per_s=10, max_topics=1)))
        publisher.publish_many(numbered(1000))
        settled(broker, relayed=2000)
        stays(broker, events)
        assert len(events) + broker.statistics().limited == 2000
        assert broker.statistics().limited > 900
        eventually(lambda: here._client._welcome is not None, PATIENCE)

        def refused() -> bool:
            try:
                here.publisher("b").close()
            except PermissionDenied:
                return True
            return False

        eventually(refused, PATIENCE)
        broker.reload(BrokerConfig())
        dropped = broker.statistics().limited
        publisher.publish_many(numbered(1000))
        settled(broker, relayed=3000, limited=dropped)


def holders(broker: Broker, name: str) -> list[int]:
    known = {one["name"]: one for one in broker._answers.durables(0)}
    return list(known[name]["holders"])


def test_names_and_recorded_topics_of_a_client_are_bounded(tmp_path: Path) -> None:
    limits = Limits(max_durables=2, max_recorded=3)
    with recording(tmp_path / "store", limits=limits) as broker, Bus(broker.address) as bus:
        for name in ("a", "b"):
            with bus.subscribe("t", durable=name):
                eventually(lambda name=name: lag(broker, name) == 0, PATIENCE)
        with pytest.raises(PermissionDenied, match="may have 2 durable subscriptions"):
            bus.subscribe("t", durable="c")
        bus.subscribe("t", durable="a").close()  # it is known
        eventually(lambda: not holders(broker, "b"), PATIENCE, "nobody holds it")
        broker._answers.forget(0, "b")
        bus.subscribe("t", durable="c")
        eventually(lambda: lag(broker, "c") == 0, PATIENCE)
        for number in range(3):
            bus.publisher(f"t/{number}", record=True).close()
        with pytest.raises(PermissionDenied, match="may have 3 topics recorded"):
            bus.publisher("t/3", record=True)
        bus.publisher("t/2", record=True)
    with (
        recording(tmp_path / "store", limits=limits) as broker,
        Bus(broker.address) as bus,
        pytest.raises(PermissionDenied, match="may have 2 durable subscriptions"),
    ):
        bus.subscribe("t", durable="d")


def test_claims_of_names_that_nobody_takes_are_bounded_and_forgotten(tmp_path: Path) -> None:
    limits = Limits(max_durables=5)
    with recording(tmp_path / "store", limits=limits) as broker, Bus(broker.address) as bus:
        claims = [Claim("t", durable=f"d{number}") for number in range(6)]
        for claim in claims[:5]:
            broker._answers.claim(bus.node.id, claim)
        with pytest.raises(PermissionDenied, match="may have 5 durable subscriptions"):
            broker._answers.claim(bus.node.id, claims[5])
        assert broker._deliveries is not None
        assert len(broker._deliveries._claimed) == 5


def test_topics_that_the_settings_record_are_bounded_too(tmp_path: Path) -> None:
    limits = Limits(max_recorded=2)
    with (
        recording(tmp_path / "store", limits=limits, record=["t/*"]) as broker,
        Bus(broker.address) as bus,
    ):
        for number in range(5):
            bus.publisher(f"t/{number}")
        bus.publisher("last")
        eventually(lambda: "last" in broker._topics, PATIENCE)
        assert broker._recording is not None
        assert len(broker._recording) == 2
        assert broker.statistics().refused >= 1

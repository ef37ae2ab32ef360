"""What a broker does with a subscription that has no room, by its ``when_full``: exact counts."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from antiphon import Broker, BrokerConfig
from antiphon.errors import ConfigError, QueueFull
from antiphon.testing import eventually
from antiphon.topics import Bus, Event, Subscription
from integration.brokers import settled, stays
from integration.buses import PATIENCE, Events, Held, serves
from unit.node.pairs import numbered

pytestmark = pytest.mark.timeout(120)

BLOCK = 0.5


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker("tcp://127.0.0.1:0", config=BrokerConfig(max_block=BLOCK)) as running:
        yield running


def gaps(events: list[Event]) -> None:
    """What is missing is said."""
    for before, after in itertools.pairwise(events):
        assert after.sequence - before.sequence - 1 == after.missed


@pytest.mark.parametrize("when_full", ["block", "drop_oldest", "drop_newest", "disconnect"])
def test_one_that_does_not_read_costs_the_others_nothing(broker: Broker, when_full: str) -> None:
    """Beside it a quick one of the same topic, and another topic that nobody holds up."""
    quick, other = Events(), Events()
    count = 2000
    with (
        Bus(broker.address) as here,
        Bus(broker.address) as slow,
        Bus(broker.address) as there,
    ):
        full = slow.subscribe("a", capacity=16, when_full=when_full)
        there.subscribe("a", quick)
        there.subscribe("b", other)
        settled(broker, subscriptions=3)
        publisher, beside = here.publisher("a"), here.publisher("b")
        serves(publisher)
        serves(beside)
        publisher.publish_many(numbered(count))
        for data in numbered(100):
            beside.publish(data)
        assert other.wait(100) == numbered(100)
        assert quick.wait(count) == numbered(count)
        assert set(quick.missed) == {0}
        assert set(other.missed) == {0}
        here.node.flush(PATIENCE)
        counts = broker.statistics()
        assert counts.relayed == count + 100
        if when_full in ("block", "disconnect"):
            got = [full.receive(PATIENCE)]
            while full.pending:
                got.append(full.receive(0))
            assert [event.data for event in got] == numbered(len(got))
            assert 1 <= len(got) <= 16
            assert counts.ended == (when_full == "disconnect")
            if when_full == "block":
                assert counts.dropped == count - len(got)
            else:  # what comes later is not for it any more
                assert 0 < counts.dropped <= count - len(got)
        else:
            eventually(lambda: full.statistics()["messages"] == count, PATIENCE)
            got = [full.receive(PATIENCE)]
            while full.pending:
                got.append(full.receive(0))
            assert len(got) == 16
            assert full.statistics()["dropped"] == count - 16
            assert counts.dropped == 0
            gaps(got)
            kept = numbered(count)[-16:] if when_full == "drop_oldest" else numbered(count)[:16]
            assert [event.data for event in got] == kept
        if when_full == "disconnect":
            with pytest.raises(QueueFull, match=r"held up its topic for 0\.5 s"):
                full.receive(PATIENCE)
            assert full.ended == "it held up its topic for 0.5 s"
            eventually(lambda: full.closed, PATIENCE)
            settled(broker, subscriptions=2, clients=3)
            # It may come back, and gets what is new.
            again = slow.subscribe("a", when_full="disconnect")
            settled(broker, subscriptions=3)
            publisher.publish(b"new")
            assert again.receive(PATIENCE).data == b"new"


def test_one_that_reads_in_time_is_not_ended() -> None:
    with (
        Broker("tcp://127.0.0.1:0", config=BrokerConfig(max_block=30.0)) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        slow = there.subscribe("a", capacity=4, when_full="disconnect")
        publisher = here.publisher("a")
        serves(publisher)
        data = []
        publisher.publish_many(numbered(40))
        while len(data) < 40:
            data.append(slow.receive(PATIENCE).data)
            time.sleep(0.01)  # slower than the publisher, quicker than the patience
        assert data == numbered(40)
        assert broker.statistics().ended == 0


async def take_all(subscription: Subscription, into: list[bytes]) -> None:
    async for event in subscription:
        into.append(event.data)  # noqa: PERF401


def test_iterating_ends_with_the_error(broker: Broker) -> None:
    async def read(bus: Bus) -> list[bytes]:
        subscription = bus.subscribe("b", capacity=4, when_full="disconnect")
        publisher = here.publisher("b")
        await asyncio.to_thread(serves, publisher)
        await asyncio.to_thread(publisher.publish_many, numbered(100))
        while not subscription.ended:
            await asyncio.sleep(0.01)
        got: list[bytes] = []
        with pytest.raises(QueueFull):
            await take_all(subscription, got)
        return got

    with Bus(broker.address) as here, Bus(broker.address) as there:
        slow = there.subscribe("a", capacity=4, when_full="disconnect")
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many(numbered(100))
        eventually(lambda: slow.ended, PATIENCE)
        got: list[bytes] = []
        with pytest.raises(QueueFull):
            got.extend(event.data for event in slow)
        assert got == numbered(len(got))
        assert 1 <= len(got) <= 4
        got = asyncio.run(read(there))
        assert got == numbered(len(got))
        assert 1 <= len(got) <= 4


def test_a_handler_that_hangs_loses_its_subscription_and_no_other(broker: Broker) -> None:
    events = Events()
    with Held() as held, Bus(broker.address) as here, Bus(broker.address) as there:
        slow = there.subscribe("a", held, capacity=4, when_full="disconnect")
        there.subscribe("a", events)
        publisher = here.publisher("a")
        settled(broker, subscriptions=2)
        serves(publisher)
        publisher.publish_many(numbered(500))
        assert events.wait(500) == numbered(500)
        eventually(lambda: slow.ended, PATIENCE)
        assert not slow.closed  # what it got before is still handled
        held.open()
        eventually(lambda: slow.closed, PATIENCE)
        assert held.data == numbered(len(held))
        assert stays(broker, events) == [500]
        assert broker.statistics().ended == 1


def test_without_a_broker_nobody_would_end_it() -> None:
    with Bus("local://test-policies") as bus:
        with pytest.raises(ConfigError, match="done by a broker"):
            bus.subscribe("a", when_full="disconnect")
        with pytest.raises(ConfigError, match="drop_newest, disconnect"):
            bus.subscribe("a", when_full="perhaps")
        with pytest.raises(ConfigError) as refused:
            bus.publisher("a", when_full="disconnect")
        assert "disconnect" not in str(refused.value).partition(":")[2]

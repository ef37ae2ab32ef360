"""``$sys/``: what a broker says of itself, to whoever asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import Broker, BrokerConfig
from antiphon.errors import PermissionDenied
from antiphon.testing import eventually
from antiphon.topics import Bus
from antiphon.topics.announcements import Update, encode
from integration.brokers import announce, settled, stays
from integration.buses import PATIENCE, Events, Held, serves
from unit.node.pairs import numbered

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker("tcp://127.0.0.1:0", config=BrokerConfig(system_interval=0.1)) as running:
        yield running


def tells(events: Events, topic: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the latest event of that topic says, once it says that."""

    def latest() -> dict[str, Any]:
        mine = [event for event in events.items if event.topic == topic]
        facts: dict[str, Any] = json.loads(mine[-1].data) if mine else {}
        return facts if facts and holds(facts) else {}

    return eventually(latest, PATIENCE, topic)


def test_the_broker_tells_what_it_counts(broker: Broker) -> None:
    told, events = Events(), Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("$sys/**", told)
        there.subscribe("plant/*", events)
        publisher = here.publisher("plant/7")
        serves(publisher)
        publisher.publish_many(numbered(100))
        events.wait(100)
        facts = tells(told, "$sys/broker", lambda f: f["relayed"] == 100)
        assert facts["address"] == broker.address
        assert (facts["clients"], facts["topics"], facts["subscriptions"]) == (2, 1, 2)
        assert facts["resident_bytes"] > 1_000_000
        assert facts["uptime_s"] > 0
        mine = tells(told, f"$sys/clients/{here.node.id}", lambda f: f["published"] == 100)
        assert (mine["name"], mine["topics"], mine["subscriptions"]) == ("anonymous", 1, 0)
        tells(told, f"$sys/clients/{there.node.id}", lambda f: f["subscriptions"] == 2)
        topic = tells(told, "$sys/topics/plant/7", lambda f: f["published"] == 100)
        assert (topic["publishers"], topic["subscriptions"], topic["dropped"]) == (1, 1, 0)
        assert told.items[0].source == broker.node.id
        # What has gone is told of no more.
        here.close()
        tells(told, "$sys/broker", lambda f: f["clients"] == 1)
        before = len(told)
        told.first(before + 6, PATIENCE)
        assert f"$sys/clients/{here.node.id}" not in {
            event.topic for event in told.items[before + 3 :]
        }
        assert broker.statistics().relayed == 100  # of these there is no count


def test_nobody_gets_them_unasked_and_nothing_is_made_while_nobody_asks(broker: Broker) -> None:
    told, everything = Events(), Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        there.subscribe("**", everything)
        assert not broker._system._cores
        one = there.subscribe("$sys/broker", told)
        told.wait(3)
        assert {event.topic for event in told.items} == {"$sys/broker"}
        assert set(broker._system._cores) == {"$sys/broker"}
        one.close()
        settled(broker, subscriptions=1)
        assert not broker._system._cores
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x")
        assert everything.wait(1) == [b"x"]
        assert stays(broker, everything) == [1]


def test_clients_cannot_publish_there(broker: Broker) -> None:
    told = Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        with pytest.raises(PermissionDenied, match="broker's own") as refused:
            here.publisher("$sys/broker")
        assert (refused.value.action, refused.value.topic) == ("publish", "$sys/broker")
        there.subscribe("$sys/broker", told)
        lie = Update(here.node._incarnation, -1, 99, {7: "$sys/broker"}, [], [], [])
        announce(here.node, broker, encode(lie))
        settled(broker, refused=1, topics=0)
        told.wait(2)
        assert {event.source for event in told.items} == {broker.node.id}


def test_very_many_topics_are_bounded(broker: Broker) -> None:
    told = Events()
    with Bus(broker.address) as here, Bus(broker.address) as there:
        for number in range(1500):
            here.publisher(f"t/{number}")
        settled(broker, topics=1500)
        there.subscribe("$sys/topics/**", told, capacity=65536)
        told.wait(2048)
        assert len({event.topic for event in told.items}) == 1024


def test_what_was_dropped_is_counted_for_who_was_slow() -> None:
    told, events = Events(), Events()
    config = BrokerConfig(system_interval=0.1, max_block=0.1)
    with (
        Broker("tcp://127.0.0.1:0", config=config) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as slow,
        Bus(broker.address) as quick,
        Held() as held,
    ):
        quick.subscribe("$sys/clients/*", told)
        slow.subscribe("a", held, capacity=4)
        quick.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        settled(broker, subscriptions=3)
        for number in range(200):
            publisher.publish(b"%d" % number)
        events.wait(200)
        eventually(lambda: broker.statistics().dropped > 100, PATIENCE)
        seen = tells(
            told,
            f"$sys/clients/{slow.node.id}",
            lambda f: f["dropped"] == broker.statistics().dropped,
        )
        dropped = seen["dropped"]
        assert tells(told, f"$sys/clients/{here.node.id}", bool)["dropped"] == 0
        assert tells(told, f"$sys/clients/{quick.node.id}", bool)["dropped"] == 0
        # Also when its publisher has gone.
        publisher.close()
        settled(broker, routes=0)
        told.items.clear()
        tells(told, f"$sys/clients/{slow.node.id}", lambda f: f["dropped"] == dropped)

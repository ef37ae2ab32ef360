"""Numbers and tags as topics, on every kind of channel."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import Broker, Bus, ConfigError, Tag
from antiphon.testing import eventually
from integration.brokers import settled
from integration.buses import PATIENCE, Events, serves

pytestmark = pytest.mark.timeout(60)


class Meeting:
    """Two buses, and perhaps a broker between them."""

    def __init__(self, here: Bus, there: Bus, broker: Broker | None) -> None:
        self.here = here
        self.there = there
        self.broker = broker

    def known(self, subscriptions: int) -> None:
        """Returns once the broker, if there is one, knows so many."""
        if self.broker is not None:
            settled(self.broker, subscriptions=subscriptions)


@pytest.fixture(params=["local", "mcast", "broker"])
def meeting(request: pytest.FixtureRequest, channel: str) -> Iterator[Meeting]:
    with contextlib.ExitStack() as stack:
        broker = None
        address = channel
        if request.param == "mcast":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                asking.bind(("", 0))
                port = asking.getsockname()[1]
            a, b, c = (random.randrange(1, 255) for _ in range(3))
            address = f"mcast://239.{a}.{b}.{c}:{port}?interface=127.0.0.1"
        elif request.param == "broker":
            broker = stack.enter_context(Broker("tcp://127.0.0.1:0"))
            address = broker.address
        here = stack.enter_context(Bus(address))
        yield Meeting(here, stack.enter_context(Bus(address)), broker)


TOPICS: list[Any] = [
    0,
    42,
    -1,
    2**63 - 1,
    -(2**63),
    Tag("room", "blue"),
    Tag("room", "red"),
    Tag("a/b", "*"),
    Tag("%2F", "50 % * 2/3"),
    Tag("int", "42"),
    "42",
    "int/42",
    "tag/room/blue",
    "room=blue",
]


def test_each_topic_is_its_own(meeting: Meeting) -> None:
    got: dict[Any, Events] = {topic: Events() for topic in TOPICS}
    everything, rooms, names = Events(), Events(), Events()
    for topic, events in got.items():
        subscription = meeting.there.subscribe(topic, events)
        assert subscription.pattern == topic
    meeting.there.subscribe("**", names)
    meeting.there.subscribe(Tag("room"), rooms)
    meeting.there.subscribe(Tag("a/b"), everything)
    meeting.known(len(TOPICS) + 3)
    for topic in TOPICS:
        publisher = meeting.here.publisher(topic)
        assert publisher.topic == topic
        assert type(publisher.topic) is type(topic)
        assert publisher.wait_for_subscribers(1, PATIENCE)
        if meeting.broker is None:
            wanted = 1 + isinstance(topic, str) + (getattr(topic, "name", "") in ("room", "a/b"))
            serves(publisher, wanted)
        publisher.publish(repr(topic).encode())
    for topic, events in got.items():
        assert events.wait(1) == [repr(topic).encode()]
        (event,) = events.items
        assert event.topic == topic
        assert type(event.topic) is type(topic)
        assert repr(topic) in repr(event)
    assert sorted(names.wait(4)) == sorted(repr(one).encode() for one in TOPICS if type(one) is str)
    assert {event.topic for event in rooms.first(2, PATIENCE)} == {
        Tag("room", "blue"),
        Tag("room", "red"),
    }
    assert [event.topic for event in everything.first(1, PATIENCE)] == [Tag("a/b", "*")]
    assert (len(names), len(rooms), len(everything)) == (4, 2, 1)
    listed = [info.name for info in meeting.here.topics()]
    assert set(listed) == set(TOPICS)
    eventually(
        lambda: {info.name for info in meeting.there.topics()} == set(TOPICS), PATIENCE, "known"
    )


def test_they_come_however_they_are_received(meeting: Meeting) -> None:
    batches: list[Any] = []
    read = meeting.there.subscribe(7)
    meeting.there.subscribe(Tag("a"), batches.append, batch=True)
    meeting.known(2)
    number = meeting.here.publisher(7, retain=True)
    tag = meeting.here.publisher(Tag("a", "b"))
    for publisher in (number, tag):
        assert publisher.wait_for_subscribers(1, PATIENCE)
    number.publish(b"1", {"n": 1})
    tag.publish_many([b"1", b"2"])
    event = read.receive(PATIENCE)
    assert (event.topic, event.data, event.properties) == (7, b"1", {"n": 1})
    eventually(lambda: sum(map(len, batches)) == 2, PATIENCE, "both are here")
    assert batches[0].topic == Tag("a", "b")
    late = meeting.there.subscribe(7, where="n = 1")
    assert late.receive(PATIENCE).topic == 7


def test_what_is_no_topic_is_refused(channel: str) -> None:
    with Bus(channel) as bus:
        for wrong in (True, 2**63, 1.5, None, "/int/42", "/tag/a/b", b"a"):
            with pytest.raises(ConfigError):
                bus.publisher(wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                bus.subscribe(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="has no value"):
            bus.publisher(Tag("room"))
        assert bus.statistics().publishers == bus.statistics().subscriptions == 0


def test_a_share_is_named_by_its_topic(channel: str) -> None:
    with Bus(channel) as bus:
        bus.subscribe(42, lambda event: None, share=0.1)
        bus.publisher(Tag("room", "blue"), share=0.1)
        assert set(bus.statistics().shares) == {
            "subscription 42",
            "publisher Tag(name='room', value='blue')",
        }

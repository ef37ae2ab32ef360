"""What can be published: data of any size, messages, properties, one by one and many at once."""

from __future__ import annotations

import contextlib
from array import array
from types import MappingProxyType
from typing import Any

import pytest

from antiphon import ConfigError, Message, ProtocolError
from antiphon.node import Future
from antiphon.topics import Bus
from integration.buses import PATIENCE, Events, serves
from unit.node.pairs import numbered, pattern

pytestmark = pytest.mark.timeout(60)


class Reading(Message, kind=62001):
    site: str
    value: float = 0.0


class Other(Message, kind=62002):
    numbers: list[int]


# --- what can be published ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100, 65_536, 600_000, 5_000_000])
def test_data_of_any_size_arrives_whole(channel: str, size: int) -> None:
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
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


def test_large_events_and_small_ones_keep_their_order(channel: str) -> None:
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", events)
        local = here.subscribe("a")
        publisher = here.publisher("a")
        serves(publisher, 2)
        sizes = [10, 3_000_000, 0, 700_000, 1, 5_000_000, 2]
        for size in sizes:
            publisher.publish(bytes(size))
        assert [len(data) for data in events.wait(len(sizes))] == sizes
        assert [len(local.receive(PATIENCE).data) for _ in sizes] == sizes
        assert events.sequences == list(range(1, len(sizes) + 1))
        assert set(events.missed) == {0}


@pytest.mark.parametrize(
    "data",
    [b"x", bytearray(b"x"), memoryview(b"x"), array("B", b"x"), memoryview(b"wxyz")[1:2]],
    ids=lambda data: type(data).__name__,
)
def test_any_buffer_can_be_published(channel: str, data: Any) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a")
        publisher = bus.publisher("a")
        serves(publisher)
        publisher.publish(data)
        assert subscription.receive(PATIENCE).data == b"x"


@pytest.mark.parametrize("how", ["publish", "publish_many", "publish_async"])
@pytest.mark.parametrize("data", ["text", 5, [1, 2]])
def test_what_is_neither_a_buffer_nor_a_message_is_refused_and_has_no_number(
    channel: str, how: str, data: Any
) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a")
        publisher = bus.publisher("a")
        serves(publisher)
        calls = {
            "publish": lambda: publisher.publish(data),
            "publish_many": lambda: publisher.publish_many([b"before", data]),
            "publish_async": lambda: publisher.publish_async(data).result(PATIENCE),
        }
        with pytest.raises(TypeError):
            calls[how]()
        publisher.publish(b"x")
        event = subscription.receive(PATIENCE)
        assert (event.data, event.sequence, event.missed) == (b"x", 1, 0)


def test_buffers_among_many_are_published_as_they_are_or_refused(channel: str) -> None:
    """As `Node.send_many` takes them: never with a wrapping around them."""
    with Bus(channel) as bus:
        subscription = bus.subscribe("a")
        publisher = bus.publisher("a")
        serves(publisher)
        with contextlib.suppress(TypeError):
            publisher.publish_many([bytearray(b"x"), memoryview(b"x")])  # type: ignore[list-item]
        publisher.publish(b"x")
        assert subscription.receive(PATIENCE).data == b"x"


def test_typed_messages_are_decoded_from_the_event(channel: str) -> None:
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(Reading("A", 31.5), {"site": "A"})
        publisher.publish(Other([1, 2, 3]))
        publisher.publish_many([Reading("B"), b"raw", Other([])])
        first, second, third, fourth, fifth = events.first(5, PATIENCE)
        assert first.decode(Reading) == Reading("A", 31.5)
        assert first.properties == {"site": "A"}
        assert second.decode(Other) == Other([1, 2, 3])
        assert third.decode(Reading) == Reading("B", 0.0)
        assert fourth.data == b"raw"
        assert fifth.decode(Other) == Other([])
        for event in (second, fourth):
            with pytest.raises(ProtocolError, match="Reading"):
                event.decode(Reading)


PROPERTIES: dict[str, str | int | float | bool] = {
    "text": "plant A, Straße 7, 温度",
    "empty": "",
    "zero": 0,
    "least": -(2**63),
    "most": 2**63 - 1,
    "float": 31.5,
    "whole": 2.0,
    "tiny": 5e-324,
    "infinite": float("inf"),
    "yes": True,
    "no": False,
    "a.b_c$": 1,
}


def test_properties_of_every_type_arrive_with_their_types(channel: str) -> None:
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x", PROPERTIES)
        publisher.publish(b"y", properties={"nan": float("nan")})
        publisher.publish(b"z", {})
        publisher.publish(b"z", {f"p{number}": "x" * 100 for number in range(64)})
        full, nan, none, most = (event.properties for event in events.first(4, PATIENCE))
        assert full == PROPERTIES
        assert {name: type(value) for name, value in full.items()} == {
            name: type(value) for name, value in PROPERTIES.items()
        }
        assert isinstance(nan["nan"], float)
        assert nan["nan"] != nan["nan"]
        assert none == {}
        assert len(most) == 64


def test_properties_may_be_any_mapping(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a", where="site = 'A'")
        publisher = bus.publisher("a")
        serves(publisher)
        publisher.publish(b"x", MappingProxyType({"site": "A"}))
        assert subscription.receive(PATIENCE).properties == {"site": "A"}


@pytest.mark.parametrize(
    "properties",
    [
        {"big": 2**63},
        {"none": None},
        {"list": [1]},
        {"bytes": b"x"},
        {1: "x"},
        {"": 1},
        {"two words": 1},
        {"and": 1},
        {f"p{number}": 1 for number in range(65)},
        [("a", 1)],
        "site",
    ],
)
def test_what_is_no_property_is_refused_and_the_event_has_no_number(
    channel: str, properties: Any
) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a")
        publisher = bus.publisher("a")
        serves(publisher)
        with pytest.raises(ConfigError) as refused:
            publisher.publish(b"x", properties)
        assert refused.value.setting == "properties"
        publisher.publish(b"x")
        event = subscription.receive(PATIENCE)
        assert (event.sequence, event.missed) == (1, 0)


# --- many at once ---------------------------------------------------------------------------------


def test_publish_many_keeps_order_and_content(channel: str) -> None:
    sent = [pattern(size, size + 1) for size in (0, 1, 2, 1000, 0, 70_000)] * 20
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"before")
        publisher.publish_many(sent)
        publisher.publish_many([])
        publisher.publish_many(iter(sent))
        publisher.publish(b"after")
        assert events.wait(2 * len(sent) + 2) == [b"before", *sent, *sent, b"after"]
        assert events.sequences == list(range(1, 2 * len(sent) + 3))
        assert set(events.missed) == {0}


@pytest.mark.parametrize("code", ["i", "q"])
def test_publish_packed_keeps_order_and_content(channel: str, code: str) -> None:
    count = 20_000  # more than go in one turn
    sent = [b"%d" % number * (number % 4) for number in range(count)]
    offsets = array(code, [0])
    for one in sent:
        offsets.append(offsets[-1] + len(one))
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_packed(b"".join(sent), offsets)
        assert events.wait(count) == sent
        assert events.sequences == list(range(1, count + 1))
        assert set(events.missed) == {0}


def test_large_events_among_many_arrive_in_their_place(channel: str) -> None:
    sent = [b"a", pattern(3_000_000), b"b", pattern(5_000_000, 2), b"c"]
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many(sent)
        assert events.wait(5) == sent
        assert events.sequences == [1, 2, 3, 4, 5]
        assert set(events.missed) == {0}


def test_publish_async_is_done_when_the_event_is_on_its_way(channel: str) -> None:
    events = Events()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        data = bytearray(b"0")
        futures: list[Future[None]] = []
        for number in range(100):
            data[:] = b"%d" % number
            futures.append(publisher.publish_async(data, {"number": number}))  # a copy is taken
        for future in futures:
            future.result(PATIENCE)
        assert events.wait(100) == numbered(100)
        assert [event.properties["number"] for event in events.items] == list(range(100))

"""Buses that find each other by multicast, on loopback and on a network of their own."""

from __future__ import annotations

import contextlib
import random
import socket

import pytest

from antiphon.testing import Child, Network, eventually
from antiphon.topics import Bus, BusConfig
from integration.buses import (
    PATIENCE,
    Events,
    count_of,
    events_of,
    publish_from,
    resident,
    serves,
    wait_served,
)
from unit.node.pairs import numbered

pytestmark = pytest.mark.timeout(60)


def names(bus: Bus) -> list[str]:
    return [topic.name for topic in bus.topics()]


@pytest.fixture
def group() -> str:
    """A group and port of our own, on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.bind(("", 0))
        port = asking.getsockname()[1]
    a, b, c = (random.randrange(1, 255) for _ in range(3))
    return f"mcast://239.{a}.{b}.{c}:{port}?interface=127.0.0.1"


def test_buses_find_each_other_by_multicast(group: str) -> None:
    events = Events()
    with Bus(group) as here, Child(resident, address=group, topics=["a"], patterns=["b"]) as child:
        here.subscribe("*", events)
        other = child.expect("ready", PATIENCE)["id"]
        publisher = here.publisher("b")
        serves(publisher, 2)
        wait_served(child, "a")
        publish_from(child, "a", 0, 300)
        for number in range(300):
            publisher.publish(b"%d" % number)
        eventually(lambda: count_of(child) == 300, PATIENCE)
        assert events_of(child)["data"] == [str(number) for number in range(300)]
        events.first(600, PATIENCE)
        assert [one.data for one in events.items if one.source == other] == numbered(300)
        child.tell("leave")
        child.expect("left", PATIENCE)
        eventually(lambda: names(here) == ["b"] and publisher.subscribers == 1, PATIENCE)


def test_a_bus_that_is_killed_is_forgotten_by_multicast_in_time(group: str) -> None:
    often = BusConfig(announce_interval=0.4, announce_expiry=2.0)
    with Bus(group, config=often) as here:
        publisher = here.publisher("b")
        for _ in range(2):
            with Child(
                resident, address=group, topics=["a"], patterns=["b"], announce=0.4
            ) as child:
                child.expect("ready", PATIENCE)
                serves(publisher)
                eventually(lambda: names(here) == ["a", "b"], PATIENCE)
                publisher.publish(b"x")
                eventually(lambda: count_of(child) == 1, PATIENCE)
                child.kill()
                eventually(lambda: publisher.subscribers == 0, PATIENCE)
                assert names(here) == ["b"]


def test_groups_with_another_secret_stay_apart(group: str) -> None:
    ours, theirs = Events(), Events()
    with (
        Bus(group, secret="ours") as here,
        Bus(group, secret="ours") as there,
        Bus(group, secret="theirs") as stranger,
    ):
        there.subscribe("a", ours)
        stranger.subscribe("a", theirs)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x")
        assert ours.wait(1) == [b"x"]
        assert publisher.subscribers == 1
        assert here.statistics().peers == 1
        assert stranger.statistics().peers == 0
        assert len(theirs) == 0


@pytest.mark.needs("netns")
@pytest.mark.parametrize(
    "channel",
    [
        "mcast://239.77.0.1:7777?interface={address}",
        "mcast://239.77.0.1:7777?interface=eth0&ttl=1",
        "mcast://239.77.0.1:7777",
        "mcast://10.77.8.255:7777",
    ],
)
def test_buses_on_two_machines_find_and_hear_each_other(channel: str) -> None:
    """By the address of an interface, by its name, by the route alone, and by broadcast."""
    with Network(2, subnet=8) as network, contextlib.ExitStack() as stack:
        children = []
        for number, member in enumerate(network.members):
            member.run("ip route add 224.0.0.0/4 dev eth0")
            child = Child(
                resident,
                prefix=member.prefix,
                address=channel.format(address=member.address),
                topics=[f"of/{number}"],
                patterns=["of/*"],
                secret="of the plant",
                announce=0.3,
            )
            children.append(stack.enter_context(child))
        for child in children:
            child.expect("ready", PATIENCE)
        for number, child in enumerate(children):
            wait_served(child, f"of/{number}", 2)
            publish_from(child, f"of/{number}", 0, 200)
        for child in children:
            eventually(lambda one=child: count_of(one) == 400, PATIENCE)  # type: ignore[misc]
            seen = events_of(child)
            for number in range(2):
                mine = [
                    data
                    for data, topic in zip(seen["data"], seen["topics"], strict=True)
                    if topic == f"of/{number}"
                ]
                assert mine == [str(one) for one in range(200)]
            assert set(seen["missed"]) == {0}

"""What was there once costs nothing later: topics, publishers, subscriptions, clients."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

import pytest

from antiphon import Broker, Bus, Event
from antiphon._core import build_info
from antiphon.testing import eventually
from integration.brokers import settled
from integration.buses import PATIENCE

pytestmark = pytest.mark.timeout(120)

KIB = 1024
EACH = 40  # topics, or what else there is, of one turn


class Mallinfo(ctypes.Structure):
    _fields_ = (
        ("before", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("between", ctypes.c_size_t * 2),
        ("used", ctypes.c_size_t),
        ("behind", ctypes.c_size_t * 2),
    )


def used() -> int:
    """Bytes that this process has from malloc and has not given back."""
    gc.collect()
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None or build_info()["sanitizers"]:
        pytest.skip("nobody tells how much memory is in use")
    ask.restype = Mallinfo
    found = ask()
    return int(found.used + found.mapped)


def growth(turn: Callable[[int], None], turns: int, each: int = EACH) -> float:
    """Bytes that each of what a turn makes leaves behind; the first fill tables and caches.

    What a node keeps for ten seconds in case something comes late is in it, about 2 KiB.
    """
    for number in range(3):
        turn(number)
    before = used()
    for number in range(3, 3 + turns):
        turn(number)
    return (used() - before) / turns / each


def nothing(event: Event) -> None:
    pass


def test_topics_that_have_gone_leave_nothing_in_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.broker.broker._LINGER", 0.0)
    with (
        Broker("tcp://127.0.0.1:0") as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        sub = there.subscribe("t/**", nothing)

        def turn(number: int) -> None:
            for topic in (f"t/{number}/{i}" for i in range(EACH)):
                with here.publisher(topic) as publisher:
                    publisher.wait_for_subscribers(timeout=PATIENCE)
                    publisher.publish(b"." * 100)
            eventually(lambda: sub.statistics()["handled"] == EACH * (number + 1), PATIENCE)
            eventually(lambda: not broker._topics and not broker._routes(), PATIENCE)

        assert growth(turn, 10) < 5 * KIB


def test_publishers_that_are_closed_leave_nothing_in_a_bus(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        sub = there.subscribe("t/**", nothing)

        def turn(number: int) -> None:
            for topic in (f"t/{number}/{i}" for i in range(EACH)):
                with here.publisher(topic) as publisher:
                    publisher.wait_for_subscribers(timeout=PATIENCE)
                    publisher.publish(b"." * 100)
            eventually(lambda: sub.statistics()["handled"] == EACH * (number + 1), PATIENCE)

        assert growth(turn, 10) < 5 * KIB


def test_subscriptions_that_a_handler_makes_and_closes_leave_nothing(channel: str) -> None:
    """Also one that closes itself: its task is in use then."""
    ended: list[int] = []
    with Bus(channel) as bus:
        publisher, order = bus.publisher("event"), bus.publisher("order")

        def make(event: Event) -> None:
            def once(event: Event) -> None:
                sub.close()
                ended.append(1)

            sub = bus.subscribe("event", once)

        bus.subscribe("order", make)

        def turn(number: int) -> None:
            for i in range(EACH):
                order.publish(b"")
                publisher.wait_for_subscribers(timeout=PATIENCE)
                publisher.publish(b"." * 100)
                eventually(lambda: len(ended) == EACH * number + i + 1, PATIENCE)  # noqa: B023
                eventually(lambda: publisher.subscribers == 0, PATIENCE)

        assert growth(turn, 5) < 5 * KIB


def test_clients_that_have_gone_leave_little_in_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.broker.broker._LINGER", 0.0)
    with Broker("tcp://127.0.0.1:0") as broker, Bus(broker.address) as there:
        sub = there.subscribe("t/**", nothing)

        def turn(number: int) -> None:
            for i in range(EACH // 4):
                with Bus(broker.address) as here, here.publisher(f"t/{number}/{i}") as publisher:
                    publisher.wait_for_subscribers(timeout=PATIENCE)
                    publisher.publish(b"." * 100)
            eventually(lambda: sub.statistics()["handled"] == EACH // 4 * (number + 1), PATIENCE)
            settled(broker, clients=1, routes=0)
            eventually(lambda: not broker._topics, PATIENCE)

        # What is known of a node stays, since it may come back, and its own end is in this process.
        assert growth(turn, 10, EACH // 4) < 16 * KIB

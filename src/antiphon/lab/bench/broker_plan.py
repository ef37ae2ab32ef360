"""Which points of brokers are measured, and the targets that the project set itself for them.

One publisher, one broker and one subscriber, in three processes: as many messages as go, and the
delay of single ones at a rate that all of them can do.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.lab.bench.plan import Group, Point
from antiphon.lab.bench.summary import Target
from antiphon.lab.peers.brokers import BROKER_PEERS

__all__ = ["BROKER_RATE", "BROKER_REACH", "BROKER_SIZE", "broker_plan"]

BROKER_SIZE = 128
BROKER_RATE = 2_000
"""Messages per second of the timetable."""


def broker_plan(peers: Iterable[str], *, size: int | None = None) -> list[Group]:
    """The plan that the command line asks for."""
    chosen = [name for name in BROKER_PEERS if name in set(peers)]
    bytes_each = BROKER_SIZE if size is None else size
    return [
        _group("as fast as it goes", chosen, "one-way", bytes_each),
        _group(f"{BROKER_RATE:,}/s", chosen, "paced", bytes_each),
    ]


def _group(title: str, systems: list[str], pattern: str, size: int) -> Group:
    points = [
        Point(name, variant, pattern, size)
        for name in systems
        for variant in BROKER_PEERS[name].variants
        # What is published one by one is handled one by one.
        if not (pattern == "paced" and variant == "batch")
    ]
    return Group(f"{size} B, {title}", tuple(points))


def _points(systems: Iterable[str], pattern: str) -> tuple[Point, ...]:
    return tuple(
        Point(name, variant, pattern, BROKER_SIZE)
        for name in systems
        for variant in BROKER_PEERS[name].variants
        if not (pattern == "paced" and variant == "batch")
    )


_NATS, _MQTT = ("nats", "nats-raw"), ("mosquitto",)
_OURS = _points(("antiphon",), "one-way")
_PACED = _points(("antiphon",), "paced")

BROKER_REACH: tuple[Target, ...] = (
    Target(
        "128 B, messages/s",
        2.0,
        "the fastest through nats-server",
        _OURS,
        _points(_NATS, "one-way"),
    ),
    Target("128 B, messages/s", 5.0, "mosquitto with paho", _OURS, _points(_MQTT, "one-way")),
    Target(f"p50 at {BROKER_RATE:,}/s", 1.0, "nats-server", _PACED, _points(_NATS, "paced"), "p50"),
    Target(f"p99 at {BROKER_RATE:,}/s", 1.0, "nats-server", _PACED, _points(_NATS, "paced"), "p99"),
)

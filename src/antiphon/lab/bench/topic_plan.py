"""Which points of topics are measured, and the targets that the project set itself for them.

One publisher and one subscriber, in two processes: as many messages as go; the delay of single
messages at 10,000 per second and at half of what each system can do; and the delay of a thousand
per second beside another topic that takes whatever it gets.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from antiphon.lab.bench.plan import Group, Point
from antiphon.lab.bench.summary import Reach, Row, Target, evaluate
from antiphon.lab.bench.topics import BESIDE_RATE, PACED_RATE
from antiphon.lab.peers.topics import TOPIC_PEERS

__all__ = ["TOPIC_REACH", "TOPIC_SIZE", "topic_plan", "topic_reach"]

TOPIC_SIZE = 128
OURS_ALONE = ("antiphon",)


def topic_plan(
    peers: Iterable[str], *, size: int | None = None, quick: bool = False
) -> list[Group]:
    """The plan that the command line asks for. ``size`` wins over ``quick``."""
    chosen = [name for name in TOPIC_PEERS if name in set(peers)]
    bytes_each = TOPIC_SIZE if size is None else size
    # A quick run shows what shares do; what the others do beside a flood has no target.
    beside = [name for name in chosen if name in OURS_ALONE] if quick and size is None else chosen
    groups = [
        _group("as fast as it goes", chosen, "one-way", bytes_each, ("event", "batch")),
        _group(f"{PACED_RATE:,}/s", chosen, "paced", bytes_each, ("event",)),
        _group("half of its most", chosen, "half", bytes_each, ("event",)),
        _group(
            f"{BESIDE_RATE:,}/s beside a flood",
            beside,
            "isolation",
            bytes_each,
            ("shares", "event"),
        ),
    ]
    return [group for group in groups if group.points]


def _group(
    title: str, systems: Sequence[str], pattern: str, size: int, ours: tuple[str, ...]
) -> Group:
    points = [
        Point(name, variant, pattern, size)
        for name in systems
        for variant in (ours if name == "antiphon" else TOPIC_PEERS[name].variants)
        if pattern in TOPIC_PEERS[name].patterns
    ]
    return Group(f"{size} B, {title}", tuple(points))


def _peers(pattern: str) -> tuple[Point, ...]:
    return tuple(
        Point(peer.name, variant, pattern, TOPIC_SIZE)
        for peer in TOPIC_PEERS.values()
        for variant in peer.variants
        if peer.name != "antiphon"
    )


def _target(
    measure: str, factor: float, variant: str, pattern: str, figure: str = "rate"
) -> Target:
    ours = (Point("antiphon", variant, pattern, TOPIC_SIZE),)
    return Target(
        f"{TOPIC_SIZE} B, {measure}", factor, "the best peer", ours, _peers(pattern), figure
    )


TOPIC_REACH: tuple[Target, ...] = (
    _target("publish one by one to a handler", 4.0, "event", "one-way"),
    _target("publish_many to a batch handler", 10.0, "batch", "one-way"),
    _target(f"p99 at {PACED_RATE:,}/s", 1.0, "event", "paced", "p99"),
    _target(f"p99.9 at {PACED_RATE:,}/s", 1.0, "event", "paced", "p999"),
    _target("p99 at half of its own most", 1.0, "event", "half", "p99"),
)
_ISOLATED = Point("antiphon", "shares", "isolation", TOPIC_SIZE)


def topic_reach(rows: Sequence[Row]) -> list[Reach]:
    """Every target of topics beside what this run gave. It states; it does not judge."""
    isolated = next((row for row in rows if row.point == _ISOLATED), None)
    return [*evaluate(rows, TOPIC_REACH), _bounded(isolated), _arrived(isolated)]


def _bounded(row: Row | None) -> Reach:
    """The delay beside a flood, against the period and the longest call that nobody can cut off."""
    measure, target = "p99.9 beside a flood, with a share", "at most 1 x (T + longest call)"
    if row is None:
        return Reach(measure, target, None, "not part of this run")
    facts = [
        (item.latency.p999, item.figures["period_us"], item.figures["longest_call_us"])
        for item in row.measurements
        if item.latency is not None and "longest_call_us" in item.figures
    ]
    if not facts:
        return Reach(measure, target, None, row.reason or "not measured")
    ratios = [delay / (period + longest) for delay, period, longest in facts]
    p999, period, longest = (statistics.median(values) / 1e3 for values in zip(*facts, strict=True))
    note = f"p99.9 {p999:.2f} ms; T {period:g} ms, longest call {longest:.2f} ms"
    return Reach(measure, target, statistics.median(ratios), note)


def _arrived(row: Row | None) -> Reach:
    measure, target = "arrived beside a flood, with a share", "all"
    if row is None:
        return Reach(measure, target, None, "not part of this run")
    scheduled = sum(int(item.figures.get("scheduled", 0)) for item in row.measurements)
    if not scheduled:
        return Reach(measure, target, None, row.reason or "not measured")
    received = sum(item.received for item in row.measurements)
    return Reach(measure, target, received / scheduled, f"{received:,} of {scheduled:,}")

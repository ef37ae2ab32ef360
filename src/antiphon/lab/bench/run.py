"""Runs a plan: every group several times over, its members in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from antiphon.lab.bench.plan import Group, Point
from antiphon.lab.bench.point import Measurement, Options, measure
from antiphon.lab.peers import PEERS, Peer

__all__ = ["Measure", "count_runs", "estimate_seconds", "order", "run_plan"]

# Starting, warming up, draining and closing, beside the window itself.
OVERHEAD_SECONDS = 0.6

Measure = Callable[[Point, Options, int], Measurement]


def order(group: Group, repeat: int) -> tuple[Point, ...]:
    """The order of one round. Every second one runs backwards: no system always comes first."""
    return group.points if repeat % 2 == 0 else group.points[::-1]


def count_runs(groups: Sequence[Group], repeats: int) -> int:
    """How many measurements a plan makes."""
    return repeats * sum(len(group.points) for group in groups)


def estimate_seconds(
    groups: Sequence[Group],
    repeats: int,
    options: Options,
    known: Mapping[str, Peer] = PEERS,
) -> float:
    """About how long a plan takes. What is absent takes no time."""
    points = [point for group in groups for point in group.points]
    ways = {(point.system, point.variant) for point in points}
    present = {(name, variant) for name, variant in ways if not known[name].missing(variant)}
    per_point = options.seconds * (1 + options.stretch) / 2 + options.warmup + OVERHEAD_SECONDS
    return repeats * per_point * sum((item.system, item.variant) in present for item in points)


def run_plan(
    groups: Sequence[Group],
    repeats: int,
    options: Options,
    on_begin: Callable[[Point, int], None] = lambda point, repeat: None,
    on_end: Callable[[Measurement], None] = lambda measurement: None,
    measure_point: Measure = measure,
) -> list[Measurement]:
    """Measure every point ``repeats`` times. Interrupted, it leaves no process behind."""
    done = []
    for group in groups:
        for repeat in range(repeats):
            for point in order(group, repeat):
                on_begin(point, repeat)
                measurement = measure_point(point, options, repeat)
                done.append(measurement)
                on_end(measurement)
    return done

"""From repeats to rows: medians, spreads, ratios, and the targets they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from antiphon.lab.bench.latency import Latency, median_latency
from antiphon.lab.bench.plan import BASE_SIZE, Group, Point
from antiphon.lab.bench.point import Measurement

__all__ = ["REACH", "Reach", "Row", "Target", "evaluate", "ratio", "summarise"]


@dataclass(frozen=True, slots=True)
class Row:
    """One point over all repeats. Rates are messages per second, all receivers together."""

    group: str
    point: Point
    measurements: tuple[Measurement, ...]
    median: float | None
    low: float | None
    high: float | None
    outcome: str
    reason: str
    others: float | None
    cpu_per_message: float | None
    to_pyzmq: float | None = None
    to_raw: float | None = None
    latency: Latency | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def megabytes(self) -> float | None:
        """Payload per second, in millions of bytes."""
        return None if self.median is None else self.median * self.point.size / 1e6

    def figure(self, name: str) -> float | None:
        """The median ``rate``, or a percentile of the latency by its name."""
        if name == "rate":
            return self.median
        value: float | None = getattr(self.latency, name, None)
        return value

    def latencies(self, name: str) -> list[float]:
        """One percentile in every repeat that has it."""
        return [getattr(item.latency, name) for item in self.measurements if item.latency]

    def facts(self) -> dict[str, object]:
        """As plain values, for JSON, every repeat included."""
        return {
            "group": self.group,
            **self.point.facts(),
            "messages_per_second": self.median,
            "lowest": self.low,
            "highest": self.high,
            "megabytes_per_second": self.megabytes,
            "ratio_to_pyzmq": self.to_pyzmq,
            "ratio_to_raw_tcp": self.to_raw,
            "outcome": self.outcome,
            "reason": self.reason,
            "others_share": self.others,
            "cpu_seconds_per_message": self.cpu_per_message,
            **({"latency_us": self.latency.facts()} if self.latency else {}),
            **self.figures,
            "repeats": [measurement.facts() for measurement in self.measurements],
        }


def ratio(value: float | None, base: float | None) -> float | None:
    """``value / base``, or None when either is missing or the base is nothing."""
    return value / base if value is not None and base else None


def summarise(groups: Iterable[Group], measurements: Iterable[Measurement]) -> list[Row]:
    """A row per point, in the plan's order. Ratios are taken within a group."""
    collected: dict[Point, list[Measurement]] = {}
    for measurement in measurements:
        collected.setdefault(measurement.point, []).append(measurement)
    rows: list[Row] = []
    for group in groups:
        mine = [_row(group, point, collected.get(point, [])) for point in group.points]
        rows += [_with_ratios(row, mine) for row in mine]
    return rows


def _row(group: Group, point: Point, measurements: Sequence[Measurement]) -> Row:
    good = [measurement for measurement in measurements if measurement.measured]
    rates = [measurement.rate for measurement in good]
    outcome, reason = _outcome(measurements)
    per_message = [item.cpu / item.messages for item in good if item.messages]
    return Row(
        group.title,
        point,
        tuple(measurements),
        statistics.median(rates) if rates else None,
        min(rates, default=None),
        max(rates, default=None),
        outcome,
        reason,
        statistics.median(item.others for item in good) if good else None,
        statistics.median(per_message) if per_message else None,
        latency=median_latency([item.latency for item in good if item.latency]),
        figures=_figures(good),
    )


def _figures(measurements: Sequence[Measurement]) -> dict[str, float]:
    """The median of every figure over the repeats that have it."""
    names = dict.fromkeys(name for item in measurements for name in item.figures)
    return {
        name: statistics.median(item.figures[name] for item in measurements if name in item.figures)
        for name in names
    }


def _outcome(measurements: Sequence[Measurement]) -> tuple[str, str]:
    """``ok`` only if every repeat was; otherwise the first that was not."""
    if not measurements:
        return "not run", "interrupted before its turn"
    for measurement in measurements:
        if measurement.outcome != "ok":
            return measurement.outcome, measurement.reason
    return "ok", ""


def _with_ratios(row: Row, group: Sequence[Row]) -> Row:
    pyzmq = next(
        (
            other.median
            for other in group
            if other.point.system == "pyzmq" and other.point.encoding == row.point.encoding
        ),
        None,
    )
    raw = next((other.median for other in group if other.point.system == "raw-tcp"), None)
    return replace(row, to_pyzmq=ratio(row.median, pyzmq), to_raw=ratio(row.median, raw))


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that the project set itself: the best of some points over another point.

    Where there are several in ``base``, it is the best of them. ``figure`` is the ``rate``, which
    should be at least so high, or a percentile of the latency, which should be at most so high.
    """

    measure: str
    target: float
    base_name: str
    points: tuple[Point, ...]
    base: Point | tuple[Point, ...]
    figure: str = "rate"

    @property
    def bases(self) -> tuple[Point, ...]:
        """The points of the base, however many."""
        return (self.base,) if isinstance(self.base, Point) else self.base

    def text(self) -> str:
        """``at least 5 x pyzmq``."""
        bound = "at least" if self.figure == "rate" else "at most"
        return f"{bound} {self.target:g} x {self.base_name}"


@dataclass(frozen=True, slots=True)
class Reach:
    """A target beside what this run gave. ``measured`` is None when the run lacks a point."""

    measure: str
    target: str
    measured: float | None
    note: str = ""

    def facts(self) -> dict[str, object]:
        """As plain values, for JSON."""
        return {
            "measure": self.measure,
            "target": self.target,
            "measured": self.measured,
            "note": self.note,
        }


_PYZMQ = Point("pyzmq", "push-pull")

REACH: tuple[Target, ...] = (
    Target(
        f"{BASE_SIZE} B one way, send to callback",
        5.0,
        "pyzmq",
        (Point("antiphon", "callback"),),
        _PYZMQ,
    ),
    Target(
        f"{BASE_SIZE} B one way, send to inbox.receive",
        8.0,
        "pyzmq",
        (Point("antiphon", "inbox"),),
        _PYZMQ,
    ),
    Target(
        f"{BASE_SIZE} B one way, send_many or send_packed to batch",
        18.0,
        "pyzmq",
        (Point("antiphon", "batch"), Point("antiphon", "packed")),
        _PYZMQ,
    ),
    Target(
        "typed, 3 fields, callback",
        2.0,
        "pyzmq with msgspec",
        (Point("antiphon", "typed"),),
        Point("pyzmq", "typed"),
    ),
    Target(
        f"{BASE_SIZE} B full duplex, callback, both directions",
        4.0,
        "pyzmq one way",
        (Point("antiphon", "callback", "duplex"),),
        _PYZMQ,
    ),
    Target(
        "4 KiB one way, bytes",
        0.8,
        "raw C stream",
        (Point("antiphon", "callback", size=4096),),
        Point("raw-tcp", "stream", size=4096),
    ),
    Target(
        f"{BASE_SIZE} B one way over TLS, send to callback",
        0.7,
        "plain callback",
        (Point("antiphon", "tls"),),
        Point("antiphon", "callback"),
    ),
    Target(
        "4 KiB one way over TLS, send to callback",
        0.4,
        "plain callback",
        (Point("antiphon", "tls", size=4096),),
        Point("antiphon", "callback", size=4096),
    ),
    Target(
        f"{BASE_SIZE} B all to all, 8 processes in total",
        0.8,
        "2 processes",
        (Point("antiphon", "callback", "n-n", processes=8),),
        Point("antiphon", "callback", "n-n", processes=2),
    ),
)


def evaluate(rows: Iterable[Row], targets: Iterable[Target] = REACH) -> list[Reach]:
    """Every target beside the ratio of this run. It states; it does not judge."""
    by_point = {row.point: row for row in rows}
    reached = []
    for target in targets:
        base = _best_base(target, by_point)
        candidates = [by_point[point] for point in target.points if point in by_point]
        best = max(candidates, key=lambda row: row.median or 0.0, default=None)
        figure = target.figure
        measured = ratio(
            best.figure(figure) if best else None, base.figure(figure) if base else None
        )
        reached.append(
            Reach(
                target.measure,
                target.text(),
                measured,
                _note(measured, best, base, target),
            )
        )
    return reached


def _best_base(target: Target, by_point: Mapping[Point, Row]) -> Row | None:
    """The base that is hardest to reach; the first one when none was measured."""
    rows = [by_point[point] for point in target.bases if point in by_point]
    figures = [(value, row) for row in rows if (value := row.figure(target.figure)) is not None]
    if not figures:
        return rows[0] if rows else None
    choose = max if target.figure == "rate" else min
    return choose(figures, key=lambda item: item[0])[1]


def _note(measured: float | None, best: Row | None, base: Row | None, target: Target) -> str:
    if measured is None:
        if best is None or base is None:
            return "not part of this run"
        return next((row.reason for row in (best, base) if row.median is None), "not measured")
    notes = [f"with {best.point.variant}"] if best is not None and len(target.points) > 1 else []
    if base is not None and len(target.bases) > 1:
        notes.append(f"best: {base.point.system}")
    notes += [f"{row.point.system} {row.reason}" for row in (best, base) if row and row.reason]
    return "; ".join(notes)

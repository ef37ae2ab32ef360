"""What scenes that measure share: runs that show as they end, and bars beside the ratio to pyzmq.

The harness is that of ``antiphon bench``: real processes, systems that take turns, backwards in
every second round. A scene says which points, and how to name them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from antiphon.cli.acts.stage import ActFailed, Stage
from antiphon.lab.bench.plan import Group, Point
from antiphon.lab.bench.point import Measurement, Options, measure
from antiphon.lab.bench.run import Measure, run_plan
from antiphon.lab.bench.summary import Row, ratio, summarise

__all__ = ["Figure", "bars", "compare", "measure_aloud", "to_base"]

# With the widest figures a table then fits 80 columns.
BAR = 28


@dataclass(frozen=True, slots=True)
class Figure:
    """The one figure of a run that a table is about, by its name in `Row.figure`.

    ``unit`` heads its column, ``live`` follows it on the line of a single run; ``note`` stands
    above the bars.
    """

    name: str
    unit: str
    live: str
    text: Callable[[float], str]
    ratio_text: Callable[[float], str] = "{:.1f}".format
    note: str = ""

    def of_run(self, measurement: Measurement) -> float | None:
        """The figure of one run, or None when it has none."""
        if not measurement.measured:
            return None
        if self.name == "rate":
            return measurement.rate
        value: float | None = getattr(measurement.latency, self.name, None)
        return value


def compare(
    stage: Stage,
    group: Group,
    figure: Figure,
    name: Callable[[Point], str],
    rounds: int,
    options: Options,
    measure_point: Measure = measure,
) -> list[Row]:
    """Measure the group, show every run and the table. Raises `ActFailed` when ours broke."""
    rows = measure_aloud(stage, group, figure, name, rounds, options, measure_point)
    stage.say("")
    stage.show(bars(rows, group.title, figure, name, stage.block))
    if broken := [row for row in rows if row.point.system == "antiphon" and row.outcome != "ok"]:
        raise ActFailed(f"{name(broken[0].point)}: {broken[0].outcome}, {broken[0].reason}")
    return rows


def measure_aloud(
    stage: Stage,
    group: Group,
    figure: Figure,
    name: Callable[[Point], str],
    rounds: int,
    options: Options,
    measure_point: Measure = measure,
) -> list[Row]:
    """A row per point, and a line on the stage for every run as it ends."""
    running = contextlib.ExitStack()

    def begin(point: Point, repeat: int) -> None:
        running.enter_context(stage.now(f"round {repeat + 1}: {name(point)}"))

    def end(measurement: Measurement) -> None:
        running.close()
        stage.say(_line(measurement, figure, name))

    with running:
        measurements = run_plan([group], rounds, options, begin, end, measure_point)
    return summarise([group], measurements)


def _line(measurement: Measurement, figure: Figure, name: Callable[[Point], str]) -> str:
    head = f"  round {measurement.repeat + 1}  {name(measurement.point):<20}"
    value = figure.of_run(measurement)
    if value is None:
        return f"{head} {measurement.outcome}: {measurement.reason}"
    return f"{head} {figure.text(value):>8} {figure.live}"


def to_base(rows: Sequence[Row], row: Row, figure: Figure) -> float | None:
    """The figure of a row over that of pyzmq, or None when one of them is missing."""
    base = next((other for other in rows if other.point.system == "pyzmq"), None)
    return ratio(row.figure(figure.name), base.figure(figure.name) if base else None)


def bars(
    rows: Sequence[Row], title: str, figure: Figure, name: Callable[[Point], str], block: str
) -> Table:
    """A line per row: the median, its ratio to pyzmq, and a bar."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, no_wrap=True)
    table.add_column(figure.unit, justify="right", no_wrap=True)
    table.add_column("x pyzmq", justify="right", no_wrap=True, style="bold")
    table.add_column(figure.note, no_wrap=True)
    most = max((row.figure(figure.name) or 0.0 for row in rows), default=0.0)
    for row in rows:
        value = row.figure(figure.name) or 0.0
        times = to_base(rows, row, figure)
        table.add_row(
            name(row.point),
            figure.text(value) if value else "-",
            "" if times is None else figure.ratio_text(times),
            block * max(1, round(BAR * value / most)) if value else row.outcome,
            style="cyan" if row.point.system == "antiphon" else "",
        )
    return table

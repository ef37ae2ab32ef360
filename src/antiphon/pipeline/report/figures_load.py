"""What is left under load: the part kept, and how evenly it came."""

from __future__ import annotations

from typing import Any

from antiphon.pipeline.report.data import Row, Tables
from antiphon.pipeline.report.divide import divided, grid_of, is_link, labels, series_of
from antiphon.pipeline.report.draw import Bar, amount_axis, bar_height, bars, mark, rule
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.papers import Papers
from antiphon.pipeline.report.shape import Absent, Facet, Figure, escaped, thinned
from antiphon.pipeline.report.story import Story
from antiphon.pipeline.report.units import share, span

__all__ = ["degradation", "evenness"]

MAX_BARS = 60
_STABILITY = "The plan stability gives it: antiphon lab run stability."


def degradation(tables: Tables, looks: Looks, papers: Papers, story: Story) -> Figure | Absent:
    """Bars of the part kept, as figures 6 and 9 of "Throughput stability"."""
    key, title = "degradation", "How much is left under load?"
    rows = [row for row in tables.rows("degradation") if _loaded(row)]
    if not rows:
        return Absent(key, title, _STABILITY)
    notes: list[str] = []
    dimensions, parts = divided(rows, [], notes)
    facets = []
    for part in parts:
        label = labels(part.rows)
        held = sorted(part.rows, key=lambda row: row["kept"])
        if len(held) > MAX_BARS:
            notes.append(f"{MAX_BARS} of {len(held):,} bars are drawn in one view.")
            held = held[: MAX_BARS // 2] + held[-MAX_BARS // 2 :]
        shown = [
            Bar(
                label(row),
                100 * row["kept"],
                kept_text(row),
                looks.bar(row),
                None
                if row["kept_low"] is None
                else (100 * row["kept_low"], 100 * row["kept_high"]),
                share(row["kept"]),
            )
            for row in held
        ]
        theirs = [
            mark(paper, label(row), 100 * kept)
            for row in held
            for paper, kept in papers.points(key, "degradation", row)
        ]
        axis = {"title": {"text": "% of its unloaded throughput"}, "rangemode": "tozero"}
        layout: dict[str, Any] = {"xaxis": axis, "yaxis": {"automargin": True}}
        layout |= rule("x", 100.0, "as without load")
        facets.append(
            Facet(part.at, part.says, [*bars(shown, 100.0), *theirs], layout, bar_height(len(held)))
        )
    reading = (
        "The part of its own unloaded throughput that each protocol keeps beside competing work. "
        "Thin lines are 95 % intervals over repeats; a run that was not repeated has none."
    )
    columns = [
        "kept", "kept_low", "kept_high", "bytes_per_second", "baseline_bytes_per_second",
        "repeats", "baseline_repeats",
    ]  # fmt: skip
    made = Figure(key, title, reading, facets, grid_of(rows, columns), dimensions, notes)
    # Whoever keeps to a timetable keeps all of it: a view of those would belie the answer above.
    made.start = story.view([part.rows for part in parts])
    return made


def evenness(tables: Tables, looks: Looks) -> Figure | Absent:
    """Cumulative curves of bandwidth by second, as figures 4, 7 and 10 of the same paper."""
    key, title = "ecdf", "How even is it, second by second?"
    rows = [
        row
        for row in tables.rows("bandwidth_ecdf")
        if row["bytes_per_second"] is not None and not is_link(row) and row["rate"] is None
    ]
    if not rows:
        return Absent(key, title, _STABILITY)
    notes: list[str] = []
    dimensions, parts = divided(rows, [], notes)
    facets, cut = [], False
    for part in parts:
        factor, axis = amount_axis(
            "payload in one second", max(row["bytes_per_second"] for row in part.rows), "B/s"
        )
        traces = []
        for name, held in series_of(part.rows, notes):
            points = sorted(held, key=lambda row: row["bytes_per_second"])
            kept = thinned(points, 200)
            cut = cut or len(kept) < len(points)
            style = looks.line(held[0])
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": escaped(name),
                    "line": {**style["line"], "shape": "hv"},
                    # A curve begins at nothing.
                    "x": [row["bytes_per_second"] / factor for row in (kept[0], *kept)],
                    "y": [0.0, *(100 * row["cumulative"] for row in kept)],
                    "hovertemplate": "<b>%{fullData.name}</b><br>%{y:.0f} % of the seconds had "
                    "%{x:.3g} or less<extra></extra>",
                }
            )
        vertical = {"title": {"text": "% of seconds"}, "range": [0, 102]}
        layout = {"xaxis": axis, "yaxis": vertical}
        facets.append(Facet(part.at, part.says, traces, layout))
    if cut:
        notes.append("Curves are thinned to 200 points each.")
    reading = (
        "Each curve adds up the seconds of a protocol's runs, from the slowest to the fastest. "
        "Upright is steady. A long slope or a staircase is not, and a curve that starts at the "
        "left edge stood still for some seconds."
    )
    stability = [row for row in tables.rows("stability") if not is_link(row)]
    columns = [
        "seconds", "bytes_per_second_median", "variation", "longest_stall_seconds",
        "part_below_half", "repeats",
    ]  # fmt: skip
    grid = grid_of(stability, columns) if stability else grid_of(rows, ["bytes_per_second"])
    return Figure(key, title, reading, facets, grid, dimensions, notes)


def kept_text(row: Row) -> str:
    """ "62 %", and the interval where there is one."""
    if row["kept_low"] is None or row["kept_high"] is None:
        return share(row["kept"])
    return f"{share(row['kept'])} ({span(row['kept_low'], row['kept_high'])})"


def _loaded(row: Row) -> bool:
    return row["kept"] is not None and row["workload"] != "none" and not is_link(row)

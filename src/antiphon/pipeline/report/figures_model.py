"""What a model says beside what was measured, and how evenly messages are spaced."""

from __future__ import annotations

import itertools
import math
from typing import Any

from antiphon.pipeline.report.data import Row, Tables
from antiphon.pipeline.report.divide import Part, divided, grid_of, labels, series_of
from antiphon.pipeline.report.draw import time_axis
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.shape import Absent, Facet, Figure, escaped, thinned
from antiphon.pipeline.report.units import plural, rate, share, took

__all__ = ["jitter", "predicted"]

_DELAYS = {
    "mean": ("estimate_us", "measured_mean_us"),
    "99th percentile": ("estimate_p99_us", "measured_p99_us"),
}
_MEASURES = {
    "standard deviation": ("in_stddev_us", "out_stddev_us"),
    "RFC 3550": ("in_rfc3550_us", "out_rfc3550_us"),
}


def predicted(tables: Tables, looks: Looks) -> Figure | Absent:
    """Each topic as a queue: its estimated delay against the measured one, with Tempo's model."""
    key, title = "predicted", "Can the delay be told beforehand?"
    rows = [
        row
        for row in tables.rows("queueing")
        if row["estimate_us"] is not None and row["measured_mean_us"] is not None
    ]
    if not rows:
        return Absent(
            key,
            title,
            "Topics with a share that record their queue give it: antiphon lab run real-time.",
        )
    notes: list[str] = []
    every, rows = rows, [row for row in rows if math.isfinite(row["estimate_us"])]
    if len(rows) < len(every):
        notes.append(
            f"{len(every) - len(rows):,} of {plural(len(every), 'topic')} got more than their "
            "share can serve: no delay can be estimated, and they are only in the table."
        )
    if not rows:
        return Absent(key, title, "No topic was stable: lower rates, or larger shares.")
    dimensions, parts = divided(rows, ["rate", "senders", "variant", "scheduling", "paced"], notes)
    facets = []
    for part, (name, columns) in itertools.product(parts, _DELAYS.items()):
        known = [row for row in part.rows if all(row[column] is not None for column in columns)]
        if known:
            facets.append(_against(part, name, known, looks, notes))
    reading = (
        "Every mark is a topic. On the dashed line the model was right; above it the delay was "
        "longer than estimated. Open marks are queues that were not stable, for which no estimate "
        "holds. The 99th percentile is estimated as if delays were spread exponentially about "
        "their mean."
    )
    shown = [
        "topic", "utilisation", "arrival_rate", "service_rate", "estimate_us", "estimate_p99_us",
        "bound_us", "measured_mean_us", "measured_p99_us", "little_us", "relative_error",
        "relative_error_p99", "stable", "conformant", "basis", "repeats",
    ]  # fmt: skip
    if any(row["little_us"] is not None for row in every):
        notes.append(
            "In the table “little us” is the response by Little's law, from the queue that "
            "arriving events found. It holds where they come at random; a stream by a timetable "
            "or in bursts sees another queue than there is on average."
        )
    grid = grid_of(every, shown)
    return Figure(key, title, reading, facets, grid, ("delay", *dimensions), notes)


def _against(part: Part, name: str, rows: list[Row], looks: Looks, notes: list[str]) -> Facet:
    """The measured over the estimated delay of each topic."""
    estimate, measured = _DELAYS[name]
    ends = [row[column] for row in rows for column in (estimate, measured)]
    low, high = max(0.1, min(ends) / 2), max(max(ends) * 2, 1.0)
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "estimate = measured",
            "x": [low, high],
            "y": [low, high],
            "line": {"color": "@muted", "width": 1.5, "dash": "dash"},
            "hoverinfo": "skip",
        }
    ]
    for label, held in series_of(rows, notes):
        points = thinned(held)
        style = looks.line(held[0])
        # Open marks: the model does not hold for a queue that only grows.
        symbols = [style["marker"]["symbol"] + ("" if row["stable"] else "-open") for row in points]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escaped(label),
                "x": [max(row[estimate], 0.1) for row in points],
                "y": [max(row[measured], 0.1) for row in points],
                "marker": {**style["marker"], "size": 9, "symbol": symbols},
                "text": [_topic(row, estimate, measured) for row in points],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    layout = {
        "xaxis": time_axis(f"estimated {name}", (low, high)),
        "yaxis": time_axis(f"measured {name}", (low, high)),
    }
    return Facet((name, *part.at), part.says, traces, layout, 460)


def _topic(row: Row, estimate: str, measured: str) -> str:
    words = [
        f"<b>{escaped(str(row['topic'] or row['protocol']))}</b>",
        f"estimated {took(row[estimate])}, measured {took(row[measured])}",
    ]
    if row["utilisation"] is not None:
        words.append(f"in use {share(row['utilisation'])}")
    if row["rate"] is not None:
        words.append(f"at {rate(row['rate'])}")
    return "<br>".join(words)


def jitter(tables: Tables, looks: Looks) -> Figure | Absent:
    """Before and after, as figures 9 to 13 of NaradaBrokering."""
    key, title = "jitter", "How evenly are messages spaced?"
    rows = [
        row
        for row in tables.rows("jitter")
        if row["in_stddev_us"] is not None or row["out_stddev_us"] is not None
    ]
    rows = [row for row in rows if row["rate"] is not None and row["stage"] != "round-trip"]
    if not rows:
        return Absent(key, title, "Paced runs give it: antiphon lab run real-time.")
    notes: list[str] = []
    dimensions, parts = divided(rows, [], notes, ["stage"])
    facets = []
    for part in parts:
        label = labels(part.rows)
        for name, (before, after) in _MEASURES.items():
            held = [row for row in part.rows if row[before] is not None or row[after] is not None]
            if not held:
                continue
            names = [escaped(label(row)) for row in held]
            traces = []
            for column, said, mark in (
                (before, "as sent", "circle-open"),
                (after, "as delivered", "circle"),
            ):
                traces += _dots(names, [row[column] for row in held], said, mark, held, looks)
            values = [row[column] for row in held for column in (before, after)]
            layout = {
                "xaxis": {**time_axis(f"jitter, {name}", values), "showgrid": True},
                "yaxis": {"automargin": True, "type": "category", "autorange": "reversed"},
            }
            height = 130 + 30 * max(len(held), 2)
            facets.append(Facet((name, *part.at), part.says, traces, layout, height))
    if not facets:
        return Absent(key, title, "Paced runs give it: antiphon lab run real-time.")
    reading = (
        "How far the gaps between messages are from what they should be: open as they were sent, "
        "filled as they were delivered. What lies between the two is added, or taken away, on the "
        "way."
    )
    columns = [
        "stage", "in_stddev_us", "out_stddev_us", "in_rfc3550_us", "out_rfc3550_us", "count",
        "repeats",
    ]  # fmt: skip
    grid = grid_of(rows, columns)
    return Figure(key, title, reading, facets, grid, ("measure", *dimensions), notes)


def _dots(
    names: list[str],
    values: list[float | None],
    said: str,
    mark: str,
    rows: list[Row],
    looks: Looks,
) -> list[dict[str, Any]]:
    """The dots, and one without a colour for the legend."""
    dots = {
        "type": "scatter",
        "mode": "markers",
        "orientation": "h",
        "name": said,
        "y": names,
        "x": [None if value is None else max(value, 0.1) for value in values],
        "marker": {
            "symbol": mark,
            "size": 12,
            "color": [looks.colour(row) for row in rows],
            "line": {"width": 2.5 if mark.endswith("open") else 0},
        },
        "text": [f"{said}: {took(value)}" for value in values],
        "hovertemplate": "<b>%{y}</b><br>%{text}<extra></extra>",
        "showlegend": False,
    }
    legend = {
        "type": "scatter",
        "mode": "markers",
        "name": said,
        "x": [None],
        "y": [names[0]],
        "marker": {"symbol": mark, "size": 12, "color": "@muted"},
    }
    return [dots, legend]

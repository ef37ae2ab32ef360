"""How late: by rate, as a distribution, and there and back beside the ping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from antiphon.pipeline.report.data import Row, Tables, in_order
from antiphon.pipeline.report.divide import divided, grid_of, is_link, series_of
from antiphon.pipeline.report.draw import count_axis, line, paper_line, time_axis
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.papers import Papers
from antiphon.pipeline.report.shape import Absent, Facet, Figure, escaped
from antiphon.pipeline.report.units import key_text, plural, rate, took
from antiphon.pipeline.schemas import KEYS

__all__ = ["by_rate", "distribution", "is_sample", "round_trip", "whole_topics"]

STATISTICS = {
    "mean": "mean_us",
    "median": "p50_us",
    "95th": "p95_us",
    "99th": "p99_us",
    "99.9th": "p999_us",
    "maximum": "max_us",
}
EVERY_ONE = 1.01
PER_DECADE = 20
"""Buckets of the distribution between one power of ten and the next."""

_COLUMNS = [
    "stage", "topic", "count", "mean_us", "stddev_us", "min_us", "p50_us", "p75_us", "p90_us",
    "p95_us", "p99_us", "p999_us", "p9999_us", "max_us", "sampled_one_in", "repeats",
]  # fmt: skip


def by_rate(tables: Tables, looks: Looks, papers: Papers) -> Figure | Absent:
    """Delay against rate, as figure 4 of Tempo."""
    key, title = "delay-by-rate", "How late, at which rate?"
    rows = [
        row
        for row in whole_topics(tables.rows("latency"))
        if row["rate"] is not None and row["stage"] != "round-trip" and not is_link(row)
    ]
    if not rows:
        return Absent(key, title, "Paced runs give it: antiphon lab run real-time, or shootout.")
    notes: list[str] = []
    dimensions, parts = divided(rows, ["rate"], notes, ["stage"])
    facets = []
    for part in parts:
        for name, column in STATISTICS.items():
            traces = _rate_lines(part.rows, column, looks, notes)
            traces += [paper_line(*one) for one in papers.curves(key, name)]
            layout = {
                "xaxis": count_axis("messages a second from each publisher", _places(traces)),
                "yaxis": time_axis(f"delay, {name}", _heights(traces)),
            }
            facets.append(Facet((name, *part.at), part.says, traces, layout))
    reading = (
        "From the moment a message was due to the moment it was delivered, so that a sender that "
        "falls behind does not hide it. Where a line turns up, the protocol no longer keeps pace."
    )
    if any(is_sample(row) for row in rows):
        notes.append("Some runs recorded a sample: their tails are those of the sample.")
    grid = grid_of(rows, _COLUMNS)
    return Figure(key, title, reading, facets, grid, ("statistic", *dimensions), notes)


def _rate_lines(
    rows: Sequence[Row], column: str, looks: Looks, notes: list[str]
) -> list[dict[str, Any]]:
    traces = []
    for name, held in series_of(rows, notes):
        points = sorted(
            (row for row in held if row[column] is not None), key=lambda row: row["rate"]
        )
        traces.append(
            line(
                name,
                looks.line(held[0]),
                [row["rate"] for row in points],
                [_drawn(row[column]) for row in points],
                [f"{rate(row['rate'])}: {took(row[column])}" for row in points],
            )
        )
    return traces


def distribution(tables: Tables, looks: Looks) -> Figure | Absent:
    """How many messages took how long, both by powers of ten, as figure 5 of Tempo."""
    key, title = "distribution", "How are the delays spread?"
    counts = _bucketed(tables)
    rows = [row for row in counts if not is_link(row)]
    if not rows:
        return Absent(key, title, "Every plan records delays: antiphon lab run stability.")
    notes: list[str] = []
    dimensions, parts = divided(rows, [], notes, ["stage"])
    facets = []
    for part in parts:
        traces = []
        for name, held in series_of(part.rows, notes):
            points = sorted(held, key=lambda row: row["bucket"])
            style = looks.line(held[0])
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": escaped(name),
                    "line": {**style["line"], "shape": "hvh"},
                    "x": [_middle(row["bucket"]) for row in points],
                    "y": [row["count"] for row in points],
                    "text": [
                        f"about {took(_middle(row['bucket']))}: {plural(row['count'], 'message')}"
                        for row in points
                    ],
                    "hovertemplate": "<b>%{fullData.name}</b><br>%{text}<extra></extra>",
                }
            )
        layout = {
            "xaxis": time_axis("delay", (_middle(row["bucket"]) for row in part.rows)),
            "yaxis": {
                "title": {"text": "messages"},
                "type": "log",
                "dtick": 1,
                "tickformat": "~s",
            },
        }
        facets.append(Facet(part.at, part.says, traces, layout))
    notes.append(f"Drawn in {PER_DECADE} steps from one power of ten to the next.")
    reading = (
        "How many messages took how long. Both axes go by powers of ten, so that a handful of "
        "late messages can be seen beside millions that were not: the right end is what the "
        "slowest user notices."
    )
    tails = [row for row in whole_topics(tables.rows("latency")) if not is_link(row)]
    grid = grid_of(tails, _COLUMNS) if tails else grid_of(rows, ["bucket", "count"])
    return Figure(key, title, reading, facets, grid, dimensions, notes)


def _bucketed(tables: Tables) -> list[Row]:
    """Counts by measurement and bucket: summed by PyArrow, as there may be millions of rows."""
    by = [*KEYS, "stage"]
    table = _of_the_rate(tables.arrow("latency_counts", [*by, "topic", "latency_us", "count"]))
    if not table.num_rows:
        return []
    # What took less than a microsecond is drawn at the left edge.
    micros = pc.max_element_wise(table["latency_us"], 1)
    bucket = pc.cast(pc.floor(pc.multiply(pc.log10(micros), float(PER_DECADE))), pa.int32())
    table = table.append_column("bucket", bucket)
    summed = table.group_by([*by, "bucket"]).aggregate([("count", "sum")])
    rows: list[Row] = summed.rename_columns([*by, "bucket", "count"]).to_pylist()
    return sorted(rows, key=in_order)


def _middle(bucket: int) -> float:
    return float(10 ** ((bucket + 0.5) / PER_DECADE))


def round_trip(tables: Tables, looks: Looks, papers: Papers) -> Figure | Absent:
    """There and back by nodes and threads beside the ping, as figure 8 of EthDXNet."""
    key, title = "round-trip", "How long is a round trip?"
    every = [row for row in whole_topics(tables.rows("latency")) if row["stage"] == "round-trip"]
    rows = [row for row in every if not is_link(row)]
    pings = [row for row in every if row["protocol"] == "link-ping"]
    if not rows:
        return Absent(key, title, "The plan all-to-all gives it: antiphon lab run all-to-all.")
    notes: list[str] = []
    dimensions, parts = divided(rows, ["nodes", "threads"], notes)
    shown = {name: STATISTICS[name] for name in ("mean", "median", "99th", "maximum")}
    facets = []
    for part in parts:
        for name, column in shown.items():
            traces = []
            for shift, (label, held) in enumerate(series_of(part.rows, notes, ["threads"])):
                points = sorted(held, key=lambda row: row["nodes"] or 2)
                traces.append(
                    line(
                        label,
                        looks.line(held[0], shift),
                        [row["nodes"] or 2 for row in points],
                        [_drawn(row[column]) for row in points],
                        [
                            f"{key_text('nodes', row['nodes'] or 2)}: {took(row[column])}"
                            for row in points
                        ],
                    )
                )
            traces += [paper_line(*one) for one in papers.curves(key, name)]
            nodes = _places(traces)
            traces += _ping_lines(pings, part.rows, column, looks)
            layout = {
                "xaxis": count_axis("nodes", nodes),
                "yaxis": time_axis(f"request and answer, {name}", _heights(traces)),
            }
            facets.append(Facet((name, *part.at), part.says, traces, layout))
    reading = (
        "A request and its answer, from one application thread or many on every node. The dashed "
        "level is a ping over the same link, which has no protocol above it."
    )
    grid = grid_of([*rows, *pings], _COLUMNS)
    return Figure(key, title, reading, facets, grid, ("statistic", *dimensions), notes)


def _ping_lines(
    pings: Sequence[Row], rows: Sequence[Row], column: str, looks: Looks
) -> list[dict[str, Any]]:
    links = {(row["campaign"], row["link"]) for row in rows}
    nodes = sorted({row["nodes"] or 2 for row in rows})
    traces = []
    for ping in pings:
        if (ping["campaign"], ping["link"]) not in links or ping[column] is None:
            continue
        style = looks.line(ping)
        style["line"] = {"color": "@muted", "width": 2, "dash": "dash"}
        style["marker"] = {"color": "@muted", "size": 6, "symbol": "line-ew-open"}
        ends = nodes if len(nodes) > 1 else [nodes[0] * 0.9, nodes[0] * 1.1]
        hover = [f"ping: {took(ping[column])}"] * len(ends)
        name = "ping" if len(links) == 1 else f"ping, {ping['link']}"
        traces.append(line(name, style, ends, [_drawn(ping[column])] * len(ends), hover))
    return traces


def is_sample(row: Row) -> bool:
    """Whether not all messages were timed.

    Messages are counted from one look to another and timed by when they were due: a few of those at
    the ends of a window are in only one of the two.
    """
    return (row["sampled_one_in"] or 1.0) > EVERY_ONE


def whole_topics(rows: Sequence[Row]) -> list[Row]:
    """Of measurements by topic, the topic with the longest mean: an average would hide it.

    Where only some of the senders keep the rate, theirs: the others send as fast as they can, and
    a queue that they fill themselves says nothing about that rate.
    """
    worst: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["mean_us"] is None or not _keeps_rate(row):
            continue
        at = (*(row[key] for key in KEYS), row["stage"])
        if at not in worst or row["mean_us"] > worst[at]["mean_us"]:
            worst[at] = row
    return list(worst.values())


def _keeps_rate(row: Row) -> bool:
    """Whether a topic is of a sender that keeps the rate. Topics of the lab end in the number of
    their sender, and those that keep it come first; in one-way the reader has number 0."""
    sender = (row["topic"] or "").rpartition("/")[2]
    if row["paced"] is None or not sender.isdecimal():
        return True
    return bool(int(sender) < row["paced"] + (row["pattern"] == "one-way"))


def _of_the_rate(table: pa.Table) -> pa.Table:
    """The same for a table of PyArrow: without the topics of senders that keep no rate."""
    told = ["paced", "pattern", "topic"]
    kinds: list[Row] = table.select(told).group_by(told).aggregate([]).to_pylist()
    for kind in kinds:
        if not _keeps_rate(kind):
            same = [pc.equal(table[name], kind[name]) for name in told]
            which = pc.and_(pc.and_(same[0], same[1]), same[2])
            table = table.filter(pc.invert(pc.fill_null(which, False)))
    return table


def _heights(traces: Sequence[dict[str, Any]]) -> list[float | None]:
    return [value for trace in traces for value in trace["y"]]


def _places(traces: Sequence[dict[str, Any]]) -> list[float]:
    """Where on the lying axis anything is drawn, ours or a paper's."""
    return [value for trace in traces for value in trace["x"]]


def _drawn(us: float | None) -> float | None:
    """An axis of powers has no zero: less than a microsecond is drawn as half of one."""
    return None if us is None or math.isnan(us) else max(float(us), 0.5)

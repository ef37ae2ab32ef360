"""How fast, at what cost: bandwidth and processor, without load and with."""

from __future__ import annotations

from typing import Any

from antiphon.pipeline.report.data import Row, Tables
from antiphon.pipeline.report.divide import divided, grid_of, is_link, labels, series_of
from antiphon.pipeline.report.draw import Bar, amount_axis, bar_height, bars, count_axis, line, rule
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.shape import Absent, Facet, Figure
from antiphon.pipeline.report.units import plural, rate, speed

__all__ = ["bandwidth", "processor", "publishers"]

MAX_BARS = 60


def bandwidth(tables: Tables, looks: Looks) -> Figure | Absent:
    """Bars of bytes per second, as figures 2, 5 and 8 of "Throughput stability"."""
    key, title = "bandwidth", "How many bytes a second?"
    every = [row for row in tables.rows("throughput") if row["bytes_per_second_mean"] is not None]
    # One of many nodes, or of many streams, has a figure of its own.
    apart = {(row["campaign"], row["series"]) for row in every if (row["streams"] or 1) > 1}
    rows = [
        row
        for row in every
        if not is_link(row)
        and _two(row)
        and row["rate"] is None
        and (row["campaign"], row["series"]) not in apart
    ]
    if not rows:
        return Absent(key, title, "Unpaced runs give it: antiphon lab run stability, or shootout.")
    links = {
        (row["campaign"], row["link"]): row["bytes_per_second_mean"]
        for row in every
        if row["protocol"] == "link-tcp"
    }
    notes: list[str] = []
    dimensions, parts = divided(rows, ["nodes"], notes)
    facets = []
    for part in parts:
        label = labels(part.rows)
        held = sorted(part.rows, key=lambda row: row["bytes_per_second_mean"])
        held = _most(held, notes)
        most = max(row["bytes_per_second_mean"] for row in held)
        factor, axis = amount_axis("payload delivered", most, "B/s")
        shown = [
            Bar(
                label(row),
                row["bytes_per_second_mean"] / factor,
                speed(row["bytes_per_second_mean"]),
                looks.bar(row),
                _range(row, "bytes_per_second", factor),
            )
            for row in held
        ]
        bare = [
            links[at] for at in {(row["campaign"], row["link"]) for row in held} if links.get(at)
        ]
        layout: dict[str, Any] = {"xaxis": axis, "yaxis": {"automargin": True}}
        limit = bare.pop() / factor if len(bare) == 1 else 0.0
        if limit:
            layout |= rule("x", limit, "bare link (TCP)")
        height = bar_height(len(held))
        facets.append(Facet(part.at, part.says, bars(shown, limit), layout, height))
    columns = [
        "repeats",
        *(f"bytes_per_second_{what}" for what in ("mean", "min", "max", "stddev")),
        "messages_per_second_mean",
        "cpu_ns_per_message",
        "wire_bytes_per_message",
        "ip_bytes_per_message",
    ]
    reading = (
        "Payload that reached the reader in the kept part of a run, mean over repeats; the thin "
        "lines go from the worst repeat to the best. Other sizes, links and workloads are a click "
        "away."
    )
    return Figure(key, title, reading, facets, grid_of(rows, columns), dimensions, notes)


def processor(tables: Tables, looks: Looks) -> Figure | Absent:
    """Bars of processor time by role, as figure 3 of "Throughput stability"."""
    key, title = "cpu", "What does it cost the processor?"
    rows = [
        row
        for row in tables.rows("cpu")
        if row["cores_mean"] is not None and not is_link(row) and row["rate"] is None and _two(row)
    ]
    if not rows:
        return Absent(key, title, "Unpaced runs give it: antiphon lab run stability, or shootout.")
    notes: list[str] = []
    dimensions, parts = divided(rows, ["nodes"], notes, ["role"])
    facets = []
    for part in sorted(parts, key=lambda part: _role_first(part.rows[0]["role"])):
        label = labels(part.rows)
        held = _most(sorted(part.rows, key=lambda row: row["cores_mean"]), notes)
        shown = [
            Bar(
                label(row),
                row["cores_mean"],
                f"{row['cores_mean']:.2f}",
                looks.bar(row),
                _range(row, "cores", 1.0),
            )
            for row in held
        ]
        axis = {"title": {"text": "cores kept busy"}, "rangemode": "tozero"}
        layout = {"xaxis": axis, "yaxis": {"automargin": True}}
        facets.append(Facet(part.at, part.says, bars(shown), layout, bar_height(len(held))))
    reading = (
        "Cores that each side of a run kept busy. A writer at 1.00 fills one core, and that may "
        "be its limit rather than the link. “machine” is all that ran, the competing work included."
    )
    columns = ["role", "repeats", *(f"cores_{what}" for what in ("mean", "min", "max", "stddev"))]
    return Figure(key, title, reading, facets, grid_of(rows, columns), dimensions, notes)


def publishers(tables: Tables, looks: Looks) -> Figure | Absent:
    """All publishers together, by their number, as figure 6 of Tempo."""
    key, title = "publishers", "Do more publishers deliver more?"
    rows = [
        row
        for row in tables.rows("throughput")
        if row["rate"] is not None
        and row["pattern"] == "one-way"
        and row["messages_per_second_mean"] is not None
        and row["messages"] is None
        and row["paced"] is None
    ]
    counts = {(row["protocol"], row["campaign"], row["senders"]) for row in rows}
    scaled = {one[:2] for one in counts if (one[2] or 1) > 1}
    rows = [row for row in rows if (row["protocol"], row["campaign"]) in scaled]
    if not rows:
        return Absent(key, title, "The plan real-time gives it: antiphon lab run real-time.")
    notes: list[str] = []
    dimensions, parts = divided(rows, ["senders", "rate"], notes)
    facets = []
    for part in parts:
        most = max(row["messages_per_second_mean"] for row in part.rows)
        factor, axis = amount_axis("messages in all", most, "/s")
        traces = []
        for shift, (name, held) in enumerate(series_of(part.rows, notes, ["rate"])):
            held = sorted(held, key=lambda row: row["senders"] or 1)
            if len(held) < 2 and len(part.rows) > 1:
                continue
            traces.append(
                line(
                    name,
                    looks.line(held[0], shift),
                    [row["senders"] or 1 for row in held],
                    [row["messages_per_second_mean"] / factor for row in held],
                    [
                        f"{plural(row['senders'] or 1, 'publisher')}: "
                        f"{rate(row['messages_per_second_mean'])}"
                        for row in held
                    ],
                )
            )
        senders = [row["senders"] or 1 for row in part.rows]
        layout = {"xaxis": count_axis("publishers", senders), "yaxis": axis}
        if traces:
            facets.append(Facet(part.at, part.says, traces, layout))
    columns = ["repeats", *(f"messages_per_second_{what}" for what in ("mean", "min", "max"))]
    reading = (
        "Each publisher has a topic of its own and tries to send at the rate of its line; one "
        "process takes them all. A line that bends down has been driven past what it can carry."
    )
    return Figure(key, title, reading, facets, grid_of(rows, columns), dimensions, notes)


def _two(row: Row) -> bool:
    return (row["nodes"] or 2) <= 2 and (row["streams"] or 1) <= 1 and row["variant"] != "request"


def _role_first(role: str | None) -> tuple[int, str]:
    order = ("writer", "reader", "server", "machine")
    return (order.index(role) if role in order else len(order), role or "")


def _range(row: Row, name: str, factor: float) -> tuple[float, float] | None:
    if (row["repeats"] or 0) < 2 or row[f"{name}_min"] is None or row[f"{name}_max"] is None:
        return None
    return row[f"{name}_min"] / factor, row[f"{name}_max"] / factor


def _most(rows: list[Row], notes: list[str]) -> list[Row]:
    """The last ones: those with the largest values."""
    if len(rows) > MAX_BARS:
        notes.append(f"The {MAX_BARS} largest of {len(rows):,} bars are drawn in one view.")
    return rows[-MAX_BARS:]

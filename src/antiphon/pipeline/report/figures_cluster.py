"""What happens with more nodes, other stacks and parallel streams."""

from __future__ import annotations

from antiphon.pipeline.report.data import Row, Tables
from antiphon.pipeline.report.divide import divided, grid_of, is_link, series_of
from antiphon.pipeline.report.draw import amount_axis, count_axis, line, paper_line, size_axis
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.papers import Papers
from antiphon.pipeline.report.shape import Absent, Facet, Figure
from antiphon.pipeline.report.units import key_text, rate, share, size, speed

__all__ = ["scaling", "sizing", "slowdown", "streams"]

_GROUPS = "The plans all-to-all and group give it: antiphon lab run all-to-all."
_AMOUNTS = {
    "bytes per node": ("bytes_per_second_node", "payload per node", "B/s", speed),
    "bytes in all": ("bytes_per_second_total", "payload of all nodes", "B/s", speed),
    "messages per node": ("messages_per_second_node", "messages per node", "/s", rate),
    "messages in all": ("messages_per_second_total", "messages of all nodes", "/s", rate),
}


def scaling(tables: Tables, looks: Looks, papers: Papers) -> Figure | Absent:
    """Per node and in all, by nodes and size, as figures 6 and 7 of EthDXNet."""
    key, title = "scaling", "Does it grow with the cluster?"
    rows = _grouped(tables)
    if not rows:
        return Absent(key, title, _GROUPS)
    notes: list[str] = []
    dimensions, parts = divided(rows, ["nodes"], notes)
    facets = []
    for part in parts:
        for name, (column, axis_title, unit, said) in _AMOUNTS.items():
            values = [row[column] for row in part.rows if row[column] is not None]
            if not values:
                continue
            factor, axis = amount_axis(axis_title, max(values), unit)
            traces = [
                line(
                    label,
                    looks.line(held[0]),
                    [row["nodes"] for row in held],
                    [None if row[column] is None else row[column] / factor for row in held],
                    [f"{key_text('nodes', row['nodes'])}: {said(row[column])}" for row in held],
                )
                for label, held in series_of(part.rows, notes)
            ]
            first = part.rows[0]
            for said_of, xs, ys in papers.curves(key, f"{name} {first['pattern']} {first['size']}"):
                traces.append(paper_line(said_of, xs, [value / factor for value in ys]))
            nodes = [at for trace in traces for at in trace["x"]]
            layout = {"xaxis": count_axis("nodes", nodes), "yaxis": axis}
            facets.append(Facet((name, *part.at), part.says, traces, layout))
    columns = [
        "messages_per_second_node", "bytes_per_second_node", "messages_per_second_total",
        "bytes_per_second_total", "slowdown", "smallest_nodes", "repeats",
    ]  # fmt: skip
    reading = (
        "What a node delivers when every node takes part, and what all deliver together. On one "
        "machine all nodes share its cores: a line that falls per node may still rise in all."
    )
    grid = grid_of(rows, columns)
    return Figure(key, title, reading, facets, grid, ("amount", *dimensions), notes)


def slowdown(tables: Tables, looks: Looks, papers: Papers) -> Figure | Absent:
    """Against the smallest group, as table 3 of "JGroups in J2EE clusters"."""
    key, title = "slowdown", "How much slower is a larger group?"
    rows = [row for row in _grouped(tables) if row["slowdown"] is not None]
    several = {(row["protocol"], row["series"]) for row in rows if row["slowdown"] != 1.0}
    rows = [row for row in rows if (row["protocol"], row["series"]) in several]
    if not rows:
        return Absent(key, title, _GROUPS)
    notes: list[str] = []
    dimensions, parts = divided(rows, ["nodes"], notes)
    facets = []
    for part in parts:
        traces = [
            line(
                label,
                looks.line(held[0]),
                [row["nodes"] for row in held],
                [row["slowdown"] for row in held],
                [
                    f"{key_text('nodes', row['nodes'])}: {row['slowdown']:.2f} times slower"
                    for row in held
                ],
            )
            for label, held in series_of(part.rows, notes)
        ]
        first = part.rows[0]
        small = "small" if (first["size"] or 0) < 1000 else "large"
        if small == "small" or (first["size"] or 0) >= 10_000:
            traces += [
                paper_line(*one) for one in papers.curves(key, f"{first['pattern']} {small}")
            ]
        layout = {
            "xaxis": count_axis("nodes", [at for trace in traces for at in trace["x"]]),
            "yaxis": {
                "title": {"text": "times slower than the smallest group"},
                "type": "log",
                "tickvals": [0.5, 1, 2, 5, 10, 20, 50, 100],
            },
        }
        facets.append(Facet(part.at, part.says, traces, layout))
    reading = (
        "Messages per second of a group, against the smallest group of the same protocol. Flat at "
        "1 is a group that costs nothing to enlarge; the dotted lines are those of the paper."
    )
    grid = grid_of(rows, ["smallest_nodes", "slowdown", "messages_per_second_node", "repeats"])
    return Figure(key, title, reading, facets, grid, dimensions, notes)


def streams(tables: Tables, looks: Looks) -> Figure | Absent:
    """Parallel streams by the size of a file, as figures 5 to 7 of NaradaBrokering."""
    key, title = "streams", "Do parallel streams pay?"
    every = [row for row in tables.rows("throughput") if row["bytes_per_second_mean"] is not None]
    measured = {(row["campaign"], row["series"]) for row in every if (row["streams"] or 1) > 1}
    rows = [row for row in every if (row["campaign"], row["series"]) in measured]
    if not rows:
        return Absent(key, title, "The series streams of the plan wide-area is to give it.")
    notes: list[str] = []
    dimensions, parts = divided(rows, ["size", "streams"], notes)
    facets = []
    for part in parts:
        most = max(row["bytes_per_second_mean"] for row in part.rows)
        factor, axis = amount_axis("payload", most, "B/s")
        traces = []
        for shift, (label, held) in enumerate(series_of(part.rows, notes, ["streams"])):
            points = sorted(held, key=lambda row: row["size"])
            traces.append(
                line(
                    label,
                    looks.line(held[0], shift),
                    [row["size"] for row in points],
                    [row["bytes_per_second_mean"] / factor for row in points],
                    [
                        f"{size(row['size'])}: {speed(row['bytes_per_second_mean'])}"
                        for row in points
                    ],
                )
            )
        layout = {"xaxis": size_axis("file", [row["size"] for row in part.rows]), "yaxis": axis}
        facets.append(Facet(part.at, part.says, traces, layout))
    reading = (
        "A file is sent over one connection or over several at once. Where the lines lie apart "
        "more of them pay; where they lie together, or the other way round, they do not."
    )
    columns = ["repeats", *(f"bytes_per_second_{what}" for what in ("mean", "min", "max"))]
    return Figure(key, title, reading, facets, grid_of(rows, columns), dimensions, notes)


def sizing(tables: Tables, looks: Looks) -> Figure | Absent:
    """Requests that a cluster sustains when a part of them are updates: the paper's rule."""
    key, title = "sizing", "How many requests can a cluster serve?"
    rows = [row for row in tables.rows("sizing") if row["requests_per_second_total"] is not None]
    if not rows:
        return Absent(key, title, _GROUPS)
    rows = sorted(rows, key=lambda row: row["nodes"] or 2)
    notes: list[str] = []
    dimensions, parts = divided(rows, ["nodes", "senders"], notes, ["update_share"])
    amounts = {
        "the cluster": ("requests_per_second_total", "requests of the cluster"),
        "each node": ("requests_per_second_node", "requests of each node"),
    }
    facets = []
    for part in parts:
        for name, (column, axis_title) in amounts.items():
            values = [row[column] for row in part.rows if row[column] is not None]
            if not values:
                continue
            factor, axis = amount_axis(axis_title, max(values), "/s")
            traces = [
                line(
                    label,
                    looks.line(held[0]),
                    [row["nodes"] for row in held],
                    [None if row[column] is None else row[column] / factor for row in held],
                    [f"{key_text('nodes', row['nodes'])}: {rate(row[column])}" for row in held],
                )
                for label, held in series_of(part.rows, notes)
            ]
            nodes = [row["nodes"] for row in part.rows]
            layout = {"xaxis": count_axis("nodes", nodes), "yaxis": axis}
            facets.append(Facet((name, *part.at), part.says, traces, layout))
    parts_of = " or ".join(
        dict.fromkeys(share(row["update_share"]) for row in rows if row["update_share"])
    )
    reading = (
        "Reading is served by one node alone, a change has to be told to all. If "
        f"{parts_of} of the requests are changes, the group's messages limit the cluster to this "
        "many requests, whatever else its nodes could do."
    )
    columns = [
        "update_share", "updates_per_second_node", "updates_per_second_total",
        "requests_per_second_node", "requests_per_second_total",
    ]  # fmt: skip
    return Figure(key, title, reading, facets, grid_of(rows, columns), ("of", *dimensions), notes)


def _grouped(tables: Tables) -> list[Row]:
    rows = [
        row
        for row in tables.rows("scaling")
        if not is_link(row) and row["nodes"] is not None and row["variant"] != "request"
    ]
    return sorted(rows, key=lambda row: row["nodes"])

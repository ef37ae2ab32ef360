"""Second by second: memory and processor of the runs."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from antiphon.pipeline.report.data import Row, Tables
from antiphon.pipeline.report.divide import divided, grid_of, is_link, labels
from antiphon.pipeline.report.draw import amount_axis
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.shape import MAX_FACETS, Absent, Facet, Figure, escaped, thinned
from antiphon.pipeline.report.units import si

__all__ = ["timelines"]

_LINES = {
    "memory": ("resident_bytes", "resident memory", "B"),
    "processor": ("cpu_cores", "cores in use", ""),
    "received": ("received_bytes_per_second", "received", "B/s"),
    "threads": ("process_threads", "threads", ""),
}
_ROLES = ("writer", "reader", "node", "server", "machine")
MAX_RUNS = 400


def timelines(tables: Tables, looks: Looks) -> Figure | Absent:
    """Of one run of each measurement, by role, as figure 1 of "Throughput stability"."""
    key, title = "timelines", "What happens during a run?"
    chosen = _runs(tables)
    notes: list[str] = []
    rows = _seconds(tables, chosen)
    if not rows:
        return Absent(key, title, "Every plan records it: antiphon lab run stability.")
    label = labels(rows)
    for row in rows:
        row["who"] = label(row)
    dimensions, parts = divided(rows, [], notes, ["who"])
    facets: list[Facet] = []
    for part in parts:
        for name, (column, axis_title, unit) in _LINES.items():
            facet = _facet(part.rows, column, axis_title, unit)
            if facet is not None:
                facet.at, facet.says = (name, *part.at), part.says
                facets.append(facet)
    facets = _bounded(facets, notes)
    if not facets:
        return Absent(key, title, "Every plan records it: antiphon lab run stability.")
    named = tuple("protocol" if one == "who" else one for one in dimensions)
    notes.append("One repeat of each is drawn; the table resources has all of them.")
    reading = (
        "One run of each measurement, second by second; the shaded part is what was kept. Memory "
        "that only rises, or threads that are added as it goes, will end a longer run."
    )
    columns = ["run", "role", "second", "kept", *(column for column, _, _ in _LINES.values())]
    grid = grid_of(rows, columns)
    return Figure(key, title, reading, facets, grid, ("what", *named), notes)


def _runs(tables: Tables) -> list[Row]:
    """The first repeat of each measurement, those that ended badly first: they tell the most."""
    first: dict[tuple[Any, ...], Row] = {}
    for row in tables.rows("runs"):
        at = tuple(row[key] for key in ("campaign", "run"))
        if is_link(row) or row["outcome"] in ("absent", "not_applicable", "interrupted"):
            continue
        measurement = (*at[:1], *(row[key] for key in _measured()))
        best = first.get(measurement)
        if best is None or (row["repeat"] or 0) < (best["repeat"] or 0):
            first[measurement] = row
    ordered = sorted(first.values(), key=lambda row: row["outcome"] == "complete")
    return ordered[:MAX_RUNS]


def _measured() -> list[str]:
    from antiphon.pipeline.schemas import KEYS

    return [key for key in KEYS if key != "campaign"]


def _seconds(tables: Tables, chosen: list[Row]) -> list[Row]:
    """Rows of these runs, few enough to draw."""
    if not chosen:
        return []
    runs = {(row["campaign"], row["run"]) for row in chosen}
    wanted = pc.field("run").isin(sorted({run for _, run in runs}))
    wanted &= pc.field("campaign").isin(sorted({campaign for campaign, _ in runs}))
    rows = tables.rows("resources", wanted)
    # What is chosen of one campaign may be another repeat in the next, which has its own choice.
    return [row for row in rows if (row["campaign"], row["run"]) in runs]


def _facet(rows: list[Row], column: str, title: str, unit: str) -> Facet | None:
    lines: dict[str, dict[int, float]] = {}
    kept: list[int] = []
    for row in rows:
        value = row[column]
        if row["second"] is None:
            continue
        if row["kept"]:
            kept.append(row["second"])
        # The machine's memory and threads say nothing of the run.
        if value is None or (row["role"] == "machine" and column != "cpu_cores"):
            continue
        # Several hosts of a role are added up.
        seconds = lines.setdefault(row["role"] or "?", {})
        seconds[row["second"]] = seconds.get(row["second"], 0.0) + value
    most = max((value for line in lines.values() for value in line.values()), default=0.0)
    if not lines or (column == "received_bytes_per_second" and most == 0):
        return None
    factor, axis = amount_axis(title, most, unit) if unit else (1.0, _plain_axis(title))
    traces = []
    for role in sorted(lines, key=_role_order):
        points = thinned(sorted(lines[role].items()))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escaped(role),
                "x": [at for at, _ in points],
                "y": [value / factor for _, value in points],
                "line": {"color": _role_colour(role), "width": 2, "dash": _role_dash(role)},
                "text": [si(value, unit) if unit else f"{value:.3g}" for _, value in points],
                "hovertemplate": "<b>%{fullData.name}</b><br>second %{x}: %{text}<extra></extra>",
            }
        )
    horizontal = {"title": {"text": "seconds since the run began"}, "rangemode": "tozero"}
    layout: dict[str, Any] = {"xaxis": horizontal, "yaxis": axis, "showlegend": True}
    if kept:
        layout["shapes"] = [
            {
                "type": "rect",
                "x0": min(kept) - 1,
                "x1": max(kept),
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "layer": "below",
                "fillcolor": "@soft",
                "line": {"width": 0},
            }
        ]
    return Facet((), "", traces, layout, 380)


def _plain_axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title}, "rangemode": "tozero"}


def _role_order(role: str) -> tuple[int, str]:
    return (_ROLES.index(role) if role in _ROLES else len(_ROLES), role)


def _role_colour(role: str) -> str:
    return {"writer": "@0", "reader": "@1", "node": "@2", "server": "@3"}.get(role, "@muted")


def _role_dash(role: str) -> str:
    return {"reader": "dash", "machine": "dot"}.get(role, "solid")


def _bounded(facets: list[Facet], notes: list[str]) -> list[Facet]:
    """Four pictures to each view: four times as many as elsewhere, and no more."""
    most = 4 * MAX_FACETS
    if len(facets) > most:
        notes.append(f"{most} of {len(facets):,} pictures are drawn.")
    return facets[:most]

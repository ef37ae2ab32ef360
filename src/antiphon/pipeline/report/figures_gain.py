"""One choice against another, in percent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.pipeline.report.data import Row, Tables
from antiphon.pipeline.report.divide import divided, grid_of
from antiphon.pipeline.report.draw import Bar, bar_height, bars, rule
from antiphon.pipeline.report.looks import Looks
from antiphon.pipeline.report.shape import Absent, Facet, Figure, escaped
from antiphon.pipeline.report.units import key_text, size
from antiphon.pipeline.schemas import KEYS

__all__ = ["by_protocol", "by_size"]

MAX_BARS = 40
MOST_PERCENT = 2_000.0
_COLUMNS = [
    "question", "this", "over", "gain_percent_mean", "gain_percent_min", "gain_percent_max",
    "pairs",
]  # fmt: skip


def by_size(tables: Tables, looks: Looks) -> Figure | Absent:
    """Bars by size and nodes, as figures 7, 8 and 13 to 16 of "JGroups in J2EE clusters"."""
    key, title = "gain", "What does another stack, link or transport gain?"
    every = [row for row in _rows(tables) if row["question"] != "protocol"]
    notes: list[str] = []
    rows = _free(every, notes)
    if not rows:
        return Absent(key, title, "The plan group gives it: antiphon lab run group.")
    dimensions, parts = divided(rows, ["nodes", "size"], notes, ["question", "choice"])
    facets = []
    for part in parts:
        sizes = sorted({row["size"] for row in part.rows})
        traces = [_upright(*one, at) for at, one in enumerate(_by_nodes(part.rows))]
        vertical: dict[str, Any] = {"title": {"text": "gain"}, "ticksuffix": " %"}
        if max(row["gain_percent_mean"] for row in part.rows) > MOST_PERCENT:
            notes.append(f"Gains above {MOST_PERCENT:,.0f} % are cut off; the table has them.")
            vertical["range"] = [-100, MOST_PERCENT]
        layout = {
            "xaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [size(one) for one in sizes],
                "title": {"text": "message size"},
            },
            "yaxis": vertical,
            "barmode": "group",
        }
        # A key that is compared has no value of its own.
        asked = part.rows[0]["question"]
        at = tuple(
            "compared" if key == asked else said
            for key, said in zip(dimensions, part.at, strict=True)
        )
        facets.append(Facet(at, part.says, traces, layout))
    reading = (
        "By how many percent one choice delivers more than another, all else being equal; below "
        "zero it delivers less. Thin lines go from the worst pair of repeats to the best."
    )
    return Figure(key, title, reading, facets, grid_of(every, _COLUMNS), dimensions, notes)


def by_protocol(tables: Tables, looks: Looks) -> Figure | Absent:
    """The same between protocols: a bar for each pair."""
    key, title = "versus", "One protocol against another"
    every = [row for row in _rows(tables) if row["question"] == "protocol"]
    notes: list[str] = []
    free = _free(every, notes)
    if not free:
        return Absent(key, title, "Several protocols in one series give it: any built-in plan.")
    # Every pair would be too many to look at; the table has them all.
    ours = [row for row in free if str(row["this"]).startswith("antiphon")]
    rows = ours or free
    if len(rows) < len(free):
        notes.append("Drawn are the pairs with a protocol of Antiphon's; the table has all.")
    dimensions, parts = divided(rows, [], notes, ["this"])
    facets = []
    for part in parts:
        held = sorted(part.rows, key=lambda row: row["gain_percent_mean"])
        if len(held) > MAX_BARS:
            notes.append(f"{MAX_BARS} of {len(held):,} bars are drawn in one view.")
            held = held[: MAX_BARS // 2] + held[-MAX_BARS // 2 :]
        shown = [
            Bar(
                f"against {row['over']}",
                min(row["gain_percent_mean"], MOST_PERCENT),
                f"{row['gain_percent_mean']:+,.0f} %",
                {"color": looks.colour({"protocol": _protocol(row)})},
            )
            for row in held
        ]
        if max(row["gain_percent_mean"] for row in held) > MOST_PERCENT:
            notes.append(f"Gains above {MOST_PERCENT:,.0f} % are cut off; their text is not.")
        layout: dict[str, Any] = {
            "xaxis": {
                "title": {"text": f"gain of {escaped(str(held[0]['this']))}"},
                "ticksuffix": " %",
            },
            "yaxis": {"automargin": True},
        }
        layout |= rule("x", 0.0)
        facets.append(Facet(part.at, part.says, bars(shown), layout, bar_height(len(held))))
    reading = (
        "By how many percent more bytes come through than with each of the others, in the same "
        "setting; to the left of zero there are fewer. The colour is that of the other protocol."
    )
    return Figure(key, title, reading, facets, grid_of(every, _COLUMNS), dimensions, notes)


def _rows(tables: Tables) -> list[Row]:
    """Those of a size; the others are means over all sizes and groups."""
    rows = [
        row
        for row in tables.rows("comparison")
        if row["gain_percent_mean"] is not None and row["size"] is not None
    ]
    for row in rows:
        row["choice"] = f"{row['this']} against {row['over']}"
    return rows


def _free(rows: Sequence[Row], notes: list[str]) -> list[Row]:
    """Those that went as fast as they could: who keeps to a rate delivers no more than that."""
    found = [row for row in rows if row["rate"] is None]
    if len(found) < len(rows):
        notes.append("Runs at a given rate are only in the table: all that keep it deliver alike.")
    return found


def _protocol(row: Row) -> str:
    return str(row["over"]).split("/")[0]


def _by_nodes(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """As the paper draws them: a colour per number of nodes; and whatever else still differs."""
    keys = [key for key in (*KEYS, "choice") if key not in ("size", "nodes", "messages", "senders")]
    differ = [key for key in keys if len({row[key] for row in rows}) > 1]
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["nodes"] or 0, row["size"])):
        words = [key_text("nodes", row["nodes"] or 2)]
        words += [str(row[key]) for key in differ if row[key] is not None]
        found.setdefault(", ".join(words), []).append(row)
    return list(found.items())[:30]


def _upright(label: str, rows: Sequence[Row], at: int) -> dict[str, Any]:
    means = [row["gain_percent_mean"] for row in rows]
    trace: dict[str, Any] = {
        "type": "bar",
        "name": escaped(label),
        "x": [size(row["size"]) for row in rows],
        "y": means,
        "marker": {"color": f"@{(7, 0, 4, 1, 2, 3, 6, 5)[at % 8]}"},
        "text": [f"{mean:+,.0f} %" for mean in means],
        "textposition": "none",
        "hovertemplate": "<b>%{fullData.name}</b><br>%{x}: %{text}<extra></extra>",
    }
    if any((row["pairs"] or 0) > 1 for row in rows):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [row["gain_percent_max"] - row["gain_percent_mean"] for row in rows],
            "arrayminus": [row["gain_percent_mean"] - row["gain_percent_min"] for row in rows],
            "color": "@ink",
            "thickness": 1.2,
            "width": 3,
        }
    return trace

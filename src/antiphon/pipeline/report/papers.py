"""What the papers found, beside what was found here.

``papers.toml`` has the values in our own words, each with its document. A value may name the rows
of a table that measure the same thing here; a curve is drawn into the figure that it belongs to.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.pipeline.report.data import Row, Tables
from antiphon.pipeline.report.shape import PaperValue
from antiphon.pipeline.report.units import rate, share, si, speed, took

__all__ = ["Papers"]

_UNITS: dict[str, Callable[[float], str]] = {
    "bytes_per_second": speed,
    "messages_per_second": rate,
    "us": took,
    "part": share,
    "times": lambda value: f"{value:.3g} times",
    "percent": lambda value: f"{value:+,.0f} %",
    "bytes": lambda value: si(value, "B"),
    "requests_per_second": lambda value: f"{value:,.0f} requests/s",
}


class Papers:
    """All values; ``tables`` are asked for ours."""

    def __init__(self, tables: Tables) -> None:
        path = Path(__file__).parent / "papers.toml"
        listed = tomllib.loads(path.read_text(encoding="utf-8"))
        self._values: list[dict[str, Any]] = listed["value"]
        self._curves: list[dict[str, Any]] = listed["curve"]
        self._tables = tables

    def beside(self, figure: str) -> list[PaperValue]:
        """The values that belong to a figure, with ours where there are some."""
        return [
            PaperValue(one["paper"], one["says"], self._theirs(one), self._ours(one))
            for one in self._values
            if one["figure"] == figure
        ]

    def points(self, figure: str, table: str, row: Row) -> list[tuple[str, float]]:
        """Paper and value of what was measured as this row of the figure's table was."""
        found = []
        for one in self._values:
            match = one.get("match", {})
            fits = one["figure"] == figure and match.get("table") == table
            if fits and isinstance(one.get("value"), float) and _holds(row, match["where"]):
                found.append((one["paper"], one["value"]))
        return found

    def curves(self, figure: str, facet: str = "") -> list[tuple[str, list[float], list[float]]]:
        """Name, x and y of what is drawn into a figure; of those for one of its facets."""
        return [
            (f"{one['paper']}: {one['name']}", one["x"], one["y"])
            for one in self._curves
            if one["figure"] == figure and one.get("facet", "") == facet
        ]

    def _theirs(self, one: dict[str, Any]) -> str:
        if "value" not in one:
            return str(one["words"])
        return _several([float(at) for at in _listed(one["value"])], _UNITS[one["unit"]])

    def _ours(self, one: dict[str, Any]) -> str:
        """The range of all rows that match: one may be a mean of another number of repeats."""
        match = one.get("match")
        if match is None:
            return "—"
        column, where = match["column"], match["where"]
        found = [
            float(row[column]) * match.get("times", 1)
            for row in self._tables.rows(match["table"])
            if row[column] is not None and _holds(row, where)
        ]
        if not found:
            return "not measured"
        return _several(sorted({min(found), max(found)}), _UNITS[one["unit"]])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _several(values: list[float], unit: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(unit(value) for value in values))


def _holds(row: Row, where: dict[str, Any]) -> bool:
    """A list means any of these; a name that ends in ``_to`` or ``_from`` is a bound."""
    for name, wanted in where.items():
        if name.endswith("_to"):
            value = row[name.removesuffix("_to")]
            if value is None or value > wanted:
                return False
        elif name.endswith("_from"):
            value = row[name.removesuffix("_from")]
            if value is None or value < wanted:
                return False
        elif row[name] not in _listed(wanted):
            return False
    return True

"""One colour per protocol, throughout the report.

Eight colours that people who see few of them can still tell apart, after Okabe and Ito, made darker
for a light page and lighter for a dark one. A ninth protocol gets the first colour again with other
dashes, marks and hatching; so does a second variant of the same protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antiphon.pipeline.report.data import Row

__all__ = ["DARK", "LIGHT", "PAPER", "Looks"]

LIGHT = (
    "#0067a8", "#cc5200", "#008560", "#a8457f", "#a87400", "#4d4d4d", "#6b4fb3", "#3289c2",
)  # fmt: skip
DARK = (
    "#5cb2f2", "#ff9157", "#35cfa1", "#f0a3d0", "#f2bf57", "#d4d4d4", "#bda6ff", "#a9dcff",
)  # fmt: skip
PAPER = "@paper"

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
_HATCHES = ("", "/", ".", "x", "-", "\\")


class Looks:
    """Which colour and which style a row's series has; decided once, from all runs."""

    def __init__(self, rows: Iterable[Row]) -> None:
        series = {_series(row) for row in rows}
        names = sorted(
            {protocol for protocol, _ in series},
            # What this project makes comes first, and the bare link last.
            key=lambda name: (
                name.startswith("link-"),
                not name.startswith("antiphon"),
                name,
            ),
        )
        self._colour = {name: at % len(LIGHT) for at, name in enumerate(names)}
        self._style: dict[tuple[str, str], int] = {}
        taken = [0] * len(LIGHT)
        for one in sorted(series, key=lambda one: (names.index(one[0]), one[1])):
            colour = self._colour[one[0]]
            self._style[one] = taken[colour]
            taken[colour] += 1

    def colour(self, row: Row) -> str:
        return f"@{self._colour.get(row['protocol'], 5)}"

    def line(self, row: Row, shift: int = 0) -> dict[str, Any]:
        """Of a trace with lines and marks."""
        at = self._at(row) + shift
        colour = self.colour(row)
        return {
            "line": {"color": colour, "width": 2, "dash": _DASHES[at % len(_DASHES)]},
            "marker": {"color": colour, "size": 7, "symbol": _SYMBOLS[at % len(_SYMBOLS)]},
        }

    def bar(self, row: Row) -> dict[str, Any]:
        """The ``marker`` of a bar."""
        shape = _HATCHES[self._at(row) % len(_HATCHES)]
        marker: dict[str, Any] = {"color": self.colour(row)}
        if shape:
            marker["pattern"] = {
                "shape": shape,
                "fillmode": "overlay",
                "fgcolor": "@page",
                "fgopacity": 0.35,
                "size": 7,
            }
        return marker

    def _at(self, row: Row) -> int:
        return self._style.get(_series(row), 0)


def _series(row: Row) -> tuple[str, str]:
    return row["protocol"] or "?", f"{row.get('variant') or ''} {row.get('stack') or ''}"

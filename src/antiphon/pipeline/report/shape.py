"""What a figure is before it becomes HTML, and how large it may be.

A figure is drawn by Plotly in the browser from plain dictionaries. It has facets: the same picture
for another size, link or workload, of which one is shown at a time. Colours are not in it but marks
such as ``@3``, which the page replaces by the colour of the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = [
    "MAX_FACETS",
    "MAX_POINTS",
    "MAX_TRACES",
    "Absent",
    "Facet",
    "Figure",
    "Grid",
    "PaperValue",
    "escaped",
    "thinned",
]

Trace = dict[str, Any]
T = TypeVar("T")

MAX_FACETS = 40
MAX_TRACES = 30
MAX_POINTS = 300
MAX_NAME = 60


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers behind a figure, whole; the page shows the first of them."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True, slots=True)
class PaperValue:
    """What a paper has found, in our words, and what we found where it can be told."""

    paper: str
    says: str
    theirs: str
    ours: str = "—"


@dataclass(slots=True)
class Facet:
    """``at`` is its value in each of the figure's dimensions; ``says`` what holds for all of it."""

    at: tuple[str, ...]
    says: str
    traces: list[Trace]
    layout: dict[str, Any]
    height: int = 420


@dataclass(slots=True)
class Figure:
    """``start`` is the facet that is shown first; None leaves the choice to the page."""

    key: str
    title: str
    reading: str
    facets: list[Facet]
    grid: Grid
    dimensions: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    papers: list[PaperValue] = field(default_factory=list)
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """A figure for which there are no data, and what would give them."""

    key: str
    title: str
    hint: str


def escaped(text: str) -> str:
    """Plotly reads a little HTML in its labels: a name is to be shown, not obeyed."""
    if len(text) > MAX_NAME:
        text = text[: MAX_NAME - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def thinned(points: Sequence[T], most: int = MAX_POINTS) -> list[T]:
    """Evenly, with the first and the last among them."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(step * at)] for at in range(most)]

"""Which rows belong into one picture, and what each is called in it.

Two rows of a table differ in some of its keys. A figure says which of them lie on its axes; the
protocol with its variant and stack makes a series; whatever else differs makes another facet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.pipeline.report.data import Row
from antiphon.pipeline.report.shape import MAX_FACETS, MAX_TRACES, Grid
from antiphon.pipeline.report.units import key_text, plural
from antiphon.pipeline.schemas import KEYS

__all__ = ["Part", "divided", "grid_of", "is_link", "labels", "series_of", "values_of"]

_DIMENSIONS = (
    "campaign", "workload", "pattern", "link", "size", "nodes", "senders", "threads", "streams",
    "rate", "placement", "scheduling", "messages", "paced",
)  # fmt: skip
_SERIES = ("protocol", "variant", "stack")


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one facet."""

    at: tuple[str, ...]
    says: str
    rows: list[Row]


def is_link(row: Row) -> bool:
    """Whether it is a measurement of the bare link."""
    return bool((row["protocol"] or "").startswith("link-"))


def values_of(rows: Iterable[Row], key: str) -> list[Any]:
    """All values of a key, in order, nothing first."""
    found = {row.get(key) for row in rows}
    nothing: list[Any] = [None] if None in found else []
    return nothing + sorted(one for one in found if one is not None)


def divided(
    rows: Sequence[Row], axes: Sequence[str], notes: list[str], also: Sequence[str] = ()
) -> tuple[tuple[str, ...], list[Part]]:
    """The dimensions in which the rows differ beside the axes and the series, and their parts.

    ``also`` are columns of the table that are dimensions too.
    """
    free = [key for key in (*also, *_DIMENSIONS) if key not in axes]
    dimensions = [key for key in free if len({_value(row, key) for row in rows}) > 1]
    # What follows from the others says nothing more: a campaign that has one link, for one.
    for key in reversed(dimensions.copy()):
        rest = [one for one in dimensions if one != key]
        if rest and _distinct(rows, rest) == _distinct(rows, dimensions):
            dimensions = rest
    # So many messages are sent because they are so large: not another view where sizes are an axis.
    rest = [key for key in dimensions if key != "messages"]
    points = [*_SERIES, *axes]
    if _distinct(rows, [*rest, *points]) == _distinct(rows, [*dimensions, *points]):
        dimensions = rest
    # Most series of a plan differ in what they measure, and belong into one picture. Two that
    # measure the same, over other times or numbers, would be added up in it.
    if _distinct(rows, ["series", *dimensions, *points]) > _distinct(rows, [*dimensions, *points]):
        dimensions.insert(1 if dimensions[:1] == ["campaign"] else 0, "series")
    parts: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        parts.setdefault(tuple(_value(row, key) for key in dimensions), []).append(row)
    ordered = sorted(parts.items(), key=lambda part: [_place(one) for one in part[0]])
    if "campaign" in dimensions:
        # The last one first: that is what somebody has just measured.
        which = dimensions.index("campaign")
        ordered.sort(key=lambda part: str(part[0][which]), reverse=True)
    if len(ordered) > MAX_FACETS:
        notes.append(
            f"{MAX_FACETS} of {len(ordered):,} views are drawn; the table and its CSV go on."
        )
    made = [
        Part(
            tuple(key_text(key, one) for key, one in zip(dimensions, at, strict=True)),
            _says(held, free),
            held,
        )
        for at, held in ordered[:MAX_FACETS]
    ]
    return tuple(dimensions), made


def _value(row: Row, key: str) -> Any:
    """Where all nodes send, their number says nothing more."""
    if key == "senders" and row.get("pattern") in ("1-n", "n-n"):
        return None
    return row.get(key)


def _says(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """What is the same in all rows of a part, in a line."""
    words = []
    for key in keys:
        found = {_value(row, key) for row in rows}
        one = found.pop() if len(found) == 1 else None
        if one is not None and not _usual(key, one):
            words.append(key_text(key, one))
    return " · ".join(words)


def _usual(key: str, value: Any) -> bool:
    """Not worth a word."""
    if key in ("scheduling", "stage", "nodes"):
        return value in ("other", "delivery", 2)
    return key in ("senders", "threads", "streams") and value == 1


def _distinct(rows: Sequence[Row], keys: Sequence[str]) -> int:
    return len({tuple(_value(row, key) for key in keys) for row in rows})


def _place(value: Any) -> tuple[int, float, str]:
    if value is None:
        return (0, 0.0, "")
    # No load comes first, whatever the others are called.
    if isinstance(value, str):
        return (0 if value == "none" else 2, 0.0, value)
    return (1, float(value), "")


def labels(rows: Sequence[Row]) -> Callable[[Row], str]:
    """What a row's series is called among these: its protocol, and whatever sets it apart."""
    several: dict[str, set[tuple[Any, Any]]] = {}
    for row in rows:
        several.setdefault(row["protocol"], set()).add((row.get("variant"), row.get("stack")))

    def label(row: Row) -> str:
        words = [row["protocol"] or "?"]
        if len(several[row["protocol"]]) > 1:
            words += [row[key] for key in ("variant", "stack") if row.get(key)]
        return " ".join(words)

    return label


def series_of(
    rows: Sequence[Row], notes: list[str], extra: Sequence[str] = ()
) -> list[tuple[str, list[Row]]]:
    """Rows by series, at most as many as can be told apart; `extra` keys divide them further."""
    label = labels(rows)
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in (*_SERIES, *extra)), []).append(row)
    if len(found) > MAX_TRACES:
        note = f"{MAX_TRACES} of {plural(len(found), 'series', 'series')} are drawn in one view."
        if note not in notes:
            notes.append(note)
    made = []
    for held in list(found.values())[:MAX_TRACES]:
        words = [label(held[0]), *(key_text(key, held[0].get(key)) for key in extra)]
        made.append((", ".join(words), held))
    return made


def grid_of(rows: Sequence[Row], columns: Sequence[str]) -> Grid:
    """The keys that say something, then these columns."""
    keys = [key for key in KEYS if len(values_of(rows, key)) > 1 or key == "protocol"]
    kept = [name for name in columns if any(row.get(name) is not None for row in rows)]
    names = [*keys, *(name for name in kept if name not in keys)]
    return Grid(names, [[row.get(name) for name in names] for row in rows])

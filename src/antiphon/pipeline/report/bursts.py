"""The most messages that went through in one go, where a plan has tried several numbers.

Made from the table of runs, as the lab makes it at the end of a campaign for the terminal: whoever
has only the tables is to see it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.pipeline.report.data import Row
from antiphon.pipeline.report.divide import values_of
from antiphon.pipeline.report.page import grid_html
from antiphon.pipeline.report.shape import Grid
from antiphon.pipeline.report.units import key_text, plural, si
from antiphon.pipeline.schemas import KEYS

__all__ = ["Burst", "burst_table", "bursts"]

_APART = [key for key in KEYS if key != "messages"]


@dataclass(frozen=True, slots=True)
class Burst:
    """``fits`` is the largest number whose runs are all complete, with all that are smaller; 0: not
    even the smallest. ``above`` is a run of the next number, which is not; None: there is none, and
    the answer is at least ``fits``."""

    row: Row
    fits: int
    above: Row | None


def bursts(runs: Sequence[Row]) -> list[Burst]:
    """One for all runs that differ in nothing but how many messages were sent, if they do; of runs
    that took place."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in runs:
        if row["messages"] is not None:
            found.setdefault(tuple(row[key] for key in _APART), []).append(row)
    return [_climb(held) for held in found.values() if len(values_of(held, "messages")) > 1]


def _climb(runs: Sequence[Row]) -> Burst:
    fits = 0
    # Of a number's repeats, those that failed come first.
    for row in sorted(runs, key=lambda row: (row["messages"], row["outcome"] == "complete")):
        if row["outcome"] != "complete":
            return Burst(row, fits, row)
        fits = row["messages"]
    return Burst(runs[0], fits, None)


def burst_table(runs: Sequence[Row], endings: dict[str, str]) -> str:
    """As HTML, with ``endings`` for outcomes; nothing where no plan has tried several numbers."""
    found = bursts(runs)
    if not found:
        return ""
    rows = [one.row for one in found]
    # The pair that the paper's tables are of, and whatever else sets two apart.
    told = [key for key in _APART if len(values_of(rows, key)) > 1 or key in ("stack", "size")]
    told = [key for key in told if key not in ("protocol", "plan", "series")]
    told = [key for key in told if values_of(rows, key) != [None]]
    grid = Grid(
        ["protocol", *told, "the most that finished", "that is", "the next", "how it ended"],
        [
            [
                one.row["protocol"],
                *(key_text(key, one.row[key]) for key in told),
                plural(one.fits, "message") if one.fits else "none",
                si(one.fits * one.row["size"], "B") if one.fits and one.row["size"] else "—",
                "not tried" if one.above is None else f"{one.above['messages']:,}",
                _ended(one.above, endings),
            ]
            for one in found
        ],
    )
    return (
        "<h3>How many messages in one go?</h3><p>Each sender has so many messages to send, and "
        "the run is over when all have come. The most that finished is the largest "
        "number of which every run completed, with all that were smaller; where no larger one was "
        f"tried, it may be more.</p>{grid_html(grid)}"
    )


def _ended(row: Row | None, endings: dict[str, str]) -> str:
    if row is None:
        return "—"
    said = endings.get(row["outcome"], row["outcome"])
    reason = " ".join(str(row["reason"] or "").split())[:200]
    return f"{said}: {reason}" if reason else str(said)

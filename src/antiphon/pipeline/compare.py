"""Whether a protocol got slower between two campaigns, told with what the repeats allow to say.

Of every measurement that both have, throughput and the delays p50 and p99 are held against each
other: the ratio of the means over repeats, and an interval for it by a bootstrap over repeats. A
verdict is given only where the whole interval lies on one side of the tolerance. With one repeat
there is no interval, and nothing can be told: the seconds of one run are no repeats.

Receives finished tables (``runs``) through `antiphon.pipeline.store`, without Spark; hands a
`Comparison` to ``antiphon pipeline compare``, whose exit code is 1 when anything is slower, and
when there was nothing to compare: a guard that looks at nothing must not say that all is well.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from antiphon.errors import ConfigError
from antiphon.pipeline import schemas, store

__all__ = [
    "CANNOT_TELL",
    "FASTER",
    "SAME",
    "SLOWER",
    "Compared",
    "Comparison",
    "compare",
    "interval",
    "print_comparison",
    "to_json",
]

SLOWER, FASTER, SAME, CANNOT_TELL = "slower", "faster", "same", "cannot tell"
TOLERANCE = 0.10
RESAMPLES = 1000
CONFIDENCE = 0.95
LEAST_US = 2.0
"""Delays that differ by no more are the same: they are whole microseconds."""

METRICS = {
    "messages/s": "messages_per_second",
    "p50 us": "latency_p50_us",
    "p99 us": "latency_p99_us",
}
FINISHED = "finished"
# One machine is not another, and neither is the same one with another system on it.
MACHINE = ("host", "cpu", "cores", "memory_gb")
SYSTEM = ("kernel", "python", "antiphon")
_APART = tuple(name for name in schemas.KEYS if name != "campaign")
_ORDER = {SLOWER: 0, CANNOT_TELL: 1, FASTER: 2, SAME: 3}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one measurement, before and after. ``ratio`` is after over before."""

    keys: dict[str, Any]
    metric: str
    verdict: str
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None
    high: float | None
    repeats: tuple[int, int]
    note: str = ""

    @property
    def name(self) -> str:
        """What was measured, in few words."""
        shown = {**self.keys, "plan": None}
        parts = [f"{value}B" if name == "size" else value for name, value in shown.items()]
        return " ".join(_word(name, part) for name, part in zip(shown, parts, strict=True) if part)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. ``before`` and ``after`` are the campaigns' ids."""

    before: str
    after: str
    tolerance: float
    rows: tuple[Compared, ...]
    warnings: tuple[str, ...]

    @property
    def slower(self) -> tuple[Compared, ...]:
        """What got slower; empty when nothing did that could be told."""
        return tuple(row for row in self.rows if row.verdict == SLOWER)

    def count(self, verdict: str) -> int:
        return sum(row.verdict == verdict for row in self.rows)


def compare(
    a: Path | str,
    b: Path | str,
    *,
    before: str | None = None,
    after: str | None = None,
    tolerance: float = TOLERANCE,
    resamples: int = RESAMPLES,
    seed: int = 1,
) -> Comparison:
    """Hold the campaign in the output directory ``b`` against the one in ``a``.

    Where a directory has several, ``before`` and ``after`` name them by their ids; both may be in
    one directory. ``tolerance`` is the part by which a figure may change and still be the same.
    Raises `ConfigError` for a directory without tables and for an id that is not there.
    """
    if not 0 <= tolerance < 1:
        raise ConfigError(
            f"a tolerance of {tolerance:g} makes no sense; give 0 to below 1, such as 0.1",
            setting="tolerance",
            value=tolerance,
        )
    if resamples < 100:
        raise ConfigError("give at least 100 resamples", setting="resamples", value=resamples)
    old, new = _runs(Path(a), before, "before"), _runs(Path(b), after, "after")
    ours, theirs = _by_keys(old), _by_keys(new)
    rows: list[Compared] = []
    for keys, group in ours.items():
        if keys in theirs:
            rows += _measurement(dict(keys), group, theirs[keys], tolerance, resamples, seed)
    rows.sort(key=lambda row: (_ORDER[row.verdict], row.name, row.metric))
    return Comparison(
        before=old[0]["campaign"],
        after=new[0]["campaign"],
        tolerance=tolerance,
        rows=tuple(rows),
        warnings=tuple(_warnings(old, new, ours.keys(), theirs.keys(), rows)),
    )


def _runs(directory: Path, campaign: str | None, setting: str) -> list[Row]:
    rows: list[Row] = store.read_table(directory, "runs").to_pylist()
    there = sorted({row["campaign"] for row in rows})
    if campaign is None and len(there) == 1:
        campaign = there[0]
    if campaign is None or campaign not in there:
        asked = "has several campaigns" if campaign is None else f"has no campaign {campaign}"
        if not there:
            asked = "has no campaigns"
        raise ConfigError(
            f"{directory} {asked}; name one of: {', '.join(there) or 'none'}",
            setting=setting,
            value=campaign,
        )
    return [row for row in rows if row["campaign"] == campaign]


def _by_keys(rows: Iterable[Row]) -> dict[tuple[tuple[str, Any], ...], list[Row]]:
    found: dict[tuple[tuple[str, Any], ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple((name, row[name]) for name in _APART)].append(row)
    return found


def _measurement(
    keys: dict[str, Any],
    old: Sequence[Row],
    new: Sequence[Row],
    tolerance: float,
    resamples: int,
    seed: int,
) -> Iterable[Compared]:
    finished = [[row for row in side if row["outcome"] == "complete"] for side in (old, new)]
    if (row := _finished(keys, old, new, *finished)) is not None:
        yield row
    for metric, column in METRICS.items():
        figures = [
            [float(row[column]) for row in side if row[column] is not None] for side in finished
        ]
        if not figures[0] or not figures[1] or not statistics.fmean(figures[0]):
            continue
        # Every figure has draws of its own: what else is compared does not change them.
        draws = random.Random(f"{seed}/{metric}/{json.dumps(keys)}")
        yield _figure(keys, metric, figures[0], figures[1], tolerance, resamples, draws)


def _finished(
    keys: dict[str, Any],
    old: Sequence[Row],
    new: Sequence[Row],
    was: Sequence[Row],
    now: Sequence[Row],
) -> Compared | None:
    """To finish is the first thing; told only where it is not as before."""
    before, after = len(was) / len(old), len(now) / len(new)
    if before == after:
        return None
    verdict = CANNOT_TELL
    if not now and len(was) == len(old):
        verdict = SLOWER
    elif not was and len(now) == len(new):
        verdict = FASTER
    ended = Counter(row["outcome"] for row in new if row["outcome"] != "complete")
    note = ", ".join(f"{outcome} {count} of {len(new)}" for outcome, count in ended.most_common())
    ratio = after / before if before else None
    return Compared(
        keys, FINISHED, verdict, before, after, ratio, None, None, (len(old), len(new)), note
    )


def _figure(
    keys: dict[str, Any],
    metric: str,
    old: Sequence[float],
    new: Sequence[float],
    tolerance: float,
    resamples: int,
    draws: random.Random,
) -> Compared:
    before, after = statistics.fmean(old), statistics.fmean(new)
    bounds = interval(old, new, resamples, draws)
    verdict, note = CANNOT_TELL, ""
    if bounds is None:
        note = "one repeat"
    elif "us" in metric and abs(after - before) <= LEAST_US:
        verdict = SAME
    else:
        verdict = _verdict(bounds, tolerance, more_is_better="us" not in metric)
    low, high = bounds or (None, None)
    return Compared(
        keys,
        metric,
        verdict,
        before,
        after,
        after / before,
        low,
        high,
        (len(old), len(new)),
        note,
    )


def interval(
    old: Sequence[float], new: Sequence[float], resamples: int, draws: random.Random
) -> tuple[float, float] | None:
    """For the ratio of the means, by drawing repeats of both sides again; None without repeats.

    Few repeats make it too narrow: it can never be wider than they are apart.
    """
    if len(old) < 2 or len(new) < 2:
        return None
    ratios = []
    for _ in range(resamples):
        below = sum(draws.choices(old, k=len(old))) / len(old)
        above = sum(draws.choices(new, k=len(new))) / len(new)
        if below:
            ratios.append(above / below)
    ratios.sort()
    out = (1 - CONFIDENCE) / 2
    last = len(ratios) - 1
    return ratios[round(out * last)], ratios[round((1 - out) * last)]


def _verdict(bounds: tuple[float, float], tolerance: float, *, more_is_better: bool) -> str:
    """By the whole interval. The tolerance is one of the ratio, in both directions alike."""
    low, high = bounds
    least, most = 1 - tolerance, 1 / (1 - tolerance)
    if least <= low and high <= most:
        return SAME
    if high < least:
        return SLOWER if more_is_better else FASTER
    if low > most:
        return FASTER if more_is_better else SLOWER
    return CANNOT_TELL


def _warnings(
    old: Sequence[Row],
    new: Sequence[Row],
    ours: Iterable[Any],
    theirs: Iterable[Any],
    rows: Sequence[Compared],
) -> Iterable[str]:
    before, after = _facts(old, MACHINE), _facts(new, MACHINE)
    if before != after:
        yield (
            f"measured on different machines: before {_listed(before)}; after {_listed(after)}. "
            "What differs may be the machines"
        )
    before, after = _facts(old, SYSTEM), _facts(new, SYSTEM)
    for name in SYSTEM:
        if before[name] != after[name]:
            yield f"{name} was {before[name] or 'unknown'}, and is {after[name] or 'unknown'} after"
    for side, only in (("before", set(ours) - set(theirs)), ("after", set(theirs) - set(ours))):
        if only:
            protocols = sorted({str(dict(keys)["protocol"]) for keys in only})
            yield f"{len(only)} measurements are there {side} only: {', '.join(protocols)}"
    if not rows and set(ours) & set(theirs):
        yield "nothing was compared: what both campaigns measured completed in neither"
    elif not rows:
        yield "nothing was compared: the campaigns have no measurement in common"
    single = sum(row.note == "one repeat" for row in rows)
    if single:
        yield (
            f"{single} of {len(rows)} figures have one repeat, so nothing can be told of them; "
            "give the plan more repeats"
        )


def _facts(rows: Sequence[Row], names: Sequence[str]) -> dict[str, str]:
    """What a campaign ran on. It is one machine, or names all that there were."""
    return {
        name: ", ".join(sorted({str(row[name]) for row in rows if row[name] is not None}))
        for name in names
    }


def _listed(facts: Mapping[str, str]) -> str:
    units = {"cores": " cores", "memory_gb": " GB"}
    return ", ".join(f"{value}{units.get(name, '')}" for name, value in facts.items() if value)


def _word(name: str, value: Any) -> str:
    """Numbers say what they count."""
    if isinstance(value, float):
        value = f"{value:g}"
    return str(value) if name not in _COUNTED else f"{name}={value}"


_COUNTED = ("nodes", "senders", "threads", "streams", "rate", "messages", "paced")


def to_json(comparison: Comparison) -> str:
    """One document, for programs."""
    return json.dumps(
        {
            "before": comparison.before,
            "after": comparison.after,
            "tolerance": comparison.tolerance,
            "slower": len(comparison.slower),
            "warnings": comparison.warnings,
            "rows": [asdict(row) for row in comparison.rows],
        },
        indent=1,
    )


def print_comparison(
    comparison: Comparison, console: Console | None = None, *, everything: bool = False
) -> None:
    """A table for people. What is the same is only counted, unless ``everything`` is asked for."""
    console = console or Console(soft_wrap=True)
    shown = [row for row in comparison.rows if everything or row.verdict != SAME]
    if shown:
        table = Table("measurement", "figure", "before", "after", "ratio", "95 %", "", box=None)
        for row in shown:
            table.add_row(
                row.name,
                row.metric,
                _number(row.before),
                _number(row.after),
                "" if row.ratio is None else f"{row.ratio:.3f}",
                "" if row.low is None else f"{row.low:.3f} to {row.high:.3f}",
                f"{row.verdict} ({row.note})" if row.note else row.verdict,
            )
        console.print(table)
    for warning in comparison.warnings:
        console.print(f"note: {warning}", markup=False, highlight=False)
    counts = ", ".join(
        f"{comparison.count(verdict)} {verdict}" for verdict in (SLOWER, FASTER, SAME, CANNOT_TELL)
    )
    console.print(
        f"{comparison.before} -> {comparison.after}, "
        f"tolerance {comparison.tolerance:.0%}: {counts}",
        markup=False,
        highlight=False,
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

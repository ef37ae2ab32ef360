"""What the tables say about each protocol, collected once for all sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.pipeline.report.data import Row, Tables
from antiphon.pipeline.report.divide import is_link, labels
from antiphon.pipeline.report.figures_delay import whole_topics
from antiphon.pipeline.schemas import LATER

__all__ = ["COLLAPSES", "HOLDS", "LEFT_OUT", "Contender", "Machine", "Story", "same_setting"]

HOLDS = 0.8
"""Who keeps at least this part beside every load holds."""

COLLAPSES = 0.5
"""Who keeps less than this beside any load collapses."""

LEFT_OUT = ("absent", "not_applicable", "interrupted")
"""Outcomes that say nothing about a protocol: it did not run."""

_SETTING = (
    "campaign", "series", "pattern", "link", "size", "nodes", "senders", "streams", "threads",
    "rate", "messages", "placement", "paced",
)  # fmt: skip


@dataclass(slots=True)
class Contender:
    """One protocol with its variant and stack, in the setting that most of them share."""

    name: str
    row: Row
    unloaded: float | None = None
    kept: dict[str, Row] = field(default_factory=dict)
    loaded: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """By load, how its runs ended where none completed: it keeps nothing there."""

    @property
    def tried(self) -> frozenset[str]:
        """Loads beside which it is known what it keeps."""
        return frozenset([*self.kept, *self.failed])

    @property
    def worst(self) -> Row | None:
        """Its row beside the load that it bears least."""
        lost = [
            {**self.row, "workload": load, "kept": 0.0, "kept_low": None, "kept_high": None}
            for load in sorted(self.failed)
        ]
        return min([*lost, *self.kept.values()], key=lambda row: row["kept"], default=None)


@dataclass(frozen=True, slots=True)
class Machine:
    host: str
    cpu: str
    cores: int | None
    memory_gb: float | None
    kernel: str
    python: str
    antiphon: str


class Story:
    """Contenders, machines and counts."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        every = tables.rows("runs")
        self.runs = [row for row in every if not is_link(row)]
        self.campaigns = sorted({row["campaign"] for row in every})
        self.plans = sorted({row["plan"] for row in every if row["plan"]})
        self.machines = _machines(every)
        self.outcomes = Counter(row["outcome"] or "unknown" for row in self.runs)
        degraded = [
            row
            for row in tables.rows("degradation")
            if row["kept"] is not None and row["workload"] != "none" and not is_link(row)
        ]
        # Whoever keeps to a timetable keeps all of it until nothing is left to spare: that is no
        # answer where somebody was measured who goes as fast as he can.
        free = [row for row in degraded if row["rate"] is None]
        degraded = free or degraded
        self.paced = bool(degraded) and not free
        speeds = [
            row
            for row in tables.rows("throughput")
            if row["bytes_per_second_mean"] is not None
            and not is_link(row)
            and (row["rate"] is None or self.paced)
        ]
        self.setting = _commonest(degraded or speeds)
        self.compared = sorted({row["campaign"] for row in degraded or speeds})
        self.degraded = [row for row in degraded if _setting(row) == self.setting]
        self.speeds = [row for row in speeds if _setting(row) == self.setting]
        self.contenders = self._contenders()
        self.workloads = sorted({load for one in self.contenders for load in one.tried})
        self.loads = self._loads()
        same = _same_loads(self.contenders)
        self.contenders.sort(key=lambda one: (one.tried != same, *_rank(one)))
        self.ranked = [one for one in self.contenders if same and one.tried == same]
        """Those that bore the same loads, who bears them best first: others say nothing of them."""
        self.delays = [
            row
            for row in whole_topics(tables.rows("latency"))
            if row["rate"] is not None and not is_link(row) and row["stage"] != "round-trip"
        ]

    def view(self, parts: Sequence[Sequence[Row]]) -> int | None:
        """Of a figure's views, each the rows in it, the one to begin with: that of the load which
        the answer names first, in its setting; else of the most rows in it. None: it is in none."""
        worst = self.ranked[0].worst if self.ranked else None

        def content(at: int) -> tuple[bool, int, int]:
            held = [row for row in parts[at] if _setting(row) == self.setting]
            named = worst is not None and any(row["workload"] == worst["workload"] for row in held)
            return (named, len(held), -at)

        best = max(range(len(parts)), key=content, default=None)
        return None if best is None or not content(best)[1] else best

    def later(self) -> list[str]:
        """Protocols that a plan names and that no version so far can measure."""
        waiting = [row for row in self.runs if (row["reason"] or "").startswith(LATER)]
        return sorted({row["protocol"] or "?" for row in waiting})

    def ran(self) -> list[Row]:
        """Runs that took place, however they ended."""
        return [row for row in self.runs if row["outcome"] not in LEFT_OUT]

    def _loads(self) -> dict[str, float]:
        """Of all cores, the part that each load took, where it was measured."""
        parts: dict[str, list[float]] = {}
        for row in self.ran():
            if row["cpu_share_measured"] is not None and row["workload"] in self.workloads:
                parts.setdefault(row["workload"], []).append(row["cpu_share_measured"])
        return {name: sum(held) / len(held) for name, held in sorted(parts.items())}

    def _contenders(self) -> list[Contender]:
        rows = [*self.speeds, *self.degraded]
        label = labels(rows)
        found: dict[str, Contender] = {}
        for row in rows:
            found.setdefault(label(row), Contender(label(row), row))
        for row in self.speeds:
            one = found[label(row)]
            if row["workload"] == "none":
                one.unloaded = row["bytes_per_second_mean"]
            else:
                one.loaded[row["workload"]] = row["bytes_per_second_mean"]
        for row in self.degraded:
            found[label(row)].kept[row["workload"]] = row
        for one in found.values():
            if one.unloaded is not None:
                one.failed = self._failed(one)
        return list(found.values())

    def _failed(self, one: Contender) -> dict[str, str]:
        """By load, the commonest end of its runs, where some took place and none completed."""
        ended: dict[str, Counter[str]] = {}
        for run in self.ran():
            same = all(run[key] == one.row[key] for key in ("protocol", "variant", "stack"))
            if same and run["workload"] != "none" and _setting(run) == self.setting:
                ended.setdefault(run["workload"], Counter())[run["outcome"] or "error"] += 1
        return {
            load: outcomes.most_common(1)[0][0]
            for load, outcomes in sorted(ended.items())
            if not outcomes["complete"]
        }


def _rank(one: Contender) -> tuple[float, float, str]:
    """Who keeps the most beside the worst load comes first, then who is the fastest."""
    kept = one.worst["kept"] if one.worst else -1.0
    return (-kept, -(one.unloaded or 0.0), one.name)


def _same_loads(contenders: Sequence[Contender]) -> frozenset[str]:
    """The loads that the most were tried beside, all of them; of equals the most loads."""
    sets = Counter(one.tried for one in contenders if one.tried)
    return max(sets, key=lambda one: (sets[one], len(one), sorted(one)), default=frozenset())


def _setting(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in _SETTING)


def same_setting(rows: Sequence[Row]) -> list[Row]:
    """Of delays those that may be compared: without load where there are such, in the setting that
    the most protocols share; of equals the lowest rate, then the last campaign's."""
    held: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        held.setdefault((_setting(row), row["workload"], row["scheduling"]), []).append(row)
    return max(
        held.values(),
        key=lambda those: (
            those[0]["workload"] == "none",
            len({row["protocol"] for row in those}),
            -those[0]["rate"],
            those[0]["campaign"],
        ),
        default=[],
    )


def _commonest(rows: Sequence[Row]) -> tuple[Any, ...] | None:
    """Where the most protocols can be compared; of equals that of the last campaign."""
    protocols: dict[tuple[Any, ...], set[Any]] = {}
    for row in rows:
        protocols.setdefault(_setting(row), set()).add((row["protocol"], row["workload"]))
    return max(
        reversed(list(protocols)), key=lambda at: (len(protocols[at]), str(at[0])), default=None
    )


def _machines(rows: Sequence[Row]) -> dict[Machine, list[str]]:
    """Each machine, and the campaigns that were measured on it."""
    found: dict[Machine, set[str]] = {}
    for row in rows:
        if row["host"] is None and row["cpu"] is None:
            continue
        machine = Machine(
            row["host"] or "an unnamed machine",
            row["cpu"] or "",
            row["cores"],
            row["memory_gb"],
            row["kernel"] or "",
            row["python"] or "",
            row["antiphon"] or "",
        )
        found.setdefault(machine, set()).add(row["campaign"])
    return {machine: sorted(names) for machine, names in found.items()}

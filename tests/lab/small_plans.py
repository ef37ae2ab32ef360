"""Plans of one short series, carried out: what their runs have recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from antiphon.lab.campaign import Campaign
from antiphon.lab.plan import Run, load_plan
from antiphon.lab.runner import run_campaign

__all__ = ["Recorded", "carried_out", "searched"]

PLAN = """
title = "A small one"

[times]
traffic = 0.2
kept_from = {kept_from}
kept_until = {kept_until}

[workloads.slow]
slow_receiver = 50

[[series]]
name = "one"
sizes = [{size}]
{keys}
"""


@dataclass(frozen=True)
class Recorded:
    """One run."""

    folder: Path
    facts: dict[str, Any]

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.folder / f"{name}.parquet").to_pylist()
        return rows

    def last(self) -> dict[str, dict[str, Any]]:
        """The last sample of each process."""
        return {row["role"]: row for row in self.table("samples") if row["role"] != "machine"}

    def sent(self) -> int:
        return sum(row["sent_messages"] or 0 for row in self.last().values())

    def received(self) -> int:
        return sum(row["received_messages"] or 0 for row in self.last().values())

    def after_window(self) -> float:
        """Seconds from the end of what counts to the end of the run."""
        (stop,) = (row["time_ns"] for row in self.table("events") if row["event"] == "stop")
        return float(stop - self.facts["kept_until_ns"]) / 1e9

    @property
    def ended(self) -> tuple[str, str]:
        return self.facts["outcome"], self.facts["reason"]


def carried_out(
    folder: Path,
    keys: str,
    size: int = 200,
    kept_from: float = 0.5,
    kept_until: float = 2.6,
) -> list[Recorded]:
    """The runs of a series with these keys, without the checks of the links."""
    path, out = folder / "small.toml", folder / "out"
    path.write_text(
        PLAN.format(size=size, keys=keys, kept_from=kept_from, kept_until=kept_until),
        encoding="utf-8",
    )
    campaign = Campaign.create(load_plan(path), out)
    run_campaign(campaign)
    return [_recorded(campaign, run) for run in campaign.runs()]


def searched(folder: Path) -> list[Recorded]:
    """What a search has added to them."""
    campaign = Campaign.open(folder / "out")
    return [_recorded(campaign, run) for run in campaign.searched()]


def _recorded(campaign: Campaign, run: Run) -> Recorded:
    return Recorded(campaign.directory / run.id, campaign.outcome(run))

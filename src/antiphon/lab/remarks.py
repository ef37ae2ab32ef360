"""What whoever reads the figures of a run should know of them.

Receives from `antiphon.lab.conduct` what was asked of a run and what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.lab.plan import Run
from antiphon.lab.protocols import REQUEST
from antiphon.lab.stamps import STAMP_BYTES

__all__ = ["all_timed", "loss", "one_in", "remarks"]

# A load that took less than this part of what it was to take is told.
ENOUGH = 0.9
# What the edges of a window may add to it, as a factor. Half of all rows kept would be 2.
EDGES = 1.5


def remarks(run: Run, load: Mapping[str, Any], skipped: int) -> tuple[str, ...]:
    """A line for everything that was not as the plan has it. ``load`` is that of ``run.json``."""
    notes = []
    if skipped:
        what = "delays were not taken" if run.rate is None else "were due and never sent"
        notes.append(f"{skipped:,} {what}")
    garbage = load.get("garbage", {})
    wanted = garbage.get("replaced_per_second", 0.0)
    found = garbage.get("replaced_per_second_measured", wanted)
    if found < wanted * ENOUGH:
        notes.append(f"the load replaced {found:,.0f} of {wanted:,.0f} objects a second")
    share, taken = load["cpu_share"], load.get("cpu_share_measured")
    if share is not None and taken is not None and taken < share * ENOUGH:
        notes.append(f"the load took {taken:.0%} of the {share:.0%} of all cores it was to")
    return tuple(notes)


def all_timed(run: Run, variant: str | None) -> bool:
    """Whether every message has its times, but for those that are too many to keep: all that are
    paced do, and requests."""
    paced = run.rate is not None and run.paced is None and run.size >= STAMP_BYTES
    return paced or variant == REQUEST


def one_in(found: float, every: bool) -> float:
    """How many messages a row of the latencies stands for, from how many there were for each.

    Messages count by when they came and rows by when they were due: where every one has its row,
    the window's edges are all that differs.
    """
    return 1.0 if every and found < EDGES else max(1.0, found)


def loss(sent: int, received: int, outcome: str, each: int = 1) -> dict[str, int | None]:
    """Of what may lose some, as ``run.json`` has it. What is on its way at either end of the window
    is about the same, and cancels out; of a run that went wrong nobody can tell what was lost from
    what was never to come. ``each`` is how many get a message that is sent once."""
    lost = max(0, sent * each - received) if outcome == "complete" else None
    return {"sent": sent, "received": received, "lost": lost}

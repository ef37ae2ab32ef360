"""How long the messages of a run took: what of them is worth a line when the run is over.

Receives from `antiphon.lab.conduct` the rows of ``latency.parquet`` as they are written; hands back
three numbers for ``run.json``. They are the pipeline's own, by the same rule: delays count in whole
microseconds, a quantile is the smallest whose cumulative count reaches p·n, and what came before it
was sent, by clocks that disagree, is left out.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["QUANTILES", "Delays"]

QUANTILES = {"latency_p50_us": Fraction(1, 2), "latency_p99_us": Fraction(99, 100)}
MOST = "latency_max_us"
# Beyond so many rows those with equal delays become one. What is left is bounded by how different
# delays are, and not by how long the run is.
ROWS = 100_000


class Delays:
    """Counts them by the microsecond."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []

    def add(self, rows: pa.Table, offsets: Mapping[int, int] | None = None) -> None:
        """``offsets`` are what to take from the clock of each index to have one clock for all."""
        delay = pc.subtract(rows.column("received_ns"), rows.column("intended_ns"))
        if offsets is not None and any(offsets.values()):
            delay = pc.add(delay, _ahead(rows, offsets))
        kept = pc.greater_equal(delay, 0)
        # Of what is not negative, to divide is to round down.
        micros = pc.divide(pc.filter(delay, kept), 1000)
        weight = pc.filter(rows.column("weight"), kept)
        self._parts.append(pa.table({"us": micros, "weight": weight}))
        if sum(part.num_rows for part in self._parts) >= ROWS:
            self._parts = [self._together()]

    def _together(self) -> pa.Table:
        every = pa.concat_tables(self._parts)
        summed = every.group_by("us").aggregate([("weight", "sum")])
        return summed.select(["us", "weight_sum"]).rename_columns(["us", "weight"])

    def facts(self) -> dict[str, int | None]:
        """As ``run.json`` has them; null without a delay."""
        names = (*QUANTILES, MOST)
        if not any(part.num_rows for part in self._parts):
            return dict.fromkeys(names)
        counts = self._together().sort_by("us")
        micros = counts.column("us").to_pylist()
        reached = pc.cumulative_sum(counts.column("weight")).to_pylist()
        found: dict[str, int | None] = {}
        for name, part in QUANTILES.items():
            wanted = part * Fraction(reached[-1])
            found[name] = micros[bisect.bisect_left(reached, wanted)]
        return {**found, MOST: micros[-1]}


def _ahead(rows: pa.Table, offsets: Mapping[int, int]) -> pa.Array:
    """By how much the clock of the source was ahead of the one at the end. A round trip has all its
    times from whoever asked."""
    ends = zip(
        rows.column("source").to_pylist(),
        rows.column("target").to_pylist(),
        rows.column("stage").to_pylist(),
        strict=True,
    )
    ahead = (
        0 if stage == "round-trip" else offsets[source] - offsets[target]
        for source, target, stage in ends
    )
    return pa.array(ahead, pa.int64())

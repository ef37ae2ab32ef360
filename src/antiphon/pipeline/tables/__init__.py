"""The tables: each a function from the cleaned data of all campaigns to one DataFrame.

::

    runs  outcomes
    throughput  degradation  stability  bandwidth_ecdf  cpu  resources
    latency_counts  latency  jitter
    scaling  sizing  comparison
    queueing

`TABLES` has them in the order in which they are written; the columns of each are those of
`antiphon.pipeline.schemas`. They know no paths, keep nothing and call no Python per row.

`SHARED` are intermediate results of which several tables are made. A job that persists what these
functions give, before it makes the tables, has Spark read it from there in all of them. Without
that everything is right, and slower.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.sizing import sized
from antiphon.pipeline.tables.common import fan_out
from antiphon.pipeline.tables.groups import comparison, scaled, scaling
from antiphon.pipeline.tables.jitter import by_flow, jitter
from antiphon.pipeline.tables.latency import by_run, latency, latency_counts
from antiphon.pipeline.tables.queueing import queueing
from antiphon.pipeline.tables.resources import cpu, resources
from antiphon.pipeline.tables.runs import outcomes, runs
from antiphon.pipeline.tables.stability import bandwidth_ecdf, stability
from antiphon.pipeline.tables.throughput import degradation, throughput

__all__ = ["SHARED", "TABLES"]

Table = Callable[[Inputs], DataFrame]

SHARED: tuple[Table, ...] = (by_run, by_flow)


def sizing(inputs: Inputs) -> DataFrame:
    """Requests per second that a cluster sustains when a given part of them are updates."""
    return sized(scaled(inputs), fan_out(), inputs.update_share)


TABLES: dict[str, Table] = {
    "runs": runs,
    "outcomes": outcomes,
    "throughput": throughput,
    "degradation": degradation,
    "stability": stability,
    "bandwidth_ecdf": bandwidth_ecdf,
    "cpu": cpu,
    "resources": resources,
    "latency_counts": latency_counts,
    "latency": latency,
    "jitter": jitter,
    "scaling": scaling,
    "sizing": sizing,
    "comparison": comparison,
    "queueing": queueing,
}

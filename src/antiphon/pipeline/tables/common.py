"""What several tables need: keys, roles, and figures per second.

Sums that several executors may add up in any order are of whole numbers, and are divided once, at
the end: a table has the same bits wherever it was made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from antiphon.pipeline import schemas
from antiphon.pipeline.inputs import Inputs

__all__ = [
    "GROUPS",
    "KEYS",
    "LEAST_SECOND_NS",
    "LOSSY",
    "NANOS",
    "as_table",
    "bandwidth",
    "complete",
    "fan_out",
    "key_of",
    "keyed",
    "once",
    "role_kind",
    "same",
    "spread",
]

KEYS = tuple(schemas.KEYS)
NANOS = 1_000_000_000
# A difference of two samples that lie closer together says nothing about a second.
LEAST_SECOND_NS = NANOS // 2

GROUPS = ("jgroups-udp", "jgroups-tcp", "antiphon-group", "spread", "appia")
"""Protocols whose members send a message once, to all others."""

LOSSY = ("udp-c", "udp-python", "udp-java", "nats", "mqtt", "link-udp")
"""Protocols that drop messages when a receiver falls behind, which is a count and no error."""


def once(part: Callable[[Inputs], DataFrame]) -> Callable[[Inputs], DataFrame]:
    """Of a part that several tables are made of: the same DataFrame for all of them.

    Spark would find out by itself that two plans are equal. But to describe one to it takes as long
    as a small campaign takes to be computed.
    """

    @functools.wraps(part)
    def made(inputs: Inputs) -> DataFrame:
        name = f"{part.__module__}.{part.__name__}"
        if name not in inputs.made:
            inputs.made[name] = part(inputs)
        return inputs.made[name]

    return made


def as_table(frame: DataFrame, table: str) -> DataFrame:
    """The columns of a table in their order, with their types."""
    return frame.select(
        *(fn.col(name).cast(kind).alias(name) for name, kind in schemas.TABLES[table].items())
    )


def complete(runs: DataFrame) -> DataFrame:
    """Those that count for throughput and delay."""
    return runs.where(fn.col("outcome") == "complete")


def key_of(runs: DataFrame, *more: str) -> DataFrame:
    """What to join with: keys and a few facts by run, small enough for every executor."""
    return fn.broadcast(runs.select(*KEYS, "run", *more))


def keyed(frame: DataFrame, runs: DataFrame, *more: str) -> DataFrame:
    """Rows of runs, with the runs' keys."""
    return frame.join(key_of(runs, *more), ["campaign", "run"])


def same(left: str, right: str, names: Iterable[str]) -> Column:
    """Whether two aliased frames agree in these columns, where null agrees with null."""
    return fn.expr(" AND ".join(f"{left}.`{name}` <=> {right}.`{name}`" for name in names))


def spread(column: str, name: str) -> list[Column]:
    """Mean, least, most and sample standard deviation; the last is null for a single value."""
    value = fn.col(column)
    return [
        fn.avg(value).alias(f"{name}_mean"),
        fn.min(value).alias(f"{name}_min"),
        fn.max(value).alias(f"{name}_max"),
        fn.stddev_samp(value).alias(f"{name}_stddev"),
    ]


def role_kind() -> Column:
    """``writer-3`` is a writer."""
    return fn.regexp_replace("role", r"-\d+$", "")


def fan_out() -> Column:
    """How many receivers each message has that was sent once.

    As the run has told, in its column ``receivers``, and else going by the protocol.
    """
    several = fn.col("pattern").isin("1-n", "m-n") | (
        (fn.col("pattern") == "n-n") & fn.col("protocol").isin(*GROUPS)
    )
    known = fn.when(several, fn.greatest(fn.lit(1), fn.col("nodes") - 1)).otherwise(fn.lit(1))
    return fn.coalesce(fn.col("receivers"), known)


@once
def bandwidth(inputs: Inputs) -> DataFrame:
    """A row per run and second of its window: what all of its processes received, per second.

    ``campaign``, ``run``, ``second``, ``elapsed_ns``, ``received_bytes``, ``bytes_per_second``.
    """
    kept = inputs.samples.where(
        fn.col("kept")
        & (fn.col("role") != "machine")
        & fn.col("received_bytes").isNotNull()
        & (fn.col("elapsed_ns") >= LEAST_SECOND_NS)
    )
    seconds = kept.groupBy("campaign", "run", "second").agg(
        fn.sum("received_bytes").alias("received_bytes"),
        fn.sum("elapsed_ns").alias("elapsed_sum"),
        # Not the rows: where a run ends, a second may have been looked at twice.
        fn.countDistinct("host", "process").alias("processes"),
    )
    elapsed = fn.col("elapsed_sum") / fn.col("processes")
    return seconds.select(
        "campaign",
        "run",
        "second",
        elapsed.alias("elapsed_ns"),
        "received_bytes",
        (fn.col("received_bytes") * float(NANOS) / elapsed).alias("bytes_per_second"),
    )

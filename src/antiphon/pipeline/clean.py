"""The stage ``clean``: times on one clock, counters as differences, and only what is in a window.

Pure functions from what `antiphon.pipeline.read` gives to `schemas.FACTS` and `schemas.CLEAN`. Run
facts are joined as a broadcast: runs are few, however many rows there are.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.read import Read
from antiphon.pipeline.schemas import CLEAN, FACTS

__all__ = ["COUNTERS", "clean", "latency", "runs", "samples", "topics"]

COUNTERS = (
    "cpu_seconds",
    "voluntary_switches",
    "involuntary_switches",
    "network_sent_bytes",
    "network_received_bytes",
    "network_sent_packets",
    "network_received_packets",
    "disk_read_bytes",
    "disk_written_bytes",
    "gc_collections",
    "gc_pause_ns",
    "sent_messages",
    "sent_bytes",
    "received_messages",
    "received_bytes",
    "ring_waits",
    "credit_waits",
)
"""Columns of the samples that are totals so far; the others are as they were at that moment."""

_MESSAGES = ("sent_messages", "sent_bytes", "received_messages", "received_bytes")
# The last sample of a window is taken when the window is over: as the lab, we let it count.
_LATE_NS = 500_000_000


def clean(data: Read) -> Inputs:
    """All of it, lazily."""
    return Inputs(
        runs=runs(data.runs),
        samples=samples(data.samples, data.runs),
        latency=latency(data.latency, data.runs),
        topics=topics(data.topics, data.runs),
    )


def runs(found: DataFrame) -> DataFrame:
    """The facts of every run, whatever became of it."""
    return found.select(*FACTS)


def samples(rows: DataFrame, found: DataFrame) -> DataFrame:
    """What happened between a row and the one before of the same process.

    The first row of a process has nothing before it: its differences are null. So are those over a
    clock that went backwards, and that of a counter that has become smaller: it was set back, and
    nobody knows how far it had come. Such rows are not ``kept`` where no time can be told.

    Of a run of a given number of messages all count, also what was sent before its first row: those
    counters begin at 0. Its window is known only when it is over, after its rows were written, so
    which of them are ``kept`` is told by their times: to wait for what was lost is no part of it.
    """
    owned = _owned(rows, found, "samples", "outcome", "messages", "kept_from_ns", "kept_until_ns")
    each = Window.partitionBy("campaign", "run", "host", "role", "process")
    before = each.orderBy("second", "time_ns")
    elapsed = fn.col("time_ns") - fn.lag("time_ns").over(before)
    timed = owned.select(
        "*",
        fn.when(elapsed > 0, elapsed).alias("elapsed_ns"),
        fn.lag("kept").over(before).alias("kept_before"),
        (fn.row_number().over(before) == 1).alias("first"),
        *(fn.lag(name).over(before).alias(f"{name}_before") for name in COUNTERS),
    )
    changed = {name: _difference(name) for name in COUNTERS}
    from_zero = fn.col("first") & fn.col("messages").isNotNull()
    changed |= {
        name: fn.when(from_zero, fn.col(name)).otherwise(changed[name]) for name in _MESSAGES
    }
    flagged = fn.col("kept") & fn.col("kept_before")
    changed["kept"] = fn.coalesce(
        fn.when(fn.col("messages").isNull(), flagged).otherwise(_in_window())
        & fn.col("elapsed_ns").isNotNull()
        & (fn.col("outcome") == "complete"),
        fn.lit(False),
    )
    return timed.select(*(changed.get(name, fn.col(name)).alias(name) for name in CLEAN["samples"]))


def _in_window() -> Column:
    """Whether a row and the one before it lie about a window, and not only beside it."""
    time, begin = fn.col("time_ns"), fn.col("time_ns") - fn.col("elapsed_ns")
    since, until = fn.col("kept_from_ns"), fn.col("kept_until_ns")
    return (
        (begin >= since - _LATE_NS) & (begin < until) & (time > since) & (time <= until + _LATE_NS)
    )


def _difference(name: str) -> Column:
    change = fn.col(name) - fn.col(f"{name}_before")
    return fn.when(fn.col("elapsed_ns").isNotNull() & (change >= 0), change)


def latency(rows: DataFrame, found: DataFrame) -> DataFrame:
    """Messages of complete runs that were due in the window, all times on one clock.

    A round trip has all its times from whoever asked; else what is received is timed at the target.
    """
    owned = _owned(
        rows,
        found.where(fn.col("outcome") == "complete"),
        "latency",
        "kept_from_ns",
        "kept_until_ns",
        "clock_offsets_ns",
    )
    at_end = fn.when(fn.col("stage") == "round-trip", fn.col("source")).otherwise(fn.col("target"))
    timed = owned.withColumns(
        {
            "intended_ns": fn.col("intended_ns") - _offset(fn.col("source")),
            "sent_ns": fn.col("sent_ns") - _offset(fn.col("source")),
            "received_ns": fn.col("received_ns") - _offset(at_end),
        }
    )
    due = fn.col("intended_ns")
    kept = timed.where((due >= fn.col("kept_from_ns")) & (due < fn.col("kept_until_ns")))
    delay = fn.col("received_ns") - due
    return kept.withColumn("latency_ns", delay).select(*CLEAN["latency"])


def _offset(role: Column) -> Column:
    offsets = fn.col("clock_offsets_ns")
    zero = fn.lit(0).cast("bigint")
    return fn.when(offsets.isNull() | role.isNull(), zero).otherwise(
        fn.coalesce(fn.get(offsets, role), zero)
    )


def topics(rows: DataFrame, found: DataFrame) -> DataFrame:
    """As recorded, of complete runs, in the window."""
    owned = _owned(
        rows,
        found.where(fn.col("outcome") == "complete"),
        "topics",
        "kept_from_ns",
        "kept_until_ns",
    )
    time, until = fn.col("time_ns"), fn.col("kept_until_ns") + _LATE_NS
    kept = owned.where((time >= fn.col("kept_from_ns")) & (time <= until))
    return kept.select(*CLEAN["topics"])


def _owned(rows: DataFrame, found: DataFrame, kind: str, *facts: str) -> DataFrame:
    """Rows with their campaign, run and these facts of it."""
    owners = found.select(fn.col(f"{kind}_file").alias("file"), "campaign", "run", *facts)
    return rows.join(fn.broadcast(owners), "file").drop("file")

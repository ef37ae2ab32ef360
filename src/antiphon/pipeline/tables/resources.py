"""Processor, memory and threads: by role for a window, and second by second."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import common

__all__ = ["cpu", "resources"]


def cpu(inputs: Inputs) -> DataFrame:
    """Cores in use by all processes of a role together, over the window: writers, readers, nodes,
    servers, and the machine, which has everybody else in it as well.

    Kernels count in hundredths of a second: of a run that was over before half a second had gone by
    nothing can be told.
    """
    processes = (
        inputs.samples.where(fn.col("kept") & fn.col("cpu_seconds").isNotNull())
        .withColumn("role", common.role_kind())
        .groupBy("campaign", "run", "role", "host", "process")
        .agg(
            _nanos("cpu_seconds").alias("used"),
            fn.sum("elapsed_ns").alias("elapsed"),
        )
        .where(fn.col("elapsed") >= common.LEAST_SECOND_NS)
    )
    runs = common.keyed(
        processes.groupBy("campaign", "run", "role").agg(
            fn.sum(fn.col("used") / fn.col("elapsed")).alias("cores")
        ),
        common.complete(inputs.runs),
    )
    table = runs.groupBy(*common.KEYS, "role").agg(
        fn.count("*").alias("repeats"), *common.spread("cores", "cores")
    )
    return common.as_table(table, "cpu")


def resources(inputs: Inputs) -> DataFrame:
    """Every second of every run, whatever became of it, by host and role: for time lines.

    Processes of one role on one host are added up. ``queued_bytes`` is what waits in rings and
    receive buffers, of Antiphon's own protocols.
    """
    seconds = (
        inputs.samples.withColumn("role", common.role_kind())
        .groupBy("campaign", "run", "second", "host", "role")
        .agg(
            # The machine is no process, and is there once.
            fn.greatest(fn.lit(1), fn.countDistinct("process")).alias("processes"),
            fn.bool_and("kept").alias("kept"),
            fn.sum("elapsed_ns").alias("elapsed"),
            _nanos("cpu_seconds").alias("used"),
            _now(fn.col("resident_bytes")).alias("resident"),
            _now(fn.col("threads")).alias("live_threads"),
            fn.sum(fn.col("voluntary_switches") + fn.col("involuntary_switches")).alias("switches"),
            fn.sum("gc_collections").alias("gc_collections"),
            fn.sum("gc_pause_ns").alias("gc_pause_ns"),
            fn.sum("sent_bytes").alias("sent"),
            fn.sum("received_bytes").alias("received"),
            _now(fn.col("ring_bytes") + fn.col("buffer_bytes")).alias("queued"),
        )
    )
    # Of all processes together, over the time that each of them was looked at.
    per_second = common.NANOS * fn.col("processes") / fn.nullif(fn.col("elapsed"), fn.lit(0))
    table = (
        common.keyed(seconds, inputs.runs, "repeat")
        .withColumn("cpu_cores", fn.col("used") * per_second / common.NANOS)
        .withColumn("resident_bytes", fn.round(fn.col("resident") * fn.col("processes")))
        .withColumn("process_threads", fn.round(fn.col("live_threads") * fn.col("processes")))
        .withColumn("switches_per_second", fn.col("switches") * per_second)
        .withColumn("sent_bytes_per_second", fn.col("sent") * per_second)
        .withColumn("received_bytes_per_second", fn.col("received") * per_second)
        .withColumn("queued_bytes", fn.round(fn.col("queued") * fn.col("processes")))
    )
    return common.as_table(table, "resources")


def _nanos(seconds: str) -> Column:
    """Seconds of processor time, added up as whole nanoseconds: in any order the same sum."""
    return fn.sum(fn.round(fn.col(seconds) * common.NANOS).cast("bigint"))


def _now(value: Column) -> Column:
    """A level and no count: its mean, should a second have been looked at twice."""
    return fn.avg(value)

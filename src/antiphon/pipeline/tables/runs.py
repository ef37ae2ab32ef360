"""Runs, and how they ended."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import common
from antiphon.pipeline.tables.latency import by_run, quantiles_by_run

__all__ = ["outcomes", "runs"]

MOST_REASONS = 10


def runs(inputs: Inputs) -> DataFrame:
    """Every run, whatever became of it, with what was counted in it.

    Messages are those of the window; those of the whole run where a number was sent, or where the
    run is not complete. ``lost_messages`` is known where all that was sent had time to come, and
    for protocols that lose some; of the others, what is still on its way at the end of the window
    cannot be told from what was lost, and it is null.
    """
    whole = fn.col("messages").isNotNull() | (fn.col("outcome") != "complete")
    counted = (
        common.keyed(inputs.samples, inputs.runs, "outcome")
        .where((fn.col("role") != "machine") & (whole | fn.col("kept")))
        .groupBy("campaign", "run")
        .agg(
            fn.sum("sent_messages").alias("sent_messages"),
            fn.sum("received_messages").alias("received_messages"),
        )
    )
    timed = (
        by_run(inputs)
        .groupBy("campaign", "run")
        .agg(
            fn.sum("count").alias("latency_rows"),
            fn.sum(fn.when(fn.col("latency_us") < 0, fn.col("count"))).alias("clock_errors"),
        )
    )
    delays = quantiles_by_run(inputs, ["p50_us", "p99_us"]).withColumnsRenamed(
        {"p50_us": "latency_p50_us", "p99_us": "latency_p99_us"}
    )
    lost = fn.col("sent_messages") * common.fan_out() - fn.col("received_messages")
    lossy = fn.coalesce("lossy", fn.col("protocol").isin(*common.LOSSY))
    known = (fn.col("outcome") == "complete") & (fn.col("messages").isNotNull() | lossy)
    seconds = (fn.col("kept_until_ns") - fn.col("kept_from_ns")) / common.NANOS
    joined = (
        inputs.runs.join(counted, ["campaign", "run"], "left")
        .join(timed, ["campaign", "run"], "left")
        .join(delays, ["campaign", "run"], "left")
        .withColumn("window_seconds", fn.when(seconds > 0, seconds))
        .withColumn("lost_messages", fn.when(known, fn.greatest(fn.lit(0), lost)))
        .fillna(0, ["latency_rows", "clock_errors"])
    )
    return common.as_table(joined, "runs")


def outcomes(inputs: Inputs) -> DataFrame:
    """How the runs of a measurement ended: how many of how many, and why."""
    reason = fn.when(fn.trim("reason") != "", fn.col("reason"))
    ended = inputs.runs.groupBy(*common.KEYS, "outcome").agg(
        fn.count("*").alias("runs"),
        fn.slice(fn.array_sort(fn.collect_set(reason)), 1, MOST_REASONS).alias("reasons"),
    )
    of = inputs.runs.groupBy(*common.KEYS).agg(fn.count("*").alias("of"))
    joined = (
        ended.alias("ended")
        .join(of.alias("all"), common.same("ended", "all", common.KEYS))
        .select("ended.*", "all.of")
        .withColumn("part", fn.col("runs") / fn.col("of"))
    )
    return common.as_table(joined, "outcomes")

"""How steady throughput is from second to second."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import common

__all__ = ["bandwidth_ecdf", "stability"]


def bandwidth_ecdf(inputs: Inputs) -> DataFrame:
    """For every bandwidth that was seen: the part of all seconds that had no more, all repeats
    together."""
    seconds = common.keyed(common.bandwidth(inputs), common.complete(inputs.runs))
    counts = seconds.groupBy(*common.KEYS, "bytes_per_second").agg(fn.count("*").alias("seconds"))
    each = Window.partitionBy(*common.KEYS)
    upward = each.orderBy("bytes_per_second").rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    reached = fn.sum("seconds").over(upward) / fn.sum("seconds").over(each)
    return common.as_table(counts.withColumn("cumulative", reached), "bandwidth_ecdf")


def stability(inputs: Inputs) -> DataFrame:
    """Variation, stalls and weak seconds.

    ``variation`` is the standard deviation of the seconds of a run over their mean; mean, median
    and variation are means over repeats. A stall is a stretch of seconds in which nothing came;
    the longest is that of all repeats. ``part_below_half`` counts the seconds with less than half
    of their own run's median, all repeats together.
    """
    seconds = common.bandwidth(inputs)
    runs = seconds.groupBy("campaign", "run").agg(
        fn.avg("bytes_per_second").alias("mean"),
        fn.median("bytes_per_second").alias("median"),
        fn.stddev_samp("bytes_per_second").alias("stddev"),
    )
    below = (
        seconds.join(runs, ["campaign", "run"])
        .groupBy("campaign", "run", "mean", "median", "stddev")
        .agg(
            fn.count("*").alias("seconds"),
            fn.sum(
                fn.when(fn.col("bytes_per_second") < fn.col("median") / 2, 1).otherwise(0)
            ).alias("below"),
        )
    )
    measured = common.keyed(
        below.join(_stalls(seconds), ["campaign", "run"], "left"), common.complete(inputs.runs)
    )
    table = measured.groupBy(*common.KEYS).agg(
        fn.count("*").alias("repeats"),
        fn.sum("seconds").alias("seconds"),
        fn.avg("mean").alias("bytes_per_second_mean"),
        fn.avg("median").alias("bytes_per_second_median"),
        fn.avg(fn.when(fn.col("mean") > 0, fn.col("stddev") / fn.col("mean"))).alias("variation"),
        fn.coalesce(fn.max("stall"), fn.lit(0.0)).alias("longest_stall_seconds"),
        (fn.sum("below") / fn.sum("seconds")).alias("part_below_half"),
    )
    return common.as_table(table, "stability")


def _stalls(seconds: DataFrame) -> DataFrame:
    """By run: the longest stretch of seconds without a byte. Those of one stretch have in common
    how many seconds with bytes came before them."""
    order = Window.partitionBy("campaign", "run").orderBy("second")
    before = fn.sum(fn.when(fn.col("received_bytes") > 0, 1).otherwise(0)).over(
        order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    stretches = (
        seconds.withColumn("stretch", before)
        .where("received_bytes = 0")
        .groupBy("campaign", "run", "stretch")
        .agg((fn.sum("elapsed_ns") / common.NANOS).alias("lasted"))
    )
    return stretches.groupBy("campaign", "run").agg(fn.max("lasted").alias("stall"))

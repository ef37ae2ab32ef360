"""Delays: how many messages took so many microseconds, and the quantiles of that.

Exact to a microsecond at any size. One pass over the messages counts them by whole microseconds,
with three sums of 64-bit integers: few rows are left, and all else is made of those. A nanosecond
is 1000 us + r, so the sums of delays and of their squares follow from the sums of r and of r²,
without a decimal per message; the results are decimals that nothing is rounded in.

A quantile is the smallest value whose cumulative count reaches p·n, in integers throughout.
Approximate sketches were off by more than a percent at p99.9, and are not used.

Negative delays, of clocks that disagree, are counted in ``runs.clock_errors`` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from antiphon.pipeline import schemas
from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import common

__all__ = [
    "QUANTILES",
    "by_run",
    "latency",
    "latency_counts",
    "merged",
    "quantiles_by_run",
    "tails",
]

QUANTILES = {
    "p50_us": 5_000,
    "p75_us": 7_500,
    "p90_us": 9_000,
    "p95_us": 9_500,
    "p99_us": 9_900,
    "p999_us": 9_990,
    "p9999_us": 9_999,
}
"""By column, in parts of ten thousand."""

WHOLE = 10_000
BUCKETS = ("latency_us", "count", "sum_ns", "sum_squares_ns")
DECIMAL = "decimal(38,0)"
APART = tuple(name for name in schemas.TABLES["latency_counts"] if name not in BUCKETS)
"""What sets one distribution apart from another."""


@common.once
def by_run(inputs: Inputs) -> DataFrame:
    """Counts by run, stage, topic and microsecond: the one pass over all messages.

    Several tables are made of it, so a job should persist it; see `antiphon.pipeline.tables`.
    Negative delays are there too, in the bucket -1.
    """
    delay = fn.col("latency_ns")
    micros = fn.when(delay < 0, fn.lit(-1)).otherwise(fn.expr("latency_ns div 1000"))
    rest = fn.when(delay < 0, fn.lit(0)).otherwise(fn.expr("latency_ns % 1000"))
    # A number instead of two long names: every message is looked up by what it is counted under.
    owner = fn.xxhash64("campaign", "run")
    counts = (
        inputs.latency.where(delay.isNotNull())
        .select(
            owner.alias("owner"), "stage", "topic", micros.alias("latency_us"), rest.alias("rest")
        )
        .groupBy("owner", "stage", "topic", "latency_us")
        .agg(
            fn.count("*").alias("count"),
            fn.sum("rest").alias("rests"),
            fn.sum(fn.col("rest") * fn.col("rest")).alias("rest_squares"),
        )
    )
    owners = inputs.runs.select("campaign", "run", owner.alias("owner"))
    return counts.join(fn.broadcast(owners), "owner").select(
        "campaign", "run", "stage", "topic", "latency_us", "count", "rests", "rest_squares"
    )


@common.once
def latency_counts(inputs: Inputs) -> DataFrame:
    """How many messages of a measurement took so many whole microseconds."""
    per_run = common.keyed(
        by_run(inputs).where(fn.col("latency_us") >= 0), common.complete(inputs.runs)
    )
    counts = per_run.groupBy(*APART, "latency_us").agg(
        fn.sum("count").alias("count"),
        fn.sum("rests").alias("rests"),
        fn.sum("rest_squares").alias("rest_squares"),
    )
    base = (fn.col("latency_us") * 1000).cast(DECIMAL)
    count, rests = fn.col("count").cast(DECIMAL), fn.col("rests").cast(DECIMAL)
    squares = base * base * count + base * rests * 2 + fn.col("rest_squares").cast(DECIMAL)
    exact = counts.withColumn("sum_ns", base * count + rests).withColumn("sum_squares_ns", squares)
    return common.as_table(exact, "latency_counts")


def merged(counts: DataFrame, by: Sequence[str]) -> DataFrame:
    """Counts of several measurements, or campaigns, added up over all that is not in ``by``.

    Takes and gives the buckets of ``latency_counts``, so that a new campaign is added to old ones
    without their messages.
    """
    return counts.groupBy(*by, "latency_us").agg(
        *(fn.sum(name).cast(kind).alias(name) for name, kind in _sums().items())
    )


def _sums() -> dict[str, str]:
    kinds = schemas.TABLES["latency_counts"]
    return {name: kinds[name] for name in BUCKETS[1:]}


def tails(counts: DataFrame, by: Sequence[str] = APART) -> DataFrame:
    """Count, mean, standard deviation and quantiles of the distributions that ``by`` sets apart.

    ``counts`` has a row per bucket of each: `merged` makes that so.
    """
    each = Window.partitionBy(*by)
    upward = each.orderBy("latency_us").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = counts.withColumn("reached", fn.sum("count").over(upward)).withColumn(
        "all", fn.sum("count").over(each)
    )
    micros = fn.col("latency_us")
    sums = ranked.groupBy(*by).agg(
        fn.sum("count").alias("count"),
        fn.sum("sum_ns").cast(DECIMAL).alias("sum_ns"),
        fn.sum("sum_squares_ns").cast(DECIMAL).alias("squares"),
        fn.min(micros).alias("min_us"),
        fn.max(micros).alias("max_us"),
        *map(_quantile, QUANTILES),
    )
    mean = fn.col("sum_ns").cast("double") / fn.col("count")
    return (
        sums.withColumn("mean_us", mean / 1000)
        .withColumn("stddev_us", fn.sqrt(_variance()) / 1000)
        .drop("squares")
    )


def quantiles_by_run(inputs: Inputs, columns: Sequence[str]) -> DataFrame:
    """These of `QUANTILES` for every run by itself, all its stages and topics together."""
    each = Window.partitionBy("campaign", "run")
    upward = each.orderBy("latency_us").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    buckets = (
        by_run(inputs)
        .where(fn.col("latency_us") >= 0)
        .groupBy("campaign", "run", "latency_us")
        .agg(fn.sum("count").alias("count"))
        .withColumn("reached", fn.sum("count").over(upward))
        .withColumn("all", fn.sum("count").over(each))
    )
    return buckets.groupBy("campaign", "run").agg(*map(_quantile, columns))


def _quantile(name: str) -> Column:
    """The first bucket in which so many are ``reached``, of ``all``."""
    enough = fn.col("reached") * WHOLE >= fn.col("all") * QUANTILES[name]
    return fn.min(fn.when(enough, fn.col("latency_us"))).alias(name)


def _variance() -> Column:
    """Of a sample, in ns². Squares are taken from the mean's whole part, in integers: without
    that, digits are lost where all delays are alike."""
    count, total = fn.col("count").cast(DECIMAL), fn.col("sum_ns")
    middle = fn.expr("cast(sum_ns div count as decimal(38,0))")
    about = fn.col("squares") - middle * total * 2 + middle * middle * count
    off = (total - middle * count).cast("double")
    spread = about.cast("double") - off * off / fn.col("count")
    return fn.when(fn.col("count") > 1, fn.greatest(fn.lit(0.0), spread) / (fn.col("count") - 1))


def latency(inputs: Inputs) -> DataFrame:
    """Delays of a measurement, all repeats together, exact to a microsecond.

    ``sampled_one_in`` above 1 says that the rows are a sample, each standing for so many messages
    on average, and the tails those of the sample.
    """
    repeats = (
        common.keyed(
            by_run(inputs)
            .where(fn.col("latency_us") >= 0)
            .groupBy("campaign", "run", "stage", "topic")
            .agg(fn.sum("count").alias("rows")),
            common.complete(inputs.runs),
            "latency_one_in",
        )
        .groupBy(*APART)
        .agg(
            fn.count("*").alias("repeats"),
            (fn.sum(fn.col("latency_one_in") * fn.col("rows")) / fn.sum("rows")).alias(
                "sampled_one_in"
            ),
        )
    )
    joined = (
        tails(latency_counts(inputs))
        .alias("tails")
        .join(repeats.alias("repeats"), common.same("tails", "repeats", APART))
        .select("tails.*", "repeats.repeats", "repeats.sampled_one_in")
    )
    return common.as_table(joined, "latency")

"""How unevenly messages are spaced, when they are sent and when they come."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import common
from antiphon.pipeline.tables.latency import by_run

__all__ = ["by_flow", "jitter"]

LANE = ("campaign", "run", "stage", "topic")
FLOW = (*LANE, "source", "target")
NUMBERS = ("lane", "source", "target")
NEW, OLD = 1 / 16, 15 / 16
"""Of RFC 3550: how much of its estimate a difference is, and how much what came before."""

REACH = 600
"""So many messages later a difference is 1e-17 of the estimate, less than a double can tell."""


@common.once
def by_flow(inputs: Inputs) -> DataFrame:
    """A row per sender and receiver of a run: spacing and jitter of their messages, in ns.

    Messages are taken in the order in which they were due. Spacings are those of neighbours: a
    message whose predecessor was not recorded has none, as far as sequence numbers tell, which
    start again with every thread of a sender.

    The estimate of RFC 3550 is J += (|D| - J) / 16 for every message but the first, where D is how
    much longer than the one before it took since it was due; this is J after the last message. It
    is computed in its closed form: the difference of the message that has n others after it is
    (15/16)^n / 16 of J. Of an estimate that forgets this fast only the last `REACH` count.
    """
    # Sorting is what costs: by numbers and not by names, and backwards, so that the number of a row
    # tells how many come after it.
    later = Window.partitionBy(*NUMBERS).orderBy(fn.desc("intended_ns"), fn.desc("sequence"))
    before = {
        name: fn.lead(name).over(later)
        for name in ("sequence", "sent_ns", "received_ns", "intended_ns")
    }
    steps = inputs.latency.withColumn("lane", _lane()).select(
        *NUMBERS,
        (fn.row_number().over(later) - 1).alias("after"),
        (fn.col("sequence") - before["sequence"]).alias("step"),
        (fn.col("sent_ns") - before["sent_ns"]).alias("sent"),
        (fn.col("received_ns") - before["received_ns"]).alias("received"),
        (fn.col("intended_ns") - before["intended_ns"]).alias("due"),
    )
    figures = steps.groupBy(*NUMBERS).agg(
        fn.count("*").alias("count"),
        *_spacing("sent", "in"),
        *_spacing("received", "out"),
        _estimate("sent").alias("in_rfc3550"),
        _estimate("received").alias("out_rfc3550"),
    )
    names = by_run(inputs).select(*LANE).distinct().withColumn("lane", _lane())
    threads = fn.broadcast(inputs.runs.select("campaign", "run", "threads"))
    several = fn.col("threads") > 1
    return (
        figures.join(fn.broadcast(names), "lane")
        .join(threads, ["campaign", "run"])
        .select(
            *FLOW,
            "count",
            *(
                fn.when(several, fn.col(f"{name}_all"))
                .otherwise(fn.col(f"{name}_next"))
                .alias(name)
                for name in ("in_spacing", "in_stddev", "out_spacing", "out_stddev")
            ),
            "in_rfc3550",
            "out_rfc3550",
        )
    )


def _lane() -> Column:
    """A number for what a message's row and its run have as names; null has its place too."""
    return fn.xxhash64(
        "campaign", "run", fn.coalesce("stage", fn.lit("")), fn.coalesce("topic", fn.lit(""))
    )


def _spacing(column: str, name: str) -> list[Column]:
    """Of all neighbours, and of those that follow each other by their numbers."""
    value = {"all": fn.col(column), "next": fn.when(fn.col("step") == 1, fn.col(column))}
    return [
        figure(value[which]).alias(f"{name}_{what}_{which}")
        for what, figure in (("spacing", fn.avg), ("stddev", fn.stddev_samp))
        for which in value
    ]


def _estimate(column: str) -> Column:
    difference = fn.abs(fn.col(column) - fn.col("due"))
    weight = NEW * fn.pow(fn.lit(OLD), fn.col("after"))
    return fn.sum(fn.when(fn.col("after") < REACH, difference * weight))


def jitter(inputs: Inputs) -> DataFrame:
    """Standard deviation of the spacing, and the estimate of RFC 3550: as sent, and as received.

    ``in`` is what the sender did to its own schedule, ``out`` what had become of it at the other
    end. Means over all flows of all repeats.
    """
    flows = common.keyed(by_flow(inputs), common.complete(inputs.runs))
    table = flows.groupBy(*common.KEYS, "stage").agg(
        fn.countDistinct("run").alias("repeats"),
        fn.sum("count").alias("count"),
        *(
            (fn.avg(name) / 1000).alias(f"{name}_us")
            for name in ("in_stddev", "out_stddev", "in_rfc3550", "out_rfc3550")
        ),
    )
    return common.as_table(table, "jitter")

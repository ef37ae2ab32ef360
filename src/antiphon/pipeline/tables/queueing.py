"""Predicted against measured: the delay of every topic at its receiver.

The core measures what a queueing model needs: when events came, how long each took, how long the
topic waited for its turn. The lab has recorded those sums, second by second; here the difference
between the first and the last look in the window, of all repeats together, is put into the same
formulas that a bus uses while it runs.
"""

from __future__ import annotations

import math

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from antiphon.pipeline import model
from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import common
from antiphon.pipeline.tables.jitter import by_flow
from antiphon.pipeline.tables.latency import latency_counts, tails

__all__ = ["queueing"]

TOPIC = (*common.KEYS, "topic")
SUMS = (
    "arrivals",
    "service_seconds",
    "handled",
    "service_squares",
    "slices",
    "busy_slices",
    "full_slices",
    "resumed_slices",
    "resumed_seconds",
    "resumed_squares",
    "waited_seconds",
    "waited_squares",
    "queue_seen",
    "overruns",
    "responses",
    "response_seconds",
)
LEAST_EVENTS = 30
OFTEN_FULL = 0.1
MICROS = 1_000_000


def queueing(inputs: Inputs) -> DataFrame:
    """By topic: its rates, what a model makes of them, and what was measured.

    Rates are events per second; ``service_rate`` is what the handler would get done with all the
    time of one thread. A variation is a standard deviation over a mean; that of arrivals is known
    where every message was timed. ``utilisation`` is of the rate that the share guarantees, or of
    the service rate without a share. ``estimate_us`` is the mean response of M/G/1 with the waits
    for a turn, ``estimate_p99_us`` the p99 of responses that are spread exponentially about it, as
    `DelayModel.p99_response` of a running bus, ``bound_us`` what the share alone guarantees,
    ``little_us`` the mean response that the length of the queue means which arriving events found,
    if they come at random: others see another queue than there is on average. ``measured_...``
    count from the arrival at the receiver to the end of the handler, ``delivery_...`` from when a
    message was due at its sender.
    ``relative_error`` is how much more than the measured mean the estimate is, and
    ``relative_error_p99`` the same of the p99. ``basis`` says in words what the numbers rest on;
    what is not known is null.

    Campaigns of schema version 1 have no variation and no waits: their estimate is M/M/1.
    """
    runs = common.complete(inputs.runs)
    sums = _sums(inputs, runs)
    table = _modelled(sums)
    for part in (_measured_p99(inputs, runs), _delivered(inputs), _arrivals(inputs, runs)):
        table = _beside(table, part)
    more = fn.try_divide(fn.col("estimate_p99_us"), fn.col("measured_p99_us")) - 1
    table = table.withColumn("relative_error_p99", more)
    return common.as_table(table, "queueing")


def _beside(table: DataFrame, part: DataFrame) -> DataFrame:
    """Further columns of the same topics, null where there are none."""
    more = [fn.col(f"part.{name}") for name in part.columns if name not in TOPIC]
    joined = table.alias("table").join(
        fn.broadcast(part).alias("part"), common.same("table", "part", TOPIC), "left"
    )
    return joined.select("table.*", *more)


def _sums(inputs: Inputs, runs: DataFrame) -> DataFrame:
    """What was added in the windows of all repeats. Sums only grow: last less first is most less
    least. Whether it was conformant is told of the time before a look, and what the first look of a
    window tells is no part of it."""
    late = (~fn.col("conformant")).cast("int")
    broken = fn.sum(late) - fn.coalesce(fn.min_by(late, "time_ns"), fn.lit(0))
    per_run = inputs.topics.groupBy("campaign", "run", "topic").agg(
        *((fn.max(name) - fn.min(name)).alias(name) for name in SUMS),
        ((fn.max("time_ns") - fn.min("time_ns")) / common.NANOS).alias("elapsed"),
        (fn.max_by("queue_length", "time_ns") - fn.min_by("queue_length", "time_ns")).alias("grew"),
        fn.avg("queue_length").alias("queue_length"),
        fn.max("share").alias("share"),
        fn.max("period").alias("period"),
        (broken == 0).alias("conformant"),
    )
    keyed = common.keyed(per_run.where("elapsed > 0"), runs)
    return keyed.groupBy(*TOPIC).agg(
        fn.count("*").alias("repeats"),
        *(fn.sum(name).alias(name) for name in (*SUMS, "elapsed", "grew")),
        fn.avg("queue_length").alias("queue_looked_at"),
        fn.max("share").alias("share"),
        fn.max("period").alias("period"),
        fn.bool_and("conformant").alias("conformant"),
    )


def _modelled(sums: DataFrame) -> DataFrame:
    """The same steps as in `antiphon.topics.model`."""
    arrivals = fn.col("arrivals") / fn.col("elapsed")
    # Version 1 does not say how many were handled: those that came and do not wait any more.
    events = fn.coalesce(fn.col("handled"), fn.col("arrivals") - fn.col("grew"))
    full = fn.try_divide(fn.col("full_slices"), fn.col("slices"))
    enough = (fn.col("events") >= LEAST_EVENTS) & (fn.col("service_seconds") > 0)
    # In steps of several columns: a plan is looked through again for every step.
    counted = sums.withColumns(
        {
            "events": fn.when(events > 0, events),
            "detailed": fn.col("service_squares").isNotNull(),
            "often_full": fn.coalesce(full > OFTEN_FULL, fn.lit(False)),
            "queue_length": fn.coalesce(
                fn.try_divide(fn.col("queue_seen"), fn.col("arrivals")), fn.col("queue_looked_at")
            ),
        }
    ).withColumn("enough", fn.coalesce(enough, fn.lit(False)))
    known = counted.withColumns(
        {
            "lambda": fn.when(fn.col("enough"), arrivals),
            "service": fn.when(fn.col("enough"), fn.col("service_seconds") / fn.col("events")),
            "variance": _variance(),
        }
    )
    rate, service = 1 / fn.col("service"), fn.col("service")
    guaranteed = fn.when(fn.col("share").isNull(), rate).otherwise(
        model.guaranteed_rate(fn.col("share"), rate)
    )
    estimate = fn.when(fn.col("detailed"), _estimate() + service).otherwise(
        model.mm1_mean_response(fn.col("lambda"), rate)
    )
    wait = model.little_time(fn.col("queue_length"), fn.col("lambda"))
    measured = fn.try_divide(fn.col("response_seconds"), fn.col("responses"))
    rated = known.withColumns(
        {
            "guaranteed": guaranteed,
            "arrival_rate": fn.col("lambda"),
            "service_rate": rate,
            "service_variation": fn.when(fn.col("detailed"), fn.sqrt("variance") / service),
            "estimate_us": estimate * MICROS,
            "little_us": (wait + service) * MICROS,
            "measured_mean_us": fn.when(fn.col("enough"), measured * MICROS),
        }
    )
    error = fn.try_divide(fn.col("estimate_us"), fn.col("measured_mean_us")) - 1
    judged = rated.withColumns(
        {
            "utilisation": model.utilisation(fn.col("lambda"), fn.col("guaranteed")),
            "estimate_p99_us": model.exponential_quantile(fn.col("estimate_us"), 0.99),
            "bound_us": _bound() * MICROS,
            "relative_error": error,
        }
    )
    kept_up = fn.coalesce(fn.col("utilisation") < 1, fn.lit(True))
    return judged.withColumns({"stable": kept_up & ~fn.col("often_full"), "basis": _basis()})


def _variance() -> Column:
    """Of one event's service; 0 where it was not recorded."""
    measured = model.slice_variance(
        fn.col("service_seconds"),
        fn.col("service_squares"),
        fn.col("events"),
        fn.col("busy_slices"),
    )
    return fn.when(fn.col("detailed"), measured)


def _estimate() -> Column:
    """The mean wait: time between two slices of one busy period is as good as service to those who
    wait behind it."""
    events, fresh = fn.col("events"), fn.col("slices") - fn.col("resumed_slices")
    resumed = fn.col("resumed_seconds") / events
    resumed_squares = fn.col("resumed_squares") / events
    some = fresh > 0
    setup = fn.when(some, fn.col("waited_seconds") / fresh).otherwise(fn.lit(0.0))
    squares = fn.when(some, fn.col("waited_squares") / fresh).otherwise(fn.lit(0.0))
    spread = fn.col("variance") + fn.greatest(fn.lit(0.0), resumed_squares - resumed * resumed)
    return model.mg1_setup_mean_wait(
        fn.col("lambda"),
        fn.col("service") + resumed,
        spread,
        setup,
        fn.greatest(squares, setup * setup),
    )


def _bound() -> Column:
    """Of a server that is slower by the share, and is not there for the rest of a period."""
    share = fn.col("share")
    slower = model.mg1_mean_response(
        fn.col("lambda"), 1 / fn.col("guaranteed"), fn.col("variance") / (share * share)
    )
    return fn.when(fn.col("detailed") & (share > 0), slower + (1 - share) * fn.col("period"))


def _basis() -> Column:
    few = fn.format_string("too few samples: %,d events", fn.coalesce("events", fn.lit(0)))
    seen = fn.format_string("%,d events in %.1f s; ", "events", "elapsed")
    how = fn.when(fn.col("detailed"), fn.lit("M/G/1 with the measured wait for a turn")).otherwise(
        fn.lit("M/M/1, as its variation was not recorded; share not recorded")
    )
    bound = (
        fn.when(~fn.col("detailed"), fn.lit(""))
        .when(fn.col("share").isNull(), fn.lit("; no share, so no bound"))
        .when(
            ~fn.col("conformant"),
            fn.format_string(
                "; %d overruns, so the bound does not hold", fn.coalesce("overruns", fn.lit(0))
            ),
        )
        .otherwise(fn.lit(""))
    )
    over = fn.when(
        fn.col("utilisation") >= 1, fn.lit("; more comes than is guaranteed to be done")
    ).otherwise(fn.lit(""))
    return fn.when(fn.col("enough"), fn.concat(seen, how, bound, over)).otherwise(few)


def _measured_p99(inputs: Inputs, runs: DataFrame) -> DataFrame:
    """From the core's classes, each 3 % wide: the upper end of the one that reaches 99 %."""
    ends = inputs.topics.where("response_classes IS NOT NULL").groupBy("campaign", "run", "topic")
    looks = ends.agg(
        fn.max_by("response_classes", "time_ns").alias("last"),
        fn.min_by("response_classes", "time_ns").alias("first"),
    )
    classes = looks.select("campaign", "run", "topic", "first", fn.explode("last")).select(
        "campaign",
        "run",
        "topic",
        fn.col("key").alias("upper"),
        (fn.col("value") - fn.coalesce(fn.expr("first[key]"), fn.lit(0))).alias("count"),
    )
    added = (
        common.keyed(classes, runs)
        .groupBy(*TOPIC, "upper")
        .agg(fn.sum("count").alias("count"))
        .where("count > 0")
    )
    each = Window.partitionBy(*TOPIC)
    upward = each.orderBy("upper").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    reached = added.withColumn("reached", fn.sum("count").over(upward)).withColumn(
        "all", fn.sum("count").over(each)
    )
    enough = fn.col("reached") * 100 >= fn.col("all") * 99
    return (
        reached.groupBy(*TOPIC)
        .agg(fn.min(fn.when(enough, fn.col("upper"))).alias("upper"), fn.max("all").alias("all"))
        .where(fn.col("all") >= LEAST_EVENTS)
        .select(*TOPIC, (fn.col("upper") / 1000).alias("measured_p99_us"))
    )


def _delivered(inputs: Inputs) -> DataFrame:
    """As the table ``latency`` has it."""
    counts = latency_counts(inputs).where("topic IS NOT NULL AND stage = 'delivery'")
    return tails(counts).select(
        *TOPIC,
        fn.col("mean_us").alias("delivery_mean_us"),
        fn.col("p99_us").alias("delivery_p99_us"),
    )


def _arrivals(inputs: Inputs, runs: DataFrame) -> DataFrame:
    """How unevenly they came, where all were timed: else neighbours are not known."""
    timed = fn.coalesce("latency_one_in", fn.lit(math.inf)) <= 1.01
    flows = common.keyed(by_flow(inputs), runs, "latency_one_in").where(
        fn.col("topic").isNotNull() & timed
    )
    variation = fn.try_divide(fn.col("out_stddev"), fn.col("out_spacing"))
    return flows.groupBy(*TOPIC).agg(fn.avg(variation).alias("arrival_variation"))

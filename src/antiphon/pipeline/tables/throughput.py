"""How much came through, and what is kept of it beside other work."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import common

__all__ = ["degradation", "throughput"]

RESAMPLES = 2_000
SEED = 1
LOW, HIGH = 0.025, 0.975
BASELINE = "none"
FRAME_HEADER = 14
"""Of Ethernet, as interfaces count it: two addresses and a type, without the checksum."""


def throughput(inputs: Inputs) -> DataFrame:
    """Messages and bytes per second that all receivers of a run got, over its repeats.

    The worst sender is the one that sent the least in its run: the mean over repeats. Where a
    number of messages was sent, it is that number over the time until the last receiver had
    acknowledged them to the slowest sender; over the window, where nobody acknowledges.
    ``cpu_ns_per_message`` is what all processes of the run used for a message received, null where
    that took less than half a second; ``wire_bytes_per_message`` the Ethernet frames for it, in
    both directions, null where no interface was theirs alone; ``ip_bytes_per_message`` the same
    without the frames' own headers.
    """
    done = common.complete(inputs.runs)
    window = fn.col("kept_until_ns") - fn.col("kept_from_ns")
    seconds = fn.coalesce("slowest_sender_ns", window) / common.NANOS
    counted = fn.when(fn.col("messages").isNotNull() & (seconds > 0), fn.col("messages") / seconds)
    measured = (
        done.join(_worst_sender(inputs, done), ["campaign", "run"], "left")
        .join(_costs(inputs), ["campaign", "run"], "left")
        .withColumn("worst_messages", fn.coalesce(counted, "worst_messages"))
        .withColumn("worst_bytes", fn.coalesce(counted * fn.col("size"), "worst_bytes"))
    )
    table = measured.groupBy(*common.KEYS).agg(
        fn.count("*").alias("repeats"),
        *common.spread("messages_per_second", "messages_per_second"),
        *common.spread("bytes_per_second", "bytes_per_second"),
        fn.avg("worst_messages").alias("worst_sender_messages_per_second"),
        fn.avg("worst_bytes").alias("worst_sender_bytes_per_second"),
        fn.avg("cpu_ns_per_message").alias("cpu_ns_per_message"),
        fn.avg("wire_bytes_per_message").alias("wire_bytes_per_message"),
        fn.avg("ip_bytes_per_message").alias("ip_bytes_per_message"),
    )
    return common.as_table(table, "throughput")


def _sends() -> Column:
    """Whether a process is one that sends: of the members of a group the first so many do."""
    member = fn.regexp_extract("role", r"^node-(\d+)$", 1)
    return fn.col("role").startswith("writer") | (
        (member != "")
        & (
            fn.expr(r"try_cast(regexp_extract(role, '^node-(\\d+)$', 1) AS INT)")
            < fn.col("senders")
        )
    )


def _worst_sender(inputs: Inputs, runs: DataFrame) -> DataFrame:
    """By run: the least that one of its senders sent, per second of the window."""
    senders = (
        common.keyed(inputs.samples.where("kept"), runs)
        .where(_sends())
        .groupBy("campaign", "run", "host", "process", "role")
        .agg(
            fn.sum("sent_messages").alias("messages"),
            fn.sum("sent_bytes").alias("bytes"),
            (fn.sum("elapsed_ns") / common.NANOS).alias("seconds"),
        )
        .where("seconds > 0")
    )
    return senders.groupBy("campaign", "run").agg(
        fn.min(fn.col("messages") / fn.col("seconds")).alias("worst_messages"),
        fn.min(fn.col("bytes") / fn.col("seconds")).alias("worst_bytes"),
    )


def _costs(inputs: Inputs) -> DataFrame:
    """By run: what a received message cost."""
    used = (
        inputs.samples.where(fn.col("kept") & (fn.col("role") != "machine"))
        .groupBy("campaign", "run")
        .agg(
            # Ticks of a clock of 100 a second: whole nanoseconds add up in any order.
            fn.sum(fn.round(fn.col("cpu_seconds") * common.NANOS).cast("bigint")).alias("cpu_ns"),
            fn.sum("network_sent_bytes").alias("wire_bytes"),
            fn.sum("network_sent_packets").alias("packets"),
            fn.sum("received_messages").alias("received"),
            (fn.sum("elapsed_ns") / fn.countDistinct("host", "process")).alias("elapsed"),
        )
        .where("received > 0")
    )
    return used.select(
        "campaign",
        "run",
        fn.when(
            fn.col("elapsed") >= common.LEAST_SECOND_NS, fn.col("cpu_ns") / fn.col("received")
        ).alias("cpu_ns_per_message"),
        (fn.col("wire_bytes") / fn.col("received")).alias("wire_bytes_per_message"),
        ((fn.col("wire_bytes") - FRAME_HEADER * fn.col("packets")) / fn.col("received")).alias(
            "ip_bytes_per_message"
        ),
    )


def degradation(inputs: Inputs) -> DataFrame:
    """The fraction of its own unloaded throughput that a protocol keeps under each workload.

    The interval is the middle 95 % of a bootstrap over repeats: both sides are drawn again from
    their own repeats, `RESAMPLES` times, by a hash of the number of the draw, so that it is the
    same whenever it is computed. It is null where either side has a single repeat: seconds of one
    run are not repeats.
    """
    apart = [name for name in common.KEYS if name != "workload"]
    pair = fn.struct("repeat", "bytes_per_second")
    measured = (
        common.complete(inputs.runs)
        .groupBy(*common.KEYS)
        .agg(fn.array_sort(fn.collect_list(pair)).alias("pairs"))
        .withColumn("figures", fn.expr("transform(pairs, one -> one.bytes_per_second)"))
        .drop("pairs")
    )
    loaded = measured.where(fn.col("workload") != BASELINE).alias("loaded")
    idle = measured.where(fn.col("workload") == BASELINE).alias("idle")
    joined = (
        loaded.join(idle, common.same("loaded", "idle", apart))
        .select("loaded.*", fn.col("idle.figures").alias("baseline"))
        .withColumn("repeats", fn.size("figures"))
        .withColumn("baseline_repeats", fn.size("baseline"))
        .withColumn("bytes_per_second", _mean("figures"))
        .withColumn("baseline_bytes_per_second", _mean("baseline"))
        .withColumn(
            "kept",
            fn.when(
                fn.col("baseline_bytes_per_second") > 0,
                fn.col("bytes_per_second") / fn.col("baseline_bytes_per_second"),
            ),
        )
        .withColumn("resampled", _resampled())
        .withColumn("kept_low", _quantile(LOW))
        .withColumn("kept_high", _quantile(HIGH))
    )
    return common.as_table(joined, "degradation")


def _mean(figures: str) -> Column:
    return fn.expr(f"aggregate({figures}, 0D, (sum, one) -> sum + one) / size({figures})")


def _resampled() -> Column:
    """Ratios of means of draws with replacement, in ascending order; null without repeats."""

    def drawn(figures: str, side: int) -> str:
        index = f"pmod(xxhash64({SEED}, {side}, draw, at), size({figures})) + 1"
        return (
            f"aggregate(sequence(1, size({figures})), 0D,"
            f" (sum, at) -> sum + element_at({figures}, cast({index} as int))) / size({figures})"
        )

    ratios = (
        f"array_sort(filter(transform(sequence(1, {RESAMPLES}), draw ->"
        f" try_divide({drawn('figures', 1)}, {drawn('baseline', 2)})), one -> one is not null))"
    )
    return fn.expr(f"CASE WHEN size(figures) > 1 AND size(baseline) > 1 THEN {ratios} END")


def _quantile(part: float) -> Column:
    at = fn.greatest(fn.lit(1), fn.ceil(fn.size("resampled") * part)).cast("int")
    return fn.when(fn.size("resampled") > 0, fn.element_at("resampled", at))

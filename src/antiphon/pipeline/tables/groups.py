"""What becomes of throughput as a group grows, and what another way of doing it gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import common

__all__ = ["comparison", "scaled", "scaling"]

RATES = ("messages_per_second", "bytes_per_second")
SIZES = ("size", "nodes", "senders", "messages")
"""Keys over which a gain is summed up."""


@common.once
def scaled(inputs: Inputs) -> DataFrame:
    """The table `scaling`, with the ``receivers`` of each message where a run has told them.

    Of a node is what one of the senders gets through: what all receivers got, over the senders and
    over the receivers that each message has. ``slowdown`` is how many times more that was in the
    smallest group, all other keys being equal; senders are no other key where they grow with the
    group. Measurements of one group size alone are left out where the pattern has none.
    """
    per_sender = fn.col("senders") * common.fan_out()
    measured = (
        common.complete(inputs.runs)
        .groupBy(*common.KEYS)
        .agg(
            fn.count("*").alias("repeats"),
            fn.max("receivers").alias("receivers"),
            *(fn.avg(rate).alias(f"{rate}_total") for rate in RATES),
        )
        .withColumns(
            {f"{rate}_node": fn.try_divide(fn.col(f"{rate}_total"), per_sender) for rate in RATES}
        )
        .withColumn("others", fn.when(fn.col("pattern") == "m-n", fn.col("senders")))
    )
    apart = [name for name in common.KEYS if name not in ("nodes", "senders")]
    group = Window.partitionBy(*apart, "others")
    smallest = fn.min(fn.struct("nodes", "bytes_per_second_node")).over(group)
    ratio = fn.when(
        fn.col("bytes_per_second_node") > 0,
        fn.col("smallest.bytes_per_second_node") / fn.col("bytes_per_second_node"),
    )
    table = (
        measured.withColumn("smallest", smallest)
        .withColumn("largest_nodes", fn.max("nodes").over(group))
        .withColumn("smallest_nodes", fn.col("smallest.nodes"))
        .withColumn("slowdown", ratio)
        .where(
            fn.col("pattern").isin("1-n", "n-n", "m-n")
            | (fn.col("smallest_nodes") < fn.col("largest_nodes"))
        )
    )
    return table


def scaling(inputs: Inputs) -> DataFrame:
    """Throughput by the size of the group: of a node, and of all together."""
    return common.as_table(scaled(inputs), "scaling")


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that is changed while all else stays.

    ``compared`` are the keys that may differ and ``label`` is what they amount to, null where there
    is nothing to compare. Of two labels the one with the smaller ``rank`` is what the other is held
    against, by name if those are equal. ``fits`` says more about which pairs are meant, with the
    aliases ``over`` and ``this``.
    """

    name: str
    compared: tuple[str, ...]
    label: Column
    rank: Column
    fits: str = "true"


def _questions() -> tuple[Question, ...]:
    names = fn.concat_ws("/", "protocol", "stack")
    makers = fn.concat_ws("/", "protocol", "variant", "stack")
    return (
        Question(
            "transport",
            ("series", "protocol", "variant", "stack"),
            names,
            names.contains("tcp").cast("int"),
            "this.label LIKE '%tcp%' AND replace(this.label, 'tcp', 'udp') = over.label",
        ),
        _of_names("stack", "paper-udp", "udp"),
        _of_names("link", "fast", "lan", "loopback"),
        _of_names("variant", "callback"),
        _of_names("scheduling", "other"),
        Question("streams", ("streams",), fn.col("streams").cast("string"), fn.col("streams")),
        Question("threads", ("threads",), fn.col("threads").cast("string"), fn.col("threads")),
        Question(
            "protocol",
            ("protocol", "variant", "stack"),
            makers,
            fn.col("protocol").startswith("antiphon").cast("int"),
            "this.maker != over.maker",
        ),
    )


def _of_names(key: str, *first: str) -> Question:
    """These come first, in this order; the others are alike."""
    known = fn.array(*(fn.lit(name) for name in first))
    at = fn.array_position(known, fn.coalesce(fn.col(key), fn.lit("")))
    rank = fn.when(at > 0, at).otherwise(fn.lit(len(first) + 1)).cast("int")
    return Question(key, (key,), fn.col(key), rank)


def comparison(inputs: Inputs) -> DataFrame:
    """By how many percent more comes through with one thing changed: ``this`` over ``over``.

    Runs of the same repeat are held against each other. A row with a size and a number of nodes
    has the least, the mean and the most over its repeats; one where both are null has them over
    the means of all sizes and numbers of nodes. Keys that were compared are null. What is asked:
    ``transport`` (TCP over UDP, else the same), ``stack`` (such as flow control over none),
    ``link`` (such as Gigabit over Fast Ethernet), ``variant``, ``scheduling``, ``streams``,
    ``threads``, and ``protocol``.
    """
    runs = common.complete(inputs.runs).where(
        (fn.col("bytes_per_second") > 0) & (fn.col("series") != "links")
    )
    questions = _questions()
    sides = _sides(runs, questions)
    fits = " OR ".join(f"(this.question = '{one.name}' AND ({one.fits}))" for one in questions)
    pairs = (
        sides.alias("this")
        .join(
            sides.alias("over"),
            common.same("this", "over", [*common.KEYS, "question", "repeat"])
            & fn.expr("struct(over.rank, over.label) < struct(this.rank, this.label)")
            & fn.expr(fits),
        )
        .select(
            *(fn.col(f"this.{name}") for name in (*common.KEYS, "question")),
            fn.col("over.label").alias("over"),
            fn.col("this.label").alias("this"),
            fn.expr("(this.bytes_per_second / over.bytes_per_second - 1) * 100").alias("gain"),
        )
    )
    each = pairs.groupBy(*common.KEYS, "question", "over", "this").agg(*_gains("gain"))
    wider = [name for name in common.KEYS if name not in SIZES]
    overall = each.groupBy(*wider, "question", "over", "this").agg(*_gains("gain_percent_mean"))
    rows = each.unionByName(overall, allowMissingColumns=True)
    return common.as_table(rows, "comparison")


def _sides(runs: DataFrame, questions: Sequence[Question]) -> DataFrame:
    """Every run once for each question, with the keys that are compared there taken away: one join
    then answers all of them."""
    asked = fn.array(
        *(
            fn.struct(
                fn.lit(one.name).alias("question"),
                one.label.alias("label"),
                one.rank.cast("int").alias("rank"),
                fn.array(*(fn.lit(name) for name in one.compared)).alias("compared"),
            )
            for one in questions
        )
    )
    exploded = runs.select(
        *common.KEYS,
        "repeat",
        "bytes_per_second",
        fn.col("protocol").alias("maker"),
        fn.inline(asked),
    )
    masked = {
        name: fn.when(~fn.array_contains("compared", name), fn.col(name)) for name in common.KEYS
    }
    return exploded.where("label IS NOT NULL AND label != ''").withColumns(masked)


def _gains(column: str) -> list[Column]:
    return [
        fn.count("*").alias("pairs"),
        fn.min(column).alias("gain_percent_min"),
        fn.avg(column).alias("gain_percent_mean"),
        fn.max(column).alias("gain_percent_max"),
    ]

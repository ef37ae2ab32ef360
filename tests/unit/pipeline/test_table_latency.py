"""Delays: exact, whatever their number."""

from __future__ import annotations

import math
import random
import statistics
from decimal import Decimal
from typing import Any

import duckdb
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from antiphon.pipeline.tables.latency import (
    APART,
    QUANTILES,
    by_run,
    latency,
    latency_counts,
    merged,
    tails,
)
from unit.pipeline.campaigns import delay, inputs, only, rows_of, run
from unit.pipeline.together import Asks, Together, in_order, put

TESTS = Together()
made = TESTS.fixture()


@TESTS.add
def test_counts_are_by_whole_microseconds_with_exact_sums() -> Asks:
    delays = [delay(1_000), delay(1_999), delay(2_000), delay(-1), delay(0)]
    rows = in_order((yield put(latency_counts, [run()], latency=delays)), "latency_us")
    found = [
        (one["latency_us"], one["count"], one["sum_ns"], one["sum_squares_ns"]) for one in rows
    ]
    assert found == [
        (0, 1, 0, 0),
        (1, 2, 2_999, 1_000**2 + 1_999**2),
        (2, 1, 2_000, 2_000**2),
    ]
    assert all(isinstance(one["sum_ns"], Decimal) for one in rows)


@TESTS.add
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed() -> Asks:
    delays = [delay(micros * 1_000 + 900) for micros in range(1, 101)]
    (row,) = yield put(latency, [run()], latency=delays)
    assert (row["count"], row["min_us"], row["max_us"]) == (100, 1, 100)
    # 50 of the 100 take at most 50 us, so 50 is reached, and 51 is not the answer.
    assert [row[name] for name in QUANTILES] == [50, 75, 90, 95, 99, 100, 100]
    assert row["mean_us"] == 51.4
    assert row["stddev_us"] == pytest.approx(statistics.stdev(range(1, 101)), rel=1e-12)
    assert (row["stage"], row["topic"], row["repeats"], row["sampled_one_in"]) == (
        "delivery",
        None,
        1,
        1.0,
    )


@TESTS.add
def test_one_message_is_its_own_quantile_and_has_no_deviation() -> Asks:
    (row,) = yield put(latency, [run()], latency=[delay(7_777)])
    assert {row[name] for name in QUANTILES} == {7}
    assert (row["mean_us"], row["stddev_us"]) == (7.777, None)


@TESTS.add
def test_deviations_survive_where_all_delays_are_long_and_alike() -> Asks:
    hour = 3_600_000_000_000
    (row,) = yield put(latency, [run()], latency=[delay(hour), delay(hour + 2)])
    assert row["stddev_us"] == pytest.approx(math.sqrt(2) / 1000, rel=1e-12)


@TESTS.add
def test_repeats_are_one_distribution_and_a_sample_says_so() -> Asks:
    two = [run("a", latency_one_in=1.0), run("b", repeat=2, latency_one_in=4.0)]
    delays = [delay(1_000), delay(2_000), delay(9_000, run="b"), delay(9_000, run="b")]
    (row,) = yield put(latency, two, latency=delays)
    assert (row["repeats"], row["count"], row["p50_us"], row["max_us"]) == (2, 4, 2, 9)
    assert row["sampled_one_in"] == 2.5  # of the messages half stand for 1, half for 4


@TESTS.add
def test_stages_topics_and_campaigns_stay_apart() -> Asks:
    delays = [
        delay(1_000, stage="round-trip"),
        delay(2_000, topic="lab/0/1"),
        delay(3_000, topic="lab/0/2"),
        delay(4_000, campaign="c2"),
    ]
    two = [run(), run(campaign="c2")]
    rows = in_order((yield put(latency, two, latency=delays)), "p50_us")
    found = [(one["campaign"], one["stage"], one["topic"], one["max_us"]) for one in rows]
    assert found == [
        ("c1", "round-trip", None, 1),
        ("c1", "delivery", "lab/0/1", 2),
        ("c1", "delivery", "lab/0/2", 3),
        ("c2", "delivery", None, 4),
    ]


@TESTS.add
def test_negative_delays_are_kept_apart_to_be_counted() -> Asks:
    counts, rows = yield (
        put(by_run, [run()], latency=[delay(-1), delay(-9_999)]),
        put(latency, [run()], latency=[delay(-1)]),
    )
    assert [(one["latency_us"], one["count"]) for one in counts] == [(-1, 2)]
    assert rows == []


def test_counts_of_two_campaigns_add_up_to_those_of_both(spark: SparkSession) -> None:
    two = [run(), run(campaign="c2")]
    delays = [delay(one * 1_000, campaign=f"c{1 + one % 2}") for one in range(1, 201)]
    counts = latency_counts(inputs(spark, two, latency=delays))
    by = [name for name in APART if name != "campaign"]
    both = only(tails(merged(counts, by), by))
    assert (both["count"], both["sum_ns"]) == (200, 20_100_000)
    assert (both["p50_us"], both["p99_us"], both["max_us"]) == (100, 198, 200)
    each = rows_of(tails(counts), "campaign")
    assert [one["count"] for one in each] == [100, 100]
    assert [one["p50_us"] for one in each] == [100, 99]


@TESTS.add
def test_sums_are_exact_beyond_what_a_double_can_count() -> Asks:
    large = 4_000_000_000_000_001
    (row,) = yield put(latency, [run()], latency=[delay(large)] * 3)
    assert row["sum_ns"] == 3 * large
    assert row["stddev_us"] == 0.0


def _drawn(count: int) -> list[int]:
    """A body, a long tail, and ties, in nanoseconds."""
    draw = random.Random(6)
    return [
        int(draw.lognormvariate(10.5, 1.2)) + draw.choice((0, 0, 5_000_000)) for _ in range(count)
    ]


@TESTS.add
def test_quantiles_are_those_of_duckdb() -> Asks:
    counts = (999, 1_000, 20_001)
    delays = [[delay(one) for one in _drawn(count)] for count in counts]
    found = yield tuple(put(latency, [run()], latency=some) for some in delays)
    for count, (row,) in zip(counts, found, strict=True):
        _same_as_duckdb(row, _drawn(count))


def _same_as_duckdb(row: dict[str, Any], drawn: list[int]) -> None:
    frame = pd.DataFrame({"us": [one // 1000 for one in drawn], "ns": drawn})
    parts = ", ".join(f"quantile_disc(us, {part / 10_000})" for part in QUANTILES.values())
    with duckdb.connect() as oracle:
        oracle.register("frame", frame)
        *wanted, total, mean, stddev = (
            oracle.execute(
                f"SELECT {parts}, sum(ns), avg(ns), stddev_samp(ns) FROM frame"
            ).fetchone()
            or ()
        )
    assert [row[name] for name in QUANTILES] == wanted
    assert row["sum_ns"] == total
    assert row["mean_us"] == pytest.approx(mean / 1000, rel=1e-12)
    assert row["stddev_us"] == pytest.approx(stddev / 1000, rel=1e-9)

"""Throughput over repeats, and what is kept of it."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest
from pyspark.sql import SparkSession

from antiphon.pipeline.tables.throughput import RESAMPLES, degradation, throughput
from unit.pipeline.campaigns import SECOND, inputs, only, rows_of, run, sample


def _repeats(*figures: float, **facts: Any) -> list[dict[str, Any]]:
    """A run for each, of so many bytes per second, and a hundredth as many messages."""
    name = facts.get("workload", "none")
    return [
        run(f"{name}{at}", repeat=at, bytes_per_second=one, messages_per_second=one / 100, **facts)
        for at, one in enumerate(figures, start=1)
    ]


def test_throughput_has_mean_and_extremes_over_repeats(spark: SparkSession) -> None:
    row = only(throughput(inputs(spark, _repeats(100.0, 200.0, 600.0))))
    assert row["repeats"] == 3
    assert row["bytes_per_second_mean"] == 300.0
    assert (row["bytes_per_second_min"], row["bytes_per_second_max"]) == (100.0, 600.0)
    assert row["bytes_per_second_stddev"] == pytest.approx(statistics.stdev([100, 200, 600]))
    assert row["messages_per_second_mean"] == 3.0
    assert row["worst_sender_messages_per_second"] is None  # nobody has looked


def test_of_one_repeat_there_is_no_deviation(spark: SparkSession) -> None:
    assert only(throughput(inputs(spark, _repeats(100.0))))["bytes_per_second_stddev"] is None


def test_only_complete_runs_enter(spark: SparkSession) -> None:
    mixed = [*_repeats(100.0), run("bad", repeat=2, outcome="blocked", bytes_per_second=1.0)]
    row = only(throughput(inputs(spark, mixed)))
    assert (row["repeats"], row["bytes_per_second_min"]) == (1, 100.0)


def test_the_worst_sender_is_the_one_that_sent_the_least(spark: SparkSession) -> None:
    nodes = run(pattern="n-n", nodes=3, senders=2)
    samples = [
        sample(
            second=second, process=10 + at, role=f"node-{at}", sent_messages=n, sent_bytes=100 * n
        )
        for second in (1, 2)
        for at, n in enumerate((30, 20, 0))  # the third one only listens
    ]
    row = only(throughput(inputs(spark, [nodes], samples)))
    assert row["worst_sender_messages_per_second"] == 20.0
    assert row["worst_sender_bytes_per_second"] == 2000.0


def test_a_sender_that_sent_nothing_is_the_worst(spark: SparkSession) -> None:
    samples = [
        sample(process=10, role="writer-0", sent_messages=30, sent_bytes=3000),
        sample(process=11, role="writer-1", sent_messages=0, sent_bytes=0),
    ]
    row = only(throughput(inputs(spark, [run(senders=2, nodes=3)], samples)))
    assert row["worst_sender_messages_per_second"] == 0.0


def test_of_a_number_of_messages_the_last_to_finish_decides(spark: SparkSession) -> None:
    counted = run(messages=1_000, kept_from_ns=SECOND, kept_until_ns=5 * SECOND)
    row = only(throughput(inputs(spark, [counted])))
    assert row["worst_sender_messages_per_second"] == 250.0
    assert row["worst_sender_bytes_per_second"] == 25_000.0


def test_a_message_costs_processor_time_and_frames(spark: SparkSession) -> None:
    samples = [
        sample(cpu_seconds=0.25, received_messages=1_000, network_sent_bytes=5_000),
        sample(process=11, role="writer", cpu_seconds=0.5, network_sent_bytes=120_000),
        sample(process=None, role="machine", cpu_seconds=2.0, network_sent_bytes=10**9),
        sample(second=1, kept=False, cpu_seconds=9.0, received_messages=1),
    ]
    row = only(throughput(inputs(spark, [run()], samples)))
    assert row["cpu_ns_per_message"] == 750_000.0
    assert row["wire_bytes_per_message"] == 125.0


def test_without_an_interface_of_their_own_frames_are_not_known(spark: SparkSession) -> None:
    samples = [sample(cpu_seconds=0.5, received_messages=10)]
    assert only(throughput(inputs(spark, [run()], samples)))["wire_bytes_per_message"] is None


def test_degradation_is_the_part_of_its_own_unloaded_throughput(spark: SparkSession) -> None:
    runs = [
        *_repeats(100.0, 300.0),
        *_repeats(50.0, 70.0, workload="cpu-60"),
        *_repeats(12.0, 12.0, workload="garbage"),
    ]
    cpu, garbage = rows_of(degradation(inputs(spark, runs)), "workload")
    assert (cpu["workload"], cpu["kept"]) == ("cpu-60", 0.3)
    assert (cpu["repeats"], cpu["baseline_repeats"]) == (2, 2)
    assert (cpu["bytes_per_second"], cpu["baseline_bytes_per_second"]) == (60.0, 200.0)
    assert (garbage["workload"], garbage["kept"]) == ("garbage", 0.06)


def test_the_interval_lies_within_all_that_could_be_drawn(spark: SparkSession) -> None:
    idle, loaded = (100.0, 110.0, 120.0), (40.0, 50.0, 66.0)
    row = only(degradation(inputs(spark, [*_repeats(*idle), *_repeats(*loaded, workload="cpu")])))
    # Every way to draw three of three with replacement, on both sides: 27 x 27.
    means = [[sum(some) / 3 for some in itertools.product(one, repeat=3)] for one in (loaded, idle)]
    ratios = sorted(one / other for one, other in itertools.product(*means))
    assert row["kept_low"] < row["kept"] < row["kept_high"]
    # The quantiles of so many draws are those of all possible ones, but for chance.
    for name, part in (("kept_low", 0.025), ("kept_high", 0.975)):
        near = [ratios[int(len(ratios) * (part + off))] for off in (-0.015, 0.015)]
        assert near[0] <= row[name] <= near[1], name
    assert RESAMPLES >= 1000


def test_the_interval_is_the_same_again_and_in_any_order(spark: SparkSession) -> None:
    runs = [*_repeats(100.0, 140.0, 120.0), *_repeats(40.0, 50.0, 66.0, workload="cpu")]
    first, second = (
        only(degradation(inputs(spark, some))) for some in (runs, list(reversed(runs)))
    )
    assert first == second


def test_with_a_single_repeat_on_either_side_there_is_no_interval(spark: SparkSession) -> None:
    for idle, loaded in (((100.0,), (40.0, 60.0)), ((100.0, 120.0), (40.0,))):
        runs = [*_repeats(*idle), *_repeats(*loaded, workload="cpu")]
        row = only(degradation(inputs(spark, runs)))
        assert (row["kept_low"], row["kept_high"]) == (None, None)
        assert 0 < row["kept"] < 1


def test_without_an_unloaded_run_nothing_is_kept_or_lost(spark: SparkSession) -> None:
    runs = [*_repeats(100.0, protocol="nats"), *_repeats(10.0, workload="cpu", protocol="pyzmq")]
    assert degradation(inputs(spark, runs)).count() == 0


def test_a_baseline_of_nothing_gives_no_fraction(spark: SparkSession) -> None:
    runs = [*_repeats(0.0, 0.0), *_repeats(10.0, 10.0, workload="cpu")]
    row = only(degradation(inputs(spark, runs)))
    assert (row["kept"], row["kept_low"], row["kept_high"]) == (None, None, None)

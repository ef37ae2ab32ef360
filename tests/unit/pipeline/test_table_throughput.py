"""Throughput over repeats, and what is kept of it."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest

from antiphon.pipeline.tables.throughput import RESAMPLES, degradation, throughput
from unit.pipeline.campaigns import SECOND, run, sample
from unit.pipeline.together import Asks, Together, in_order, put

TESTS = Together()
made = TESTS.fixture()


def _repeats(*figures: float, **facts: Any) -> list[dict[str, Any]]:
    """A run for each, of so many bytes per second, and a hundredth as many messages."""
    name = facts.get("workload", "none")
    return [
        run(f"{name}{at}", repeat=at, bytes_per_second=one, messages_per_second=one / 100, **facts)
        for at, one in enumerate(figures, start=1)
    ]


@TESTS.add
def test_throughput_has_mean_and_extremes_over_repeats() -> Asks:
    (row,) = yield put(throughput, _repeats(100.0, 200.0, 600.0))
    assert row["repeats"] == 3
    assert row["bytes_per_second_mean"] == 300.0
    assert (row["bytes_per_second_min"], row["bytes_per_second_max"]) == (100.0, 600.0)
    assert row["bytes_per_second_stddev"] == pytest.approx(statistics.stdev([100, 200, 600]))
    assert row["messages_per_second_mean"] == 3.0
    assert row["worst_sender_messages_per_second"] is None  # nobody has looked


@TESTS.add
def test_of_one_repeat_there_is_no_deviation() -> Asks:
    (row,) = yield put(throughput, _repeats(100.0))
    assert row["bytes_per_second_stddev"] is None


@TESTS.add
def test_only_complete_runs_enter() -> Asks:
    mixed = [*_repeats(100.0), run("bad", repeat=2, outcome="blocked", bytes_per_second=1.0)]
    (row,) = yield put(throughput, mixed)
    assert (row["repeats"], row["bytes_per_second_min"]) == (1, 100.0)


@TESTS.add
def test_the_worst_sender_is_the_one_that_sent_the_least() -> Asks:
    nodes = run(pattern="n-n", nodes=3, senders=2)
    samples = [
        sample(
            second=second, process=10 + at, role=f"node-{at}", sent_messages=n, sent_bytes=100 * n
        )
        for second in (1, 2)
        for at, n in enumerate((30, 20, 0))  # the third one only listens
    ]
    (row,) = yield put(throughput, [nodes], samples)
    assert row["worst_sender_messages_per_second"] == 20.0
    assert row["worst_sender_bytes_per_second"] == 2000.0


@TESTS.add
def test_a_sender_that_sent_nothing_is_the_worst() -> Asks:
    samples = [
        sample(process=10, role="writer-0", sent_messages=30, sent_bytes=3000),
        sample(process=11, role="writer-1", sent_messages=0, sent_bytes=0),
    ]
    (row,) = yield put(throughput, [run(senders=2, nodes=3)], samples)
    assert row["worst_sender_messages_per_second"] == 0.0


@TESTS.add
def test_of_a_number_of_messages_the_last_to_finish_decides() -> Asks:
    counted = run(messages=1_000, kept_from_ns=SECOND, kept_until_ns=5 * SECOND)
    (row,) = yield put(throughput, [counted])
    assert row["worst_sender_messages_per_second"] == 250.0
    assert row["worst_sender_bytes_per_second"] == 25_000.0


@TESTS.add
def test_of_a_group_the_slowest_sender_is_known_by_its_own_clock() -> Asks:
    window = {"messages": 1_000, "kept_from_ns": SECOND, "kept_until_ns": 5 * SECOND}
    (row,) = yield put(throughput, [run(**window, slowest_sender_ns=2 * SECOND)])
    assert row["worst_sender_messages_per_second"] == 500.0
    assert row["worst_sender_bytes_per_second"] == 50_000.0


@TESTS.add
def test_a_message_costs_processor_time_and_frames() -> Asks:
    samples = [
        sample(
            cpu_seconds=0.25,
            received_messages=1_000,
            network_sent_bytes=5_000,
            network_sent_packets=50,
        ),
        sample(
            process=11,
            role="writer",
            cpu_seconds=0.5,
            network_sent_bytes=120_000,
            network_sent_packets=450,
        ),
        sample(
            process=None,
            role="machine",
            cpu_seconds=2.0,
            network_sent_bytes=10**9,
            network_sent_packets=10**6,
        ),
        sample(second=1, kept=False, cpu_seconds=9.0, received_messages=1),
    ]
    (row,) = yield put(throughput, [run()], samples)
    assert row["cpu_ns_per_message"] == 750_000.0
    assert row["wire_bytes_per_message"] == 125.0
    # 500 frames with 14 bytes of header each, those of acknowledgements too.
    assert row["ip_bytes_per_message"] == 118.0


@TESTS.add
def test_without_an_interface_of_their_own_frames_are_not_known() -> Asks:
    (row,) = yield put(throughput, [run()], [sample(cpu_seconds=0.5, received_messages=10)])
    assert row["wire_bytes_per_message"] is None
    assert row["ip_bytes_per_message"] is None


@TESTS.add
def test_degradation_is_the_part_of_its_own_unloaded_throughput() -> Asks:
    runs = [
        *_repeats(100.0, 300.0),
        *_repeats(50.0, 70.0, workload="cpu-60"),
        *_repeats(12.0, 12.0, workload="garbage"),
    ]
    cpu, garbage = in_order((yield put(degradation, runs)), "workload")
    assert (cpu["workload"], cpu["kept"]) == ("cpu-60", 0.3)
    assert (cpu["repeats"], cpu["baseline_repeats"]) == (2, 2)
    assert (cpu["bytes_per_second"], cpu["baseline_bytes_per_second"]) == (60.0, 200.0)
    assert (garbage["workload"], garbage["kept"]) == ("garbage", 0.06)


@TESTS.add
def test_the_interval_lies_within_all_that_could_be_drawn() -> Asks:
    idle, loaded = (100.0, 110.0, 120.0), (40.0, 50.0, 66.0)
    (row,) = yield put(degradation, [*_repeats(*idle), *_repeats(*loaded, workload="cpu")])
    # Every way to draw three of three with replacement, on both sides: 27 x 27.
    means = [[sum(some) / 3 for some in itertools.product(one, repeat=3)] for one in (loaded, idle)]
    ratios = sorted(one / other for one, other in itertools.product(*means))
    assert row["kept_low"] < row["kept"] < row["kept_high"]
    # The quantiles of so many draws are those of all possible ones, but for chance.
    for name, part in (("kept_low", 0.025), ("kept_high", 0.975)):
        near = [ratios[int(len(ratios) * (part + off))] for off in (-0.015, 0.015)]
        assert near[0] <= row[name] <= near[1], name
    assert RESAMPLES >= 1000


@TESTS.add
def test_the_interval_is_the_same_again_and_in_any_order() -> Asks:
    runs = [*_repeats(100.0, 140.0, 120.0), *_repeats(40.0, 50.0, 66.0, workload="cpu")]
    first, second = yield put(degradation, runs), put(degradation, list(reversed(runs)))
    assert first == second
    assert first[0]["kept_low"] is not None


@TESTS.add
def test_with_a_single_repeat_on_either_side_there_is_no_interval() -> Asks:
    sides = (((100.0,), (40.0, 60.0)), ((100.0, 120.0), (40.0,)))
    for (row,) in (
        yield tuple(
            put(degradation, [*_repeats(*idle), *_repeats(*loaded, workload="cpu")])
            for idle, loaded in sides
        )
    ):
        assert (row["kept_low"], row["kept_high"]) == (None, None)
        assert 0 < row["kept"] < 1


@TESTS.add
def test_without_an_unloaded_run_nothing_is_kept_or_lost() -> Asks:
    runs = [*_repeats(100.0, protocol="nats"), *_repeats(10.0, workload="cpu", protocol="pyzmq")]
    assert (yield put(degradation, runs)) == []


@TESTS.add
def test_a_baseline_of_nothing_gives_no_fraction() -> Asks:
    runs = [*_repeats(0.0, 0.0), *_repeats(10.0, 10.0, workload="cpu")]
    (row,) = yield put(degradation, runs)
    assert (row["kept"], row["kept_low"], row["kept_high"]) == (None, None, None)

"""Seconds: how much they differ, and how they are spread."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from antiphon.pipeline.tables.stability import bandwidth_ecdf, stability
from unit.pipeline.campaigns import SECOND, run, sample
from unit.pipeline.together import Asks, Together, in_order, put

TESTS = Together()
made = TESTS.fixture()


def _seconds(*received: int, name: str = "a", **facts: Any) -> list[dict[str, Any]]:
    return [
        sample(run=name, second=at, received_bytes=one, **facts) for at, one in enumerate(received)
    ]


@TESTS.add
def test_stability_has_variation_stall_and_weak_seconds() -> Asks:
    received = (100, 100, 0, 0, 0, 100, 0, 100, 40, 160)
    (row,) = yield put(stability, [run()], _seconds(*received))
    assert (row["repeats"], row["seconds"]) == (1, 10)
    assert row["bytes_per_second_mean"] == 60.0
    assert row["bytes_per_second_median"] == 70.0
    assert row["variation"] == pytest.approx(statistics.stdev(received) / 60)
    assert row["longest_stall_seconds"] == 3.0
    assert row["part_below_half"] == 0.4  # four without anything; 40 is not below 35


@TESTS.add
def test_repeats_are_averaged_but_stalls_are_not() -> Asks:
    runs = [run("a"), run("b", repeat=2)]
    samples = [*_seconds(10, 0, 0, 30), *_seconds(50, 50, name="b")]
    (row,) = yield put(stability, runs, samples)
    assert (row["repeats"], row["seconds"]) == (2, 6)
    assert row["bytes_per_second_mean"] == 30.0
    assert row["bytes_per_second_median"] == (5 + 50) / 2
    assert row["longest_stall_seconds"] == 2.0
    assert row["variation"] == pytest.approx(statistics.stdev([10, 0, 0, 30]) / 10 / 2)
    assert row["part_below_half"] == pytest.approx(2 / 6)


@TESTS.add
def test_a_steady_run_has_no_variation_and_no_stall() -> Asks:
    (row,) = yield put(stability, [run()], _seconds(5, 5, 5))
    assert (row["variation"], row["longest_stall_seconds"], row["part_below_half"]) == (0, 0, 0)


@TESTS.add
def test_one_second_has_no_variation_to_speak_of() -> Asks:
    (row,) = yield put(stability, [run()], _seconds(5))
    assert row["variation"] is None


@TESTS.add
def test_all_receivers_count_together_and_others_do_not() -> Asks:
    samples = [
        *_seconds(10, 20),
        *_seconds(30, 40, process=11, role="node-1"),
        *_seconds(None, None, process=None, role="machine"),  # type: ignore[arg-type]
        *_seconds(999, process=12, kept=False),
    ]
    rows = in_order((yield put(bandwidth_ecdf, [run()], samples)), "bytes_per_second")
    assert [one["bytes_per_second"] for one in rows] == [40.0, 60.0]


@TESTS.add
def test_a_long_second_is_no_better_than_a_short_one() -> Asks:
    samples = [
        sample(second=0, received_bytes=100, elapsed_ns=SECOND),
        sample(second=1, received_bytes=200, elapsed_ns=2 * SECOND),
        sample(second=3, received_bytes=1, elapsed_ns=SECOND // 100),  # says nothing
    ]
    (row,) = yield put(bandwidth_ecdf, [run()], samples)
    assert (row["bytes_per_second"], row["seconds"], row["cumulative"]) == (100.0, 2, 1.0)


def _last_second_twice() -> list[dict[str, Any]]:
    """Two processes that get 100 bytes a second each; the run ends 0.6 s after a full one."""
    return [
        row
        for process in (10, 11)
        for row in (
            sample(second=1, process=process, received_bytes=100),
            sample(second=2, process=process, received_bytes=100),
            sample(second=2, process=process, received_bytes=60, elapsed_ns=6 * SECOND // 10),
        )
    ]


@TESTS.add
def test_a_second_that_was_looked_at_twice_has_no_more_bandwidth() -> Asks:
    rows = yield put(bandwidth_ecdf, [run()], _last_second_twice())
    assert [(one["bytes_per_second"], one["seconds"]) for one in rows] == [(200.0, 2)]


@TESTS.add
def test_a_second_that_was_looked_at_twice_is_as_steady_as_the_others() -> Asks:
    (row,) = yield put(stability, [run()], _last_second_twice())
    assert (row["bytes_per_second_mean"], row["variation"]) == (200.0, 0.0)


@TESTS.add
def test_the_ecdf_rises_to_one_over_all_repeats() -> Asks:
    runs = [run("a"), run("b", repeat=2), run("c", protocol="nats")]
    samples = [*_seconds(1, 3, 3), *_seconds(2, name="b"), *_seconds(9, name="c")]
    rows = in_order((yield put(bandwidth_ecdf, runs, samples)), "protocol", "bytes_per_second")
    found = [(one["protocol"], one["bytes_per_second"], one["seconds"]) for one in rows]
    assert found == [("nats", 9.0, 1), ("pyzmq", 1.0, 1), ("pyzmq", 2.0, 1), ("pyzmq", 3.0, 2)]
    assert [one["cumulative"] for one in rows] == [1.0, 0.25, 0.5, 1.0]

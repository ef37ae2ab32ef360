"""Percentiles from classes: as exact as they claim, and the same however they are split up."""

from __future__ import annotations

import random

import pytest

from antiphon.lab.bench.latency import Latency, classes, latency_of, median_latency


def test_percentiles_are_those_of_the_sorted_times() -> None:
    draw = random.Random(1)
    times = [int(draw.lognormvariate(11, 1)) for _ in range(20_000)]
    found = latency_of([classes(times)], max(times))
    assert found is not None
    ordered = sorted(times)
    for value, share in ((found.p50, 0.5), (found.p90, 0.9), (found.p99, 0.99)):
        assert value == pytest.approx(ordered[round(share * 20_000) - 1] / 1000, rel=0.002)
    assert found.p999 == pytest.approx(ordered[19_979] / 1000, rel=0.002)
    assert found.maximum == max(times) / 1000


def test_the_times_of_several_processes_are_one_distribution() -> None:
    times = list(range(1000, 9000))
    together = latency_of([classes(times)], 9000)
    apart = latency_of([classes(times[::2]), classes(times[1::2])], 9000)
    assert together == apart


def test_a_single_time_is_every_percentile() -> None:
    assert latency_of([{500: 1}], 500) == Latency(0.5, 0.5, 0.5, 0.5, 0.5)


def test_nothing_has_no_latency() -> None:
    assert latency_of([{}, {}], 0) is None
    assert median_latency([]) is None


def test_repeats_have_median_percentiles_and_the_largest_maximum() -> None:
    repeats = [Latency(n, n, n, n, n) for n in (1.0, 5.0, 2.0)]
    assert median_latency(repeats) == Latency(2.0, 2.0, 2.0, 2.0, 5.0)

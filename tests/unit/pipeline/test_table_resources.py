"""Processor, memory and threads."""

from __future__ import annotations

import pytest

from antiphon.pipeline.tables.resources import cpu, resources
from unit.pipeline.campaigns import SECOND, run, sample
from unit.pipeline.together import Asks, Together, in_order, put

TESTS = Together()
made = TESTS.fixture()


@TESTS.add
def test_cores_are_added_up_by_role_over_the_window() -> Asks:
    samples = [
        sample(second=0, cpu_seconds=0.5),
        sample(second=1, cpu_seconds=1.0),
        sample(second=2, cpu_seconds=9.0, kept=False),
        sample(second=0, process=11, role="writer-0", cpu_seconds=0.25),
        sample(second=0, process=12, role="writer-1", cpu_seconds=0.5),
        sample(second=0, process=None, role="machine", cpu_seconds=3.0, elapsed_ns=2 * SECOND),
    ]
    rows = in_order((yield put(cpu, [run()], samples)), "role")
    found = [(one["role"], one["repeats"], one["cores_mean"]) for one in rows]
    assert found == [("machine", 1, 1.5), ("reader", 1, 0.75), ("writer", 1, 0.75)]


@TESTS.add
def test_a_run_of_milliseconds_has_no_cores() -> Asks:
    # Seven milliseconds of work are less than the kernel counts.
    short = sample(run="short", elapsed_ns=30_000_000, cpu_seconds=0.0)
    runs = [run("short", messages=500, size=10), run("long")]
    rows = yield put(cpu, runs, [short, sample(run="long", cpu_seconds=0.5)])
    assert [(row["messages"], row["cores_mean"]) for row in rows] == [(None, 0.5)]


@TESTS.add
def test_cores_have_their_spread_over_repeats() -> Asks:
    runs = [run("a"), run("b", repeat=2), run("bad", repeat=3, outcome="blocked")]
    samples = [
        sample(run="a", cpu_seconds=0.5),
        sample(run="b", cpu_seconds=1.5),
        sample(run="bad", cpu_seconds=9.0, kept=False),
    ]
    (row,) = yield put(cpu, runs, samples)
    assert (row["repeats"], row["cores_mean"]) == (2, 1.0)
    assert (row["cores_min"], row["cores_max"]) == (0.5, 1.5)
    assert row["cores_stddev"] == pytest.approx(0.5**0.5)


@TESTS.add
def test_resources_are_a_time_line_by_role_also_of_runs_that_failed() -> Asks:
    failed = run(outcome="out_of_memory", threads=4)
    samples = [
        sample(
            second=3,
            kept=False,
            process=process,
            role=f"writer-{process - 10}",
            elapsed_ns=2 * SECOND,
            cpu_seconds=1.0,
            resident_bytes=1_000,
            threads=3,
            voluntary_switches=6,
            involuntary_switches=2,
            gc_collections=1,
            gc_pause_ns=500,
            sent_bytes=400,
            ring_bytes=10,
            buffer_bytes=5,
        )
        for process in (10, 11)
    ]
    (row,) = yield put(resources, [failed], samples)
    assert (row["run"], row["second"], row["role"], row["processes"]) == ("a", 3, "writer", 2)
    assert (row["cpu_cores"], row["resident_bytes"], row["process_threads"]) == (1.0, 2_000, 6)
    assert row["threads"] == 4  # the key of the run is another thing
    assert row["switches_per_second"] == 8.0
    assert (row["gc_collections"], row["gc_pause_ns"]) == (2, 1_000)
    assert (row["sent_bytes_per_second"], row["received_bytes_per_second"]) == (400.0, None)
    assert (row["queued_bytes"], row["kept"]) == (30, False)


@TESTS.add
def test_the_first_look_has_levels_but_no_rates() -> Asks:
    (row,) = yield put(resources, [run()], [sample(elapsed_ns=None, resident_bytes=7)])
    assert (row["resident_bytes"], row["cpu_cores"]) == (7, None)


@TESTS.add
def test_a_second_that_was_looked_at_twice_is_one_second() -> Asks:
    samples = [
        sample(resident_bytes=100, cpu_seconds=0.5),
        sample(resident_bytes=200, cpu_seconds=0.25, elapsed_ns=SECOND // 2),
        sample(process=None, role="machine", resident_bytes=900),
    ]
    machine, reader = in_order((yield put(resources, [run()], samples)), "role")
    assert (reader["processes"], reader["resident_bytes"], reader["cpu_cores"]) == (1, 150, 0.5)
    assert (machine["processes"], machine["resident_bytes"]) == (1, 900)

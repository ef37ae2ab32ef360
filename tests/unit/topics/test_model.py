"""What is made of the sums that the core has measured, with sums that were made up."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import queueing
from antiphon.topics.model import Threads, difference, predict

RUNNING = st.floats(0.01, 1.0)


def usage(at_once: float, running: float, worked: float = 10.0) -> dict[str, float]:
    """As a node's threads would have counted it."""
    lasted = at_once * worked
    return {
        "threads": 4,
        "worked": worked,
        "engaged": lasted,
        "thread_lasted": lasted,
        "thread_used": running * lasted,
    }


def sums(**others: float) -> dict[str, Any]:
    """Of ten seconds with a thousand events of a millisecond."""
    return {
        "elapsed": 10.0,
        "slices": 1000.0,
        "busy_slices": 1000.0,
        "events": 1000.0,
        "full_slices": 0.0,
        "overruns": 0.0,
        "arrived": 1000.0,
        "service": 1.0,
        "service_squares": 0.0011,
        "waited": 0.01,
        "waited_squares": 1e-6,
        "resumed": 0.0,
        "resumed_squares": 0.0,
        "resumed_slices": 0.0,
        "found": 100.0,
        "capacity": 4096.0,
        "responses": 1.1,
        "handed": 1000.0,
        "classes": {},
        "longest": 0.01,
        **others,
    }


# --- the threads ----------------------------------------------------------------------------------


@given(st.integers(1, 32), RUNNING)
def test_the_largest_share_of_a_whole_number_of_threads_is_the_formula(
    threads: int, running: float
) -> None:
    found = Threads.of(usage(threads, running))
    assert found.at_once == pytest.approx(threads)
    assert found.running == pytest.approx(running)
    wanted = queueing.largest_share(threads, found.running)
    assert found.largest_share == pytest.approx(wanted, rel=1e-6)


@given(st.floats(1.0, 32.0), RUNNING)
def test_between_two_numbers_of_threads_it_lies_between_theirs(
    at_once: float, running: float
) -> None:
    share = Threads(at_once, running).largest_share
    assert queueing.largest_share(math.ceil(at_once), running) - 1e-9 <= share
    assert share <= queueing.largest_share(math.floor(at_once), running) + 1e-9


def test_threads_that_always_run_leave_one_task_its_own_thread() -> None:
    """Half of the time two, half of the time one: of three halves it can have two."""
    assert Threads(1.5, 1.0).largest_share == pytest.approx(2 / 3)
    assert Threads(1.0, 0.2).largest_share == 1.0


def test_what_was_not_measured_is_not_known() -> None:
    for nothing in ({}, usage(2.0, 0.5, worked=0.0), {**usage(1.0, 1.0), "thread_lasted": 0.0}):
        found = Threads.of(nothing)
        assert math.isnan(found.at_once)
        assert math.isnan(found.running)
        assert math.isnan(found.largest_share)
    idle = Threads.of(usage(2.0, 0.0))  # handlers that only sleep
    assert idle.running == 0.0
    assert math.isnan(idle.largest_share)


def test_clocks_that_disagree_a_little_make_no_impossible_figures() -> None:
    found = Threads.of({**usage(1.0, 1.0), "engaged": 9.99, "thread_used": 10.01})
    assert (found.at_once, found.running) == (1.0, 1.0)


# --- the prediction -------------------------------------------------------------------------------


def test_a_share_that_no_task_can_have_in_full_is_told() -> None:
    two = usage(2.0, 1.0)
    told = predict(sums(**two), 0.6, 0.01).basis
    assert "a share of 0.6 is above 0.50" in told
    assert "2.0 threads at once that run 1.00 of the time" in told
    assert "is above" not in predict(sums(**two), 0.5, 0.01).basis
    # One that runs half of the time leaves the other alone as often: more can be had.
    assert "is above" not in predict(sums(**usage(2.0, 0.5)), 0.6, 0.01).basis
    assert "is above 0.75" in predict(sums(**usage(2.0, 0.5)), 0.8, 0.01).basis


def test_one_thread_at_a_time_can_give_all_it_has() -> None:
    """As many as there may be."""
    assert "is above" not in predict(sums(**usage(1.0, 0.3)), 1.0, 0.01).basis


@pytest.mark.parametrize("share", [None, 0.9])
def test_without_a_measurement_or_a_share_there_is_no_such_word(share: float | None) -> None:
    assert "is above" not in predict(sums(), share, 0.01).basis
    if share is None:
        assert "is above" not in predict(sums(**usage(4.0, 1.0)), share, 0.01).basis


def test_a_difference_of_looks_tells_of_the_time_between() -> None:
    """The threads ran alone before, and two at a time since."""
    then = {**sums(**usage(1.0, 1.0)), "time": 100.0}
    now = dict(then, time=110.0)
    for name, value in usage(2.0, 0.5).items():
        now[name] = then[name] + value
    found = difference(now, then)
    assert found["elapsed"] == 10.0
    assert Threads.of(found) == Threads(2.0, 0.5)

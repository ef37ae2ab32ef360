"""Futures of calls that wait: what they say when several things happen to them at once."""

from __future__ import annotations

import pytest

from antiphon import RequestCancelled, RequestTimeout
from antiphon.node.future import Job, RequestFuture
from unit.node.pairs import KIND, THERE, Gate, nodes


def test_one_that_is_cancelled_while_it_is_sent_is_cancelled_and_so_is_the_rest() -> None:
    job: Job[bytes] = Job()
    answer: Job[bytes] = Job()
    # Whoever sends it gets in between, as where giving it up lets go of the interpreter's lock.
    job.limit(1e9, lambda: Job.settle_all([(job, answer)]), lambda: None)
    assert job.cancel()
    for one in (job, answer):
        with pytest.raises(RequestCancelled):
            one.result(5)


@pytest.mark.parametrize("value", [None, ValueError("on purpose")])
def test_one_that_is_cancelled_while_its_work_ends_is_cancelled(
    value: ValueError | None,
) -> None:
    job: Job[None] = Job()
    job.limit(1e9, lambda: Job.settle_all([(job, value)]), lambda: None)
    assert job.cancel()
    with pytest.raises(RequestCancelled):
        job.result(5)
    assert not job.cancel()


def test_one_that_times_out_while_it_is_sent_says_so_and_so_does_the_rest() -> None:
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, gate)
        core = here._prepare(THERE, KIND)
        answer: RequestFuture[bytes] = RequestFuture(core, 0.0, lambda kind, data: data)
        core.send(b"x", True, 10.0)
        job: Job[bytes] = Job()

        def time_out() -> None:
            job.follow(answer)  # whoever sends it gets in between
            core.time_out()

        job.limit(0.0, core.cancel, time_out)
        for one in (job, answer, job):
            with pytest.raises(RequestTimeout, match="has not answered"):
                one.result(5)


def test_whoever_finds_a_request_given_up_for_its_time_is_told_that() -> None:
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, gate)
        core = here._prepare(THERE, KIND)
        core.send(b"x", True, 10.0)
        for _ in range(2):  # two threads whose time is over in the same moment
            with pytest.raises(RequestTimeout):
                core.time_out()
        with pytest.raises(RequestTimeout):
            core.result()


def test_one_whose_time_is_over_while_it_fails_is_not_said_to_be_cancelled() -> None:
    with nodes() as (here, _):
        core = here._prepare(THERE, KIND)
        job: Job[bytes] = Job(THERE, KIND)

        def time_out() -> None:
            core.cancel()  # as whoever makes it does, before it says why
            core.time_out()

        job.limit(0.0, core.cancel, time_out)
        with pytest.raises(RequestTimeout):
            job.result(5)

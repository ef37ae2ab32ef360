"""How long a campaign still takes, told while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.lab.campaign import Campaign
from antiphon.lab.plan import Run, load_plan
from antiphon.lab.progress import Progress

PLAN = """
title = "Three that run, one that does not apply, one that is absent"

[times]
kept_until = 8.5

[workloads.heap.garbage]
live_objects = 1_000
replaced_per_second = 10

[[series]]
name = "one"
pattern = "one-way"
protocols = ["tcp-python", "tcp-c", "spread"]
sizes = [64]
workloads = ["none", "heap"]
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    path = tmp_path / "small.toml"
    path.write_text(PLAN, encoding="utf-8")
    return Campaign.create(load_plan(path), tmp_path / "out")


def running(campaign: Campaign) -> list[Run]:
    return [
        run
        for run in campaign.runs()
        if run.protocol == "tcp-python" or (run.protocol, run.workload) == ("tcp-c", "none")
    ]


def test_what_cannot_run_takes_no_time(campaign: Campaign) -> None:
    assert len(campaign.runs()) == 6
    assert Progress(campaign).left() == pytest.approx(30.0)


def test_every_run_that_has_ended_leaves_less(campaign: Campaign) -> None:
    clock = Clock()
    progress = Progress(campaign, clock)
    for number, run in enumerate(running(campaign), start=1):
        progress.begin(run)
        clock.now += 10.0
        progress.end(run)
        assert progress.left() == pytest.approx(10.0 * (3 - number))


def test_runs_that_are_slower_than_planned_say_how_the_next_will_be(campaign: Campaign) -> None:
    clock = Clock()
    progress = Progress(campaign, clock)
    first = running(campaign)[0]
    progress.begin(first)
    clock.now += 15.0
    progress.end(first)
    assert progress.left() == pytest.approx(30.0)


def test_what_was_done_before_is_not_waited_for_again(campaign: Campaign) -> None:
    done = campaign.directory / running(campaign)[0].id
    done.mkdir()
    (done / "run.json").write_text("{}")
    assert Progress(Campaign.open(campaign.directory)).left() == pytest.approx(20.0)


def test_the_end_of_what_was_never_begun_changes_no_pace(campaign: Campaign) -> None:
    """The checks of the links are told as runs are, and so is what is absent."""
    clock = Clock()
    progress = Progress(campaign, clock)
    absent = next(run for run in campaign.runs() if run.protocol == "spread")
    progress.begin(absent)
    clock.now += 5.0
    progress.end(absent)
    assert progress.left() == pytest.approx(30.0)

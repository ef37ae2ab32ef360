"""A campaign's directory, without any run."""

from __future__ import annotations

from pathlib import Path

from antiphon.lab.campaign import Campaign
from antiphon.lab.plan import load_plan

PLAN = """
repeats = 2

[times]
kept_until = 1

[[series]]
name = "one"
pattern = "one-way"
protocols = ["tcp-python", "pyzmq"]
sizes = [100]

[quick]
repeats = 1
"""


def test_a_campaign_that_goes_on_is_of_the_plan_that_it_was_made_of(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PLAN)
    made = Campaign.create(load_plan(path), tmp_path / "out", quick=True, protocols=["pyzmq"])
    again = Campaign.open(tmp_path / "out")
    assert (again.plan.name, again.plan.title) == ("mine", "mine")
    assert again.runs() == made.runs()
    assert {run.plan for run in again.runs()} == {"mine"}

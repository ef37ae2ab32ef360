"""A campaign's directory, without any run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError
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


def made_elsewhere(tmp_path: Path, **facts: Any) -> Path:
    """A campaign whose machine is said to have been another in these."""
    path, out = tmp_path / "mine.toml", tmp_path / "out"
    path.write_text(PLAN)
    Campaign.create(load_plan(path), out)
    machine = json.loads((out / "machine.json").read_text())
    (out / "machine.json").write_text(json.dumps(machine | facts))
    return out


@pytest.mark.parametrize(
    ("facts", "there"),
    [
        ({"host": "elsewhere"}, "elsewhere ("),
        ({"cpu": "Abacus 3000"}, "(Abacus 3000, "),
        ({"cores": 4096}, ", 4096 cores)"),
    ],
)
def test_a_campaign_is_not_resumed_on_another_machine(
    tmp_path: Path, facts: dict[str, Any], there: str
) -> None:
    out = made_elsewhere(tmp_path, **facts)
    with pytest.raises(ConfigError, match="was begun on") as caught:
        Campaign.open(out)
    begun, _, here = str(caught.value).partition(", and this is ")
    assert there in begun
    assert there not in here
    assert f"antiphon lab run {out / 'plan.toml'} --out DIR" in here


def test_a_campaign_that_does_not_say_where_it_was_begun_is_resumed(tmp_path: Path) -> None:
    out = made_elsewhere(tmp_path, host=None, cpu=None, cores=None)
    assert len(Campaign.open(out).runs()) == 4
    (out / "machine.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds no campaign that can be resumed"):
        Campaign.open(out)

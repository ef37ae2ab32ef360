"""The largest burst that was delivered, from the outcomes of a ladder of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.lab.bursts import Burst, bursts
from antiphon.lab.plan import Plan, load_plan, runs_of
from antiphon.lab.record import facts_of

TEXT = """
repeats = 2

[times]
kept_until = 1

[[series]]
name = "ladder"
pattern = "1-n"
protocols = ["jgroups-tcp", "jgroups-udp"]
sizes = [64]
messages = [1, 10, 100]

[[series]]
name = "other"
pattern = "1-n"
protocols = ["jgroups-tcp"]
sizes = [64]
messages = 10
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    path = tmp_path / "ladder.toml"
    path.write_text(TEXT)
    return load_plan(path)


def ended(plan: Plan, *worse: tuple[str, int, int, str]) -> list[dict[str, Any]]:
    """All complete, but for some: protocol, messages, repeat, outcome."""
    outcomes = {one[:3]: one[3] for one in worse}
    return [
        {
            **facts_of(run),
            "outcome": outcomes.get((run.protocol, run.messages or 0, run.repeat), "complete"),
            "reason": "",
        }
        for run in runs_of(plan)
    ]


def by_protocol(found: list[Burst]) -> dict[str, tuple[int, int | None, str]]:
    return {one.keys["protocol"]: (one.fits, one.above, one.ended) for one in found}


def test_it_is_the_largest_whose_repeats_are_all_complete(plan: Plan) -> None:
    done = ended(plan, ("jgroups-tcp", 100, 2, "out_of_memory"), ("jgroups-udp", 1, 1, "blocked"))
    assert by_protocol(bursts(plan, done)) == {
        "jgroups-tcp": (10, 100, "out_of_memory"),
        "jgroups-udp": (0, 1, "blocked"),
    }


def test_what_was_not_tried_is_no_failure(plan: Plan) -> None:
    absent = [
        ("jgroups-udp", count, repeat, "absent") for count in (1, 10, 100) for repeat in (1, 2)
    ]
    assert by_protocol(bursts(plan, ended(plan, *absent))) == {"jgroups-tcp": (100, None, "")}


def test_a_larger_one_beyond_a_failure_does_not_count(plan: Plan) -> None:
    done = ended(plan, ("jgroups-tcp", 10, 1, "error"))
    assert by_protocol(bursts(plan, done))["jgroups-tcp"] == (1, 10, "error")


def test_facts_are_plain(plan: Plan) -> None:
    first = bursts(plan, ended(plan))[0].facts()
    assert (first["series"], first["size"], first["fits"]) == ("ladder", 64, 100)
    assert (first["above"], first["ended"]) == (None, "")

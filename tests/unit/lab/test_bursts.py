"""The largest burst that was delivered, from the outcomes of a ladder of numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.lab.bursts import Burst, bursts, search
from antiphon.lab.plan import Plan, PlanError, Run, estimate, load_plan, runs_of, searched
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


# --- the search between two steps -----------------------------------------------------------------


@pytest.fixture
def searching(tmp_path: Path) -> Plan:
    path = tmp_path / "search.toml"
    path.write_text(TEXT.replace("messages = [1, 10, 100]", "messages = [1, 10, 100]\nsearch = 8"))
    return load_plan(path)


def limited(most: dict[str, int]) -> Callable[[Run], dict[str, Any]]:
    """How a run ends of a protocol that has room for so many messages."""

    def outcome(run: Run) -> dict[str, Any]:
        fits = (run.messages or 0) <= most[run.protocol]
        word = "complete" if fits else "out_of_memory"
        # As the lab writes it: the variant that a protocol has when none is asked for.
        return {**facts_of(run), "variant": "usual", "outcome": word, "reason": ""}

    return outcome


def tried(plan: Plan, outcome: Callable[[Run], dict[str, Any]]) -> list[Run]:
    return list(search(plan, outcome))


@pytest.mark.parametrize("most", [0, 1, 2, 9, 10, 42, 99])
def test_a_search_ends_at_the_largest_that_fits(searching: Plan, most: int) -> None:
    outcome = limited({"jgroups-tcp": most, "jgroups-udp": 100})
    runs = [*runs_of(searching), *tried(searching, outcome)]
    found = by_protocol(bursts(searching, map(outcome, runs)))
    assert found["jgroups-tcp"] == (most, most + 1, "out_of_memory")
    assert found["jgroups-udp"] == (100, None, "")


def test_every_number_is_tried_once_and_all_ladders_go_on_side_by_side(searching: Plan) -> None:
    runs = tried(searching, limited({"jgroups-tcp": 42, "jgroups-udp": 5}))
    assert [(run.protocol[-3:], run.messages) for run in runs[:4]] == [
        ("tcp", 32), ("udp", 3), ("tcp", 57), ("udp", 5),
    ]  # fmt: skip
    assert {run.repeat for run in runs} == {1}
    ids = [run.id for run in [*runs_of(searching), *runs]]
    assert len(set(ids)) == len(ids)
    assert "ladder.jgroups-tcp.none.loopback.64B.n2.m32.r1" in ids


def test_it_takes_no_more_runs_than_it_may_and_those_are_estimated(
    plan: Plan, searching: Plan
) -> None:
    assert [more for _, more in searched(searching)] == [8, 8]
    runs = tried(searching, limited({"jgroups-tcp": 42, "jgroups-udp": 42}))
    assert 0 < sum(run.protocol == "jgroups-tcp" for run in runs) <= 8
    assert estimate(searching)[0] - estimate(plan)[0] == pytest.approx(16 * 2.5)


def test_a_search_that_was_stopped_goes_on_where_it_was(searching: Plan) -> None:
    outcome = limited({"jgroups-tcp": 42, "jgroups-udp": 5})
    all_of_it = tried(searching, outcome)
    again = search(searching, outcome)
    assert [next(again) for _ in range(3)] == all_of_it[:3]
    assert list(again) == all_of_it[3:]


def test_what_has_become_absent_is_not_searched_any_more(searching: Plan) -> None:
    sound = limited({"jgroups-tcp": 42, "jgroups-udp": 100})

    def outcome(run: Run) -> dict[str, Any]:
        gone = run.messages not in (1, 10, 100)
        return {**sound(run), **({"outcome": "absent"} if gone else {})}

    assert [run.messages for run in tried(searching, outcome)] == [32]


def test_there_is_nothing_to_search_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "search.toml"
    path.write_text(TEXT.replace("messages = [1, 10, 100]", "messages = 10\nsearch = 8"))
    with pytest.raises(PlanError, match=r"line 13: series\.ladder\.search: there is nothing to"):
        load_plan(path)

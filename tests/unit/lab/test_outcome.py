"""How a run ended: the questions, and the order in which they are asked."""

from __future__ import annotations

import pytest

from antiphon.lab.outcome import OUTCOMES, Seen, judge

MIB = 1 << 20


def flowing(seconds: int = 9) -> list[tuple[float, int]]:
    return [(float(second), 1000 * second) for second in range(seconds)]


def test_a_run_that_flows_is_complete_without_a_reason() -> None:
    assert judge(Seen(9.0, delivered=flowing())) == ("complete", "")


@pytest.mark.parametrize(
    ("seen", "outcome", "says"),
    [
        (Seen(9.0, error="reader: MemoryError: "), "out_of_memory", "MemoryError"),
        (Seen(9.0, error="java.lang.OutOfMemoryError: heap"), "out_of_memory", "heap"),
        (Seen(9.0, died=True, error="it ended (signal 9)"), "disconnected", "signal 9"),
        (Seen(9.0, error="ConnectionResetError: 104"), "disconnected", "104"),
        (
            Seen(9.0, delivered=[(0.0, 5), (1.0, 9), (2.0, 9), (3.0, 9), (4.0, 9), (5.0, 12)]),
            "blocked",
            "3.0 s",
        ),
        (Seen(60.0, delivered=[(0.0, 5), (10.0, 5), (11.0, 6)]), "blocked", "10.0 s"),
        (
            Seen(9.0, resident={"writer": [50 * MIB, 80 * MIB, 120 * MIB]}),
            "unbounded_growth",
            "writer: its memory rose from 50 to 120 MiB",
        ),
        (Seen(9.0, stuck=True, error="it did not answer"), "blocked", "did not answer"),
        (Seen(9.0, error="ValueError: no"), "error", "no"),
        (Seen(9.0, delivered=flowing(), wrong=3), "error", "3 messages"),
    ],
)
def test_what_went_wrong_has_its_word(seen: Seen, outcome: str, says: str) -> None:
    found, reason = judge(seen)
    assert found == outcome
    assert found in OUTCOMES
    assert says in reason


@pytest.mark.parametrize(
    "resident",
    [
        [],
        [50 * MIB],
        [50 * MIB, 60 * MIB, 70 * MIB],  # it has not doubled
        [50 * MIB, 120 * MIB, 120 * MIB, 120 * MIB, 120 * MIB, 120 * MIB],  # it has its size
        [1 * MIB, 2 * MIB, 3 * MIB],  # an allocator's noise
        [120 * MIB, 50 * MIB, 40 * MIB],
    ],
)
def test_memory_that_has_its_size_is_no_growth(resident: list[int]) -> None:
    assert judge(Seen(9.0, delivered=flowing(), resident={"writer": resident}))[0] == "complete"


def test_a_pause_that_is_short_against_the_window_is_none() -> None:
    delivered = [(0.0, 1), (1.0, 2), (3.5, 2), (4.0, 3)]
    assert judge(Seen(9.0, delivered=delivered))[0] == "complete"


def test_a_window_that_was_missed_is_an_error() -> None:
    assert judge(Seen(3.0, delivered=[(0.0, 9)]))[0] == "error"


def test_nothing_at_all_is_blocked() -> None:
    assert judge(Seen(3.0, delivered=[(0.0, 0), (1.0, 0), (2.0, 0)]))[0] == "blocked"


def test_the_worst_word_wins() -> None:
    grown = {"writer": [50 * MIB, 80 * MIB, 120 * MIB]}
    still = [(0.0, 0), (10.0, 0)]
    assert judge(Seen(9.0, "MemoryError", True, delivered=still, resident=grown))[0] == (
        "out_of_memory"
    )
    assert judge(Seen(9.0, "x", True, delivered=still, resident=grown))[0] == "disconnected"
    assert judge(Seen(9.0, "x", delivered=still, resident=grown))[0] == "blocked"
    assert judge(Seen(9.0, "x", delivered=flowing(), resident=grown))[0] == "unbounded_growth"


def test_a_number_of_messages_may_come_sooner_than_the_second_sample() -> None:
    assert judge(Seen(60.0, delivered=[(1.2, 500)], missing="")) == ("complete", "")


def test_a_number_of_messages_that_has_not_come_is_an_error() -> None:
    late = "3 of 9 messages had come by the end"
    assert judge(Seen(9.0, delivered=flowing(), missing=late)) == ("error", late)
    still = [(float(second), 3) for second in range(9)]
    assert judge(Seen(9.0, delivered=still, missing=late))[0] == "blocked"


@pytest.mark.parametrize(
    ("missing", "outcome"), [("", "complete"), ("3 of 9 messages had come", "unbounded_growth")]
)
def test_memory_rises_without_bound_only_while_messages_are_under_way(
    missing: str, outcome: str
) -> None:
    grown = {"node-2": [37 * MIB, 50 * MIB, 77 * MIB]}
    assert judge(Seen(60.0, delivered=flowing(), resident=grown, missing=missing))[0] == outcome

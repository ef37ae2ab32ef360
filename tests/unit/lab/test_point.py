"""How a point ends: who sends to whom, what drained means, and what an outcome says."""

from __future__ import annotations

from typing import Any, cast

import pytest

from antiphon.lab.bench import point as subject
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.processes import Child


class Receiver:
    """A child that counts as told: one number per sample, the last one for ever."""

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)

    def tell(self, order: str, **arguments: Any) -> None:
        assert order == "sample"

    def answer(self, timeout: float) -> dict[str, Any]:
        count = self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]
        return {"messages": count, "wrong": 0, "time_ns": 0}


def drained(sent: int, *receivers: Receiver) -> tuple[int, bool]:
    samples, still = subject.drain(cast(list[Child], list(receivers)), sent)
    return sum(sample["messages"] for sample in samples), still


def sample(messages: int, wrong: int = 0) -> dict[str, Any]:
    return {"messages": messages, "wrong": wrong}


def test_one_way_has_a_receiver_and_a_sender() -> None:
    assert subject.roles(Point("pyzmq", "push-pull")) == [(True, []), (False, [0])]


def test_in_duplex_each_sends_to_the_other() -> None:
    assert subject.roles(Point("pyzmq", "push-pull", "duplex")) == [(True, [1]), (True, [0])]


def test_all_to_all_leaves_nobody_out() -> None:
    roles = subject.roles(Point("pyzmq", "push-pull", "n-n", processes=3))
    assert roles == [(True, [1, 2]), (True, [0, 2]), (True, [0, 1])]


def test_a_drain_ends_when_all_have_come() -> None:
    assert drained(30, Receiver(5, 10, 20), Receiver(5, 10)) == (30, True)


def test_a_drain_that_stands_still_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "DRAIN_STILL", 0.05)
    assert drained(30, Receiver(5, 10)) == (10, True)


def test_a_drain_that_crawls_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "DRAIN_TIMEOUT", 0.1)
    count, still = drained(100_000, Receiver(*range(1000)))
    assert count < 1000
    assert not still


@pytest.mark.parametrize(
    ("blocked", "samples", "sent", "still", "outcome", "reason"),
    [
        (0, [sample(6), sample(4)], 10, True, "ok", ""),
        (0, [sample(7)], 10, True, "lost", "lost 3 of 10"),
        (0, [sample(7)], 10, False, "timed out", "3 of 10 still to come after 15 s"),
        (0, [sample(11)], 10, True, "failed", "1 more received than sent"),
        (0, [sample(10, wrong=1)], 10, True, "failed", "1 messages of another size than sent"),
        (2, [sample(7)], 10, True, "timed out", "2 senders still blocked after 15 s"),
    ],
)
def test_the_outcome_says_what_happened(
    blocked: int, samples: list[dict[str, Any]], sent: int, still: bool, outcome: str, reason: str
) -> None:
    stopped = [{"sent": sent, "blocked": blocked}]
    assert subject.judge(stopped, samples, sent, still) == (outcome, reason)

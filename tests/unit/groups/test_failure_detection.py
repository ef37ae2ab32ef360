"""Failure detection by itself: two members, a network between them, and nothing else."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from antiphon.errors import ConfigError
from antiphon.groups.layers import Discovery, FailureDetection, Membership, Tcp
from antiphon.groups.messages import AreYouThere, Heartbeat, IAm
from antiphon.groups.protocol import (
    Disconnected,
    Heard,
    Installed,
    Layer,
    Received,
    Send,
    Signal,
    Stack,
    Suspect,
    Trust,
)
from antiphon.groups.view import Member, Record, View

pytestmark = pytest.mark.timeout(120)

ME, OTHER = Member(1, "me", "sim://1", 11), Member(2, "other", "sim://2", 22)
TICK = 0.05


class Above(Layer):
    """Keeps what failure detection says."""

    name = "membership"
    needs = ("failure-detection",)

    def __init__(self) -> None:
        self._said: list[Signal] = []

    def up(self, event: Signal, now: float) -> None:
        self._said.append(event)


class Pair:
    """One that watches, and what it sees of the other."""

    def __init__(self, detector: FailureDetection) -> None:
        self.above = Above()
        self.stack = Stack([Tcp(), detector, self.above], random.Random(1))
        self.now = 0.0
        record = Record(1, 1, (ME, OTHER))
        view = View(1, (ME, OTHER))
        self.sent = self.stack.down(Installed(record, view, ME), 0.0)

    def tick(self, seconds: float = TICK) -> list[Signal]:
        self.now += seconds
        self.sent = self.stack.tick(self.now)
        return self.sent

    def hear(self, message: Heartbeat | IAm | None = None) -> None:
        self.sent = self.stack.up(Received(2, message or Heartbeat(22, 1, 1, 11)), self.now)

    def said(self, kind: type[Signal]) -> int:
        return sum(isinstance(one, kind) for one in self.above._said)


def test_one_that_is_silent_is_asked_and_then_suspected() -> None:
    pair = Pair(FailureDetection(timeout=3.0, verify=0.5))
    asked_at = suspected_at = 0.0
    while not pair.said(Suspect):
        for action in pair.tick():
            if isinstance(action, Send) and isinstance(action.message, AreYouThere):
                asked_at = asked_at or pair.now
        assert pair.now < 10
        suspected_at = pair.now
    assert 3.0 <= asked_at <= 3.2
    assert 0.5 <= suspected_at - asked_at <= 0.7


def test_an_answer_clears_the_question_and_a_late_one_the_suspicion() -> None:
    pair = Pair(FailureDetection(timeout=1.0, verify=0.5))
    while pair.now < 1.3:
        pair.tick()
    pair.hear(IAm(22))
    while pair.now < 2.2:
        pair.tick()
    assert not pair.said(Suspect)
    while not pair.said(Suspect):
        pair.tick()
    pair.hear(IAm(22))
    assert pair.said(Trust) == 1


def test_another_life_does_not_answer_for_the_one_before() -> None:
    pair = Pair(FailureDetection(timeout=1.0, verify=0.5))
    while not pair.said(Suspect):
        pair.tick()
        pair.hear(Heartbeat(33, 1, 1, 33))
        assert pair.now < 5


def test_data_counts_as_a_sign_of_life() -> None:
    pair = Pair(FailureDetection(timeout=1.0, verify=0.5))
    while pair.now < 10:
        pair.tick()
        pair.stack.up(Heard(22, pair.now - 0.01), pair.now)
    assert not pair.said(Suspect)


def test_a_lost_connection_raises_the_question_at_once() -> None:
    pair = Pair(FailureDetection())
    pair.tick()
    actions = pair.stack.up(Disconnected(2), pair.now)
    assert any(isinstance(one, Send) and isinstance(one.message, AreYouThere) for one in actions)
    began = pair.now
    while not pair.said(Suspect):
        pair.tick()
    assert pair.now - began < 0.7


def test_one_that_was_away_itself_blames_nobody() -> None:
    pair = Pair(FailureDetection(timeout=1.0, verify=0.5))
    for _ in range(20):
        pair.tick()
        pair.hear()
    pair.tick(30.0)  # the process was stopped
    for _ in range(10):
        pair.tick()
        pair.hear()
    assert not pair.said(Suspect)


def test_heartbeats_go_to_every_other_member_in_time() -> None:
    pair = Pair(FailureDetection(heartbeat=0.5))
    beats = sum(
        isinstance(action, Send) and isinstance(action.message, Heartbeat)
        for _ in range(200)
        for action in pair.tick()
    )
    assert 18 <= beats <= 21


@pytest.mark.parametrize("detector", ["fixed", "phi"])
@pytest.mark.timeout(3600)
def test_who_lives_is_trusted_in_the_end_and_who_is_dead_is_not(
    detector: str, count: Callable[[int, int], int]
) -> None:
    for seed in range(count(300, 10_000)):
        choice = random.Random(f"{detector} {seed}")
        layer = FailureDetection(heartbeat=0.5, timeout=3.0, verify=0.5, detector=detector)
        pair = Pair(layer)
        loss = choice.choice([0.0, 0.1, 0.4])
        answers: deque[tuple[float, Heartbeat | IAm]] = deque()
        next_beat = 0.0
        dies = choice.choice([None, choice.uniform(5, 20)])
        for _ in range(600):
            alive = dies is None or pair.now < dies
            for action in pair.tick():
                asks = isinstance(action, Send) and isinstance(action.message, AreYouThere)
                if asks and alive and choice.random() >= loss:
                    answers.append((pair.now + choice.uniform(0, 0.2), IAm(22)))
            if alive and pair.now >= next_beat:
                next_beat = pair.now + 0.5
                if choice.random() >= loss:
                    answers.append((pair.now + choice.uniform(0, 0.2), Heartbeat(22, 1, 1, 11)))
            while answers and answers[0][0] <= pair.now:
                pair.hear(answers.popleft()[1])
        verdicts = [one for one in pair.above._said if isinstance(one, Suspect | Trust)]
        if dies is not None:
            assert verdicts, f"seed {seed}"
            assert isinstance(verdicts[-1], Suspect), f"seed {seed}"
        elif loss < 0.2:
            assert not verdicts or isinstance(verdicts[-1], Trust), f"seed {seed}"


def test_phi_grows_with_silence_and_sooner_for_a_steady_rhythm() -> None:
    layer = FailureDetection(heartbeat=0.2, detector="phi")
    steady, wild = deque([0.2] * 50), deque([0.1, 1.5] * 25)
    assert layer.phi(steady, 0.2) < layer.phi(steady, 0.6) < layer.phi(steady, 1.0)
    assert layer.phi(steady, 1.5) > layer.phi(wild, 1.5)


def test_an_unknown_detector_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fixed' or 'phi'"):
        FailureDetection(detector="guess")


def test_membership_stands_upon_it() -> None:
    with pytest.raises(ConfigError, match="'membership' needs 'failure-detection' below it"):
        Stack([Tcp(), Discovery(), Membership()])

"""The outgoing ring, one step at a time, against a queue of claims and a queue of bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon._core import ParserProbe, RingProbe
from unit.core.frames import frame

CAPACITY = 4096  # the least: a page
HEADER = 12


def filling(number: int, size: int) -> bytes:
    """Bytes that differ from claim to claim and from place to place."""
    return bytes((number * 89 + at * 7 + (at >> 8)) & 0xFF for at in range(size))


@dataclass
class Claim:
    position: int
    data: bytes


class RingAgainstModel(RuleBasedStateMachine):
    """Claims are granted while there is room, commits are seen in their order, bytes once."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = RingProbe(CAPACITY)
        self.claims: deque[Claim] = deque()
        self.readable: deque[int] = deque()
        self.claimed = 0
        self.tail = 0
        self.number = 0

    @property
    def free(self) -> int:
        return CAPACITY - self.claimed - len(self.readable)

    def claim(self, size: int) -> None:
        position = self.ring.claim(size)
        if size > self.free:
            assert position is None
            return
        assert position == self.tail
        self.number += 1
        self.claims.append(Claim(position, filling(self.number, size)))
        self.claimed += size
        self.tail += size

    @rule(size=st.integers(1, 700))
    def claim_some(self, size: int) -> None:
        self.claim(size)

    @rule()
    def claim_all_that_is_free(self) -> None:
        if self.free:
            self.claim(self.free)

    @rule(over=st.integers(1, CAPACITY))
    def claim_more_than_is_free(self, over: int) -> None:
        self.claim(self.free + over)

    @precondition(lambda self: self.claims)
    @rule()
    def commit_the_oldest(self) -> None:
        claim = self.claims.popleft()
        self.ring.commit(claim.position, claim.data)
        self.claimed -= len(claim.data)
        self.readable.extend(claim.data)

    @precondition(lambda self: len(self.claims) > 1)
    @rule(data=st.data())
    def commit_another_too_early(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(list(self.claims)[1:]))
        with pytest.raises(ValueError, match="earlier claim"):
            self.ring.commit(claim.position, claim.data)

    @rule(most=st.integers(0, 2 * CAPACITY))
    def read(self, most: int) -> None:
        data = self.ring.read(most)
        assert len(data) == min(most, len(self.readable))
        assert data == bytes(self.readable.popleft() for _ in range(len(data)))

    @invariant()
    def room_is_what_nobody_has(self) -> None:
        assert self.ring.free_bytes == self.free


TestRingAgainstModel = RingAgainstModel.TestCase
TestRingAgainstModel.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@given(sizes=st.lists(st.integers(1, CAPACITY), min_size=1, max_size=40))
def test_what_is_put_in_comes_out_wherever_the_end_of_the_ring_is(sizes: list[int]) -> None:
    ring = RingProbe(CAPACITY)
    for number, size in enumerate(sizes):
        position = ring.claim(size)
        assert position == sum(sizes[:number])
        ring.commit(position, filling(number, size))
        assert ring.free_bytes == CAPACITY - size
        assert ring.read(size + 1) == filling(number, size)


def test_a_claim_of_the_whole_ring_is_granted_and_leaves_nothing() -> None:
    ring = RingProbe(CAPACITY)
    for number in range(3):
        position = ring.claim(CAPACITY)
        assert position is not None
        assert ring.claim(1) is None
        ring.commit(position, filling(number, CAPACITY))
        assert ring.claim(1) is None
        assert ring.read(1) == filling(number, CAPACITY)[:1]
        assert ring.claim(2) is None
        assert ring.claim(1) is not None
        assert ring.read(CAPACITY) == filling(number, CAPACITY)[1:]
        ring.commit(position + CAPACITY, b"!")
        assert ring.read(CAPACITY) == b"!"


def test_a_claim_larger_than_the_ring_is_never_granted() -> None:
    ring = RingProbe(CAPACITY)
    assert ring.claim(CAPACITY + 1) is None
    assert ring.claim(2**63) is None
    assert ring.free_bytes == CAPACITY


class FramesThroughTheRing(RuleBasedStateMachine):
    """As senders use it: what was given up after its claim is a frame that the receiver skips.

    Frames come out whole and in the order of their claims, however little is read at a time.
    """

    PAD, KIND = 20, 200

    def __init__(self) -> None:
        super().__init__()
        self.ring = RingProbe(CAPACITY)
        self.parser = ParserProbe(CAPACITY)
        self.open: deque[Claim] = deque()
        self.committed: list[tuple[str, int, int, bytes]] = []
        self.unread = 0

    def commit(self, kind: int, what: str) -> None:
        claim = self.open.popleft()
        data = frame(kind, 0, 0, claim.data)
        self.ring.commit(claim.position, data)
        self.committed.append((what, kind, 0, claim.data))
        self.unread += len(data)

    @rule(size=st.integers(0, 900))
    def claim(self, size: int) -> None:
        position = self.ring.claim(HEADER + size)
        if position is not None:
            self.open.append(Claim(position, filling(len(self.committed) + len(self.open), size)))

    @precondition(lambda self: self.open)
    @rule()
    def send(self) -> None:
        self.commit(self.KIND, "data")

    @precondition(lambda self: self.open)
    @rule()
    def give_up(self) -> None:
        self.commit(self.PAD, "control")

    @rule(most=st.integers(1, CAPACITY))
    def pass_on(self, most: int) -> None:
        data = self.ring.read(most)
        self.unread -= len(data)
        assert self.parser.feed(data), self.parser.error

    @invariant()
    def what_has_come_is_what_was_committed(self) -> None:
        found = self.parser.found
        assert found == self.committed[: len(found)]
        if self.unread == 0:
            assert len(found) == len(self.committed)
            assert not self.parser.mid_frame


TestFramesThroughTheRing = FramesThroughTheRing.TestCase
TestFramesThroughTheRing.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None
)

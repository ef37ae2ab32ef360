"""The outgoing ring, step by step, against a queue of bytes."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon._core import RingProbe

CAPACITY = 64 * 1024

# Mostly of the order of the ring, so that a few steps take it past its end.
sizes = st.one_of(
    st.integers(1, 64),
    st.integers(1, CAPACITY),
    st.integers(CAPACITY // 4, CAPACITY),
    st.sampled_from([1, 4095, 4096, CAPACITY - 1, CAPACITY, CAPACITY + 1, 3 * CAPACITY]),
)
amounts = st.one_of(st.integers(0, 64), st.integers(0, 2 * CAPACITY))


def pattern(size: int, seed: int) -> bytes:
    """Bytes of which every stretch of eight differs from the others."""
    words = (size + 7) // 8
    return b"".join((seed + word).to_bytes(8, "little") for word in range(words))[:size]


class RingModel(RuleBasedStateMachine):
    """What was committed comes out in the order of the claims, and nothing else does."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = RingProbe(CAPACITY)
        self.claims: deque[tuple[int, int]] = deque()
        self.committed = bytearray()
        self.tail = 0
        self.head = 0
        self.seed = 0

    def next_pattern(self, size: int) -> bytes:
        self.seed += 1_000_000
        return pattern(size, self.seed)

    @rule(size=sizes)
    def claim(self, size: int) -> None:
        fits = self.tail + size - self.head <= CAPACITY
        position = self.ring.claim(size)
        if not fits:
            assert position is None
            return
        assert position == self.tail
        self.claims.append((position, size))
        self.tail += size

    @rule()
    def claim_all_that_is_free(self) -> None:
        free = self.ring.free_bytes
        assert self.ring.claim(free + 1) is None
        if free:
            self.claim(free)
            assert self.ring.claim(1) is None

    @precondition(lambda self: self.claims)
    @rule()
    def commit(self) -> None:
        position, size = self.claims.popleft()
        data = self.next_pattern(size)
        self.ring.commit(position, data)
        self.committed += data

    @precondition(lambda self: len(self.claims) > 1)
    @rule(data=st.data())
    def commit_out_of_turn(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(1, len(self.claims) - 1))
        position, size = self.claims[index]
        # It may copy already; nothing of it may be seen.
        with pytest.raises(ValueError, match="earlier claim"):
            self.ring.commit(position, self.next_pattern(size))

    @rule(most=amounts)
    def read(self, most: int) -> None:
        data = self.ring.read(most)
        expected = bytes(self.committed[:most])
        assert data == expected
        del self.committed[: len(data)]
        self.head += len(data)

    @invariant()
    def free_is_what_is_not_claimed(self) -> None:
        assert self.ring.free_bytes == CAPACITY - (self.tail - self.head)

    def teardown(self) -> None:
        while self.claims:
            self.commit()
        self.read(2 * CAPACITY)
        assert self.ring.free_bytes == CAPACITY
        assert self.ring.read(1) == b""


TestRingAgainstAQueueOfBytes = RingModel.TestCase
TestRingAgainstAQueueOfBytes.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None
)


@given(chunks=st.lists(st.integers(CAPACITY // 3, CAPACITY), min_size=3, max_size=12))
@settings(max_examples=50, deadline=None)
def test_chunks_that_cross_the_end_of_the_ring_come_out_whole(chunks: list[int]) -> None:
    ring = RingProbe(CAPACITY)
    position = 0
    for number, size in enumerate(chunks):
        data = pattern(size, number << 32)
        assert ring.claim(size) == position
        assert ring.read(CAPACITY) == b""
        ring.commit(position, data)
        assert ring.read(CAPACITY) == data
        position += size


def test_a_claim_of_the_whole_ring_fits_exactly_once() -> None:
    ring = RingProbe(CAPACITY)
    assert ring.claim(CAPACITY) == 0
    assert ring.free_bytes == 0
    assert ring.claim(1) is None
    ring.commit(0, b"a" * CAPACITY)
    assert ring.read(1) == b"a"
    assert ring.claim(2) is None
    assert ring.claim(1) == CAPACITY
    ring.commit(CAPACITY, b"b")
    assert ring.read(2 * CAPACITY) == b"a" * (CAPACITY - 1) + b"b"

"""Messages that carry their times: told apart from the others, and kept within bounds."""

from __future__ import annotations

import time

import pytest

from antiphon.lab import stamps
from antiphon.lab.peers.base import payload_of
from antiphon.lab.stamps import COLUMNS, STAMP_BYTES, Reader, Stamper


def test_a_stamp_comes_back_with_its_times() -> None:
    stamp, reader = Stamper(7, 200), Reader(200)
    due = time.monotonic_ns() - 1000
    reader(payload_of(200))
    for _ in range(3):
        message = stamp(due)
        assert len(message) == 200
        reader(message)
    times = reader.take()
    rows = [times[at : at + COLUMNS] for at in range(0, len(times), COLUMNS)]
    assert [row[0] for row in rows] == [0, 1, 2]
    assert {row[1] for row in rows} == {7}
    for _, _, intended, sent, came in rows:
        assert intended == due
        assert due <= sent <= came <= time.monotonic_ns()
    assert (reader.messages, reader.bytes, reader.wrong) == (4, 800, 0)
    assert reader.take() == []


@pytest.mark.parametrize("size", [0, 1, STAMP_BYTES - 1, STAMP_BYTES, 251, 2000])
def test_no_ordinary_message_looks_stamped(size: int) -> None:
    reader = Reader(size)
    reader(payload_of(size))
    assert reader.take() == []
    assert Stamper(1, size).fits == (size >= STAMP_BYTES)


def test_another_size_is_counted_as_wrong() -> None:
    reader = Reader(100)
    reader(b"short")
    reader(bytes(100))
    assert (reader.messages, reader.wrong) == (2, 1)


def test_what_is_kept_is_bounded_and_the_rest_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "MOST_PER_SECOND", 10)
    stamp, reader = Stamper(1, 64), Reader(64)
    for _ in range(1000):
        reader(stamp(0))
    kept = len(reader.take()) // COLUMNS
    assert kept + reader.left_out == 1000
    assert kept <= 10 * 4  # a second may have begun meanwhile


def test_much_is_taken_in_parts() -> None:
    stamp, reader = Stamper(1, 64), Reader(64)
    for _ in range(25):
        reader(stamp(0))
    taken = [reader.take(10) for _ in range(4)]
    assert [len(part) // COLUMNS for part in taken] == [10, 10, 5, 0]
    assert [part[0] for part in taken[:3]] == [0, 10, 20]

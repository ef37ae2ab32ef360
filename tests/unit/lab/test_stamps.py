"""Messages that carry their times: told apart from the others, and kept within bounds."""

from __future__ import annotations

import threading
import time
from array import array

import pytest

import antiphon
from antiphon.lab.latencies import latency_table
from antiphon.lab.peers.base import payload_of
from antiphon.lab.stamps import (
    COLUMNS,
    STAMP_BYTES,
    Reader,
    SlowReader,
    Stamper,
    TimedReader,
    Times,
    packed,
    unpacked,
)
from antiphon.testing import eventually


def test_a_stamp_comes_back_with_its_times() -> None:
    stamp, reader = Stamper(7, 200), Reader(200)
    due = time.monotonic_ns() - 1000
    reader(payload_of(200))
    for _ in range(3):
        message = stamp(due)
        assert len(message) == 200
        reader(message)
    times = reader.times.take(end=True).tolist()
    rows = [times[at : at + COLUMNS] for at in range(0, len(times), COLUMNS)]
    assert [row[0] for row in rows] == [0, 1, 2]
    assert {row[1] for row in rows} == {7}
    for _, _, intended, sent, came in rows:
        assert intended == due
        assert due <= sent <= came <= time.monotonic_ns()
    assert (reader.messages, reader.received_bytes, reader.wrong) == (4, 800, 0)
    assert len(reader.times.take(end=True)) == 0


def test_a_slow_reader_takes_no_more_than_its_rate_and_counts_as_any_other() -> None:
    stamp, reader = Stamper(7, 200), SlowReader(200, per_second=200)
    begin = time.monotonic()
    for _ in range(20):
        reader(stamp(5))
    assert time.monotonic() - begin >= 0.1
    assert (reader.messages, reader.received_bytes, reader.wrong) == (20, 4000, 0)
    assert len(reader.times.take(end=True)) == 20 * COLUMNS


def test_a_slow_reader_does_not_make_up_for_the_time_that_nothing_came() -> None:
    reader = SlowReader(200, per_second=50)
    time.sleep(0.2)
    begin = time.monotonic()
    for _ in range(5):
        reader(payload_of(200))
    assert time.monotonic() - begin >= 0.1


def test_a_slow_reader_takes_a_batch_one_by_one() -> None:
    reader = SlowReader(200, per_second=200)
    with antiphon.Node(1) as there, antiphon.Node(2) as here:
        there.on(200, lambda source, batch: reader.batch(batch), batch=True)
        here.add_peer(1, there.address)
        begin = time.monotonic()
        here.send_many(1, [payload_of(200)] * 20, kind=200)
        eventually(lambda: reader.messages == 20, 10)
        assert time.monotonic() - begin >= 0.09


@pytest.mark.parametrize("size", [0, 1, STAMP_BYTES - 1, STAMP_BYTES, 251, 2000])
def test_no_ordinary_message_looks_stamped(size: int) -> None:
    reader = Reader(size)
    reader(payload_of(size))
    assert len(reader.times.take(end=True)) == 0
    assert Stamper(1, size).fits == (size >= STAMP_BYTES)


@pytest.mark.parametrize("size", [STAMP_BYTES - 1, STAMP_BYTES, 200])
@pytest.mark.parametrize("kind", [Reader, TimedReader])
def test_a_batch_counts_as_its_messages_do(size: int, kind: type[Reader]) -> None:
    stamp, reader = Stamper(7, size), kind(size)
    plain = payload_of(size)
    stamps = stamp.fits
    messages = [stamp(5) if stamps and number % 10 == 3 else plain for number in range(95)]
    with antiphon.Node(1) as there, antiphon.Node(2) as here:
        there.on(200, lambda source, batch: reader.batch(batch), batch=True)
        here.add_peer(1, there.address)
        here.send_many(1, messages, kind=200)
        eventually(lambda: reader.messages == 95, 10)
        # As many bytes in all as two messages of the right size.
        here.send_many(1, [plain[1:], b"x" * (size + 1)], kind=200)
        eventually(lambda: reader.messages == 97, 10)
    assert reader.received_bytes == 97 * size
    assert reader.wrong == 2
    times = reader.times.take(end=True).tolist()
    assert times[::COLUMNS] == (list(range(10)) if stamps else [])
    assert set(times[1::COLUMNS]) == ({7} if stamps else set())


def test_another_size_is_counted_as_wrong() -> None:
    reader = Reader(100)
    reader(b"short")
    reader(bytes(100))
    assert (reader.messages, reader.wrong) == (2, 1)


SECOND = 1_000_000_000


def sequences(times: Times) -> list[int]:
    return times.take(1_000_000, end=True)[::COLUMNS].tolist()


def test_what_is_kept_is_bounded_and_the_rest_counted() -> None:
    times = Times(10)
    for number in range(1000):
        times.add(number, 1, 0, 0, 5 * SECOND + number)
    kept = len(sequences(times))
    assert 5 <= kept <= 10
    assert times.left_out == 1000 - kept


@pytest.mark.parametrize("step", [1, 4, 7, 15, 16])
@pytest.mark.parametrize("offset", [0, 3])
def test_what_is_kept_is_spread_over_each_second(step: int, offset: int) -> None:
    """Also where every fourth message comes here, or senders take turns."""
    times = Times(1000)
    for number in range(60_000):
        times.add(offset + number * step, 1, 0, 0, 5 * SECOND + number * (SECOND // 20_000))
    kept = [(one - offset) // step for one in sequences(times)]
    assert kept == sorted(kept)
    # In every tenth of each of the three seconds about as many as in the others: one in 32, as one
    # in 16 would be more than a thousand of 20,000.
    parts = [sum(begin <= one < begin + 2000 for one in kept) for begin in range(0, 60_000, 2000)]
    assert 40 <= min(parts) <= max(parts) <= 85
    assert 1800 <= len(kept) <= 2000
    assert times.left_out == 60_000 - len(kept)


def test_once_thinned_it_stays_so_and_a_row_stands_for_as_many_as_any_other() -> None:
    times = Times(100)
    for number in range(1000):
        times.add(number, 1, 0, 0, 5 * SECOND + number)
    first = len(sequences(times))
    for number in range(1000, 1400):
        times.add(number, 1, 0, 0, 6 * SECOND + number)
    assert len(sequences(times)) == pytest.approx(first * 0.4, abs=3)


def test_a_second_is_handed_out_when_it_is_over() -> None:
    """It may still have to be thinned."""
    times = Times(10)
    later = time.monotonic_ns() + 3600 * SECOND
    times.add(0, 1, 0, 0, later)
    assert len(times.take()) == 0
    times.add(1, 1, 0, 0, later + SECOND)
    assert times.take()[::COLUMNS].tolist() == [0]
    assert times.ready == 0
    assert times.take(end=True)[::COLUMNS].tolist() == [1]


def test_several_threads_may_add() -> None:
    times = Times(50)
    now = time.monotonic_ns()

    def add(source: int) -> None:
        for number in range(2000):
            times.add(number, source, 0, 0, now)

    threads = [threading.Thread(target=add, args=(source,)) for source in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = times.take(end=True)
    assert len(kept) // COLUMNS + times.left_out == 8000
    assert set(kept[1::COLUMNS]) == {0, 1, 2, 3}


def test_much_is_taken_in_parts() -> None:
    stamp, reader = Stamper(1, 64), Reader(64)
    for _ in range(25):
        reader(stamp(0))
    taken = [reader.times.take(10, end=True) for _ in range(4)]
    assert [len(part) // COLUMNS for part in taken] == [10, 10, 5, 0]
    assert [part[0] for part in taken[:3]] == [0, 10, 20]


def test_the_last_one_has_its_time_where_that_is_asked_for() -> None:
    reader = TimedReader(64)
    assert reader.last_ns == 0
    before = time.monotonic_ns()
    reader(payload_of(64))
    assert before <= reader.last_ns <= time.monotonic_ns()
    assert (reader.messages, reader.received_bytes) == (1, 64)


def test_what_the_core_has_counted_is_added() -> None:
    stamp, reader = Stamper(3, 64), Reader(64)
    heads = [stamp(17)[:STAMP_BYTES] + when.to_bytes(8, "little") for when in (100, 200)]
    reader.add(10, 640, 1, 300, b"".join(heads))
    reader.add(0, 0, 0, 0, b"")
    assert (reader.messages, reader.received_bytes, reader.wrong, reader.last_ns) == (
        10,
        640,
        1,
        300,
    )
    times = reader.times.take(end=True)
    assert [times[0], times[1], times[2], times[4]] == [0, 3, 17, 100]
    assert [times[5], times[6], times[7], times[9]] == [1, 3, 17, 200]


ALWAYS = (0, 1 << 62)


def test_rows_say_who_sent_and_who_asked() -> None:
    times = [7, 2, 100, 110, 150]
    answer = {"times": times, "topics": {"2": "lab/0/2"}}
    (came,) = latency_table(answer, 0, ALWAYS, {}).to_pylist()
    assert (came["source"], came["target"], came["stage"]) == (2, 0, "delivery")
    assert (came["topic"], came["sequence"], came["weight"]) == ("lab/0/2", 7, 1.0)
    answer = {"times": packed(array("q", times)), "stage": "round-trip"}
    (asked,) = latency_table(answer, 1, ALWAYS, {}).to_pylist()
    assert (asked["source"], asked["target"], asked["topic"]) == (1, 2, None)
    assert (asked["intended_ns"], asked["sent_ns"], asked["received_ns"]) == (100, 110, 150)


def test_rows_are_those_that_were_due_in_the_window_by_the_clock_of_whoever_sent() -> None:
    times = [value for due in (99, 100, 199, 200) for value in (due, due % 2, due, due, due)]
    kept = latency_table({"times": times}, 0, (100, 200), {0: 0, 1: 0})
    assert kept.column("sequence").to_pylist() == [100, 199]
    # The clock of source 1 is ahead by 50.
    kept = latency_table({"times": times}, 0, (100, 200), {0: 0, 1: 50})
    assert kept.column("sequence").to_pylist() == [100, 199]
    kept = latency_table({"times": times}, 0, (40, 60), {0: 0, 1: 50})
    assert kept.column("sequence").to_pylist() == [99]
    assert latency_table({"times": []}, 0, (0, 1), {0: 0}).num_rows == 0


def test_times_come_through_an_answer_as_they_were() -> None:
    times = array("q", [0, -1, 1 << 62, -(1 << 62), 5])
    assert unpacked(packed(times)) == times
    assert unpacked(list(times)) == times

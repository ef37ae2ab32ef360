"""Timetables, who is late by how much, what is recorded, and what shares come out of it."""

from __future__ import annotations

import time
from array import array
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.lab.bench import topics as subject
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import Measurement, Options
from antiphon.lab.bench.processes import WorkerFailed
from antiphon.lab.bench.topic_probe_worker import burn
from antiphon.lab.bench.topic_probes import HANDLERS, Dispatch, Shares, deviation, shares_of
from antiphon.lab.bench.topic_worker import Recorder
from antiphon.lab.peers.topics.base import STAMP, UNTIMED, WARMING_UP, Pace, TopicSender

SECOND = 1_000_000_000


class ListSender(TopicSender):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.published: list[bytes] = []

    def publish(self, data: bytes) -> None:
        self.published.append(data)

    def burst(self) -> int:
        raise NotImplementedError


@given(
    start=st.integers(0, 10**15),
    warmup=st.integers(0, SECOND),
    length=st.integers(1, SECOND),
    rate=st.integers(1, 5_000),
    at=st.integers(-SECOND, 3 * SECOND),
)
def test_a_timetable_has_every_message_at_its_time(
    start: int, warmup: int, length: int, rate: int, at: int
) -> None:
    begin = start + warmup
    pace = Pace(start, begin, begin + length, rate)
    times = [pace.when(number) for number in range(pace.total)]
    assert times == sorted(set(times))
    assert all(start <= moment < pace.end_ns for moment in times)
    assert pace.when(pace.total) >= pace.end_ns
    assert [moment >= begin for moment in times].count(True) == pace.total - pace.first
    assert pace.due(start + at) == sum(moment <= start + at for moment in times)


def test_what_is_overdue_is_sent_at_once_with_the_time_at_which_it_was_due() -> None:
    now = time.monotonic_ns()
    pace = Pace(now - SECOND, now - SECOND // 2, now, 4_000)
    sender, late = ListSender(), array("q")
    assert sender.send_on_time(pace, 128, lambda: False, late) == 4_000
    assert [STAMP.unpack_from(data)[0] for data in sender.published] == [
        pace.when(number) for number in range(4_000)
    ]
    assert {len(data) for data in sender.published} == {128}
    # Of the four bursts two count; their first messages were due half a second ago and later.
    assert len(late) == 2
    assert late[0] >= SECOND // 2
    assert SECOND // 4 <= late[1] < late[0]


def test_nothing_is_sent_before_its_time() -> None:
    start = time.monotonic_ns() + 2_000_000
    pace = Pace(start, start, start + 20_000_000, 1_000)
    sent_at: list[int] = []
    sender, late = ListSender(), array("q")
    sender.publish = lambda data: sent_at.append(time.monotonic_ns())  # type: ignore[method-assign]
    assert sender.send_on_time(pace, 8, lambda: False, late) == 20
    assert all(moment >= pace.when(number) for number, moment in enumerate(sent_at))
    assert min(late) >= 0


def test_a_stopped_sender_says_how_many_it_sent() -> None:
    now = time.monotonic_ns()
    pace = Pace(now - 10 * SECOND, now, now, 1_000)
    sender = ListSender()
    sent = sender.send_on_time(pace, 64, lambda: len(sender.published) >= 3_000, array("q"))
    assert sent == len(sender.published) == 3_000


def test_only_one_message_in_so_many_carries_its_time_and_those_that_count_are_marked() -> None:
    now = time.monotonic_ns()
    pace = Pace(now - SECOND, now - SECOND // 2, now, 5_000, every=100)
    sender, late = ListSender(), array("q")
    assert sender.send_on_time(pace, 64, lambda: False, late) == 5_000
    stamps = [STAMP.unpack_from(data)[0] for data in sender.published]
    assert stamps[::100] == [pace.when(number) for number in range(0, 5_000, 100)]
    others = [stamp for number, stamp in enumerate(stamps) if number % 100]
    assert set(others[: 25 * 99]) == {WARMING_UP}
    assert set(others[25 * 99 :]) == {UNTIMED}
    # Of those that count, a sender's lateness is kept once per burst of a thousand.
    assert len(late) == 3


def message(delay: int, size: int = 64) -> bytes:
    return STAMP.pack(time.monotonic_ns() - delay) + bytes(size - STAMP.size)


def test_a_recorder_counts_nothing_before_it_begins() -> None:
    recorder = Recorder(64)
    recorder.record(message(0))
    recorder.record(STAMP.pack(UNTIMED))
    recorder.begin(time.monotonic_ns() - SECOND)
    recorder.record(message(2 * SECOND))
    recorder.record(STAMP.pack(WARMING_UP))
    assert (recorder.messages, list(recorder.delays)) == (0, [])
    recorder.record(message(SECOND // 2))
    assert recorder.messages == 1
    assert recorder.delays[0] >= SECOND // 2


def test_a_recorder_counts_what_it_does_not_time() -> None:
    recorder = Recorder(64)
    recorder.begin(1)
    for stamp in (UNTIMED, time.monotonic_ns(), UNTIMED):
        recorder.record(STAMP.pack(stamp) + bytes(64 - STAMP.size))
    assert (recorder.messages, len(recorder.delays), recorder.wrong) == (3, 1, 0)


def test_a_recorder_sees_another_size() -> None:
    recorder = Recorder(64)
    recorder.begin(1)
    recorder.record(message(0))
    recorder.record(message(0, 65))
    assert (recorder.messages, recorder.wrong) == (2, 1)


def test_half_is_half_of_what_arrives_when_it_is_asked_for_all_it_can_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = iter([1000.0, 0.0, 3000.0])
    arrivals = iter([100.0, 0.0, 300.0])
    asked: list[int | None] = []

    def fake(measured: partial[Measurement], peer: object, point: Point, *_: Any) -> Measurement:
        if point.pattern == "one-way":
            rate = next(rates)
            return Measurement(point, 0, "ok" if rate else "failed", rate=rate)
        asked.append(rate := measured.keywords["rate"])
        figures = {} if rate is None else {"arrived_per_second": next(arrivals)}
        return Measurement(point, 0, "ok", rate=1.0, figures=figures)

    monkeypatch.setattr(subject, "measure_with", fake)
    measure = subject.MeasureTopics()
    half = Point("zenoh", "pub-sub", "half", 128)
    for _ in range(3):
        measure(Point("zenoh", "pub-sub", "one-way", 128), Options())
    for _ in range(3):
        measure(half, Options())
    assert asked == [2000, None] * 3
    assert measure._rate(half) == 100
    assert measure._rate(Point("zenoh", "pub-sub", "paced", 128)) == 10_000
    assert measure._rate(Point("zenoh", "pub-sub", "isolation", 128)) == 1_000
    for unknown in (Point("zenoh", "pub-sub", "half", 64), Point("nats", "pub-sub", "half", 128)):
        with pytest.raises(WorkerFailed, match="not measured"):
            measure._rate(unknown)


@pytest.mark.parametrize("handlers", HANDLERS)
def test_the_shares_of_busy_handlers_are_all_there_is(handlers: int) -> None:
    shares = shares_of(handlers)
    assert len(shares) == handlers
    assert sum(shares) == pytest.approx(1.0)
    assert max(shares) == pytest.approx(3 * min(shares))
    # A call of 100 us fits into the smallest share of a period of 10 ms.
    assert min(shares) >= 0.01 - 1e-9


def test_the_deviation_is_the_largest_in_parts_of_the_whole() -> None:
    assert deviation([2.0, 6.0], [0.25, 0.75]) == pytest.approx(0.0)
    assert deviation([3.0, 5.0, 2.0], [0.25, 0.5, 0.25]) == pytest.approx(0.05)
    with pytest.raises(WorkerFailed, match="no processor time"):
        deviation([0.0, 0.0], [0.5, 0.5])


def test_the_probes_have_their_worst_and_their_ratio_in_the_facts() -> None:
    assert Shares({2: 0.01, 50: 0.02}, 1.0).facts() == {
        "deviations": {"2": 0.01, "50": 0.02},
        "largest": 0.02,
        "seconds": 1.0,
    }
    assert Dispatch(50_000, 50, 200.0, 180.0).facts()["ratio"] == pytest.approx(0.9)
    assert Dispatch(50_000, 50, 0.0, 180.0).ratio == 0.0


def test_a_busy_handler_uses_the_processor() -> None:
    work = burn(100)
    before = time.thread_time_ns()
    for _ in range(10):
        work(None)
    assert time.thread_time_ns() - before >= 10 * 100_000

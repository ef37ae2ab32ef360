"""What a run says of its delays: by the rule of the pipeline, and whatever the clocks are."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from antiphon.lab import delays
from antiphon.lab.delays import Delays
from antiphon.lab.record import SCHEMAS


def rows(*took_ns: int, weight: float = 1.0, stage: str = "delivery", start: int = 0) -> pa.Table:
    found = [
        {
            "sequence": at,
            "source": 1,
            "target": 0,
            "stage": stage,
            "intended_ns": start + at,
            "sent_ns": start + at,
            "received_ns": start + at + took,
            "weight": weight,
        }
        for at, took in enumerate(took_ns)
    ]
    return pa.Table.from_pylist(found, schema=SCHEMAS["latency"])


def told(some: Delays) -> tuple[int | None, ...]:
    return tuple(some.facts().values())


def test_a_quantile_is_the_smallest_delay_that_so_many_do_not_exceed() -> None:
    some = Delays()
    # 1 to 100 us, in no order, and each a little more: whole microseconds count.
    took = [us * 1000 + 999 for us in range(1, 101)]
    random.Random(1).shuffle(took)
    some.add(rows(*took))
    assert some.facts() == {"latency_p50_us": 50, "latency_p99_us": 99, "latency_max_us": 100}


def test_rows_count_by_their_weight() -> None:
    some = Delays()
    some.add(rows(1000))
    some.add(rows(9000, weight=98.0))
    some.add(rows(20_000))
    assert told(some) == (9, 9, 20)


def test_without_delays_there_are_none() -> None:
    some = Delays()
    assert told(some) == (None, None, None)
    some.add(rows())
    assert told(some) == (None, None, None)


def test_what_came_before_it_was_sent_is_left_out() -> None:
    some = Delays()
    some.add(rows(-1, -5000))
    assert told(some) == (None, None, None)
    some.add(rows(7000))
    assert told(some) == (7, 7, 7)


def test_many_are_kept_by_what_they_took_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "ROWS", 50)
    some, took = Delays(), []
    draw = random.Random(2)
    for _ in range(100):
        part = [draw.randrange(30_000) for _ in range(11)]
        took += part
        some.add(rows(*part))
    took.sort()
    expected = tuple(took[-(-len(took) * part // 100) - 1] // 1000 for part in (50, 99, 100))
    assert told(some) == expected


def test_delays_between_hosts_are_on_one_clock_and_round_trips_on_their_own() -> None:
    # The clock of the source is a second ahead of that of the target.
    offsets = {0: 500_000_000, 1: 1_500_000_000}
    some = Delays()
    some.add(rows(8000 - 1_000_000_000, start=2_000_000_000), offsets)
    some.add(rows(4000, stage="round-trip"), offsets)
    assert told(some) == (4, 8, 8)

"""Spacing of messages, as sent and as received."""

from __future__ import annotations

import itertools
import random
import statistics
from typing import Any

import pytest

from antiphon.pipeline.tables.jitter import REACH, by_flow, jitter
from unit.pipeline.campaigns import delay, run
from unit.pipeline.together import Asks, Together, in_order, put

TESTS = Together()
made = TESTS.fixture()

Times = list[tuple[int, int, int]]


def _messages(times: Times, **facts: Any) -> list[dict[str, Any]]:
    """Due, sent, received."""
    return [
        delay(came - due, sequence=at, intended_ns=due, sent_ns=sent, received_ns=came, **facts)
        for at, (due, sent, came) in enumerate(times)
    ]


def _rfc3550(differences: list[int]) -> float:
    estimate = 0.0
    for one in differences:
        estimate += (abs(one) - estimate) / 16
    return estimate


@TESTS.add
def test_jitter_by_hand() -> Asks:
    times = [(0, 0, 5_000), (10_000, 11_000, 16_000), (20_000, 20_000, 35_000)]
    (row,) = yield put(jitter, [run()], latency=_messages(times))
    assert (row["stage"], row["repeats"], row["count"]) == ("delivery", 1, 3)
    assert row["in_stddev_us"] == pytest.approx(statistics.stdev([11, 9]))
    assert row["out_stddev_us"] == pytest.approx(statistics.stdev([11, 19]))
    # Sent: 1 us late, then on time again. Received: 1 us and then 9 us later than the one before.
    assert row["in_rfc3550_us"] == pytest.approx(_rfc3550([1, -1]))
    assert row["out_rfc3550_us"] == pytest.approx(_rfc3550([1, 9]))
    assert row["out_rfc3550_us"] == pytest.approx(1 / 16 * 15 / 16 + 9 / 16)


@TESTS.add
def test_the_closed_form_is_the_recursion() -> Asks:
    draw = random.Random(1)
    times = [
        (
            at * 1_000_000,
            at * 1_000_000 + draw.randrange(5_000),
            at * 1_000_000 + draw.randrange(10**6),
        )
        for at in range(3 * REACH)
    ]
    (row,) = yield put(jitter, [run()], latency=list(reversed(_messages(times))))
    for name, at in (("in_rfc3550_us", 1), ("out_rfc3550_us", 2)):
        late = [one[at] - one[0] for one in times]
        steps = [later - earlier for earlier, later in itertools.pairwise(late)]
        assert row[name] == pytest.approx(_rfc3550(steps) / 1000, rel=1e-12), name


@TESTS.add
def test_a_steady_stream_has_none() -> Asks:
    times = [(at * 1_000, at * 1_000, at * 1_000 + 700) for at in range(20)]
    (row,) = yield put(jitter, [run()], latency=_messages(times))
    figures = ("in_stddev_us", "out_stddev_us", "in_rfc3550_us", "out_rfc3550_us")
    assert [row[name] for name in figures] == [0.0, 0.0, 0.0, 0.0]


@TESTS.add
def test_a_gap_in_what_was_recorded_is_no_jitter() -> Asks:
    steady = _messages([(at * 1_000, at * 1_000, at * 1_000 + 700) for at in range(20)])
    (row,) = yield put(jitter, [run()], latency=steady[:5] + steady[15:])
    assert (row["out_stddev_us"], row["out_rfc3550_us"]) == (0.0, 0.0)


@TESTS.add
def test_flows_are_apart_and_averaged() -> Asks:
    even = [(at * 1_000, at * 1_000, at * 1_000) for at in range(4)]
    uneven = [(0, 0, 0), (1_000, 1_000, 5_000), (2_000, 2_000, 6_000), (3_000, 3_000, 11_000)]
    rows = [*_messages(even, source=1), *_messages(uneven, source=2)]
    flows, (row,) = yield put(by_flow, [run()], latency=rows), put(jitter, [run()], latency=rows)
    assert [one["out_stddev"] for one in in_order(flows, "source")] == [
        0.0,
        pytest.approx(statistics.stdev([5, 1, 5]) * 1_000),
    ]
    assert row["count"] == 8
    assert row["out_stddev_us"] == pytest.approx(statistics.stdev([5, 1, 5]) / 2)


@TESTS.add
def test_one_message_has_no_spacing() -> Asks:
    (row,) = yield put(jitter, [run()], latency=_messages([(0, 0, 9)]))
    assert (row["count"], row["out_stddev_us"], row["out_rfc3550_us"]) == (1, None, None)


@TESTS.add
def test_a_ping_without_roles_is_a_flow() -> Asks:
    times = [(at * 1_000, at * 1_000, at * 1_000 + 300 * at) for at in range(3)]
    rows = _messages(times, source=None, target=None, stage="round-trip")
    (row,) = yield put(jitter, [run(protocol="link-ping")], latency=rows)
    assert (row["stage"], row["count"]) == ("round-trip", 3)
    assert row["out_rfc3550_us"] == pytest.approx(_rfc3550([300, 300]) / 1000)

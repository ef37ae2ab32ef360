"""Topics: what a model says of their delay, beside what was measured."""

from __future__ import annotations

import math
from typing import Any

import pytest

from antiphon import queueing as formulas
from antiphon.pipeline.tables.queueing import queueing
from antiphon.topics.model import predict
from unit.pipeline.campaigns import SECOND, TOPIC, delay, run
from unit.pipeline.together import Asks, Together, in_order, put

TESTS = Together()
made = TESTS.fixture()

# One event of 100 us at a time, 1,000 a second for 10 s, each slice a little different.
SUMS: dict[str, Any] = {
    "arrivals": 10_000,
    "service_seconds": 1.0,
    "handled": 10_000,
    "service_squares": 1.25e-4,
    "slices": 10_000,
    "busy_slices": 9_000,
    "full_slices": 0,
    "resumed_slices": 1_000,
    "resumed_seconds": 0.05,
    "resumed_squares": 1e-5,
    "waited_seconds": 0.9,
    "waited_squares": 2e-4,
    "queue_seen": 2_000,
    "overruns": 0,
    "dropped": 0,
    "responses": 10_000,
    "response_seconds": 2.5,
}
LEVELS: dict[str, Any] = {"capacity": 1024, "share": 0.2, "period": 0.010}
BEGUN: dict[str, Any] = dict.fromkeys(SUMS, 0)


def _looks(
    sums: dict[str, Any] = SUMS, levels: dict[str, Any] = LEVELS, **facts: Any
) -> list[dict[str, Any]]:
    """Two of them, ten seconds apart, after a while that is not to count."""
    before = {name: 3 * value for name, value in SUMS.items() if name in sums}
    after = {name: before[name] + value for name, value in sums.items()}
    common = {**TOPIC, **levels, "queue_length": 4, **facts}
    return [
        {**common, "time_ns": 5 * SECOND, "second": 5, **before},
        {**common, "time_ns": 15 * SECOND, "second": 15, **after},
    ]


def _predicted(sums: dict[str, Any], share: float | None) -> Any:
    """By the module that a bus uses while it runs."""
    return predict(
        {
            "elapsed": 10.0,
            "events": sums["handled"],
            "arrived": sums["arrivals"],
            "service": sums["service_seconds"],
            "resumed": sums["resumed_seconds"],
            "waited": sums["waited_seconds"],
            "found": sums["queue_seen"],
            "handed": sums["responses"],
            "responses": sums["response_seconds"],
            "classes": {},
            "longest": 0.0,
            "capacity": 1024,
            **{
                name: sums[name]
                for name in (
                    "slices",
                    "busy_slices",
                    "full_slices",
                    "resumed_slices",
                    "overruns",
                    "service_squares",
                    "resumed_squares",
                    "waited_squares",
                )
            },
        },
        share,
        0.010,
    )


CASES: list[tuple[dict[str, Any], float | None]] = [
    ({}, 0.2),
    ({}, None),
    ({"arrivals": 1_900, "handled": 1_900, "queue_seen": 50}, 0.2),
    ({"arrivals": 30_000, "handled": 10_000}, 0.2),
    ({"slices": 1_000}, 0.5),  # none that was not resumed
    ({"full_slices": 5_000}, 0.2),
    ({"overruns": 3}, 0.2),
]


@TESTS.add
def test_the_table_has_what_the_bus_itself_would_say() -> Asks:
    topics = [
        look
        for at, (changed, share) in enumerate(CASES)
        for look in _looks(
            {**SUMS, **changed},
            {**LEVELS, "share": share},
            conformant="overruns" not in changed,
            topic=f"case {at}",
        )
    ]
    rows = in_order((yield put(queueing, [run()], topics=topics)), "topic")
    assert len(rows) == len(CASES)
    for row, (changed, share) in zip(rows, CASES, strict=True):
        wanted = _predicted({**SUMS, **changed}, share)
        for name, value in (
            ("arrival_rate", wanted.arrival_rate),
            ("service_rate", wanted.service_rate),
            ("utilisation", wanted.utilisation),
            ("estimate_us", wanted.mean_response * 1e6),
            ("estimate_p99_us", wanted.p99_response * 1e6),
            ("measured_mean_us", wanted.measured_response * 1e6),
            ("queue_length", wanted.queue_length),
            ("little_us", (wanted.little_wait + 1 / wanted.service_rate) * 1e6),
        ):
            assert row[name] == pytest.approx(value, rel=1e-9), (name, changed)
        if share is None:
            assert (row["bound_us"], row["share"]) == (None, None)
        else:
            assert row["bound_us"] == pytest.approx(wanted.bound * 1e6, rel=1e-9), changed
        assert (row["stable"], row["conformant"]) == (wanted.stable, wanted.conformant), changed
        assert row["basis"] == wanted.basis
    assert {row["stable"] for row in rows} == {row["conformant"] for row in rows} == {True, False}


@TESTS.add
def test_what_was_overrun_before_the_window_is_not_its_own() -> Asks:
    first, last = _looks(conformant=True)
    earlier = [{**first, "topic": "before", "conformant": False}, {**last, "topic": "before"}]
    meanwhile = [{**first, "topic": "in it"}, {**last, "topic": "in it", "conformant": False}]
    rows = yield put(queueing, [run()], topics=[*earlier, *meanwhile])
    assert {row["topic"]: row["conformant"] for row in rows} == {"before": True, "in it": False}


@TESTS.add
def test_a_topic_by_hand() -> Asks:
    (row,) = yield put(queueing, [run()], topics=_looks())
    assert (row["topic"], row["repeats"]) == ("lab/0/1", 1)
    assert (row["arrival_rate"], row["service_rate"]) == (1_000.0, 10_000.0)
    assert row["utilisation"] == pytest.approx(0.5)  # of a fifth of 10,000
    assert row["queue_length"] == 0.2
    assert row["little_us"] == pytest.approx(200.0 + 100.0)
    assert row["measured_mean_us"] == pytest.approx(250.0)
    assert row["relative_error"] == pytest.approx(row["estimate_us"] / 250.0 - 1)
    variance = (1.25e-4 - 1.0**2 / 10_000) / 8_999
    assert row["service_variation"] == pytest.approx(math.sqrt(variance) / 1e-4)
    assert row["arrival_variation"] is None  # no message was timed
    assert (row["share"], row["period"]) == (0.2, 0.010)


@TESTS.add
def test_repeats_are_taken_together() -> Asks:
    half = {
        name: value // 2 if isinstance(value, int) else value / 2 for name, value in SUMS.items()
    }
    topics = [*_looks(), *_looks(half, run="b")]
    (row,) = yield put(queueing, [run(), run("b", repeat=2)], topics=topics)
    assert (row["repeats"], row["arrival_rate"]) == (2, 750.0)
    assert row["measured_mean_us"] == pytest.approx(250.0)


@TESTS.add
def test_p99_is_the_class_that_reaches_it_within_the_window() -> Asks:
    first, last = _looks()
    first["response_classes"] = {100_000: 50, 9_000_000: 50}
    last["response_classes"] = {100_000: 1_040, 200_000: 5, 300_000: 5, 9_000_000: 50}
    fewer = {**last["response_classes"], 100_000: 1_039}
    again = [{**first, "topic": "z"}, {**last, "topic": "z", "response_classes": fewer}]
    rows = in_order((yield put(queueing, [run()], topics=[first, last, *again])), "topic")
    # Of 1,000 within the window 990 took 0.1 ms; those of before are not counted. 989 of 999 are
    # not enough.
    assert [row["measured_p99_us"] for row in rows] == [100.0, 200.0]
    assert [row["relative_error_p99"] for row in rows] == [
        pytest.approx(row["estimate_p99_us"] / row["measured_p99_us"] - 1) for row in rows
    ]


@TESTS.add
def test_delivery_and_arrivals_come_from_the_messages() -> Asks:
    every = [
        delay(5_000 + at, sequence=at, intended_ns=at * 1_000_000, topic="lab/0/1")
        for at in range(100)
    ]
    sampled = [{**row, "run": "b"} for row in every]
    two = [run(), run("b", protocol="nats", latency_one_in=50.0)]
    topics = [*_looks(), *_looks(run="b")]
    asked = put(queueing, two, topics=topics, latency=[*every, *sampled])
    other, row = in_order((yield asked), "protocol")
    assert row["delivery_mean_us"] == pytest.approx(5.0495)
    assert row["delivery_p99_us"] == 5.0
    assert row["arrival_variation"] == pytest.approx(0.0, abs=1e-6)
    assert (other["protocol"], other["arrival_variation"]) == ("nats", None)


@TESTS.add
def test_of_version_1_the_estimate_is_the_simplest_model() -> Asks:
    topics = _looks({"arrivals": 10_000, "service_seconds": 1.0}, {})
    (row,) = yield put(queueing, [run()], topics=topics)
    assert (row["arrival_rate"], row["service_rate"]) == (1_000.0, 10_000.0)
    assert row["estimate_us"] == pytest.approx(formulas.mm1_mean_response(1_000, 10_000) * 1e6)
    assert (row["service_variation"], row["bound_us"], row["measured_mean_us"]) == (None,) * 3
    assert row["relative_error"] is None
    assert row["queue_length"] == 4.0
    assert "M/M/1" in row["basis"]


@TESTS.add
def test_with_too_few_events_nothing_is_made_up() -> Asks:
    few = {**BEGUN, "arrivals": 20, "handled": 20, "service_seconds": 0.01}
    topics = [*_looks(few, topic="a few"), *_looks(BEGUN, topic="none")]
    rows = in_order((yield put(queueing, [run()], topics=topics)), "topic")
    assert [row["basis"] for row in rows] == [
        "too few samples: 20 events",
        "too few samples: 0 events",
    ]
    for name in ("arrival_rate", "estimate_us", "bound_us", "measured_mean_us", "utilisation"):
        assert [row[name] for row in rows] == [None, None], name


@TESTS.add
def test_more_than_is_guaranteed_has_an_infinite_bound() -> Asks:
    (row,) = yield put(queueing, [run()], topics=_looks(levels={**LEVELS, "share": 0.05}))
    assert (row["utilisation"], row["bound_us"]) == (pytest.approx(2.0), math.inf)
    assert not row["stable"]
    assert row["basis"].endswith("more comes than is guaranteed to be done")


@TESTS.add
def test_one_look_is_none() -> Asks:
    assert (yield put(queueing, [run()], topics=_looks()[:1])) == []

"""Every system whose topics are measured, in real processes: all arrives, and is timed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import Options, check_point
from antiphon.lab.bench.prediction import Prediction, probe_prediction
from antiphon.lab.bench.topic_plan import topic_plan
from antiphon.lab.bench.topic_probes import (
    Dispatch,
    Echo,
    Registration,
    Scaling,
    Shares,
    probe_echo,
    probe_many_topics,
    probe_scaling,
    probe_shares,
)
from antiphon.lab.bench.topics import TOPIC_WORKER, MeasureTopics
from antiphon.lab.peers.topics import TOPIC_PEERS
from unit.lab.descendants import await_none, await_some, descendants, outlived_by_none

pytestmark = pytest.mark.timeout(300)

NEEDS = {"pyzmq": ("pyzmq",), "zenoh": ("zenoh",), "nats": ("nats-py", "nats")}
# A window goes on until something came: the machine may pause for as long as it is meant to last.
SHORT = Options(seconds=0.1, warmup=0.0, min_bytes=1, stretch=100.0)
MESSAGES = 3000


def case(point: Point) -> Any:
    marks = [pytest.mark.needs(*NEEDS[point.system])] if point.system in NEEDS else []
    return pytest.param(point, id=point.name, marks=marks)


def points(*patterns: str) -> Iterator[Point]:
    for group in topic_plan(TOPIC_PEERS):
        yield from (point for point in group.points if point.pattern in patterns)


@pytest.mark.parametrize("point", [case(point) for point in points("one-way")])
def test_every_message_arrives_whole_and_in_order(point: Point) -> None:
    check = check_point(point, MESSAGES, peers=TOPIC_PEERS, worker=TOPIC_WORKER)
    assert check.problems == []
    assert check.received == check.sent == MESSAGES


@pytest.mark.parametrize("point", [case(point) for point in points("paced", "isolation")])
def test_every_message_on_a_timetable_arrives_and_is_timed(point: Point) -> None:
    before = descendants(os.getpid())
    measurement = MeasureTopics()(point, SHORT)
    assert (measurement.outcome, measurement.reason) == ("ok", "")
    due = 1000 if point.pattern == "paced" else 100
    assert measurement.received == measurement.sent == measurement.figures["scheduled"] == due
    latency = measurement.latency
    assert latency is not None
    assert 0 < latency.p50 <= latency.p99 <= latency.p999 <= latency.maximum
    # No message can have come before it was sent.
    assert measurement.figures["sender_late_max_us"] <= latency.maximum
    assert 0 <= measurement.others <= 1
    if point.pattern == "isolation":
        assert measurement.figures["flood_sent"] >= measurement.figures["flood_received"] > 0
        if point.system == "antiphon":
            assert measurement.figures["period_us"] == 10_000
            assert measurement.figures["longest_call_us"] > 0
    assert descendants(os.getpid()) <= before


@pytest.mark.parametrize("variant", ["event", "batch"])
def test_half_of_what_it_can_do_by_a_timetable_is_published(variant: str) -> None:
    measure = MeasureTopics()
    most = measure(Point("antiphon", variant, "one-way", 128), SHORT)
    assert (most.outcome, most.reason) == ("ok", "")
    assert most.received == most.sent > 0
    if variant == "event":
        # One of three: a pause of the machine may fill the whole of so short a window.
        points = (measure(Point("antiphon", "event", "half", 128), SHORT) for _ in range(3))
        half = next((one for one in points if one.measured), None)
        assert half is not None
        assert (half.outcome, half.reason) == ("ok", "")
        offered = half.figures["offered_per_second"]
        assert 0 < offered < 0.75 * most.rate
        assert half.rate == pytest.approx(offered, rel=0.01)


def test_half_of_what_was_not_measured_is_a_failure_that_says_so() -> None:
    measurement = MeasureTopics()(Point("antiphon", "event", "half", 128), SHORT)
    assert measurement.outcome == "failed"
    assert "was not measured before" in measurement.reason


def test_the_channel_is_gone_with_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    # The path of a unix socket is short: that of pytest's own folders may be too long for it.
    with tempfile.TemporaryDirectory(prefix="topics-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        measurement = MeasureTopics()(Point("antiphon", "event", "one-way", 128), SHORT)
        assert (measurement.outcome, measurement.reason) == ("ok", "")
        assert list(Path(folder).iterdir()) == []


def test_a_killed_publisher_is_an_outcome_and_not_a_crash() -> None:
    before = descendants(os.getpid())
    results = []
    point = Point("antiphon", "shares", "isolation", 128)
    long = Options(seconds=20.0, min_bytes=0)
    runner = threading.Thread(target=lambda: results.append(MeasureTopics()(point, long)))
    runner.start()
    started = await_some(os.getpid(), 2, besides=before)
    os.kill(max(started), signal.SIGKILL)
    runner.join(50)
    (measurement,) = results
    assert measurement.outcome == "failed"
    assert measurement.reason
    await_none(started)


def test_busy_handlers_are_probed() -> None:
    probed = probe_shares(seconds=0.3, handlers=(2, 5))
    assert isinstance(probed, Shares), probed
    assert set(probed.deviations) == {2, 5}
    assert 0 <= probed.largest < 0.5


def test_delays_by_echo_and_by_the_clock_are_probed() -> None:
    probed = probe_echo(seconds=0.5, rate=1000, sample=0.2)
    assert isinstance(probed, Echo), probed
    assert 20 < probed.echoes < 400
    assert probed.half_trip.p50 > 0
    assert probed.one_way.p50 > 0


def test_predicted_and_measured_delays_are_probed() -> None:
    probed = probe_prediction(arrivals=1200, loads=(0.3, 0.6))
    assert isinstance(probed, Prediction), probed
    assert [point.service for point in probed.points] == 2 * ["constant"] + 2 * ["exponential"]
    assert probed.arrivals >= 1200
    for point in probed.points:
        assert point.utilisation > 0
        assert min(point.predicted, point.measured, point.bound) > 0
        assert point.competitor > 0  # there was one


def test_topics_and_cores_are_probed() -> None:
    probed = probe_scaling(seconds=0.2, topics=2, repeats=1)
    if isinstance(probed, str):  # the machine may pause for as long as that
        probed = probe_scaling(seconds=3.0, topics=2, repeats=1)
    assert isinstance(probed, Scaling), probed
    assert probed.topics == 2
    assert probed.batch > 0
    assert probed.event > 0


def test_many_topics_are_probed_and_end_with_the_probe() -> None:
    before = descendants(os.getpid())
    probed = probe_many_topics(seconds=0.1, topics=200, active=10, repeats=1)
    registration, dispatch = probed["registration"], probed["dispatch"]
    assert isinstance(registration, Registration), registration
    assert isinstance(dispatch, Dispatch), dispatch
    assert registration.topics == dispatch.topics == 200
    assert registration.subscribe_us > 0
    assert registration.publisher_us > 0
    assert dispatch.ratio > 0
    assert descendants(os.getpid()) <= before


def command(*arguments: str) -> list[str]:
    code = f"from antiphon.cli.bench import app\napp({['topic', *arguments]!r})"
    return [sys.executable, "-c", code]


def test_the_command_prints_its_json() -> None:
    # Half of its most takes what arrived within the window: not so short that a pause fills it.
    arguments = ("--quick", "--peers", "antiphon", "--seconds", "0.5", "--repeats", "1")
    done = subprocess.run(
        command(*arguments, "--json"), capture_output=True, text=True, timeout=100, check=False
    )
    document = json.loads(done.stdout)
    reasons = [point["reason"] for point in document["points"] if point["outcome"] != "ok"]
    assert done.returncode == 0, (reasons, done.stderr)
    assert document["benchmark"] == "topic"
    found = {(point["variant"], point["pattern"]) for point in document["points"]}
    assert found == {
        ("event", "one-way"),
        ("batch", "one-way"),
        ("event", "paced"),
        ("event", "half"),
        ("shares", "isolation"),
        ("event", "isolation"),
    }
    for point in document["points"]:
        assert point["outcome"] == "ok"
        assert point["messages_per_second"] > 0
        assert ("latency_us" in point) == (point["pattern"] != "one-way")
    reach = {item["measure"]: item["measured"] for item in document["reach"]}
    assert reach["p99.9 beside a flood, with a share"] > 0
    assert reach["arrived beside a flood, with a share"] == 1.0


def test_no_process_outlives_an_interrupted_command() -> None:
    outlived_by_none(command("--peers", "antiphon", "--seconds", "30"), signal.SIGINT)

"""Every broker that is measured, in real processes: all arrives, and is timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.lab.bench.broker_plan import BROKER_RATE, broker_plan
from antiphon.lab.bench.client_probe import probe_clients
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import Options, check_point
from antiphon.lab.bench.probes import Connections
from antiphon.lab.bench.topics import MeasureTopics
from antiphon.lab.peers.brokers import BROKER_PEERS
from unit.lab.descendants import descendants

pytestmark = pytest.mark.timeout(300)

WORKER = "antiphon.lab.bench.broker_worker"
NEEDS = {"nats": ("nats-py", "nats"), "nats-raw": ("nats",), "mosquitto": ("paho", "mosquitto")}
# A window goes on until something came: the machine may pause for as long as it is meant to last.
SHORT = Options(seconds=0.1, warmup=0.0, min_bytes=1, stretch=100.0)
MESSAGES = 3000


def case(point: Point) -> Any:
    marks = [pytest.mark.needs(*NEEDS[point.system])] if point.system in NEEDS else []
    return pytest.param(point, id=point.name, marks=marks)


def points(pattern: str) -> Iterator[Point]:
    for group in broker_plan(BROKER_PEERS):
        yield from (point for point in group.points if point.pattern == pattern)


@pytest.mark.parametrize("point", [case(point) for point in points("one-way")])
def test_every_message_arrives_whole_and_in_order(point: Point) -> None:
    check = check_point(point, MESSAGES, peers=BROKER_PEERS, worker=WORKER)
    assert check.problems == []
    assert check.received == check.sent == MESSAGES


@pytest.mark.parametrize("point", [case(point) for point in points("one-way")])
def test_as_many_as_go_are_counted(point: Point) -> None:
    measurement = MeasureTopics(BROKER_PEERS, WORKER, BROKER_RATE)(point, SHORT)
    assert measurement.measured, measurement.reason
    assert measurement.rate > 0
    if point.system.startswith(("antiphon", "nats-raw")):
        assert (measurement.outcome, measurement.received) == ("ok", measurement.sent)


@pytest.mark.parametrize("point", [case(point) for point in points("paced")])
def test_every_message_on_a_timetable_arrives_and_is_timed(point: Point) -> None:
    before = descendants(os.getpid())
    measurement = MeasureTopics(BROKER_PEERS, WORKER, BROKER_RATE)(point, SHORT)
    assert (measurement.outcome, measurement.reason) == ("ok", "")
    assert measurement.received == measurement.sent == measurement.figures["scheduled"] == 200
    latency = measurement.latency
    assert latency is not None
    assert 0 < latency.p50 <= latency.p99 <= latency.maximum
    assert descendants(os.getpid()) <= before


def test_idle_clients_are_counted_and_all_of_them_live() -> None:
    found = probe_clients(seconds=1.0, clients=50)
    assert isinstance(found, Connections), found
    assert found.alive == found.connections == 50
    assert found.bytes_each < 200_000
    assert 0 <= found.core_share < 1


def test_the_command_prints_one_document() -> None:
    command = [sys.executable, "-m", "antiphon.cli.main", "bench", "broker"]
    done = subprocess.run(
        [*command, "--peers", "antiphon", "--seconds", "0.1", "--repeats=1", "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["system"] for row in document["points"]] == ["antiphon"] * 3
    assert len(document["reach"]) == 4
    wrong = subprocess.run(
        [*command, "--peers", "rabbit"], capture_output=True, text=True, timeout=60, check=False
    )
    assert wrong.returncode == 2

"""Every peer that is here, in real processes: all messages arrive, whole and in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import Options, check_point, measure
from antiphon.lab.bench.probes import Idle, Stalled, probe_idle, probe_stalled
from antiphon.lab.peers import PEERS
from integration.descendants import await_none, descendants

MESSAGES = 3000
NEEDS = {
    "pyzmq": ("pyzmq",),
    "zenoh": ("zenoh",),
    "pynng": ("pynng",),
    "nats": ("nats-py", "nats"),
}
SHORT = Options(seconds=0.2, warmup=0.05, min_bytes=0)


def case(point: Point) -> Any:
    marks = [pytest.mark.needs(*NEEDS[point.system])] if point.system in NEEDS else []
    return pytest.param(point, id=point.name, marks=marks)


def message_points() -> Iterator[Point]:
    for peer in PEERS.values():
        if peer.stream:
            continue
        for variant in peer.variants:
            yield Point(peer.name, variant)
        if "duplex" in peer.patterns:
            yield Point(peer.name, peer.variants[0], "duplex")
        if "n-n" in peer.patterns:
            yield Point(peer.name, peer.variants[0], "n-n", processes=4)
    for system in ("antiphon", "pyzmq"):
        yield Point(system, PEERS[system].variants[0], threads=4)
    for system in ("antiphon", "asyncio", "pyzmq", "zenoh"):
        yield Point(system, PEERS[system].variants[0], size=65536)
    yield Point("zenoh", "shm", size=65536)


@pytest.mark.parametrize("point", [case(point) for point in message_points()])
def test_every_message_arrives_whole_and_in_order(point: Point) -> None:
    processes = 2 if point.pattern == "duplex" else point.processes
    streams = point.threads if point.pattern == "one-way" else processes * (processes - 1)
    messages = MESSAGES if point.size <= 4096 else 300
    check = check_point(point, messages)
    assert check.problems == []
    assert check.sent == messages * streams
    assert check.received == check.sent


@pytest.mark.parametrize(
    "point",
    [case(Point(peer.name, variant)) for peer in PEERS.values() for variant in peer.variants],
)
def test_a_short_measurement_counts_everything(point: Point) -> None:
    before = descendants(os.getpid())
    measurement = measure(point, SHORT)
    assert (measurement.outcome, measurement.reason) == ("ok", "")
    assert measurement.rate > 0
    assert measurement.received == measurement.sent > 0
    assert measurement.seconds > 0
    assert measurement.cpu > 0
    assert 0 <= measurement.others <= 1
    assert descendants(os.getpid()) <= before


@pytest.mark.parametrize("system", ["antiphon", "asyncio"])
def test_a_killed_sender_is_an_outcome_and_not_a_crash(system: str) -> None:
    before = descendants(os.getpid())
    results = []
    point = Point(system, PEERS[system].variants[0])
    runner = threading.Thread(target=lambda: results.append(measure(point, Options(seconds=20.0))))
    runner.start()
    deadline = time.monotonic() + 10
    while len(started := descendants(os.getpid()) - before) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(max(started), signal.SIGKILL)
    runner.join(50)
    (measurement,) = results
    assert measurement.outcome == "failed"
    assert "signal 9" in measurement.reason
    await_none(started)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(ending: signal.Signals) -> None:
    code = (
        "from antiphon.cli.bench import app\n"
        "app(['node', '--size', '64', '--peers', 'asyncio', '--seconds', '30'])"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 20
        while len(workers := descendants(command.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(workers) >= 2
        command.send_signal(ending)
        assert command.wait(10) != 0
        await_none(workers)
    finally:
        command.kill()
        command.wait()


def test_an_idle_node_is_probed() -> None:
    idle = probe_idle(seconds=1.0)
    assert isinstance(idle, Idle), idle
    assert idle.resident_bytes > 0
    assert 0 <= idle.core_share < 1


def test_a_blocked_sender_is_probed() -> None:
    stalled = probe_stalled(seconds=1.0)
    assert isinstance(stalled, Stalled), stalled
    assert stalled.accepted > 0

"""Every system whose round trips are measured, in real processes: each answer is the caller's own.

Every caller asks with bytes that nobody else sends and compares each answer with them, so a short
measurement is a check as well.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import _core
from antiphon.lab.bench.calls import measure_calls
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import Options
from antiphon.lab.bench.request_plan import request_plan
from antiphon.lab.peers.requests import REQUEST_PEERS
from unit.lab.descendants import await_none, await_some, descendants, outlived_by_none

pytestmark = pytest.mark.timeout(300)

NEEDS = {
    "pyzmq": ("pyzmq",),
    "zenoh": ("zenoh",),
    "nats": ("nats-py", "nats"),
    "grpc": ("grpc",),
}
SHORT = Options(seconds=0.1, warmup=0.0, min_bytes=0, stretch=1.0)
LONGER = Options(seconds=5.0, warmup=0.0, min_bytes=0, stretch=1.0)


def case(point: Point) -> Any:
    marks = [pytest.mark.needs(*NEEDS[point.system])] if point.system in NEEDS else []
    return pytest.param(point, id=point.name, marks=marks)


def points() -> Iterator[Point]:
    """Every way in which the plan uses a system, with few callers."""
    ways = {
        (point.system, point.variant, point.pattern, bool(point.tasks))
        for group in request_plan(REQUEST_PEERS)
        for point in group.points
    }
    for system, variant, pattern, tasks in sorted(ways):
        if pattern == "n-n":
            yield Point(system, variant, "n-n", processes=3)
        elif tasks:
            yield Point(system, variant, "call", size=4096, tasks=5)
        else:
            yield Point(system, variant, "call", threads=3)
    yield Point("pyzmq", "req-rep", "call", size=4096)


@pytest.mark.parametrize("point", [case(point) for point in points()])
def test_every_answer_is_what_was_asked(point: Point) -> None:
    before = descendants(os.getpid())
    measurement = measure_calls(point, SHORT)
    if measurement.outcome == "ok" and not measurement.messages:  # the machine paused for so long
        measurement = measure_calls(point, LONGER)
    assert measurement.outcome == "ok", measurement.reason
    assert measurement.messages > 0
    assert measurement.rate > 0
    assert measurement.cpu > 0
    assert 0 <= measurement.others <= 1
    latency = measurement.latency
    assert latency is not None
    assert 0 < latency.p50 <= latency.p90 <= latency.p99 <= latency.p999 <= latency.maximum
    assert descendants(os.getpid()) <= before


def test_a_killed_server_is_an_outcome_and_not_a_crash() -> None:
    before = descendants(os.getpid())
    results = []
    point = Point("python-sockets", "blocking", "call")
    long = Options(seconds=20.0, min_bytes=0)
    runner = threading.Thread(target=lambda: results.append(measure_calls(point, long)))
    runner.start()
    started = await_some(os.getpid(), 2, besides=before)
    os.kill(min(started), signal.SIGKILL)
    runner.join(50)
    (measurement,) = results
    assert measurement.outcome == "failed"
    assert measurement.reason
    await_none(started)


def command(*arguments: str) -> list[str]:
    code = f"from antiphon.cli.bench import app\napp({['request', *arguments]!r})"
    return [sys.executable, "-c", code]


def test_the_command_prints_its_json() -> None:
    arguments = ("--quick", "--peers", "python-sockets", "--seconds", "0.1", "--repeats", "1")
    done = subprocess.run(
        command(*arguments, "--json"), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {point["system"] for point in document["points"]} == {"antiphon", "python-sockets"}
    for point in document["points"]:
        assert point["outcome"] == "ok"
        assert point["messages_per_second"] > 0
        assert point["latency_us"]["p50"] > 0
    assert any(item["measured"] for item in document["reach"])


def test_no_process_outlives_an_interrupted_command() -> None:
    arguments = ("--size", "64", "--peers", "python-sockets", "--seconds", "30")
    outlived_by_none(command(*arguments), signal.SIGINT)


class TestRawEcho:
    """The ping-pong in the core, on a pair of sockets."""

    @pytest.fixture
    def pair(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        one, other = socket.socketpair()
        with one, other:
            yield one, other

    def test_as_many_are_answered_as_are_asked(
        self, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        asking, answering = pair
        answered: list[int] = []
        server = threading.Thread(
            target=lambda: answered.append(_core.raw_echo_serve(answering.fileno(), 64, 10.0))
        )
        server.start()
        times = array("q", _core.raw_echo_call(asking.fileno(), 64, 0.05))
        asking.shutdown(socket.SHUT_RDWR)
        server.join(10)
        assert answered == [len(times)]
        assert min(times) > 0

    def test_another_answer_is_an_error(self, pair: tuple[socket.socket, socket.socket]) -> None:
        asking, answering = pair
        answering.sendall(b"\0" * 64)
        with pytest.raises(RuntimeError, match="not what was sent"):
            _core.raw_echo_call(asking.fileno(), 64, 0.0)

    def test_a_stream_that_ends_is_an_error(
        self, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        asking, answering = pair
        answering.shutdown(socket.SHUT_RDWR)
        with pytest.raises(OSError, match=r"answer|send"):
            _core.raw_echo_call(asking.fileno(), 64, 0.0)

    def test_silence_ends_the_serving(self, pair: tuple[socket.socket, socket.socket]) -> None:
        assert _core.raw_echo_serve(pair[1].fileno(), 64, 0.02) == 0

    @pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (64, -1.0), (64, float("nan"))])
    def test_bad_arguments_are_refused(self, size: int, seconds: float) -> None:
        with pytest.raises(ValueError, match=r"size|seconds"):
            _core.raw_echo_call(0, size, seconds)
        with pytest.raises(ValueError, match=r"size|seconds"):
            _core.raw_echo_serve(0, size, seconds)

"""Every peer that is here, in real processes: all messages arrive, whole and in order."""

from __future__ import annotations

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

import antiphon
from antiphon._core import build_info
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import Options, check_point, measure
from antiphon.lab.bench.probes import (
    Connections,
    Idle,
    Stalled,
    probe_connections,
    probe_idle,
    probe_stalled,
)
from antiphon.lab.bench.processes import Child
from antiphon.lab.peers import PEERS
from antiphon.lab.peers.antiphon_node import RAW_KIND, NodeEndpoint
from antiphon.lab.peers.base import EndpointConfig
from unit.lab.descendants import await_none, await_some, descendants, outlived_by_none

pytestmark = pytest.mark.timeout(300)

MESSAGES = 3000
NEEDS = {
    "pyzmq": ("pyzmq",),
    "zenoh": ("zenoh",),
    "pynng": ("pynng",),
    "nats": ("nats-py", "nats"),
}
ENCRYPTED = [
    pytest.mark.needs("cryptography"),
    pytest.mark.skipif(not build_info()["openssl"], reason="there is no OpenSSL 3 here"),
]
# A window goes on until something came: the machine may pause for as long as it is meant to last.
SHORT = Options(seconds=0.2, warmup=0.05, min_bytes=1, stretch=50.0)


def case(point: Point) -> Any:
    marks = [pytest.mark.needs(*NEEDS[point.system])] if point.system in NEEDS else []
    return pytest.param(
        point, id=point.name, marks=[*ENCRYPTED, *marks] if point.encrypted else marks
    )


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
    started = await_some(os.getpid(), 2, besides=before)
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
    outlived_by_none([sys.executable, "-c", code], ending)


def test_an_idle_node_is_probed() -> None:
    idle = probe_idle(seconds=1.0)
    assert isinstance(idle, Idle), idle
    assert idle.resident_bytes > 0
    assert 0 <= idle.core_share < 1


def test_a_blocked_sender_is_probed() -> None:
    stalled = probe_stalled(seconds=1.0)
    assert isinstance(stalled, Stalled), stalled
    assert stalled.accepted > 0


def test_idle_connections_are_probed_and_end_with_the_probe() -> None:
    before = descendants(os.getpid())
    probed = probe_connections(seconds=1.0, connections=20, settle=0.2)
    assert isinstance(probed, Connections), probed
    assert (probed.connections, probed.alive) == (20, 20)
    assert probed.bytes_each > 0
    assert 0 <= probed.core_share < 1
    assert probed.seconds >= 1.0
    assert descendants(os.getpid()) <= before


def test_idle_connections_need_descriptors_and_say_so() -> None:
    code = "from antiphon.lab.bench.probes import probe_connections; print(probe_connections(0.1))"
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", limited], capture_output=True, text=True, timeout=100, check=True
    )
    assert "RLIMIT_NOFILE allows 512" in done.stdout


class TestEncrypted:
    """What ``tls`` is measured with."""

    pytestmark = ENCRYPTED

    @pytest.mark.parametrize("ending", ["ok", "failed"])
    def test_the_certificates_are_gone_with_the_point(
        self, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        seen: list[str] = []
        ask = Child.tell

        def tell(self: Child, order: str, **arguments: Any) -> None:
            if order == "open":
                seen.extend(path.name for path in tmp_path.glob("*/*"))
                if ending == "failed":
                    arguments["config"]["tls"] = ["no-such-file"] * 3
            ask(self, order, **arguments)

        monkeypatch.setattr(Child, "tell", tell)
        measurement = measure(Point("antiphon", "tls"), SHORT)
        assert measurement.outcome == ending, measurement.reason
        assert {"authority.pem", "node-1.pem", "node-1.key", "node-2.pem"} <= set(seen)
        assert list(tmp_path.iterdir()) == []

    def test_nobody_gets_in_without_a_certificate(self, tmp_path: Path) -> None:
        from antiphon.testing.certificates import Authority

        tls = Authority(tmp_path).node(1)
        files = (tls.certificate, tls.key, tls.authority)
        endpoint = NodeEndpoint(EndpointConfig(variant="tls", receives=True, tls=files))
        try:
            address = endpoint.listen()
            with antiphon.Node(2) as plain:
                plain.add_peer(1, address)
                with pytest.raises(antiphon.AuthenticationFailed):
                    plain.send(1, b"in the clear", kind=RAW_KIND)
        finally:
            endpoint.close()

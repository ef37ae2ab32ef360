"""Every protocol that the lab adds, in real processes: all messages arrive, whole and in order."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.lab.bench.orders import stamped
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import (
    Measurement,
    Options,
    assemble,
    check_point,
    measure_messages,
    measure_with,
)
from antiphon.lab.bench.processes import Child, Crew, WorkerFailed
from antiphon.lab.peers import MORE_PEERS, PEERS, Endpoint, Requirement, load
from antiphon.lab.peers.base import EndpointConfig, payload_of
from antiphon.lab.peers.requests import REQUEST_PEERS
from antiphon.lab.peers.sctp import SCTP, SctpSockets
from antiphon.lab.peers.servers import start_server
from antiphon.lab.peers.sockets_tcp import READ_BYTES, TCP, Sockets
from antiphon.lab.peers.udp_c import CoreDatagrams
from antiphon.lab.peers.udp_python import BUFFER_BYTES, LARGEST, Datagrams
from antiphon.lab.protocols import PROTOCOLS, REQUEST, load_protocol, missing
from unit.lab.descendants import await_none, await_some, descendants

pytestmark = pytest.mark.timeout(120)

NEEDS = {
    "enet": ("pyenet",),
    "quic": ("aioquic", "cryptography"),
    "redis": ("redis-py", "redis"),
    "mqtt": ("paho", "mosquitto"),
    "grpc": ("grpc",),
    "sctp": ("sctp",),
}
SERVED = [name for name, peer in MORE_PEERS.items() if peer.served]
WITHOUT_ADAPTER = [name for name, protocol in PROTOCOLS.items() if protocol.note]
DATAGRAMS = ["udp-python", "udp-c"]
# A window goes on until something came: the machine may pause for as long as it is meant to last.
SHORT = Options(seconds=0.2, warmup=0.05, min_bytes=1, stretch=50.0)
# How the checker reports that another message came than the next.
GAP = re.compile(r"\d\.0 sent (\d+) next, but (\d+) came")


def marked(name: str, value: Any, id: str) -> Any:
    marks = [pytest.mark.needs(*NEEDS[name])] if name in NEEDS else []
    return pytest.param(value, id=id, marks=marks)


def named(name: str) -> Any:
    return marked(name, name, name)


def reliable_points() -> Iterator[Any]:
    for peer in MORE_PEERS.values():
        usual = peer.variants[0]
        found = [Point(peer.name, usual, size=size) for size in (64, 2000, 60_000)]
        found += [Point(peer.name, variant, size=2000) for variant in peer.variants[1:]]
        found.append(Point(peer.name, usual, "duplex", size=2000))
        found.append(Point(peer.name, usual, size=2000, threads=2))
        if peer.name not in DATAGRAMS:
            yield from (marked(peer.name, point, point.name) for point in found)


def measured(point: Point) -> Measurement:
    def messages(crew: Crew, point: Point, options: Options, repeat: int) -> Measurement:
        return measure_messages(crew, point, options, repeat, MORE_PEERS)

    return measure_with(messages, MORE_PEERS[point.system], point, SHORT, 0)


def sample_for(child: Child, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        child.ask("sample")
        time.sleep(0.05)


@pytest.mark.parametrize("point", list(reliable_points()))
def test_every_message_arrives_whole_and_in_order(point: Point) -> None:
    messages = 1000 if point.size <= 4096 else 80
    check = check_point(point, messages, peers=MORE_PEERS)
    assert check.problems == []
    assert check.sent == messages * (2 if point.pattern == "duplex" else point.threads)
    assert check.received == check.sent


@pytest.mark.parametrize(
    "point",
    [
        marked(peer.name, Point(peer.name, variant, size=2000), f"{peer.name} {variant}")
        for peer in MORE_PEERS.values()
        for variant in peer.variants
    ],
)
def test_a_short_measurement_counts_everything_and_leaves_no_process(point: Point) -> None:
    before = descendants(os.getpid())
    measurement = measured(point)
    expected = {"ok", "lost"} if PROTOCOLS[point.system].lossy else {"ok"}
    assert measurement.outcome in expected, measurement.reason
    assert measurement.rate > 0
    assert measurement.cpu > 0
    assert 0 < measurement.received <= measurement.sent
    if measurement.outcome == "ok":
        assert measurement.received == measurement.sent
    assert descendants(os.getpid()) <= before


class TestDatagrams:
    @pytest.mark.parametrize("name", DATAGRAMS)
    @pytest.mark.parametrize("pattern", ["one-way", "duplex"])
    @pytest.mark.parametrize("size", [64, 2000, 60_000])
    def test_what_arrives_is_whole_and_in_order(self, name: str, pattern: str, size: int) -> None:
        messages = 1500 if size <= 4096 else 150
        check = check_point(Point(name, "sockets", pattern, size), messages, 30, MORE_PEERS)
        assert check.sent == messages * (2 if pattern == "duplex" else 1)
        assert 0 < check.received <= check.sent
        if check.received == check.sent:
            assert check.problems == []
        for problem in check.problems:
            gap = GAP.fullmatch(problem)
            assert gap is not None, problem
            assert int(gap[1]) < int(gap[2])

    def test_what_does_not_fit_the_buffer_is_lost_and_counted(self) -> None:
        size, sent = 2000, 2 * BUFFER_BYTES // 2000
        go_on = threading.Event()
        arrived: list[bytes] = []

        def late(data: bytes) -> None:
            go_on.wait(30)
            arrived.append(data)

        receiver = Datagrams(EndpointConfig(size=size, receives=True), late)
        endpoint = Datagrams(EndpointConfig(index=1, size=size, targets=(0,)))
        try:
            endpoint.connect({0: receiver.listen()})
            sender = endpoint.sender()
            for sequence in range(sent):
                sender.send(0, stamped(1, 0, sequence, size))
            go_on.set()
            count = 0
            while not count or receiver.received().messages > count:
                count = receiver.received().messages
                time.sleep(1.0)
            sender.close()
        finally:
            go_on.set()
            endpoint.close()
            receiver.close()
        assert receiver.fault() == ""
        assert 0 < count == len(arrived) < sent
        numbers = [int.from_bytes(data[8:16], "little") for data in arrived]
        assert numbers == sorted(set(numbers))
        assert arrived == [stamped(1, 0, number, size) for number in numbers]

    @pytest.mark.parametrize("kind", [Datagrams, CoreDatagrams])
    def test_nobody_there_is_loss_and_no_error(self, kind: type[Datagrams]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        endpoint = kind(EndpointConfig(targets=(0,)))
        endpoint.connect({0: f"127.0.0.1:{port}"})
        sender = endpoint.sender()
        assert sender.burst() == endpoint.config.burst
        for _ in range(3):
            sender.send(0, b"to nobody")
        sender.close()
        endpoint.close()

    @pytest.mark.parametrize("name", DATAGRAMS)
    def test_the_largest_datagram_arrives(self, name: str) -> None:
        check = check_point(Point(name, "sockets", size=LARGEST), 20, peers=MORE_PEERS)
        assert (check.sent, check.received, check.problems) == (20, 20, [])

    @pytest.mark.parametrize("name", DATAGRAMS)
    def test_more_is_refused_in_one_line(self, name: str) -> None:
        line = f"a message of {LARGEST + 1} bytes: a UDP datagram holds at most {LARGEST}"
        with pytest.raises(WorkerFailed, match=line):
            check_point(Point(name, "sockets", size=LARGEST + 1), 1, peers=MORE_PEERS)
        endpoint = Datagrams(EndpointConfig(targets=(0,)))
        endpoint.connect({0: "127.0.0.1:9"})
        sender = endpoint.sender()
        with pytest.raises(ValueError, match=line):
            sender.send(0, bytes(LARGEST + 1))
        sender.close()


class TestSockets:
    def test_a_frame_may_be_larger_than_the_buffer(self) -> None:
        size = 3 * READ_BYTES
        check = check_point(Point("tcp-python", "sockets", size=size), 20, peers=MORE_PEERS)
        assert (check.sent, check.received, check.problems) == (20, 20, [])

    def test_a_length_that_nobody_sends_is_a_fault(self) -> None:
        receiver = Sockets(EndpointConfig(receives=True))
        host, _, port = receiver.listen().rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=10) as link:
                link.sendall(b"\xff" * 8)
                deadline = time.monotonic() + 10
                while not receiver.fault() and time.monotonic() < deadline:
                    time.sleep(0.01)
        finally:
            receiver.close()
        assert "not one of ours" in receiver.fault()


class Sctp(SctpSockets):
    """SCTP's adapter, over what every kernel has."""

    transport = TCP


class TestSctp:
    def test_without_it_in_the_kernel_one_line_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket, "IPPROTO_SCTP", 143)  # a protocol that no kernel has
        line = missing(PROTOCOLS["sctp"], "sockets")
        assert line.startswith("sctp: SCTP in the kernel not found; install ")
        assert "modprobe sctp" in line
        assert "\n" not in line

    def test_it_asks_for_its_own_protocol(self) -> None:
        assert SCTP.protocol == socket.IPPROTO_SCTP
        if missing(PROTOCOLS["sctp"]):
            with pytest.raises(OSError, match="rotocol not supported"):
                SctpSockets(EndpointConfig(receives=True)).listen()
        else:
            with SCTP.open() as opened:
                assert opened.proto == socket.IPPROTO_SCTP

    def test_all_else_is_that_of_tcp(self) -> None:
        arrived: list[bytes] = []
        receiver = Sctp(EndpointConfig(size=2000, receives=True), arrived.append)
        endpoint = Sctp(EndpointConfig(index=1, size=2000, targets=(0,)))
        try:
            endpoint.connect({0: receiver.listen()})
            sender = endpoint.sender()
            messages = [stamped(1, 0, sequence, 2000) for sequence in range(300)]
            for message in messages:
                sender.send(0, message)
            count = sender.burst()
            deadline = time.monotonic() + 30
            while len(arrived) < 300 + count and time.monotonic() < deadline:
                time.sleep(0.01)
            sender.close()
        finally:
            endpoint.close()
            receiver.close()
        assert receiver.fault() == ""
        assert arrived[:300] == messages
        assert arrived[300:] == [payload_of(2000)] * count


class TestServers:
    @pytest.mark.parametrize("name", [named(name) for name in SERVED])
    def test_stopping_one_ends_it_and_leaves_no_file(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        found = load_protocol(name)
        assert issubclass(found, Endpoint)
        address, pids, stop = found.serve()
        try:
            host, _, port = address.rpartition(":")
            assert host == "127.0.0.1"
            socket.create_connection((host, int(port)), timeout=5).close()
            assert set(pids) <= descendants(os.getpid())
        finally:
            stop()
        await_none(pids)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", [named(name) for name in SERVED])
    def test_none_outlives_a_killed_command(self, name: str) -> None:
        code = (
            "import sys, time\n"
            "from antiphon.lab.bench.plan import Point\n"
            "from antiphon.lab.bench.point import assemble\n"
            "from antiphon.lab.bench.processes import Crew, ask_all\n"
            "from antiphon.lab.protocols import MORE_PEERS\n"
            "with Crew() as crew:\n"
            f"    point = Point({name!r}, {MORE_PEERS[name].variants[0]!r})\n"
            "    receivers, senders = assemble(crew, point, None, peers=MORE_PEERS)\n"
            "    ask_all(senders, 'start', threads=1)\n"
            "    print('sending', flush=True)\n"
            "    time.sleep(60)\n"
        )
        running = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == b"sending\n"
            # Two workers, the one that started the server, and the server.
            started = await_some(running.pid, 4)
            running.kill()
            running.wait(10)
            await_none(started)
        finally:
            running.kill()
            running.communicate()

    @pytest.mark.parametrize("name", [named(name) for name in SERVED])
    def test_one_that_dies_is_a_failure_and_not_a_hang(self, name: str) -> None:
        with Crew() as crew:
            point = Point(name, MORE_PEERS[name].variants[0])
            receivers, _ = assemble(crew, point, None, peers=MORE_PEERS)
            (server,) = descendants(crew.children[0].pid)
            os.kill(server, signal.SIGKILL)
            with pytest.raises(WorkerFailed, match=f"^{name} 0: "):
                sample_for(receivers[0], 20)

    def test_one_that_does_not_answer_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("antiphon.lab.peers.servers.START_TIMEOUT", 0.2)
        before = descendants(os.getpid())
        with pytest.raises(TimeoutError, match="sleeper did not answer"):
            start_server("sleeper", lambda port: ["/bin/sleep", "60"], lambda link: True)
        assert descendants(os.getpid()) <= before


class TestMissing:
    @pytest.mark.parametrize(
        ("name", "package"),
        [
            ("antiphon-node", "antiphon"),
            ("tcp-c", "antiphon"),
            ("udp-c", "antiphon"),
            ("enet", "pyenet"),
            ("quic", "aioquic"),
            ("pyzmq", "pyzmq"),
            ("zenoh", "eclipse-zenoh"),
            ("nats", "nats-py"),
            ("pynng", "pynng"),
            ("redis", "redis"),
            ("mqtt", "paho-mqtt"),
            ("grpc", "grpcio"),
        ],
    )
    def test_a_component_is_one_line_that_names_the_package(
        self, name: str, package: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Requirement, "present", lambda self: False)
        line = missing(PROTOCOLS[name], PROTOCOLS[name].variants[0])
        assert line.startswith(f"{name}: ")
        assert "install " in line
        assert package in line
        assert "\n" not in line

    @pytest.mark.parametrize(("name", "server"), [("redis", "redis-server"), ("mqtt", "mosquitto")])
    def test_a_server_is_named_apart_from_its_client(
        self, name: str, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Requirement, "present", lambda self: self.name != server)
        line = missing(PROTOCOLS[name])
        assert line == f"{name}: {server} not found; install the system package {server}"
        measurement = measured(Point(name, MORE_PEERS[name].variants[0]))
        assert (measurement.outcome, measurement.reason) == ("absent", line)

    @pytest.mark.parametrize("name", ["tcp-python", "asyncio", "udp-python"])
    def test_the_standard_library_is_enough_for_some(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Requirement, "present", lambda self: False)
        assert missing(PROTOCOLS[name], PROTOCOLS[name].variants[0]) == ""

    @pytest.mark.parametrize("name", WITHOUT_ADAPTER)
    def test_what_has_no_adapter_says_why_in_one_line(self, name: str) -> None:
        line = missing(PROTOCOLS[name], PROTOCOLS[name].variants[0])
        assert line.startswith(f"{name}: ")
        assert len(line) > len(name) + 20
        assert "\n" not in line
        with pytest.raises(LookupError, match="^" + re.escape(line)):
            load_protocol(name)

    def test_a_variant_that_there_is_not_is_named(self) -> None:
        line = missing(PROTOCOLS["tcp-python"], "streams")
        assert line == "tcp-python: no variant streams; choose from sockets, request"


class TestList:
    def test_every_protocol_is_listed_by_its_name(self) -> None:
        assert all(name == protocol.name for name, protocol in PROTOCOLS.items())
        assert set(MORE_PEERS).isdisjoint(PEERS)
        assert set(MORE_PEERS) < set(PROTOCOLS)

    @pytest.mark.parametrize("name", [name for name, one in PROTOCOLS.items() if one.peer])
    def test_variants_are_those_of_the_adapter(self, name: str) -> None:
        protocol = PROTOCOLS[name]
        assert protocol.variants
        assert set(protocol.variants) - {REQUEST} <= set(protocol.peer.variants)
        assert (REQUEST in protocol.variants) == (protocol.requests in REQUEST_PEERS)

    def test_what_has_a_collector_is_managed(self) -> None:
        for protocol in PROTOCOLS.values():
            assert protocol.managed == (protocol.language != "c"), protocol.name

    @pytest.mark.parametrize("name", [named(name) for name in MORE_PEERS])
    def test_an_adapter_is_found_by_its_name(self, name: str) -> None:
        assert load(name) is load_protocol(name)

"""The list of peers, what is missing, and the parts of the interface that need no library."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace

import pytest

from antiphon import _core
from antiphon.lab.bench.orders import stamped
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import Options, measure
from antiphon.lab.bench.worker import Checker
from antiphon.lab.peers import ENCRYPTION, PEERS, Requirement, program_version
from antiphon.lab.peers.base import EndpointConfig, payload_of, typed_body


@pytest.fixture
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nothing installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)


@pytest.mark.usefixtures("no_libraries")
@pytest.mark.parametrize(
    ("peer", "package"),
    [
        ("pyzmq", "pyzmq"),
        ("zenoh", "eclipse-zenoh"),
        ("pynng", "pynng"),
        ("nats", "nats-py"),
        ("antiphon", "antiphon"),
        ("raw-tcp", "antiphon"),
    ],
)
def test_a_missing_peer_is_one_line_that_names_the_package(peer: str, package: str) -> None:
    line = PEERS[peer].missing()
    assert line.startswith(f"{peer}: ")
    assert package in line
    assert "install" in line
    assert "\n" not in line


@pytest.mark.usefixtures("no_libraries")
def test_a_missing_peer_is_measured_as_absent() -> None:
    measurement = measure(Point("zenoh", "pub-sub"), Options())
    assert measurement.outcome == "absent"
    assert "eclipse-zenoh" in measurement.reason
    assert not measurement.measured


def test_a_missing_server_is_named_apart_from_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Requirement, "present", lambda self: not self.program)
    assert "nats-server not found" in PEERS["nats"].missing()


@pytest.mark.parametrize("lacking", ["cryptography", "OpenSSL 3"])
def test_what_only_one_variant_needs_is_missing_there_alone(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Requirement, "present", lambda self: self.name != lacking)
    ours = PEERS["antiphon"]
    assert ours.missing() == ours.missing("callback") == ""
    line = ours.missing("tls")
    assert line.startswith(f"antiphon tls: {lacking} not found; install ")
    assert "\n" not in line
    measurement = measure(Point("antiphon", "tls"), Options())
    assert (measurement.outcome, measurement.reason) == ("absent", line)


def test_openssl_is_what_the_core_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    openssl = next(need for need in ENCRYPTION if need.probe is not None)
    for found in (True, False):
        monkeypatch.setattr(_core, "build_info", lambda found=found: {"openssl": found})
        assert openssl.present() is found


def test_an_endpoint_is_configured_by_plain_values() -> None:
    facts = {"index": 1, "targets": [0, 2], "tls": ["a", "b", "c"], "capacity": None}
    config = EndpointConfig.from_facts(facts)
    assert config == EndpointConfig(index=1, targets=(0, 2), tls=("a", "b", "c"))


def test_asyncio_needs_nothing() -> None:
    assert PEERS["asyncio"].missing() == ""


def test_a_module_whose_parent_is_missing_is_missing() -> None:
    assert not Requirement("no_such_package.inner", "it").present()


def test_the_version_of_a_missing_program_is_empty() -> None:
    assert program_version("no-such-program-anywhere") == ""


def test_the_version_of_a_missing_package_is_empty() -> None:
    assert replace(PEERS["pyzmq"], distribution="no-such-distribution").version() == ""


@pytest.mark.parametrize("size", [1, 16, 64, 251, 252, 65536])
def test_a_payload_has_its_size(size: int) -> None:
    assert len(payload_of(size)) == size
    assert 0 not in payload_of(size)


def test_a_typed_message_of_the_base_size_is_about_that_long() -> None:
    msgspec = pytest.importorskip("msgspec")
    encoded = msgspec.msgpack.encode([500, 0.5, typed_body(64)])
    assert abs(len(encoded) - 64) <= 2
    assert typed_body(1)


@pytest.mark.parametrize(
    ("size", "burst", "batch"),
    [(1, 1000, 1000), (64, 1000, 1000), (4096, 1000, 64), (65536, 64, 4)],
)
def test_bursts_and_batches_shrink_with_the_size(size: int, burst: int, batch: int) -> None:
    config = EndpointConfig(size=size)
    assert (config.burst, config.batch) == (burst, batch)


def test_the_checker_takes_every_thread_in_its_own_order() -> None:
    checker = Checker(64)
    for sequence in range(3):
        for thread in (0, 1):
            checker(stamped(7, thread, sequence, 64))
    assert checker.messages == 6
    assert checker.problems == []


def test_the_checker_sees_a_gap_a_repeat_and_a_changed_byte() -> None:
    checker = Checker(64)
    first, second, third = (stamped(1, 0, sequence, 64) for sequence in range(3))
    checker(first)
    checker(third)
    checker(second)
    checker(first[:-1] + b"\x00")
    checker(first + b"x")
    assert checker.problems == [
        "1.0 sent 1 next, but 2 came",
        "1.0 sent 3 next, but 1 came",
        "message 4, of 64 bytes, is not what was sent",
        "message 5, of 65 bytes, is not what was sent",
    ]


def test_the_checker_reports_only_the_first_problems() -> None:
    checker = Checker(64)
    for _ in range(100):
        checker(b"\xff" * 64)
    assert checker.messages == 100
    assert len(checker.problems) == 10

"""Certificates: files that cannot be used, and who is refused for what they show."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import TLS, AntiphonError, AuthenticationFailed, ConfigError, Node, NodeConfig
from antiphon.testing import Stranger, eventually, strangers
from antiphon.testing.strangers import frame, hello
from integration.tls_tools import (
    BEAT,
    DAY,
    KIND,
    QUICK,
    TLS_TESTS,
    Authority,
    TlsClient,
    client_context,
    make_tls,
)

pytestmark = TLS_TESTS


# --- files ----------------------------------------------------------------------------------------


def test_files_that_do_not_fit_together_are_a_config_error(ours: Authority, tmp_path: Path) -> None:
    certificate, key = ours.issue("good", "antiphon:node:1")
    _, other_key = ours.issue("other", "antiphon:node:1")
    missing, garbage, empty = tmp_path / "no", tmp_path / "garbage", tmp_path / "empty"
    garbage.write_bytes(os.urandom(1000))
    empty.write_bytes(b"")
    make_tls(certificate, key, ours.path)
    for name, files in {
        "private key": (certificate, other_key, ours.path),
        f"certificate {missing}": (missing, key, ours.path),
        f"private key {missing}": (certificate, missing, ours.path),
        f"authority {missing}": (certificate, key, missing),
        f"certificate {garbage}": (garbage, key, ours.path),
        f"private key {garbage}": (certificate, garbage, ours.path),
        f"authority {garbage}": (certificate, key, garbage),
        f"certificate {empty}": (empty, key, ours.path),
        f"authority {empty}": (certificate, key, empty),
        f"certificate {tmp_path}": (tmp_path, key, ours.path),
    }.items():
        with pytest.raises(ConfigError) as refused:
            make_tls(*files)
        assert name in str(refused.value)
        assert refused.value.setting == "tls"
        assert "unknown error" not in str(refused.value)
        if str(missing) in name:
            assert "No such file" in str(refused.value)


def test_a_key_with_a_pass_phrase_is_a_config_error_and_nobody_is_asked_for_it(
    ours: Authority,
) -> None:
    """OpenSSL would ask on the terminal; on the selector thread that would be the node's end."""
    certificate, key = ours.issue("locked", "antiphon:node:1", password=b"open sesame")
    script = (
        f"import antiphon; antiphon.TLS({str(certificate)!r}, {str(key)!r}, {str(ours.path)!r})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,  # open, and silent
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            eventually(lambda: process.poll() is not None, 20, "an error instead of a question")
        finally:
            process.kill()
        assert process.stdout is not None
        said = process.stdout.read().decode()
    assert "ConfigError" in said
    assert "pass phrase" not in said.partition("Traceback")[0]


def test_off_loopback_certificates_are_enough_to_listen(ours: Authority) -> None:
    with pytest.raises(ConfigError, match="tls"):
        Node(1, listen="tcp://0.0.0.0:0")
    with Node(1, listen="tcp://0.0.0.0:0", tls=ours.node(1)) as node:
        assert node.address


# --- who is refused -------------------------------------------------------------------------------


WRONG_URIS = ["antiphon:node:12", "antiphon:node:01", "antiphon:node:", "antiphon:node:1*", "*"]


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "antiphon.node"]
    return [text for text in found if "refused" in text or "dropped" in text]


@pytest.fixture
def guarded(ours: Authority, caplog: pytest.LogCaptureFixture) -> Iterator[Node]:
    """A node with a certificate, which lives on whatever comes."""
    caplog.set_level(logging.WARNING, "antiphon.node")
    with Node(1, tls=ours.node(1), config=QUICK) as node:
        node.on(KIND, lambda source, data: data)
        yield node
        with Node(99, tls=ours.node(99), config=QUICK, peers={1: node.address}) as friend:
            assert friend.request(1, b"unharmed", kind=KIND) == b"unharmed"


def refused_by(node: Node, tls: TLS | None, **options: Any) -> AntiphonError:
    """What a node with these certificates gets when it sends to ``node``, before it gives up."""
    patient = NodeConfig(connect_timeout=30.0)
    began = time.monotonic()
    with Node(2, tls=tls, config=patient, peers={node.id: node.address}, **options) as stranger:
        with pytest.raises(AntiphonError) as failed:
            stranger.send(node.id, b"let me in", kind=KIND)
        assert time.monotonic() - began < 15
        assert not any(c.sending or c.receiving for c in stranger.connections())
    return failed.value


def bad_certificate(ours: Authority, theirs: Authority, id: int, bad: str) -> tuple[TLS, str]:
    """One that nobody should take for that of node ``id``, and what is to be said about it."""
    hour = datetime.timedelta(hours=1)
    match bad:
        case "another authority":
            return theirs.node(id, trusts=ours), ""
        case "expired":
            return ours.node(id, begins=-2 * DAY, ends=-hour), "expired"
        case "not yet valid":
            return ours.node(id, begins=hour, ends=2 * DAY), "not yet valid"
        case "no name":
            return make_tls(*ours.issue("nameless"), ours.path), "no node"
        case "another's":
            return ours.node(17), "antiphon:node:17"
    return make_tls(*ours.issue("wrong", bad), ours.path), "certificate is for"


BAD = ["another authority", "expired", "not yet valid", "no name", "another's", *WRONG_URIS]


@pytest.mark.parametrize("bad", BAD)
def test_a_client_is_refused_for_its_certificate(
    guarded: Node, ours: Authority, theirs: Authority, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    tls, reason = bad_certificate(ours, theirs, 2, bad)
    before = guarded.statistics().refused_connections
    error = refused_by(guarded, tls)
    assert isinstance(error, AuthenticationFailed)
    eventually(lambda: guarded.statistics().refused_connections == before + 1, 10, "counted once")
    (text,) = eventually(lambda: refusals(caplog), 10, "it is logged")
    assert "127.0.0.1" in text or "tcp://" in text
    assert "certificate" in text
    assert reason in text
    if bad not in ("another authority", "expired", "not yet valid"):
        assert reason in str(error)


@pytest.mark.parametrize("bad", BAD)
def test_a_server_is_refused_for_its_certificate(
    ours: Authority, theirs: Authority, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "antiphon.node")
    tls, reason = bad_certificate(ours, theirs, 1, bad)
    with Node(1, tls=tls, config=QUICK) as server:
        inbox = server.inbox(KIND)
        error = refused_by(server, ours.node(2))
        assert isinstance(error, AuthenticationFailed)
        assert "certificate" in str(error)
        assert reason in str(error)
        assert server.address in str(error)
        assert inbox.pending == 0
        assert not any(c.receiving for c in server.connections())


def test_a_refusal_for_a_certificate_is_never_lost_on_the_way(
    guarded: Node, theirs: Authority, ours: Authority
) -> None:
    """In TLS 1.3 the client is done before the server has looked at it: the alert comes later."""
    tls = theirs.node(2, trusts=ours)
    before = guarded.statistics().refused_connections
    for _ in range(20):
        assert isinstance(refused_by(guarded, tls), AuthenticationFailed)
    eventually(lambda: guarded.statistics().refused_connections == before + 20, 10, "counted")


@pytest.mark.parametrize("secret", [None, "a secret is no certificate"])
def test_a_plain_client_at_a_node_with_certificates_is_told(
    guarded: Node, secret: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    error = refused_by(guarded, None, secret=secret)
    assert isinstance(error, AuthenticationFailed)
    assert "TLS" in str(error)
    eventually(lambda: guarded.statistics().refused_connections == 1, 10, "counted")
    (text,) = eventually(lambda: refusals(caplog), 10, "it is logged")
    assert "TLS" in text


def test_a_client_with_certificates_at_a_plain_node_is_told(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "antiphon.node")
    with Node(1, config=QUICK) as plain:
        inbox = plain.inbox(KIND)
        error = refused_by(plain, ours.node(2))
        assert isinstance(error, AuthenticationFailed)
        assert "TLS" in str(error)
        eventually(lambda: plain.statistics().refused_connections == 1, 10, "counted")
        (text,) = eventually(lambda: refusals(caplog), 10, "it is logged")
        assert "it speaks TLS" in text
        with Node(3, peers={1: plain.address}) as friend:
            friend.send(1, b"unharmed", kind=KIND)
            assert inbox.receive(5) == (3, b"unharmed")


@pytest.mark.parametrize("certificate", [True, False], ids=["with certificate", "without"])
def test_tls_of_an_older_version_is_refused(
    guarded: Node, ours: Authority, certificate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    context = client_context(ours.node(2) if certificate else None)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Stranger.dial(guarded.address) as stranger:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            TlsClient(stranger.socket, context).shake_hands()
        assert stranger.dropped_within(10)
    eventually(lambda: guarded.statistics().refused_connections == 1, 10, "counted")
    (text,) = eventually(lambda: refusals(caplog), 10, "it is logged")
    assert "unsupported protocol" in text


def test_a_client_without_a_certificate_gets_nowhere(
    guarded: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with Stranger.dial(guarded.address) as stranger:
        client = TlsClient(stranger.socket, client_context(None))
        client.shake_hands()  # it is done first, and has its answer later
        stranger.say(client.seal(frame(strangers.HELLO, hello(2))))
        with pytest.raises((ssl.SSLError, EOFError, ConnectionError)):
            client.read()
    eventually(lambda: guarded.statistics().refused_connections == 1, 10, "counted")
    (text,) = eventually(lambda: refusals(caplog), 10, "it is logged")
    assert "certificate" in text


def test_refusals_are_counted_all_and_logged_few(
    guarded: Node, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    for _ in range(200):
        with Stranger.dial(guarded.address) as stranger:
            stranger.say(b"\x16\x03\x01\x00\x05hello")
            assert stranger.dropped_within(10)
    ticks = 2 + (time.monotonic() - began) / BEAT
    assert guarded.statistics().refused_connections == 200
    assert 1 <= len(refusals(caplog)) <= 10 * ticks

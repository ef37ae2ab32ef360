"""New keys in the middle of a connection: OpenSSL's own client asks for them."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import TLS, Node, NodeConfig
from antiphon.node.address import parse_address
from antiphon.testing import Stranger, eventually, strangers
from antiphon.testing.strangers import frame
from integration.tls_tools import KIND, TLS_TESTS, Authority
from unit.node.pairs import Heard

pytestmark = [*TLS_TESTS, pytest.mark.needs("openssl", "cryptography")]

PATIENT = NodeConfig(connect_timeout=30.0, heartbeat=30.0)
UPDATES = 30


class Client(Stranger):
    """Speaks TLS by ``openssl s_client``, which changes keys when it reads a letter."""

    def __init__(self, near: socket.socket, messages: Path) -> None:
        super().__init__(near)
        self._messages = messages

    def change_keys(self, letter: bytes) -> None:
        """``k``: its own; ``K``: the node's as well. What was said before must have arrived."""
        before = self.updates(">>>")
        self.say(letter)
        eventually(lambda: self.updates(">>>") == before + 1, 10, "it says that its key changes")

    def updates(self, way: str) -> int:
        """How many changes of keys it has sent (``>>>``) or got (``<<<``)."""
        lines = self._messages.read_text(errors="replace").splitlines()
        return sum(line.startswith(way) and "KeyUpdate" in line for line in lines)


@contextlib.contextmanager
def openssl(address: str, tls: TLS, messages: Path) -> Iterator[Client]:
    target = parse_address(address)
    near, far = socket.socketpair()
    near.settimeout(10)
    options = ["-tls1_3", "-brief", "-msg", "-msgfile", str(messages)]
    options += ["-cert", tls.certificate, "-key", tls.key, "-CAfile", tls.authority]
    with far:
        process = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"{target.host}:{target.port}", *options],
            stdin=far,
            stdout=far,
            stderr=subprocess.DEVNULL,
        )
    try:
        with Client(near, messages) as client:
            yield client
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("letter", [b"k", b"K"], ids=["its own", "both"])
def test_a_peer_that_sends_may_change_keys_again_and_again(
    ours: Authority, tmp_path: Path, letter: bytes
) -> None:
    heard = Heard()
    with (
        Node(1, tls=ours.node(1), config=PATIENT) as node,
        openssl(node.address, ours.node(7), tmp_path / "messages") as client,
    ):
        node.on(KIND, heard)
        client.hand_shake(7)
        for number in range(1, UPDATES + 1):
            client.change_keys(letter)
            client.say(frame(KIND, b"number %d" % number) + frame(strangers.FLUSH, bytes(8)))
            client.read_until(strangers.FLUSHED)
        assert heard.data == [b"number %d" % number for number in range(1, UPDATES + 1)]
        assert client.updates(">>>") == UPDATES
        # It was asked to change its own, and has.
        assert client.updates("<<<") == (UPDATES if letter == b"K" else 0)
        assert [info.id for info in node.connections() if info.receiving] == [7]


@pytest.mark.parametrize("letter", [b"k", b"K"], ids=["its own", "both"])
def test_a_peer_that_is_sent_to_may_change_keys_again_and_again(
    ours: Authority, tmp_path: Path, letter: bytes
) -> None:
    """What the node sends next is behind its own change of keys."""
    with (
        Node(1, tls=ours.node(1), config=PATIENT) as node,
        openssl(node.address, ours.node(7), tmp_path / "messages") as client,
    ):
        client.hand_shake(7, direction=strangers.YOURS)
        client.be_ready(KIND, window=1 << 24)
        eventually(lambda: any(info.sending for info in node.connections()))
        for number in range(1, UPDATES + 1):
            client.change_keys(letter)
            client.say(frame(strangers.LIVENESS, struct.pack("<I", 0)))
            for part in range(3):
                node.send(7, b"%d %d" % (number, part) + bytes(20_000 * part), kind=KIND)
            for part in range(3):
                data = client.read_until(KIND).payload
                assert data == b"%d %d" % (number, part) + bytes(20_000 * part)
        assert client.updates(">>>") == UPDATES
        # It changes its own with what it sends next.
        wanted = UPDATES if letter == b"K" else 0
        eventually(lambda: client.updates("<<<") >= wanted, 10, "it has changed its own")
        assert client.updates("<<<") == wanted

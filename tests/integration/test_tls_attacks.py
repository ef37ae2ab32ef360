"""Strangers who know how TLS begins, and those who listen or meddle on the line.

The node that they attack runs in a process of its own, whose descriptors, processor time and memory
can be watched.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import Node, NodeConfig
from antiphon._core import build_info
from antiphon.testing import Child, Control, eventually, strangers
from antiphon.testing.strangers import frame, hello
from integration.attacks import UnderAttack
from integration.tls_tools import (
    KIND,
    QUICK,
    TLS_TESTS,
    Authority,
    TlsClient,
    client_context,
    client_hello,
    tapped,
)

pytestmark = TLS_TESTS

MIB = 1 << 20


# --- strangers who know how TLS begins ------------------------------------------------------------


def target(control: Control, files: list[str], timeout: float) -> None:
    """A node that answers requests; tells what it has counted and logged."""
    import logging
    from pathlib import Path

    import antiphon

    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("antiphon.node").addHandler(handler)
    config = antiphon.NodeConfig(connect_timeout=timeout, heartbeat=0.2)
    with antiphon.Node(1, config=config, tls=antiphon.TLS(*files)) as node:
        node.on(200, lambda source, data: data)
        control.tell("ready", address=node.address)
        while True:
            control.hear()
            control.tell(
                "facts",
                refused=node.statistics().refused_connections,
                descriptors=len(list(Path("/proc/self/fd").iterdir())),
                logged=logged,
            )


class Attacked(UnderAttack):
    """The node under attack, and a client that asks it something all the while."""

    def __init__(self, child: Child, client: Node) -> None:
        super().__init__(child, client)
        self.ask()

    def ask(self) -> None:
        question = os.urandom(16)
        assert self._client.request(1, question, kind=KIND, timeout=2) == question

    def facts(self) -> dict[str, Any]:
        self.child.tell("facts")
        return self.child.expect("facts", timeout=3)

    @contextlib.contextmanager
    def undisturbed(self, growth: int = 8 * MIB) -> Iterator[None]:
        """Its client is answered, and in the end it holds as many descriptors as before."""
        held, memory = self.facts()["descriptors"], self.child.resident_bytes
        with self.meanwhile(self.ask, every=0.02):
            yield
        eventually(lambda: self.facts()["descriptors"] <= held, 3, "nothing is held")
        if not build_info()["sanitizers"]:
            assert self.child.resident_bytes - memory < growth


@pytest.fixture
def attacked(ours: Authority) -> Iterator[Attacked]:
    tls = ours.node(1)
    files = [tls.certificate, tls.key, tls.authority]
    with (
        Child(target, files=files, timeout=1.0) as child,
        Node(2, tls=ours.node(2), config=QUICK) as client,
    ):
        yield Attacked(child, client)


def test_garbage_in_a_record_of_tls_is_dropped_at_once(attacked: Attacked) -> None:
    whole = client_hello()
    noises = [
        b"\x16\x03\x01\x03\xe8\x63" + os.urandom(999),
        b"\x16\x03\x01" + b"\xff" * 100_000,
        b"\x16\x03\x01\x00\x00" * 100,
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        whole[:9] + os.urandom(len(whole) - 9),
        whole + b"\x17\x03\x03\x00\x20" + os.urandom(32),
        whole + whole,
        b"\x16\x02\x01" + whole[3:],
        b"\x16\x03\x00" + whole[3:],
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    before = attacked.facts()["refused"]
    with attacked.undisturbed():
        for noise in noises:
            for _ in range(3):
                with attacked.dial() as stranger:
                    stranger.say(noise)
                    assert stranger.dropped_within(0.8), noise[:20]
    assert attacked.facts()["refused"] >= before + 3 * len(noises)


def test_random_bytes_after_the_first_three_do_no_harm(
    attacked: Attacked, count: Callable[[int, int], int]
) -> None:
    with attacked.undisturbed():
        for _ in range(count(100, 5000)):
            with attacked.dial() as stranger:
                stranger.say(b"\x16\x03\x01" + os.urandom(1 + os.urandom(1)[0] * 16))


def test_parts_of_a_client_hello_and_silence_are_given_up_after_the_connect_timeout(
    attacked: Attacked,
) -> None:
    whole = client_hello()
    with contextlib.ExitStack() as stack, attacked.undisturbed():
        began = time.monotonic()
        parts = [whole[:count] for count in (0, 1, 2, 3, 5, 100, len(whole) - 1)]
        halves = [stack.enter_context(attacked.dial()) for _ in parts]
        for half, part in zip(halves, parts, strict=True):
            half.say(part)
        for half in halves:
            assert half.dropped_within(3)
            assert 0.8 < time.monotonic() - began < 2.0


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_waiting_for_the_rest_of_a_client_hello_costs_nothing(
    attacked: Attacked, count: int
) -> None:
    """Bytes that are left in the socket are no reason to spin."""
    with attacked.dial() as stranger:
        stranger.say(client_hello()[:count])
        assert not stranger.dropped_within(0.1)
        spent = attacked.processor_seconds
        assert not stranger.dropped_within(0.4)
        assert attacked.processor_seconds - spent < 0.1


def test_a_client_hello_of_a_byte_at_a_time_is_given_up_after_the_connect_timeout(
    attacked: Attacked,
) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        began = time.monotonic()
        for byte in client_hello():
            stranger.say(bytes([byte]))
            if stranger.dropped_within(0.05):
                break
        assert 0.8 < time.monotonic() - began < 2.0


def test_a_client_hello_that_was_never_finished_is_counted_and_logged(attacked: Attacked) -> None:
    before = attacked.facts()["refused"]
    with attacked.dial() as stranger:
        stranger.say(client_hello()[:-1])
        assert stranger.dropped_within(3)
    facts = attacked.facts()
    assert facts["refused"] == before + 1
    assert any("no complete hand-shake in time" in text for text in facts["logged"])


def test_silence_after_the_answer_to_a_client_hello_is_given_up(attacked: Attacked) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        stranger.say(client_hello())
        began = time.monotonic()
        assert stranger.dropped_within(3)
        assert 0.8 < time.monotonic() - began < 2.0


@pytest.mark.parametrize("stage", ["hello", "confirm", "data"])
def test_half_a_record_holds_nobody_up(attacked: Attacked, ours: Authority, stage: str) -> None:
    """Whoever is on the line can see to it that the rest of a record never comes."""
    with attacked.dial() as stranger, attacked.undisturbed():
        client = TlsClient(stranger.socket, client_context(ours.node(7)))
        client.shake_hands()
        words = frame(strangers.HELLO, hello(7))
        if stage != "hello":
            stranger.say(client.seal(words))
            assert client.read()
            words = frame(strangers.CONFIRM)
        if stage == "data":
            stranger.say(client.seal(words))
            assert client.read()
            words = frame(KIND, bytes(1000))
        sealed = client.seal(words)
        stranger.say(sealed[: len(sealed) // 2])
        time.sleep(0.1)
        spent = attacked.processor_seconds
        for _ in range(20):
            attacked.ask()
        time.sleep(0.4)  # in which there is nothing to do but to wait for the rest
        assert attacked.processor_seconds - spent < 0.2
        assert stranger.dropped_within(3)


def test_a_recorded_conversation_cannot_be_played_back(attacked: Attacked, ours: Authority) -> None:
    with tapped(attacked.address) as tap:
        with Node(3, listen=None, tls=ours.node(3), peers={1: tap.address}) as node:
            assert node.request(1, b"record this", kind=KIND) == b"record this"
        chunks = tap.forward.items
    first = next(chunk for chunk in chunks if chunk[:2] == b"\x16\x03")
    before = attacked.facts()["refused"]
    with attacked.undisturbed():
        for words in ([first], chunks):
            for _ in range(5):
                with attacked.dial() as stranger:
                    for word in words:
                        stranger.say(word)
                    if words is chunks:
                        assert stranger.dropped_within(0.8)
    # Keys are fresh: nothing that was recorded fits, and nobody became node 3.
    assert attacked.facts()["refused"] >= before + 5


def test_hundreds_of_half_open_connections_hold_nobody_up(
    attacked: Attacked, ours: Authority, count: Callable[[int, int], int]
) -> None:
    """More than the 512 strangers that are let in at a time."""
    wanted = count(1200, 5000)
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < wanted + 500:
        pytest.skip(f"needs {wanted + 500} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 500), most))
    try:
        # OpenSSL keeps what it has had: 512 sessions with their buffers.
        with contextlib.ExitStack() as stack, attacked.undisturbed(growth=64 * MIB):
            half = client_hello()[:-1]
            for _ in range(wanted):
                with contextlib.suppress(ConnectionError):  # no room: it is closed at once
                    stack.enter_context(attacked.dial()).socket.sendall(half)
            patient = NodeConfig(connect_timeout=5.0)
            with Node(
                3, listen=None, tls=ours.node(3), config=patient, peers={1: attacked.address}
            ) as newcomer:
                assert newcomer.request(1, b"let me in", kind=KIND) == b"let me in"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    assert attacked.facts()["refused"] >= wanted - 512


# --- what is on the line --------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "certificates"])
def test_who_listens_on_the_line_learns_nothing_with_certificates(
    ours: Authority, encrypted: bool
) -> None:
    """Without them everything: the ear is good."""
    question, answer = os.urandom(24), os.urandom(24)
    with (
        Node(1, tls=ours.node(1) if encrypted else None) as one,
        # It only dials, so that both channels pass the tap.
        Node(2, listen=None, tls=ours.node(2) if encrypted else None) as two,
        tapped(one.address) as tap,
    ):
        one.on(KIND, lambda source, data: answer)
        two.add_peer(1, tap.address)
        assert two.request(1, question * 100, kind=KIND) == answer
        heard = tap.heard
    assert len(heard) > 24 * 100
    assert (question in heard) is not encrypted
    assert (answer in heard) is not encrypted
    assert (b"ANPH" in heard) is not encrypted  # what a hello begins with


def test_a_byte_changed_on_the_line_ends_the_connection_and_is_not_delivered(
    attacked: Attacked, ours: Authority
) -> None:
    with attacked.dial() as stranger, attacked.undisturbed():
        client = TlsClient(stranger.socket, client_context(ours.node(7)))
        client.shake_hands()
        sealed = bytearray(client.seal(frame(strangers.HELLO, hello(7))))
        sealed[-20] ^= 1
        stranger.say(bytes(sealed))
        assert stranger.dropped_within(0.8)

"""Strangers who know how TLS begins, and those who listen or meddle on the line.

The node that they attack runs in a process of its own, whose descriptors, processor time and memory
can be watched.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
    import contextlib
    import logging
    from pathlib import Path

    import antiphon

    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("antiphon.node").addHandler(handler)
    config = antiphon.NodeConfig(connect_timeout=timeout, heartbeat=0.4)
    with antiphon.Node(1, config=config, tls=antiphon.TLS(*files)) as node:
        node.on(200, lambda source, data: data)
        control.tell("ready", address=node.address)
        while True:
            control.hear()
            open_now = []
            for one in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed since
                    open_now.append(str(one.readlink()))
            wakes = sum("eventfd" in one for one in open_now)
            control.tell(
                "facts",
                refused=node.statistics().refused_connections,
                descriptors=len(open_now) - wakes,
                wakes=wakes,
                logged=logged,
            )


class Attacked(UnderAttack):
    """The node under attack, and a client that asks it something all the while."""

    def __init__(self, child: Child, client: Node) -> None:
        super().__init__(child, client)
        for _ in range(5):
            self.ask()

    def ask(self) -> None:
        question = os.urandom(16)
        assert self._client.request(1, question, kind=KIND, timeout=10) == question

    def facts(self) -> dict[str, Any]:
        self.child.tell("facts")
        return self.child.expect("facts")

    @contextlib.contextmanager
    def undisturbed(self, growth: int = 8 * MIB) -> Iterator[None]:
        """Its client is answered, and in the end it holds as many descriptors as before.

        But for its eventfds, which come when they are first needed, and stay: its own, and one for
        each peer that has asked and been answered. Those are the client and perhaps a newcomer.
        """
        held, memory = self.facts()["descriptors"], self.child.resident_bytes
        with self.meanwhile(self.ask, every=0.02):
            yield
        eventually(lambda: self.facts()["descriptors"] <= held, 10, "nothing is held")
        assert self.facts()["wakes"] <= 3
        if not build_info()["sanitizers"]:
            assert self.child.resident_bytes - memory < growth


@contextlib.contextmanager
def node_under_attack(ours: Authority, timeout: float) -> Iterator[Attacked]:
    """``timeout``: how long it lets strangers take for their hand-shake."""
    tls = ours.node(1)
    files = [tls.certificate, tls.key, tls.authority]
    with (
        Child(target, files=files, timeout=timeout) as child,
        # The slower of two hearts says when a peer is dead: this process may be stopped for long.
        Node(2, tls=ours.node(2), config=dataclasses.replace(QUICK, heartbeat=2.0)) as client,
    ):
        yield Attacked(child, client)


@pytest.fixture
def attacked(ours: Authority) -> Iterator[Attacked]:
    """It gives up strangers soon, for tests of just that."""
    with node_under_attack(ours, 1.0) as made:
        yield made


@pytest.fixture
def patient(ours: Authority) -> Iterator[Attacked]:
    """Whoever is dropped by this one within ten seconds was not merely too slow."""
    with node_under_attack(ours, 20.0) as made:
        yield made


def test_garbage_in_a_record_of_tls_is_dropped_at_once(patient: Attacked) -> None:
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
    before = patient.facts()["refused"]
    with patient.undisturbed():
        for noise in noises:
            for _ in range(3):
                with patient.dial() as stranger:
                    stranger.say(noise)
                    assert stranger.dropped_within(10), noise[:20]
    assert patient.facts()["refused"] >= before + 3 * len(noises)


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
            assert half.dropped_within(10)
            assert time.monotonic() - began > 0.8


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_waiting_for_the_rest_of_a_client_hello_costs_nothing(
    patient: Attacked, count: int
) -> None:
    """Bytes that are left in the socket are no reason to spin."""
    with patient.dial() as stranger:
        stranger.say(client_hello()[:count])
        assert not stranger.dropped_within(0.1)
        assert patient.rests(0.4, most=0.1)
        assert not stranger.dropped_within(0.1)


def test_a_client_hello_of_a_byte_at_a_time_is_given_up_after_the_connect_timeout(
    attacked: Attacked,
) -> None:
    began = time.monotonic()
    with attacked.dial() as stranger, attacked.undisturbed():
        for byte in client_hello():
            stranger.say(bytes([byte]))
            if stranger.dropped_within(0.05):
                break
        else:
            raise AssertionError("it was never given up")
        assert time.monotonic() - began > 0.8


def test_a_client_hello_that_was_never_finished_is_counted_and_logged(attacked: Attacked) -> None:
    before = attacked.facts()["refused"]
    with attacked.dial() as stranger:
        stranger.say(client_hello()[:-1])
        assert stranger.dropped_within(10)
    assert attacked.facts()["refused"] == before + 1

    def logged() -> bool:
        texts = attacked.facts()["logged"]
        return any("no complete hand-shake in time" in text for text in texts)

    eventually(logged, 10, "it is logged")


def test_silence_after_the_answer_to_a_client_hello_is_given_up(attacked: Attacked) -> None:
    began = time.monotonic()
    with attacked.dial() as stranger, attacked.undisturbed():
        stranger.say(client_hello())
        assert stranger.dropped_within(10)
        assert time.monotonic() - began > 0.8


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
        # There is nothing to do but to wait for the rest, and to answer the client.
        assert attacked.rests(0.3, most=0.15)
        for _ in range(20):
            attacked.ask()
        assert stranger.dropped_within(10)


def test_a_recorded_conversation_cannot_be_played_back(patient: Attacked, ours: Authority) -> None:
    with tapped(patient.address) as tap:
        with Node(3, listen=None, tls=ours.node(3), peers={1: tap.address}) as node:
            assert node.request(1, b"record this", kind=KIND) == b"record this"
        chunks = tap.forward.items
    first = next(chunk for chunk in chunks if chunk[:2] == b"\x16\x03")
    before = patient.facts()["refused"]
    with patient.undisturbed():
        for words in ([first], chunks):
            for _ in range(5):
                with patient.dial() as stranger:
                    for word in words:
                        stranger.say(word)
                    if words is chunks:
                        assert stranger.dropped_within(10)
    # Keys are fresh: nothing that was recorded fits, and nobody became node 3.
    assert patient.facts()["refused"] >= before + 5


def test_hundreds_of_half_open_connections_hold_nobody_up(
    attacked: Attacked,
    ours: Authority,
    count: Callable[[int, int], int],
    need_descriptors: Callable[[int], None],
) -> None:
    """More than the 512 strangers that are let in at a time."""
    wanted = count(1200, 5000)
    need_descriptors(wanted + 500)
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 500), most))
    try:
        # OpenSSL keeps what it has had: 512 sessions, each with a buffer for one record.
        with contextlib.ExitStack() as stack, attacked.undisturbed(growth=48 * MIB):
            half = client_hello()[:-1]
            for _ in range(wanted):
                with contextlib.suppress(ConnectionError):  # no room: it is closed at once
                    stack.enter_context(attacked.dial()).socket.sendall(half)
            insists = NodeConfig(connect_timeout=20.0)
            with Node(
                3, listen=None, tls=ours.node(3), config=insists, peers={1: attacked.address}
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
    patient: Attacked, ours: Authority
) -> None:
    with patient.dial() as stranger, patient.undisturbed():
        client = TlsClient(stranger.socket, client_context(ours.node(7)))
        client.shake_hands()
        sealed = bytearray(client.seal(frame(strangers.HELLO, hello(7))))
        sealed[-20] ^= 1
        stranger.say(bytes(sealed))
        assert stranger.dropped_within(10)

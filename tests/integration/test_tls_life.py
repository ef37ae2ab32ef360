"""Connections with certificates that are lost and made again, killed, forked and closed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import Node, NodeConfig
from antiphon.testing import Child, Collected, Control, Proxy, Stranger
from integration.tls_tools import KIND, QUICK, TLS_TESTS, Authority, client_hello

pytestmark = TLS_TESTS


@pytest.fixture
def proxied(ours: Authority) -> Iterator[tuple[Node, Proxy, Collected[str]]]:
    """A client of a node that answers, the line between them, and why the client lost it."""
    with (
        Node(1, tls=ours.node(1), config=QUICK) as server,
        Node(2, listen=None, tls=ours.node(2), config=QUICK) as client,
        Proxy(server.address) as proxy,
    ):
        server.on(KIND, lambda source, data: data)
        lost: Collected[str] = Collected()
        client.on_disconnected(lambda peer, reason: lost.add(reason))
        client.add_peer(1, proxy.address)
        yield client, proxy, lost


def test_a_lost_connection_is_made_again(proxied: tuple[Node, Proxy, Collected[str]]) -> None:
    client, proxy, lost = proxied
    for round_, reset in enumerate((True, False, True), start=1):
        assert client.request(1, b"%d" % round_, kind=KIND) == b"%d" % round_
        proxy.cut(reset)
        lost.first(round_)
    assert client.request(1, b"again", kind=KIND) == b"again"
    (connection,) = client.connections()
    assert connection.reconnects == 3


def test_a_line_that_swallows_everything_is_found_dead_and_mended(
    proxied: tuple[Node, Proxy, Collected[str]],
) -> None:
    client, proxy, lost = proxied
    assert client.request(1, b"there", kind=KIND) == b"there"
    proxy.swallow()
    assert "no sign of life" in lost.first(1, timeout=15)[0]
    proxy.flow()
    proxy.cut()
    assert client.request(1, b"again", kind=KIND) == b"again"


def flooding(control: Control, files: list[str], address: str) -> None:
    """Sends without end."""
    import antiphon

    with antiphon.Node(5, tls=antiphon.TLS(*files), peers={1: address}) as node:
        number = 0
        while True:
            node.send(1, number.to_bytes(4, "little") * 5000, kind=200)
            number += 1


def test_a_peer_that_is_killed_in_the_middle_is_lost_at_once_and_may_come_back(
    ours: Authority,
) -> None:
    tls = ours.node(5)
    files = [tls.certificate, tls.key, tls.authority]
    with Node(1, tls=ours.node(1), config=QUICK) as one:
        lost: Collected[int] = Collected()
        got: Collected[bytes] = Collected()
        one.on_disconnected(lambda peer, reason: lost.add(peer))
        one.on(KIND, lambda source, data: got.add(data))
        for round_ in (1, 2):
            with Child(flooding, files=files, address=one.address) as child:
                got.first(len(got) + 100)
                child.kill()
                assert lost.first(round_)[-1] == 5
            assert all(data == data[:4] * 5000 for data in got.items)


def forking(control: Control, files: list[str], address: str) -> None:
    """Forks with a connection that is in use; the child closes, and makes a node of its own."""
    import os

    import antiphon

    tls = antiphon.TLS(*files)
    with antiphon.Node(5, tls=tls, peers={1: address}) as node:
        assert node.request(1, b"before", kind=200) == b"before"
        pid = os.fork()
        if pid == 0:
            try:
                node.close()
                with antiphon.Node(6, tls=tls, peers={1: address}) as own:
                    assert own.request(1, b"child", kind=200) == b"child"
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        after = node.request(1, b"after", kind=200)
        control.tell("done", status=status, after=after.decode())
        control.hear()


def test_a_fork_leaves_the_connection_to_the_parent(ours: Authority) -> None:
    tls = ours.node("*")
    files = [tls.certificate, tls.key, tls.authority]
    with Node(1, tls=ours.node(1)) as one:
        asked: Collected[tuple[int, bytes]] = Collected()
        lost: Collected[int] = Collected()

        def answer(source: int, data: bytes) -> bytes:
            asked.add((source, data))
            return data

        one.on(KIND, answer)
        one.on_disconnected(lambda peer, reason: lost.add(peer))
        with Child(forking, files=files, address=one.address) as child:
            done = child.expect("done")
            assert done["status"] == 0
            assert done["after"] == "after"
            assert lost.first(1) == [6]
            assert len(lost) == 1
            assert asked.items == [(5, b"before"), (6, b"child"), (5, b"after")]


def test_closing_delivers_what_was_sent_and_is_quick(ours: Authority) -> None:
    with Node(1, tls=ours.node(1)) as one:
        inbox = one.inbox(KIND)
        lost: Collected[str] = Collected()
        one.on_disconnected(lambda peer, reason: lost.add(reason))
        for round_ in range(1, 4):
            with Node(2, tls=ours.node(2), peers={1: one.address}) as two:
                for number in range(100):
                    two.send(1, b"%d" % number * 2000, kind=KIND)
                began = time.monotonic()
            assert time.monotonic() - began < 10
            for number in range(100):
                assert inbox.receive(5) == (2, b"%d" % number * 2000)
            assert "closed" in lost.first(round_)[-1]


def test_closing_in_the_middle_of_a_hand_shake_is_quick_and_leaves_no_descriptor(
    ours: Authority,
) -> None:
    held = []
    for _ in range(4):
        with contextlib.ExitStack() as stack:
            with Node(1, tls=ours.node(1), config=NodeConfig(connect_timeout=30)) as one:
                for words in (client_hello(), client_hello()[:50], b"\x16", b""):
                    stranger = stack.enter_context(Stranger.dial(one.address))
                    stranger.say(words)
                began = time.monotonic()
            assert time.monotonic() - began < 10
        held.append(len(list(Path("/proc/self/fd").iterdir())))
    assert held[-1] <= held[0]

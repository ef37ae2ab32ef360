"""What nodes with certificates say to each other: whole, in order, both ways, on any line."""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import AntiphonError, AuthenticationFailed, Node, NodeConfig
from antiphon.testing import Collected, Proxy
from integration.tls_tools import BEAT, KIND, QUICK, TLS_TESTS, Authority, make_tls
from unit.node.pairs import Running, all_results

pytestmark = TLS_TESTS

MIB = 1 << 20


@pytest.fixture
def pair(ours: Authority) -> Iterator[tuple[Node, Node]]:
    with (
        Node(1, tls=ours.node(1), config=QUICK) as one,
        Node(2, tls=ours.node(2), config=QUICK) as two,
    ):
        two.add_peer(1, one.address)
        yield one, two


def test_messages_of_every_size_arrive_in_order_both_ways(pair: tuple[Node, Node]) -> None:
    """Around every size at which something changes: a record of TLS, a frame, the ring."""
    one, two = pair
    edges = (0, 16384, 65536, 131072, 524288, MIB, 4 * MIB)
    sizes = [*sorted({max(0, edge + step) for edge in edges for step in (-30, -1, 0, 1)}), 9 * MIB]
    messages = [struct.pack("<I", size) * (size // 4) + bytes(size % 4) for size in sizes]
    inboxes = {2: one.inbox(KIND), 1: two.inbox(KIND)}
    problems: Collected[str] = Collected()

    def send(node: Node, target: int) -> None:
        for message in messages:
            node.send(target, message, kind=KIND)

    def receive(source: int) -> None:
        for message in messages:
            if inboxes[source].receive(10) != (source, message):
                problems.add(f"{len(message)} bytes from {source} came as something else")

    two.send(1, b"first", kind=KIND)
    assert inboxes[2].receive(5) == (2, b"first")
    jobs: list[Callable[[], None]] = [
        functools.partial(send, one, 2),
        functools.partial(send, two, 1),
        functools.partial(receive, 1),
        functools.partial(receive, 2),
    ]
    all_results([Running(job) for job in jobs])
    assert not problems.items


def test_requests_of_both_sides_at_once_get_their_own_answers(pair: tuple[Node, Node]) -> None:
    for node in pair:
        node.on(KIND, lambda source, data: bytes(reversed(data)))
    one, two = pair
    assert two.request(1, b"abc", kind=KIND) == b"cba"
    asked = [os.urandom(100 + 700 * number) for number in range(100)]
    futures = [
        (data, node.request_async(other, data, kind=KIND))
        for data in asked
        for node, other in ((one, 2), (two, 1))
    ]
    for data, future in futures:
        assert future.result() == bytes(reversed(data))


def test_batches_arrive_whole_and_in_order(pair: tuple[Node, Node]) -> None:
    one, two = pair
    got: Collected[bytes] = Collected()

    def take(source: int, batch: Any) -> None:
        for message in batch:
            got.add(bytes(message))

    one.on(KIND, take, batch=True)
    sent = [struct.pack("<I", number) * (1 + number % 50) for number in range(20_000)]
    for at in range(0, len(sent), 1000):
        two.send_many(1, sent[at : at + 1000], kind=KIND)
    two.flush()
    assert got.first(len(sent)) == sent


def test_a_receiver_with_few_buffers_gets_everything(ours: Authority) -> None:
    """Out of buffers it stops reading, with bytes in TLS's own buffer of which epoll is silent."""
    poor = NodeConfig(
        buffer_pool={16 << 10: 2, 256 << 10: 1}, flow_window_bytes=256 << 10, heartbeat=BEAT
    )
    with (
        Node(1, tls=ours.node(1), config=poor) as one,
        Node(2, tls=ours.node(2)) as two,
    ):
        two.add_peer(1, one.address)
        inbox = one.inbox(KIND)
        sent = [os.urandom(4) * 1000 for _ in range(1500)]
        sender = threading.Thread(target=lambda: [two.send(1, data, kind=KIND) for data in sent])
        sender.start()
        held = []  # the buffers are ours as long as the messages are
        for data in sent:
            held.append(inbox.receive(5))
            assert held[-1] == (2, data)
            del held[:-8]
        sender.join()


def test_nothing_is_mixed_up_on_a_line_that_stalls_again_and_again(ours: Authority) -> None:
    """Senders write data, the selector control, and the socket takes neither all the time.

    A record that TLS has begun must be continued with the bytes that it was begun with.
    """
    small = NodeConfig(socket_buffer_bytes=64 << 10, ring_bytes=MIB, heartbeat=2.0)
    # Control all the time. The slower of the two hearts says when a peer is dead.
    chatty = NodeConfig(socket_buffer_bytes=64 << 10, ring_bytes=MIB, heartbeat=0.0005)
    lost: Collected[str] = Collected()
    wrong: Collected[bytes] = Collected()
    with (
        Node(1, tls=ours.node(1), config=small) as one,
        Node(2, listen=None, tls=ours.node(2), config=chatty) as two,
        Proxy(one.address) as proxy,
    ):
        for node in (one, two):
            node.on_disconnected(lambda peer, reason: lost.add(reason))
        handled: Collected[int] = Collected()

        def check(source: int, data: bytes) -> bytes:
            if data[:4] * (len(data) // 4) != data:
                wrong.add(data)
            handled.add(1)
            return b""

        one.on(KIND, check)
        two.add_peer(1, proxy.address)
        two.request(1, b"abcd", kind=KIND)
        began = time.monotonic()

        def goes_on() -> bool:
            """For a while, and until enough was handled; not for ever."""
            passed = time.monotonic() - began
            return passed < 1.5 or (len(handled) <= 100 and passed < 20)

        def repeat(step: Callable[[], object]) -> None:
            with contextlib.suppress(AntiphonError):  # what is lost says more
                while goes_on() and not len(lost):
                    step()

        def ask() -> None:
            two.request_async(1, os.urandom(4) * 3000, kind=KIND)
            time.sleep(0.0005)  # a quiet sender writes inline

        def interrupt() -> None:
            proxy.forward.stall()
            time.sleep(0.05)
            proxy.forward.flow()
            time.sleep(0.05)

        steps = [ask, ask, interrupt, *[two.flush] * 6]
        threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not lost.items
        two.flush()
        assert len(handled) > 100
        assert not wrong.items


def test_any_node_may_have_a_wildcard_and_one_certificate_may_name_several(
    ours: Authority,
) -> None:
    several = make_tls(*ours.issue("several", "antiphon:node:8", "antiphon:node:9"), ours.path)
    with Node(1, tls=ours.node("*")) as one:
        inbox = one.inbox(KIND)
        for number in (7, 8, 9):
            tls = ours.node("*") if number == 7 else several
            with Node(number, tls=tls) as other:
                other.add_peer(1, one.address)
                other.send(1, b"here", kind=KIND)
                assert inbox.receive(5) == (number, b"here")


def test_a_node_without_a_listener_is_answered(ours: Authority) -> None:
    with Node(1, tls=ours.node(1)) as one, Node(2, listen=None, tls=ours.node(2)) as two:
        one.on(KIND, lambda source, data: one.send(source, data, kind=KIND))
        inbox = two.inbox(KIND)
        two.add_peer(1, one.address)
        two.send(1, b"there and back", kind=KIND)
        assert inbox.receive(5) == (1, b"there and back")


def test_with_certificates_a_secret_is_still_proven(ours: Authority) -> None:
    with Node(1, tls=ours.node(1), secret="ours") as one:
        inbox = one.inbox(KIND)
        with Node(2, tls=ours.node(2), secret="ours") as two:
            two.add_peer(1, one.address)
            two.send(1, b"both", kind=KIND)
            assert inbox.receive(5) == (2, b"both")
        with Node(3, tls=ours.node(3), secret="theirs") as three:
            three.add_peer(1, one.address)
            with pytest.raises(AuthenticationFailed, match="secret"):
                three.send(1, b"", kind=KIND)

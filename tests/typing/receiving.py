"""What a type checker knows about handlers, decorators and inboxes. Checked, never run.

A line that must be an error ends in the mark that ``Ping("1")`` below has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import antiphon
from antiphon import Batch, Future, Inbox, Message, Node
from antiphon.node.node import Registration


class Ping(Message, kind=62001):
    seq: int
    body: bytes = b""


class Pong(Message, kind=62002):
    text: str


def on_ping(source: int, message: Ping) -> None: ...
def on_pong(source: int, message: Pong) -> None: ...
def on_raw(source: int, data: bytes) -> None: ...
def on_batch(source: int, batch: Batch) -> None: ...
def answers(source: int, data: bytes) -> bytes:
    raise NotImplementedError


def too_few(source: int) -> None: ...


def messages() -> None:
    assert_type(Ping(1), Ping)
    assert_type(Ping(1, b"x").body, bytes)
    Ping("1")  # E
    Ping()  # E
    Ping(1, bodi=b"x")  # E


def handlers(node: Node) -> None:
    assert_type(node.on(Ping, on_ping), Registration)
    assert_type(node.on(200, on_raw), Registration)
    assert_type(node.on(200, on_batch, batch=True), Registration)
    assert_type(node.on(200, answers), Registration)
    node.on(200, on_raw, ordered=False, capacity=10, when_full="drop_oldest")
    node.on(Ping, lambda source, message: print(message.seq))
    node.on(200, lambda source, data: print(data.hex()))

    node.on(Ping, on_pong)  # E
    node.on(Ping, on_raw)  # E
    node.on(200, on_ping)  # E
    node.on(200, on_batch)  # E
    node.on(200, on_raw, batch=True)  # E
    node.on(200, too_few)  # E
    node.on("200", on_raw)  # E
    node.on(200, on_raw, capasity=10)  # E
    node.on(200, on_raw, capacity="10")  # E
    node.on(200, "handler")  # E


def decorators(node: Node) -> None:
    @node.on(Ping)
    def typed(source: int, message: Ping) -> bytes:
        return message.body

    @node.on(200, batch=True)
    def batch(source: int, batch: Batch) -> int:
        return len(batch)

    assert_type(typed(1, Ping(1)), bytes)
    assert_type(batch(1, next(iter(batches()))), int)


def batches() -> Iterator[Batch]:
    raise NotImplementedError


def registration(node: Node) -> None:
    handle = node.on(200, on_raw)
    handle.close()
    with node.on(201, on_raw) as entered:
        assert_type(entered, Registration)


def inboxes(node: Node) -> None:
    raw = node.inbox(200)
    typed = node.inbox(Ping, capacity=10, when_full="drop_newest")
    assert_type(raw, Inbox[bytes])
    assert_type(typed, Inbox[Ping])
    assert_type(raw.receive(), tuple[int, bytes])
    assert_type(typed.receive(timeout=1.5), tuple[int, Ping])
    assert_type(typed.receive_many(100, timeout=None), list[tuple[int, Ping]])
    for source, message in typed:
        assert_type(source, int)
        assert_type(message, Ping)
    with raw as entered:
        assert_type(entered, Inbox[bytes])
    assert_type(raw.pending, int)
    assert_type(raw.closed, bool)

    assert_type(raw.receive_async(), Future[tuple[int, bytes]])
    assert_type(typed.receive_async(1.5).result(0), tuple[int, Ping])
    typed.receive_async("1")  # E
    node.inbox("200")  # E
    node.inbox(Ping(1))  # E
    node.inbox(200, capacity="10")  # E
    raw.receive("1")  # E


def one_batch(batch: Batch) -> None:
    assert_type(len(batch), int)
    assert_type(batch[0], bytes)
    assert_type(list(batch), list[bytes])
    assert_type(batch.data, memoryview)
    assert_type(batch.offsets, memoryview)
    assert_type(batch.to_arrow(), Any)
    batch["0"]  # E


def events(node: Node) -> None:
    @node.on_connected
    def connected(peer: int, reason: str) -> None: ...

    node.on_disconnected(lambda peer, reason: print(peer + 1, reason.upper()))
    node.on_connected(on_ping)  # E


def life() -> None:
    with Node(1, peers={2: "tcp://127.0.0.1:7002"}, config=antiphon.NodeConfig()) as node:
        assert_type(node, Node)
        assert_type(node.id, int)
        assert_type(node.address, str)
        assert_type(node.start(), Node)
        assert_type(node.connections(), list[antiphon.ConnectionInfo])
        assert_type(node.statistics(), antiphon.NodeStatistics)
    Node("1")  # E
    Node(1, listen=5)  # E
    Node(1, secret=antiphon.INSECURE)
    antiphon.NodeConfig(ring_byte=5)  # E

"""What a type checker knows about sending. Checked, never run; marks as in receiving.py."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import assert_type

from antiphon import Future, Message, Node, SendTimeout


class Ping(Message, kind=62011):
    seq: int


def generate() -> Iterator[bytes]:
    raise NotImplementedError


def generate_typed() -> Iterator[Ping]:
    raise NotImplementedError


def one(node: Node) -> None:
    node.send(2, b"raw", kind=200)
    node.send(2, bytearray(b"raw"), kind=200)
    node.send(2, memoryview(b"raw"), kind=200)
    node.send(2, array("i", [1, 2]), kind=200)
    node.send(2, Ping(1))

    node.send(2, b"raw")  # E
    node.send(2)  # E
    node.send("2", b"raw", kind=200)  # E
    node.send(2, b"raw", kind="200")  # E
    node.send(2, b"raw", 200)  # E
    node.send(2, b"raw", kind=200, timeout=1)  # E
    node.send(2, "text", kind=200)  # E
    node.send(2, 5, kind=200)  # E


def several(node: Node) -> None:
    node.send([2, 3], Ping(1))
    node.send((2, 3), b"raw", kind=200)
    node.send({2, 3}, b"raw", kind=200)
    node.send(["2"], b"raw", kind=200)  # E


def later(node: Node) -> None:
    assert_type(node.send_async(2, b"raw", kind=200), Future[None])
    assert_type(node.send_async([2, 3], Ping(1)), Future[None])
    node.send_async({2, 3}, b"raw", kind=200)
    node.send_async([2, 3], b"raw")  # E
    node.send_async(["2"], b"raw", kind=200)  # E


def attempts(node: Node) -> None:
    assert_type(node.try_send(2, b"raw", kind=200), bool)
    assert_type(node.try_send(2, Ping(1)), bool)
    node.try_send([2, 3], Ping(1))  # E
    node.try_send(2, b"raw")  # E


def many(node: Node) -> None:
    node.send_many(2, [b"a", b"b"], kind=200)
    node.send_many(2, generate(), kind=200)
    node.send_many(2, [Ping(1), Ping(2)])
    node.send_many(2, generate_typed())
    node.send_many(2, [b"a"])  # E
    node.send_many(2, ["a"], kind=200)  # E
    node.send_many([2], [b"a"], kind=200)  # E


def packed(node: Node) -> None:
    node.send_packed(2, b"ab", array("i", [0, 1, 2]), kind=200)
    node.send_packed(2, b"ab", array("i", [0, 1, 2]))  # E
    node.send_packed(2, b"ab", kind=200)  # E


def waiting(node: Node) -> None:
    node.flush()
    node.flush(timeout=None)
    node.flush(1.5)
    node.close(drain=0)
    node.wait()
    node.flush("1")  # E


def facts(error: SendTimeout) -> None:
    assert_type(error.peer, int | None)
    assert_type(error.kind, int | None)
    assert_type(error.waited, float)
    assert_type(error.sent, int)

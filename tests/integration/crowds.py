"""A hub, the crowd that it may not stay connected with, and the books of what passes between them.

Whatever is sent is booked on both sides, and the books must balance: every message, in order, every
answer to its own question, no connection counted as lost.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from antiphon import Node, NodeConfig
from antiphon.testing import Collected, eventually
from integration.asking import echo
from unit.node.pairs import KIND, OTHER, THIRD, pattern

HUB = 1
FIRST = 10
LARGE = 3_000_000


def limited(limit: int | None, **settings: Any) -> NodeConfig:
    return NodeConfig(max_connections=limit, heartbeat=0.5, **settings)


def connected(node: Node) -> set[int]:
    return {info.id for info in node.connections() if info.sending or info.receiving}


def comes_to(node: Node, limit: int) -> None:
    eventually(lambda: len(connected(node)) <= limit, 10, f"at most {limit} connections")


def dismissals(*nodes: Node) -> int:
    return sum(node.statistics().dismissed_connections for node in nodes)


def losses(*nodes: Node) -> int:
    return sum(info.losses for node in nodes for info in node.connections())


def slow_echo(source: int, data: bytes) -> bytes:
    time.sleep(0.02)
    return data


def brief(data: bytes) -> tuple[int, bytes, int]:
    """Enough of a message to tell it from any other."""
    return len(data), data[:16], hash(data)


class Books:
    """What was sent and what came, by sender and receiver, and why connections ended."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int], list[tuple[int, bytes, int]]] = defaultdict(list)
        self.came: dict[tuple[int, int], list[tuple[int, bytes, int]]] = defaultdict(list)
        self.ended: Collected[tuple[int, int, str]] = Collected()
        self._numbers = itertools.count()

    def watch(self, node: Node) -> None:
        node.on(KIND, lambda source, data: self.came[source, node.id].append(brief(data)))
        node.on(OTHER, echo, ordered=False)
        node.on(THIRD, slow_echo, ordered=False)
        node.on_disconnected(lambda peer, reason: self.ended.add((node.id, peer, reason)))

    def message(self, node: Node, target: int, size: int = 16) -> bytes:
        """One that is about to be sent. Of one thread for each pair of nodes."""
        number = next(self._numbers)
        data = struct.pack("<Q", number) + pattern(max(0, size - 8), number % 1000)
        self.sent[node.id, target].append(brief(data))
        return data

    def send(self, node: Node, target: int, size: int = 16) -> None:
        node.send(target, self.message(node, target, size), kind=KIND)

    def balance(self, timeout: float = 20.0) -> None:
        """Everything has come, in order, and nothing twice."""
        wanted = {way: len(sent) for way, sent in self.sent.items()}
        with contextlib.suppress(AssertionError):
            eventually(lambda: all(len(self.came[way]) >= wanted[way] for way in wanted), timeout)
        for way, sent in self.sent.items():
            came = self.came[way]
            assert (way, len(came)) == (way, len(sent))
            assert came == sent, f"{way}: out of order"

    def only_dismissals(self) -> None:
        other = [end for end in self.ended.items if not end[2].startswith("dismissed")]
        assert not other


Crowd = tuple[Node, list[Node], Books]


@contextlib.contextmanager
def crowd(
    count: int,
    limit: int | None,
    theirs: int | None = None,
    listen: Callable[[], str] = lambda: "tcp://127.0.0.1:0",
    options: Callable[[int], dict[str, Any]] = lambda node: {},
) -> Iterator[Crowd]:
    """A hub of this limit and ``count`` others, each of which knows the hub, and it them."""
    with contextlib.ExitStack() as stack:

        def make(id: int, most: int | None) -> Node:
            node = Node(id, listen=listen(), config=limited(most), **options(id))
            books.watch(node)
            return stack.enter_context(node)

        books = Books()
        hub = make(HUB, limit)
        others = [make(FIRST + each, theirs) for each in range(count)]
        for other in others:
            hub.add_peer(other.id, other.address)
            other.add_peer(HUB, hub.address)
        yield hub, others, books


def undisturbed(hub: Node, others: list[Node], books: Books) -> None:
    """Everything has arrived, and only dismissals were seen."""
    books.balance()
    books.only_dismissals()
    assert losses(hub, *others) == 0
    for node in (hub, *others):
        assert not any(node.statistics().drops.values())
        assert node.statistics().lost_answers == 0


# --- every way to send ----------------------------------------------------------------------------


def by_send(node: Node, target: int, books: Books) -> None:
    for size in (16, 100, 5000):
        books.send(node, target, size)


def by_many(node: Node, target: int, books: Books) -> None:
    node.send_many(target, [books.message(node, target) for _ in range(3000)], kind=KIND)


def by_packed(node: Node, target: int, books: Books) -> None:
    messages = [books.message(node, target) for _ in range(3000)]
    offsets = array("i", itertools.accumulate(map(len, messages), initial=0))
    node.send_packed(target, b"".join(messages), offsets, kind=KIND)


def by_large(node: Node, target: int, books: Books) -> None:
    books.send(node, target, LARGE)
    books.send(node, target)


def by_try(node: Node, target: int, books: Books) -> None:
    """It may be unlucky for long: others want connections too. Then it waits for its own."""
    data = books.message(node, target)
    for _ in range(50):
        if node.try_send(target, data, kind=KIND):
            return
        time.sleep(0.001)
    node.send(target, data, kind=KIND)


def by_async(node: Node, target: int, books: Books) -> None:
    futures = [node.send_async(target, books.message(node, target), kind=KIND) for _ in range(20)]
    for future in futures:
        future.result(20)


def by_request(node: Node, target: int, books: Books) -> None:
    for size in (8, 1000):
        data = os.urandom(size)
        assert node.request(target, data, kind=OTHER) == data


def by_slow_request(node: Node, target: int, books: Books) -> None:
    data = os.urandom(8)
    assert node.request(target, data, kind=THIRD) == data


def by_large_request(node: Node, target: int, books: Books) -> None:
    data = os.urandom(8) + bytes(LARGE)
    assert node.request(target, data, kind=OTHER) == data


def by_flush(node: Node, target: int, books: Books) -> None:
    for _ in range(5):
        books.send(node, target)
    node.flush(20)
    sent = books.sent[node.id, target]
    assert len(books.came[node.id, target]) == len(sent), "flush returned too soon"


WAYS = {
    "send": (by_send, 15),
    "send_many": (by_many, 4),
    "send_packed": (by_packed, 4),
    "large": (by_large, 2),
    "try_send": (by_try, 8),
    "send_async": (by_async, 8),
    "request": (by_request, 10),
    "slow request": (by_slow_request, 4),
    "large request": (by_large_request, 2),
    "flush": (by_flush, 5),
}

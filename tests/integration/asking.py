"""Questions that tests ask, and handlers that answer them when a test lets them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from antiphon import (
    Node,
    NodeConfig,
)
from antiphon.testing import Collected
from unit.node.pairs import (
    KIND,
    THERE,
    Running,
    nodes,
)

SOON = 10.0
"""Seconds in which something must have happened that happens at once on a quiet machine.

Whatever would happen without it must take much longer: the time for a request, for example."""


def echo(source: int, data: bytes) -> bytes:
    return data


def ask(node: Node, call: str, data: bytes, timeout: float | None = None) -> bytes:
    """The answer of THERE to a question of KIND, by either of the two calls."""
    if call == "request":
        return node.request(THERE, data, kind=KIND, timeout=timeout)
    return node.request_async(THERE, data, kind=KIND, timeout=timeout).result()


class Slow:
    """A handler that answers with what it was asked, each when the test lets it."""

    def __init__(self) -> None:
        self.asked: Collected[bytes] = Collected()
        self._may = threading.Semaphore(0)
        self._open = False

    def __call__(self, source: int, data: bytes) -> bytes:
        self.asked.add(data)
        if not self._open:
            self._may.acquire(timeout=60)
        return data

    def let(self, count: int = 1) -> None:
        self._may.release(count)

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open = True
        self.let(1000)


@contextlib.contextmanager
def slow_there(
    config: NodeConfig | None = None, **options: Any
) -> Iterator[tuple[Node, Node, Slow]]:
    """``here``, which asks, ``there``, and the handler of KIND at ``there``."""
    with nodes(config) as (here, there), Slow() as slow:
        there.on(KIND, slow, **options)
        yield here, there, slow


def asleep(waiting: list[Running[Any]]) -> None:
    """A moment for threads to get from their start into the wait that the test is about."""
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        assert not any(one.done for one in waiting)
        time.sleep(0.01)

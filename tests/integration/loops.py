"""Event loops to run tests on, pairs of nodes on them, and handlers that are coroutines.

Every test that takes the ``run`` fixture (conftest.py) runs on asyncio's own loop and on uvloop.
Both nodes of a pair live on the loop under test unless a test says otherwise, so a call that stops
the loop stops the answer that it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import uvloop

from antiphon import Node, NodeConfig
from unit.node.pairs import HERE, NORMAL, THERE, Gate

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which a test's coroutine is ended: a hang fails here, with a traceback."""

LARGE = 3_000_000
"""Bytes of a message that travels in fragments."""

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Run(Protocol):
    """``run(main)``: ``main()`` on a new loop; a failure if anything ended unseen there."""

    def __call__(self, main: Callable[[], Coroutine[Any, Any, T]], debug: bool = ...) -> T: ...


def run_on(
    factory: Callable[[], asyncio.AbstractEventLoop],
    main: Callable[[], Coroutine[Any, Any, T]],
    debug: bool = False,
) -> T:
    unseen: list[dict[str, Any]] = []

    async def patient() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: unseen.append(what))
        async with asyncio.timeout(PATIENCE):
            return await main()

    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        result = runner.run(patient())
    assert unseen == []
    return result


@contextlib.asynccontextmanager
async def pair(config: NodeConfig = NORMAL) -> AsyncIterator[tuple[Node, Node]]:
    """``async with pair() as (here, there)``: both started on this loop."""
    async with Node(HERE, config=config) as here, Node(THERE, config=config) as there:
        here.add_peer(THERE, there.address)
        there.add_peer(HERE, here.address)
        yield here, there


async def soon(condition: Callable[[], T], what: str = "", timeout: float = 10.0) -> T:
    """`eventually` for a coroutine."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what or inspect.getsource(condition)}")
        await asyncio.sleep(0.002)
    return value


async def settle(turns: int = 20) -> None:
    """Lets everything that is ready on the loop have its turn."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def never_within(condition: Callable[[], object], seconds: float = 0.1) -> bool:
    """Whether ``condition`` stays false for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return False
        await asyncio.sleep(0.002)
    return True


class Gated:
    """A handler whose coroutines end when they are let go, one by one or all at once."""

    def __init__(self, answer: Callable[[Any], Any] = lambda data: data) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.cancelled: list[Any] = []
        self.inside = self.most = 0
        self._answer = answer
        self._open = False
        self._gates: dict[Any, asyncio.Event] = {}

    async def handle(self, source: int, data: Any) -> Any:
        self.begun.append(data)
        self.inside += 1
        self.most = max(self.most, self.inside)
        gate = self._gates.setdefault(data, asyncio.Event())
        if self._open:
            gate.set()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(data)
            raise
        finally:
            self.inside -= 1
        self.ended.append(data)
        return self._answer(data)

    def let_go(self, data: Any) -> None:
        self._gates.setdefault(data, asyncio.Event()).set()

    def open(self) -> None:
        self._open = True
        for gate in self._gates.values():
            gate.set()


def task(awaitable: Awaitable[T]) -> asyncio.Task[T]:
    async def wait() -> T:
        return await awaitable

    return asyncio.get_running_loop().create_task(wait())


def answering(gate: Gate) -> Callable[[int, bytes], bytes]:
    """A plain handler that answers once the gate is open."""

    def handler(source: int, data: bytes) -> bytes:
        gate(source, data)
        return data

    return handler


async def echo(source: int, data: Any) -> Any:
    return data

"""Two nodes that know each other, and ways to watch what goes on between them.

Everything here goes through the public interface. ``HERE`` sends and ``THERE`` receives unless a
test says otherwise; a connection opens with the first message, so what is registered before that
is announced with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import pytest

from antiphon import ConnectionInfo, Message, Node, NodeConfig, PeerUnreachable, SendTimeout
from antiphon.node.statistics import KindStatistics

HERE = 1
THERE = 2
KIND = 200
OTHER = 201
THIRD = 202

NORMAL = NodeConfig(send_timeout=10.0, request_timeout=30.0)
"""The defaults, but for the patience: a send that hangs is found sooner, and a request that fails
has not merely run out of time."""

SILENT = dataclasses.replace(NORMAL, heartbeat=30.0)
"""Without signs of life for a while: what is read next is what was sent next."""

SMALL = NodeConfig(
    ring_bytes=64 << 10, flow_window_bytes=16 << 10, send_timeout=10.0, request_timeout=30.0
)
"""The smallest rings and windows that are allowed: every limit is near."""

T = TypeVar("T")


class Ping(Message, kind=61001):
    seq: int
    body: bytes = b""


class Pong(Message, kind=61002):
    text: str


@contextlib.contextmanager
def nodes(config: NodeConfig | None = None, there: NodeConfig | None = None) -> Iterator[Any]:
    """``with nodes() as (here, there)``: both started. ``config`` is for both, unless two."""
    config = config or NORMAL
    with Node(HERE, config=config) as first, Node(THERE, config=there or config) as second:
        first.add_peer(THERE, second.address)
        second.add_peer(HERE, first.address)
        yield first, second


@contextlib.contextmanager
def extra_nodes(count: int, *targets: Node) -> Iterator[list[Node]]:
    """More senders, with ids from 10 on, that know the targets."""
    peers = {target.id: target.address for target in targets}
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Node(10 + i, peers=peers, config=NORMAL)) for i in range(count)]


def eventually(condition: Callable[[], T], what: str = "", timeout: float = 10.0) -> T:
    """The condition's value as soon as it is true; a failure if that takes too long."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what or condition}")
        time.sleep(0.002)


def to(node: Node, peer: int = THERE) -> ConnectionInfo:
    """The connection of ``node`` to ``peer``."""
    return next(info for info in node.connections() if info.id == peer)


def kind_of(node: Node, kind: int = KIND) -> KindStatistics:
    """What ``node`` counts about its own registration of ``kind``."""
    return next(entry for entry in node.statistics().kinds if entry.kind == kind)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def pattern(size: int, seed: int = 1) -> bytes:
    """Bytes in which every shift, cut or swap shows."""
    block = b"".join(
        (seed * 1_000_003 + i).to_bytes(8, "little") for i in range(min(size, 1 << 16) // 8 + 1)
    )
    if size <= len(block):
        return block[:size]
    parts = (i.to_bytes(8, "big") + block for i in itertools.count(seed))
    made = bytearray()
    while len(made) < size:
        made += next(parts)
    return bytes(made[:size])


class Heard:
    """A handler that keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Any]] = []

    def __call__(self, source: int, data: Any) -> None:
        self.calls.append((source, data))

    @property
    def data(self) -> list[Any]:
        return [data for _, data in self.calls]

    def wait(self, count: int, timeout: float = 10.0) -> list[Any]:
        eventually(lambda: len(self.calls) >= count, f"{count} calls", timeout)
        return self.data


def fail(source: int, data: Any) -> None:
    """A handler that raises."""
    raise ValueError("on purpose")


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What handlers raised, as the library has logged it."""
    return [one for one in caplog.records if one.name.startswith("antiphon.") and one.exc_info]


class Gate:
    """A handler that holds every call until it is opened: a stalled receiver on demand."""

    def __init__(self) -> None:
        self.data: list[Any] = []
        self.entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, source: int, data: Any) -> None:
        self.data.append(data)
        self.entered.set()
        self._opened.wait(30)

    def open(self) -> None:
        self._opened.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.open()


class Running(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout: float = 10.0) -> T:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise AssertionError(f"still running after {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def error(self, timeout: float = 10.0) -> BaseException:
        """The exception that ended it; a failure if none did."""
        try:
            self.result(timeout)
        except AssertionError:
            raise
        except BaseException as error:
            return error
        raise AssertionError("it returned and raised nothing")


def all_results(running: Iterable[Running[T]], timeout: float = 20.0) -> list[T]:
    return [one.result(timeout) for one in running]


def fill(here: Node, kind: int = KIND, data: bytes = b"x", target: int = THERE) -> int:
    """How many messages ``try_send`` places before it says no."""
    sent = 0
    while here.try_send(target, data, kind=kind):
        sent += 1
    return sent


def place(node: Node, data: Any, kind: int | None = KIND, target: int = THERE) -> None:
    """Sends with a node of little patience: again and again, while the machine is too slow for it.

    What has timed out was not sent, so it arrives once. Nor was it where there was no connection in
    that time, which is said in another way.
    """

    def placed() -> bool:
        with contextlib.suppress(SendTimeout, PeerUnreachable):
            node.send(target, data, kind=kind)
            return True
        return False

    eventually(placed)


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def free_address() -> str:
    """One at which nobody listens, so that somebody may come there, go and come again.

    Not of those that the system hands out, if there are others: between two of its lives somebody
    else may be given that one.
    """
    handed_out = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    others = range(10_000, int(handed_out[0]))
    for port in (*random.SystemRandom().sample(others, min(len(others), 100)), 0):
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", port)) as probe,
        ):
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    raise AssertionError("no port is free")


def python(script: str, *arguments: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, warnings as errors."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextlib.contextmanager
def python_running(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The same, while the test goes on; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        process.wait()


def stop(pid: int) -> None:
    """Stops a child of ours, and returns when it stands still: a signal takes a while to arrive."""
    os.kill(pid, signal.SIGSTOP)
    # Looked at, not reaped. One that has ended instead is told apart, not waited for.
    state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert state is not None
    assert state.si_code == os.CLD_STOPPED, f"process {pid} has ended"


def go_on(pid: int) -> None:
    """Lets a stopped child of ours run again."""
    os.kill(pid, signal.SIGCONT)

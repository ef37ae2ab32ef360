"""What every worker process of a point shares: its threads, its orders and how it ends.

Orders come as JSON lines on standard input and each is answered by one line; standard output is
kept for that, so whatever a library prints goes to standard error. When the input ends, or the
process that started it dies, the worker and everything it started end too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from antiphon.lab.bench.machine import process_cpu, resident_bytes
from antiphon.lab.peers.base import LOOPBACK, payload_of

__all__ = ["Orders", "WorkingThread", "carry_out", "stamped"]

PR_SET_PDEATHSIG = 1
# Source, thread and sequence of a checked message, before the pattern.
STAMP_BYTES = 16


def stamped(source: int, thread: int, sequence: int, size: int) -> bytes:
    """A message that says where it comes from and which one it is."""
    stamp = (
        source.to_bytes(4, "little") + thread.to_bytes(4, "little") + sequence.to_bytes(8, "little")
    )
    return (stamp + payload_of(max(0, size - STAMP_BYTES)))[: max(size, STAMP_BYTES)]


class WorkingThread(ABC):
    """A thread that makes what it needs, works until told to stop, then waits to close.

    All three happen on the thread itself: sockets and event loops of many systems may not change
    threads.
    """

    def __init__(self, name: str) -> None:
        self.fault = ""
        self.ready = threading.Event()
        self.finished = threading.Event()
        self._stop = threading.Event()
        self._close = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _open(self) -> None:
        """Make what the work needs."""

    @abstractmethod
    def _work(self) -> None:
        """Work until ``_stop`` is set."""

    @abstractmethod
    def _end(self) -> None:
        """Release what ``_open`` made."""

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        opened = False
        try:
            self._open()
            opened = True
            self.ready.set()
            self._work()
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"
        self.ready.set()
        self.finished.set()
        # Some systems drop what is still on its way when a sender closes.
        self._close.wait()
        if opened:
            with contextlib.suppress(Exception):
                self._end()

    def stop(self) -> None:
        self._stop.set()

    def close(self, timeout: float) -> None:
        self._stop.set()
        self._close.set()
        self._thread.join(timeout)


class Connectable(Protocol):
    """What the endpoints of all kinds have in common."""

    def connect(self, addresses: Mapping[int, str]) -> None: ...
    def close(self) -> None: ...


class Orders:
    """Carries out the orders. One method per order, named ``do_`` and the order."""

    def __init__(self) -> None:
        self._threads: Sequence[WorkingThread] = ()
        self._children: list[int] = []
        self._end_server: Callable[[], None] = lambda: None

    def handle(self, order: dict[str, Any]) -> dict[str, Any]:
        name = order.pop("order")
        method: Callable[..., dict[str, Any]] = getattr(self, f"do_{name}")
        return method(**order)

    def _parts(self) -> list[Connectable]:
        """The endpoint, in a list; empty before ``open``."""
        raise NotImplementedError

    def _fault(self) -> str:
        """What broke behind the caller's back, or the empty string."""
        return ""

    def do_connect(self, addresses: dict[str, str]) -> dict[str, Any]:
        for part in self._parts():
            part.connect({int(index): address for index, address in addresses.items()})
        return {}

    def _serve(self, factory: Any, host: str = LOOPBACK) -> dict[str, Any]:
        address, self._children, self._end_server = factory.serve(host)
        return {"address": address}

    def _start(self, threads: Sequence[WorkingThread]) -> dict[str, Any]:
        """Start them, beside those that run already."""
        self._threads = (*self._threads, *threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            if not thread.ready.wait(20.0):
                return {"error": "a thread was not ready within 20 s"}
        return self._faults()

    def _usage(self) -> dict[str, Any]:
        return {
            "cpu": own_cpu() + sum(process_cpu(pid) for pid in self._children),
            "resident": resident_bytes(os.getpid()),
            **self._faults(),
        }

    def do_stop(self, limit: float, finish: bool = False) -> dict[str, Any]:
        """``finish`` lets a given amount of work be done to the last."""
        if not finish:
            for thread in self._threads:
                thread.stop()
        deadline = time.monotonic() + limit
        blocked = 0
        for thread in self._threads:
            if not thread.finished.wait(max(0.0, deadline - time.monotonic())):
                blocked += 1
        return {"blocked": blocked, **self._faults()}

    def do_close(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.close(timeout=5.0)
        for part in self._parts():
            part.close()
        self._end_server()
        return {}

    def _faults(self) -> dict[str, Any]:
        faults = [thread.fault for thread in self._threads if thread.fault]
        if fault := self._fault():
            faults.append(fault)
        return {"error": faults[0]} if faults else {}


def own_cpu() -> float:
    """CPU seconds of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def carry_out(worker: Orders) -> None:
    """Read orders until ``close`` or the end of the input. Ends the process."""
    # The kernel ends this process with its parent, however that dies.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C belongs to the parent, which ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            order = json.loads(line)
            closing = order["order"] == "close"
            try:
                answer = worker.handle(order)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            if closing:
                os._exit(0)
    # No order to close: the parent is gone. What this process started goes with it, unless the
    # group is somebody else's, as when the module was started by hand.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)

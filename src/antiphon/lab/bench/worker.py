"""One process of a point: an endpoint, its sending threads, and a line of JSON for every order.

Run as ``python -m antiphon.lab.bench.worker``. Orders come as JSON lines on standard input and each
is answered by one line; standard output is kept for that, so whatever a library prints goes to
standard error. When the input ends, or the process that started it dies, the worker and everything
it started end too.

====================  ===========================================================================
``open``              make the endpoint; a receiver answers with its address
``serve``             start the system's server instead; answers with its address
``connect``           learn the addresses of the others
``start``             start the sending threads
``send``              send a number of checked messages per thread, then stop (for tests)
``sample``            time, messages received, CPU used, resident memory
``transfer``          a bare stream: bytes and seconds
``stop``              stop sending; answers with the number sent
``close``             close everything and exit
====================  ===========================================================================
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
from collections.abc import Callable
from typing import Any

from antiphon.lab.bench.machine import process_cpu, resident_bytes
from antiphon.lab.peers import load
from antiphon.lab.peers.base import Endpoint, EndpointConfig, Sender, StreamEndpoint, payload_of

__all__ = ["Checker", "SendingThread", "Worker", "main"]

PR_SET_PDEATHSIG = 1
# Source, thread and sequence of a checked message, before the pattern.
STAMP_BYTES = 16


def stamped(source: int, thread: int, sequence: int, size: int) -> bytes:
    """A message that says where it comes from and which one it is."""
    stamp = (
        source.to_bytes(4, "little") + thread.to_bytes(4, "little") + sequence.to_bytes(8, "little")
    )
    return (stamp + payload_of(max(0, size - STAMP_BYTES)))[: max(size, STAMP_BYTES)]


class Checker:
    """Verifies every byte and each sending thread's order. Called by one thread at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._next: dict[tuple[int, int], int] = {}
        self.messages = 0
        self.problems: list[str] = []

    def __call__(self, data: bytes) -> None:
        self.messages += 1
        source = int.from_bytes(data[0:4], "little")
        thread = int.from_bytes(data[4:8], "little")
        sequence = int.from_bytes(data[8:16], "little")
        expected = self._next.get((source, thread), 0)
        self._next[source, thread] = sequence + 1
        if bytes(data) != stamped(source, thread, sequence, self._size):
            self._report(f"message {self.messages}, of {len(data)} bytes, is not what was sent")
        elif sequence != expected:
            self._report(f"{source}.{thread} sent {expected} next, but {sequence} came")

    def _report(self, problem: str) -> None:
        if len(self.problems) < 10:
            self.problems.append(problem)


class SendingThread:
    """A thread with a sender of its own: bursts until told to stop, then waits to close."""

    def __init__(self, endpoint: Endpoint, number: int, messages: int | None) -> None:
        self.sent = 0
        self.fault = ""
        self._endpoint = endpoint
        self._number = number
        self._messages = messages
        self._stop = threading.Event()
        self._close = threading.Event()
        self.ready = threading.Event()
        self.finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"send-{number}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sender: Sender | None = None
        try:
            sender = self._endpoint.sender()
            self.ready.set()
            if self._messages is None:
                self._send_bursts(sender)
            else:
                self._send_checked(sender, self._messages)
            sender.flush(timeout=10.0)
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"
        self.ready.set()
        self.finished.set()
        # Some systems drop what is still on its way when a sender closes.
        self._close.wait()
        if sender is not None:
            with contextlib.suppress(Exception):
                sender.close()

    def _send_bursts(self, sender: Sender) -> None:
        stopped = self._stop.is_set
        burst = sender.burst
        while not stopped():
            self.sent += burst()

    def _send_checked(self, sender: Sender, messages: int) -> None:
        config = self._endpoint.config
        # Every stream of numbers belongs to one pair: a receiver expects 0, 1, 2 and so on.
        for sequence in range(messages):
            data = stamped(config.index, self._number, sequence, config.size)
            for target in config.targets:
                sender.send(target, data)
                self.sent += 1
            if self._stop.is_set():
                break

    def stop(self) -> None:
        self._stop.set()

    def close(self, timeout: float) -> None:
        self._stop.set()
        self._close.set()
        self._thread.join(timeout)


class Worker:
    """Carries out the orders. One method per order, named after it."""

    def __init__(self) -> None:
        self._endpoint: Endpoint | None = None
        self._stream: StreamEndpoint | None = None
        self._threads: list[SendingThread] = []
        self._checker: Checker | None = None
        self._children: list[int] = []
        self._end_server: Callable[[], None] = lambda: None

    def handle(self, order: dict[str, Any]) -> dict[str, Any]:
        name = order.pop("order")
        method: Callable[..., dict[str, Any]] = getattr(self, f"do_{name}")
        return method(**order)

    def do_open(self, system: str, config: dict[str, Any], check: bool = False) -> dict[str, Any]:
        settings = EndpointConfig(**{**config, "targets": tuple(config.get("targets", ()))})
        if check:
            self._checker = Checker(settings.size)
        factory = load(system)
        endpoint = factory(settings, self._checker) if check else factory(settings)
        if isinstance(endpoint, StreamEndpoint):
            self._stream = endpoint
        else:
            self._endpoint = endpoint
        return {"address": endpoint.listen() if settings.receives else ""}

    def do_serve(self, system: str) -> dict[str, Any]:
        factory: Any = load(system)
        address, self._children, self._end_server = factory.serve()
        return {"address": address}

    def do_connect(self, addresses: dict[str, str]) -> dict[str, Any]:
        endpoint = self._stream or self._endpoint
        assert endpoint is not None
        endpoint.connect({int(index): address for index, address in addresses.items()})
        return {}

    def do_start(self, threads: int) -> dict[str, Any]:
        return self._start(threads, None)

    def do_send(self, threads: int, messages: int) -> dict[str, Any]:
        return self._start(threads, messages)

    def _start(self, threads: int, messages: int | None) -> dict[str, Any]:
        assert self._endpoint is not None
        self._threads = [SendingThread(self._endpoint, i, messages) for i in range(threads)]
        for thread in self._threads:
            if not thread.ready.wait(20.0):
                return {"error": "a sender was not ready within 20 s"}
        return self._faults()

    def do_sample(self) -> dict[str, Any]:
        messages = wrong = 0
        # The clock and the count have to belong together: again if another thread ran in between.
        for _ in range(5):
            before = time.monotonic_ns()
            if self._endpoint is not None:
                receipts = self._endpoint.received()
                messages, wrong = receipts.messages, receipts.wrong
            now = time.monotonic_ns()
            if now - before < 500_000:
                break
        return {
            "time_ns": now,
            "messages": messages,
            "wrong": wrong,
            "problems": self._checker.problems if self._checker else [],
            "sent": sum(thread.sent for thread in self._threads),
            "cpu": own_cpu() + sum(process_cpu(pid) for pid in self._children),
            "resident": resident_bytes(os.getpid()),
            **self._faults(),
        }

    def do_transfer(self, seconds: float) -> dict[str, Any]:
        assert self._stream is not None
        count, elapsed = self._stream.transfer(seconds)
        return {"bytes": count, "seconds": elapsed}

    def do_stop(self, limit: float, finish: bool = False) -> dict[str, Any]:
        """``finish`` lets a given number of messages be sent to the last."""
        if not finish:
            for thread in self._threads:
                thread.stop()
        deadline = time.monotonic() + limit
        blocked = 0
        for thread in self._threads:
            if not thread.finished.wait(max(0.0, deadline - time.monotonic())):
                blocked += 1
        sent = sum(thread.sent for thread in self._threads)
        return {"sent": sent, "blocked": blocked, **self._faults()}

    def do_close(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.close(timeout=5.0)
        if self._endpoint is not None:
            self._endpoint.close()
        if self._stream is not None:
            self._stream.close()
        self._end_server()
        return {}

    def _faults(self) -> dict[str, Any]:
        faults = [thread.fault for thread in self._threads if thread.fault]
        if self._endpoint is not None and self._endpoint.fault():
            faults.append(self._endpoint.fault())
        return {"error": faults[0]} if faults else {}


def own_cpu() -> float:
    """CPU seconds of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Read orders until ``close`` or the end of the input."""
    # The kernel ends this process with its parent, however that dies.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C belongs to the parent, which ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker()
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


if __name__ == "__main__":
    main()

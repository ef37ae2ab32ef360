"""One process of a point of messages: an endpoint and its sending threads.

Run as ``python -m antiphon.lab.bench.worker``; ``orders`` says how it is spoken to.

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

import time
from typing import Any

from antiphon.lab.bench.orders import Connectable, Orders, WorkingThread, carry_out, stamped
from antiphon.lab.peers import load
from antiphon.lab.peers.base import Endpoint, EndpointConfig, Sender, StreamEndpoint

__all__ = ["Checker", "SendingThread", "Worker"]


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


class SendingThread(WorkingThread):
    """A thread with a sender of its own: bursts until told to stop, or a number of messages."""

    def __init__(self, endpoint: Endpoint, number: int, messages: int | None) -> None:
        super().__init__(f"send-{number}")
        self.sent = 0
        self._endpoint = endpoint
        self._number = number
        self._messages = messages
        self._sender: Sender

    def _open(self) -> None:
        self._sender = self._endpoint.sender()

    def _work(self) -> None:
        if self._messages is None:
            self._send_bursts()
        else:
            self._send_checked(self._messages)
        self._sender.flush(timeout=10.0)

    def _end(self) -> None:
        self._sender.close()

    def _send_bursts(self) -> None:
        stopped = self._stop.is_set
        burst = self._sender.burst
        while not stopped():
            self.sent += burst()

    def _send_checked(self, messages: int) -> None:
        config = self._endpoint.config
        # Every stream of numbers belongs to one pair: a receiver expects 0, 1, 2 and so on.
        for sequence in range(messages):
            data = stamped(config.index, self._number, sequence, config.size)
            for target in config.targets:
                self._sender.send(target, data)
                self.sent += 1
            if self._stop.is_set():
                break


class Worker(Orders):
    """Carries out the orders of a point of messages."""

    def __init__(self) -> None:
        super().__init__()
        self._endpoint: Endpoint | None = None
        self._stream: StreamEndpoint | None = None
        self._senders: list[SendingThread] = []
        self._checker: Checker | None = None

    def _parts(self) -> list[Connectable]:
        return [part for part in (self._endpoint, self._stream) if part is not None]

    def _fault(self) -> str:
        return self._endpoint.fault() if self._endpoint is not None else ""

    def do_open(self, system: str, config: dict[str, Any], check: bool = False) -> dict[str, Any]:
        settings = EndpointConfig.from_facts(config)
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
        return self._serve(load(system))

    def do_start(self, threads: int) -> dict[str, Any]:
        return self._send(threads, None)

    def do_send(self, threads: int, messages: int) -> dict[str, Any]:
        return self._send(threads, messages)

    def _send(self, threads: int, messages: int | None) -> dict[str, Any]:
        assert self._endpoint is not None
        self._senders = [SendingThread(self._endpoint, i, messages) for i in range(threads)]
        return self._start(self._senders)

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
            "sent": self._sent(),
            **self._usage(),
        }

    def do_transfer(self, seconds: float) -> dict[str, Any]:
        assert self._stream is not None
        count, elapsed = self._stream.transfer(seconds)
        return {"bytes": count, "seconds": elapsed}

    def do_stop(self, limit: float, finish: bool = False) -> dict[str, Any]:
        stopped = super().do_stop(limit, finish)
        return {"sent": self._sent(), **stopped}

    def _sent(self) -> int:
        return sum(thread.sent for thread in self._senders)


if __name__ == "__main__":
    carry_out(Worker())

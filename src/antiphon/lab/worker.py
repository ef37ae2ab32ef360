"""One process of a run: an endpoint, the threads that send, and the load that competes with them.

Run as ``python -m antiphon.lab.worker``; ``bench.orders`` says how it is spoken to. Beside the
orders of ``bench.worker`` it knows

====================  ===========================================================================
``prepare``           collector settings, scheduling class, cores and a limit of memory
``garbage``           start the competing load on the garbage collector, in this process
``begin``             start the sending threads, paced or not; stamped messages among the others
``times``             what was stamped and has come since the last time
====================  ===========================================================================
"""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from typing import Any

from antiphon.lab.bench.orders import WorkingThread, carry_out
from antiphon.lab.bench.worker import Worker
from antiphon.lab.peers.base import Endpoint, EndpointConfig, Sender, StreamEndpoint
from antiphon.lab.protocols import load_protocol
from antiphon.lab.stamps import Reader, Stamper
from antiphon.lab.workloads.garbage import GarbageLoad

__all__ = ["LabWorker"]

NANOS = 1_000_000_000
STAMP_EVERY = NANOS // 100
# Behind by more than this a timetable begins anew: what was due is not sent any more.
LATEST = NANOS
SCHEDULING = {"other": os.SCHED_OTHER, "fifo": os.SCHED_FIFO, "idle": os.SCHED_IDLE}
FIFO_PRIORITY = 10


class Writer(WorkingThread):
    """Sends as many as go, with a stamped one every hundredth of a second among them."""

    def __init__(self, endpoint: Endpoint, number: int) -> None:
        super().__init__(f"write-{number}")
        self.sent = 0
        self._endpoint = endpoint
        self._targets = endpoint.config.targets
        self._stamp = Stamper(endpoint.config.index, endpoint.config.size)
        self._sender: Sender

    def _open(self) -> None:
        self._sender = self._endpoint.sender()

    def _end(self) -> None:
        self._sender.close()

    def _work(self) -> None:
        stopped, burst, clock = self._stop.is_set, self._sender.burst, time.monotonic_ns
        due = clock()
        while not stopped():
            self.sent += burst()
            now = clock()
            if now < due or not self._stamp.fits:
                continue
            if now - due > LATEST:
                due = now
            self._send(due)
            due += STAMP_EVERY
        self._sender.flush(timeout=5.0)

    def _send(self, due: int) -> None:
        target = self._targets[self._stamp.sequence % len(self._targets)]
        self._sender.send(target, self._stamp(due))
        self.sent += 1


class PacedWriter(Writer):
    """Sends by a timetable, every message with its times."""

    def __init__(self, endpoint: Endpoint, number: int, rate: float) -> None:
        super().__init__(endpoint, number)
        self._gap = NANOS / rate

    def _work(self) -> None:
        stopped, clock = self._stop.is_set, time.monotonic_ns
        begin, number = clock(), 0
        while not stopped():
            due = begin + int(number * self._gap)
            wait = due - clock()
            if wait > 0:
                time.sleep(min(wait, NANOS // 10) / NANOS)
                continue
            if -wait > LATEST:
                begin, number = clock(), 0
                continue
            self._send(due)
            number += 1
        self._sender.flush(timeout=5.0)


class Streaming(WorkingThread):
    """A bare stream, one second after the other, at either end."""

    def __init__(self, stream: StreamEndpoint) -> None:
        super().__init__("stream")
        self.bytes = 0
        self._endpoint = stream

    def _open(self) -> None:
        """Nothing: every transfer makes its own connection."""

    def _work(self) -> None:
        while not self._stop.is_set():
            self.bytes += self._endpoint.transfer(1.0)[0]

    def _end(self) -> None:
        """Nothing is left of a transfer."""


class Collections:
    """Counts the collections of this process, and how long they stopped it."""

    def __init__(self) -> None:
        self.count = 0
        self.pause_ns = 0
        self._begun = 0
        gc.callbacks.append(self._told)

    def _told(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.monotonic_ns()
        else:
            self.count += 1
            self.pause_ns += time.monotonic_ns() - self._begun


class LabWorker(Worker):
    """Carries out the orders of a run."""

    def __init__(self) -> None:
        super().__init__()
        self._reader: Reader | None = None
        self._writers: list[Writer] = []
        self._streaming: Streaming | None = None
        self._garbage: GarbageLoad | None = None
        self._collections = Collections()

    def do_prepare(
        self,
        scheduling: str = "other",
        cores: list[int] | None = None,
        collector: dict[str, Any] | None = None,
        memory_limit: int | None = None,
    ) -> dict[str, Any]:
        settings = collector or {}
        if thresholds := settings.get("thresholds"):
            gc.set_threshold(*thresholds)
        if settings.get("enabled") is False:
            gc.disable()
        if memory_limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
        if cores:
            os.sched_setaffinity(0, cores)
        if scheduling != "other":
            priority = FIFO_PRIORITY if scheduling == "fifo" else 0
            os.sched_setscheduler(0, SCHEDULING[scheduling], os.sched_param(priority))
        return {}

    def do_open(self, system: str, config: dict[str, Any], check: bool = False) -> dict[str, Any]:
        settings = EndpointConfig.from_facts(config)
        factory = load_protocol(system)
        if issubclass(factory, StreamEndpoint):
            self._stream = factory(settings)
            return {"address": self._stream.listen() if settings.receives else ""}
        self._reader = Reader(settings.size) if settings.receives else None
        self._endpoint = factory(settings, self._reader) if self._reader else factory(settings)
        return {"address": self._endpoint.listen() if settings.receives else ""}

    def do_serve(self, system: str) -> dict[str, Any]:
        return self._serve(load_protocol(system))

    def do_garbage(
        self, live_objects: int, replaced_per_second: float, seed: int
    ) -> dict[str, Any]:
        self._garbage = GarbageLoad(live_objects, replaced_per_second, seed)
        self._garbage.start()
        return {}

    def do_begin(self, threads: int = 1, rate: float | None = None) -> dict[str, Any]:
        if self._stream is not None:
            self._streaming = Streaming(self._stream)
            return self._start([self._streaming])
        assert self._endpoint is not None
        endpoint = self._endpoint
        self._writers = [
            Writer(endpoint, number)
            if rate is None
            else PacedWriter(endpoint, number, rate / threads)
            for number in range(threads)
        ]
        return self._start(self._writers)

    def do_times(self, most: int = 20_000) -> dict[str, Any]:
        times = self._reader.take(most) if self._reader else []
        return {"times": times, "left_out": self._reader.left_out if self._reader else 0}

    def do_sample(self) -> dict[str, Any]:
        size = self._endpoint.config.size if self._endpoint else 0
        received = received_bytes = wrong = sent = sent_bytes = 0
        if self._reader is not None:
            received, received_bytes = self._reader.messages, self._reader.bytes
            wrong = self._reader.wrong
        sent = sum(writer.sent for writer in self._writers)
        sent_bytes = sent * size
        if self._streaming is not None and self._stream is not None:
            count = self._streaming.bytes
            messages = count // self._stream.config.size
            if self._stream.config.receives:
                received, received_bytes = messages, count
            else:
                sent, sent_bytes = messages, count
        return {
            "time_ns": time.monotonic_ns(),
            "received": received,
            "received_bytes": received_bytes,
            "sent": sent,
            "sent_bytes": sent_bytes,
            "wrong": wrong,
            "gc_collections": self._collections.count,
            "gc_pause_ns": self._collections.pause_ns,
            "threads": threading.active_count(),
            "topics": self._endpoint.topic_facts() if self._endpoint else [],
            **self._faults(),
        }

    def do_close(self) -> dict[str, Any]:
        closed = super().do_close()
        if self._garbage is not None:
            self._garbage.close()
        return closed


if __name__ == "__main__":
    carry_out(LabWorker())

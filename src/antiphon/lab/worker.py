"""One process of a run: an endpoint, the threads that send, and the load that competes with them.

Run as ``python -m antiphon.lab.worker``; ``bench.orders`` says how it is spoken to. Beside the
orders of ``bench.worker`` it knows

====================  ===========================================================================
``prepare``           collector settings, scheduling class, cores and a limit of memory
``garbage``           start the competing load on the garbage collector, in this process
``begin``             start the sending threads, paced or not; stamped messages among the others.
                      Where requests are measured, those that ask
``times``             what was stamped and has come since the last time, or round trips
``compete``           start a load on processor and memory, on this machine
``competed``          the share of all cores that this load has taken since the last time
``clock``             this machine's clock, and how many cores may be used
``usage``             what this process and its machine have used so far
``machine``           what its machine is
====================  ===========================================================================
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import threading
import time
from array import array
from typing import Any

import psutil

from antiphon.lab.bench.orders import Connectable, carry_out
from antiphon.lab.bench.worker import Worker
from antiphon.lab.callers import Calling, callers_of
from antiphon.lab.peers.base import LOOPBACK, EndpointConfig
from antiphon.lab.peers.requests.base import RequestEndpoint
from antiphon.lab.protocols import REQUEST, load_protocol, open_requests
from antiphon.lab.sampling import machine_usage, process_usage
from antiphon.lab.stamps import Reader, SlowReader, TimedReader, packed
from antiphon.lab.workloads.cpu import CpuLoad
from antiphon.lab.workloads.garbage import GarbageLoad
from antiphon.lab.workloads.memory import MemoryPressure
from antiphon.lab.writers import PacedWriter, Writer, parts_of

__all__ = ["LabWorker"]

SCHEDULING = {"other": os.SCHED_OTHER, "fifo": os.SCHED_FIFO, "idle": os.SCHED_IDLE}
FIFO_PRIORITY = 10


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
        self._requests: RequestEndpoint | None = None
        self._callers: list[Calling] = []
        self._garbage: GarbageLoad | None = None
        self._collections = Collections()
        self._loads = contextlib.ExitStack()
        self._cpu_load: CpuLoad | None = None

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
            try:
                os.sched_setscheduler(0, SCHEDULING[scheduling], os.sched_param(priority))
            except PermissionError:
                return {"error": f"scheduling {scheduling} is not allowed here; run as root"}
        return {}

    def do_open(
        self, system: str, config: dict[str, Any], check: bool = False, adapter: str = ""
    ) -> dict[str, Any]:
        settings = EndpointConfig.from_facts(config)
        if settings.variant == REQUEST:
            self._requests = open_requests(system, settings)
            return {"address": self._requests.listen() if settings.receives else ""}
        factory = load_protocol(system, adapter)
        if settings.receives:
            kind = Reader if settings.messages is None else TimedReader
            size, slow, most = settings.size, settings.slow, settings.timed
            self._reader = SlowReader(size, slow, most) if slow else kind(size, most)
        self._endpoint = factory(settings, self._reader) if self._reader else factory(settings)
        return {"address": self._endpoint.listen() if settings.receives else ""}

    def do_serve(self, system: str, host: str = LOOPBACK) -> dict[str, Any]:
        return self._serve(load_protocol(system), host)

    def do_garbage(
        self, live_objects: int, replaced_per_second: float, seed: int
    ) -> dict[str, Any]:
        self._garbage = GarbageLoad(live_objects, replaced_per_second, seed)
        self._garbage.start()
        return {}

    def do_compete(
        self, cpu: float | None, memory_bytes: int, seed: int, limit: float
    ) -> dict[str, Any]:
        if cpu is not None:
            self._cpu_load = self._loads.enter_context(CpuLoad(cpu, seed=seed, limit=limit))
        if memory_bytes:
            self._loads.enter_context(MemoryPressure(memory_bytes, limit))
        return {}

    def do_competed(self) -> dict[str, Any]:
        return {"cpu_share": self._cpu_load.measured() if self._cpu_load else 0.0}

    def do_clock(self) -> dict[str, Any]:
        return {"time_ns": time.monotonic_ns(), "cores": len(os.sched_getaffinity(0))}

    def do_machine(self) -> dict[str, Any]:
        # For this alone; whoever is measured does without.
        from antiphon.lab.hosts import machine_facts

        return machine_facts()

    def do_usage(self) -> dict[str, Any]:
        return {"process": process_usage(psutil.Process()), "machine": machine_usage()}

    def do_begin(self, threads: int = 1, rate: float | None = None) -> dict[str, Any]:
        if self._requests is not None:
            messages = self._requests.config.messages
            self._callers = callers_of(self._requests, threads, messages)
            return self._start(self._callers)
        assert self._endpoint is not None
        endpoint = self._endpoint
        self._writers = [
            Writer(endpoint, number, part)
            if rate is None
            else PacedWriter(endpoint, number, part, rate=rate / threads)
            for number, part in enumerate(parts_of(endpoint.config.messages, threads))
        ]
        return self._start(self._writers)

    def do_times(self, most: int = 20_000, end: bool = False) -> dict[str, Any]:
        self._catch_up()
        # All callers have the same.
        timed = self._callers[0] if self._callers else self._reader
        return {
            "times": packed(timed.times.take(most, end) if timed else array("q")),
            "left": timed.times.ready if timed else 0,
            "left_out": timed.times.left_out if timed else 0,
            "stage": "round-trip" if self._callers else "delivery",
            "topics": self._topics(),
        }

    def _catch_up(self) -> None:
        if self._endpoint is not None:
            self._endpoint.catch_up()

    def _topics(self) -> dict[int, str]:
        """By sender."""
        if self._endpoint is None:
            return {}
        found = {one: self._endpoint.topic_of(one) for one in self._endpoint.config.sources}
        return {one: topic for one, topic in found.items() if topic is not None}

    def do_sample(self) -> dict[str, Any]:
        # Before the counts: when all is sent they do not change any more.
        done = all(one.finished.is_set() for one in (*self._writers, *self._callers))
        self._catch_up()
        size = self._endpoint.config.size if self._endpoint else 0
        received = received_bytes = wrong = sent = sent_bytes = 0
        if self._reader is not None:
            received, received_bytes = self._reader.messages, self._reader.received_bytes
            wrong = self._reader.wrong
        sent = sum(writer.sent for writer in self._writers)
        sent_bytes = sent * size
        if self._requests is not None:
            sent = received = sum(caller.answered for caller in self._callers)
            sent_bytes = received_bytes = sent * self._requests.config.size
            wrong = sum(caller.wrong for caller in self._callers)
        return {
            "time_ns": time.monotonic_ns(),
            "received": received,
            "received_bytes": received_bytes,
            "sent": sent,
            "sent_bytes": sent_bytes,
            "wrong": wrong,
            "skipped": sum(writer.skipped for writer in self._writers),
            "gc_collections": self._collections.count,
            "gc_pause_ns": self._collections.pause_ns,
            "threads": threading.active_count(),
            "topics": self._endpoint.topic_facts() if self._endpoint else [],
            "depths": self._endpoint.depths() if self._endpoint else {},
            "events": self._endpoint.happenings() if self._endpoint else [],
            "done": done,
            **self._extent(),
            **self._garbage_facts(),
            **self._faults(),
        }

    def _extent(self) -> dict[str, Any]:
        """Where a number is sent, else 0: when that began, when the last message came, and how many
        have acknowledged all that was sent here, the last of them when."""
        active: list[Writer | Calling] = [*self._writers, *self._callers]
        came = [caller.last_ns for caller in self._callers]
        if self._reader is not None:
            came.append(self._reader.last_ns)
        acks, acked = self._endpoint.acknowledged() if self._endpoint is not None else (0, 0)
        return {
            "begun_ns": min((one.begun_ns for one in active if one.begun_ns), default=0),
            "last_ns": max(came, default=0),
            "acks": acks,
            "acked_ns": acked,
        }

    def _garbage_facts(self) -> dict[str, Any]:
        """What the load on the collector has replaced so far, and what it had no time for."""
        facts = self._garbage.facts() if self._garbage is not None else {}
        if fault := facts.get("fault"):
            return {"error": f"the load on the collector has ended: {fault}"}
        return {f"garbage_{name}": facts.get(name, 0) for name in ("replaced", "missed")}

    def _parts(self) -> list[Connectable]:
        return super()._parts() + ([] if self._requests is None else [self._requests])

    def _fault(self) -> str:
        return super()._fault() or (self._requests.fault() if self._requests is not None else "")

    def do_close(self) -> dict[str, Any]:
        closed = super().do_close()
        if self._garbage is not None:
            self._garbage.close()
        self._loads.close()
        return closed


if __name__ == "__main__":
    carry_out(LabWorker())

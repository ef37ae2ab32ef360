"""One process of a point of requests: an endpoint, and its calling threads or tasks.

Run as ``python -m antiphon.lab.bench.call_worker``; ``orders`` says how it is spoken to.

====================  ===========================================================================
``open``              make the endpoint; one that answers says its address
``serve``             start the system's server instead; answers with its address
``connect``           learn the addresses of the others
``start``             start the calling threads, or one event loop with its tasks
``sample``            time, round trips made, wrong answers, CPU used, resident memory
``mark``              time and round trips made; the window is what lies between two marks
``stop``              let the calls that are under way end, and make no more
``latencies``         the times of the window, in classes, and the longest of them
``close``             close everything and exit
====================  ===========================================================================
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from typing import Any

from antiphon.lab.bench.latency import classes
from antiphon.lab.bench.orders import Connectable, Orders, WorkingThread, carry_out, stamped
from antiphon.lab.peers.base import EndpointConfig
from antiphon.lab.peers.requests import load_requests
from antiphon.lab.peers.requests.base import Caller, RequestEndpoint, TaskCaller

__all__ = ["CallWorker", "CallingLoop", "CallingThread"]


class Calling(WorkingThread):
    """What both kinds of calling threads keep: the nanoseconds of every round trip."""

    def __init__(self, endpoint: RequestEndpoint, name: str) -> None:
        super().__init__(name)
        # Written by the thread, only ever longer; read by the thread that takes the orders.
        self.times: array[int] = array("q")
        self.wrong = 0
        self._endpoint = endpoint

    def _data(self, number: int) -> bytes:
        """What one caller asks with: nobody else's answer could pass for its own."""
        config = self._endpoint.config
        return stamped(config.index, number, 0, config.size)


class CallingThread(Calling):
    """Calls from the thread itself, one after the other."""

    def __init__(self, endpoint: RequestEndpoint, number: int) -> None:
        super().__init__(endpoint, f"call-{number}")
        self._number = number
        self._caller: Caller

    def _open(self) -> None:
        self._caller = self._endpoint.caller()

    def _work(self) -> None:
        data = self._data(self._number)
        stopped = self._stop.is_set
        call_all = self._caller.round
        while not stopped():
            self.wrong += call_all(data, self.times)

    def _end(self) -> None:
        self._caller.close()


class CallingLoop(Calling):
    """An event loop whose tasks call at the same time."""

    def __init__(self, endpoint: RequestEndpoint, tasks: int) -> None:
        super().__init__(endpoint, "call-loop")
        self._tasks = tasks
        self._caller: TaskCaller
        self._runner = asyncio.Runner()

    def _open(self) -> None:
        self._caller = self._runner.run(self._endpoint.task_caller())

    def _work(self) -> None:
        self._runner.run(self._call())

    async def _call(self) -> None:
        await asyncio.gather(*(self._task(number) for number in range(self._tasks)))

    async def _task(self, number: int) -> None:
        data = self._data(number)
        stopped = self._stop.is_set
        call_all = self._caller.round
        while not stopped():
            self.wrong += await call_all(data, self.times)

    def _end(self) -> None:
        self._runner.run(self._caller.close())
        self._runner.close()


class CallWorker(Orders):
    """Carries out the orders of a point of requests."""

    def __init__(self) -> None:
        super().__init__()
        self._endpoint: RequestEndpoint | None = None
        self._callers: Sequence[Calling] = ()
        self._marks: list[list[int]] = []

    def _parts(self) -> list[Connectable]:
        return [] if self._endpoint is None else [self._endpoint]

    def _fault(self) -> str:
        return self._endpoint.fault() if self._endpoint is not None else ""

    def do_open(self, system: str, config: dict[str, Any]) -> dict[str, Any]:
        settings = EndpointConfig.from_facts(config)
        self._endpoint = load_requests(system)(settings)
        return {"address": self._endpoint.listen() if settings.receives else ""}

    def do_serve(self, system: str) -> dict[str, Any]:
        return self._serve(load_requests(system))

    def do_start(self, threads: int, tasks: int) -> dict[str, Any]:
        assert self._endpoint is not None
        if tasks:
            self._callers = [CallingLoop(self._endpoint, tasks)]
        else:
            self._callers = [CallingThread(self._endpoint, i) for i in range(threads)]
        return self._start(self._callers)

    def do_sample(self) -> dict[str, Any]:
        return {
            "messages": sum(len(caller.times) for caller in self._callers),
            "wrong": sum(caller.wrong for caller in self._callers),
            **self._usage(),
        }

    def do_mark(self) -> dict[str, Any]:
        # The clock and the counts have to belong together: again if another thread ran in between.
        for _ in range(5):
            before = time.monotonic_ns()
            mark = [len(caller.times) for caller in self._callers]
            now = time.monotonic_ns()
            if now - before < 500_000:
                break
        self._marks.append(mark)
        return {"time_ns": now, "messages": sum(mark), **self._faults()}

    def do_latencies(self) -> dict[str, Any]:
        first, last = self._marks[0], self._marks[-1]
        window: array[int] = array("q")
        for caller, begin, end in zip(self._callers, first, last, strict=True):
            window += caller.times[begin:end]
        return {"classes": list(classes(window).items()), "maximum": max(window, default=0)}


if __name__ == "__main__":
    carry_out(CallWorker())

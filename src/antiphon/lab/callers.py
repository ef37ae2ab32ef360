"""The threads of a run that ask: each a round trip at a time, to the other nodes in turn.

Receives an endpoint from ``lab.peers.requests``; `antiphon.lab.worker` reads the counts and takes
the times while they go on.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import abstractmethod
from collections.abc import Sequence

from antiphon.lab.bench.orders import WorkingThread, stamped
from antiphon.lab.peers.requests.base import Caller, RequestEndpoint, TaskCaller
from antiphon.lab.stamps import Times
from antiphon.lab.writers import parts_of

__all__ = ["Calling", "callers_of"]


class Calling(WorkingThread):
    """Counts round trips and keeps their times: when each was begun, and when it had its answer."""

    def __init__(self, endpoint: RequestEndpoint, name: str, times: Times) -> None:
        super().__init__(name)
        self.answered = 0
        self.wrong = 0
        self.begun_ns = 0
        self.last_ns = 0
        self.times = times
        self._endpoint = endpoint

    def _work(self) -> None:
        self.begun_ns = time.monotonic_ns()
        self._call()

    @abstractmethod
    def _call(self) -> None:
        """Ask until told to stop, or as often as was said."""

    def _data(self, number: int) -> bytes:
        """What one caller asks with: nobody else's answer could pass for its own."""
        config = self._endpoint.config
        return stamped(config.index, number, 0, config.size)

    def _note(self, target: int, begun: int, right: bool) -> None:
        self.last_ns = now = time.monotonic_ns()
        self.times.add(self.answered, target, begun, begun, now)
        self.wrong += not right
        self.answered += 1

    def _goes_on(self, number: int, messages: int | None) -> bool:
        return not self._stop.is_set() and (messages is None or number < messages)


class CallingThread(Calling):
    """Asks from the thread itself."""

    def __init__(
        self, endpoint: RequestEndpoint, number: int, times: Times, messages: int | None
    ) -> None:
        super().__init__(endpoint, f"call-{number}", times)
        self._number = number
        self._messages = messages
        self._caller: Caller

    def _open(self) -> None:
        self._caller = self._endpoint.caller()

    def _call(self) -> None:
        data, clock = self._data(self._number), time.monotonic_ns
        targets = zip(self._endpoint.config.targets, self._caller.calls, strict=True)
        for number, (target, call) in enumerate(itertools.cycle(targets)):
            if not self._goes_on(number, self._messages):
                break
            begun = clock()
            self._note(target, begun, call(data) == data)

    def _end(self) -> None:
        self._caller.close()


class CallingLoop(Calling):
    """An event loop whose tasks ask at the same time, for what knows only coroutines."""

    def __init__(
        self, endpoint: RequestEndpoint, times: Times, messages: Sequence[int | None]
    ) -> None:
        super().__init__(endpoint, "call-loop", times)
        self._messages = messages
        self._caller: TaskCaller
        self._runner = asyncio.Runner()

    def _open(self) -> None:
        self._caller = self._runner.run(self._endpoint.task_caller())

    def _call(self) -> None:
        self._runner.run(self._call_all())

    async def _call_all(self) -> None:
        await asyncio.gather(*(self._ask(*one) for one in enumerate(self._messages)))

    async def _ask(self, own: int, messages: int | None) -> None:
        data, clock = self._data(own), time.monotonic_ns
        targets = zip(self._endpoint.config.targets, self._caller.calls, strict=True)
        for number, (target, call) in enumerate(itertools.cycle(targets)):
            if not self._goes_on(number, messages):
                break
            begun = clock()
            self._note(target, begun, await call(data) == data)

    def _end(self) -> None:
        self._runner.run(self._caller.close())
        self._runner.close()


def callers_of(endpoint: RequestEndpoint, threads: int, messages: int | None) -> list[Calling]:
    """As many as there are threads; where those are tasks, the one loop of all."""
    parts = list(parts_of(messages, threads))
    # One for all, so that one in as many is kept of each.
    times = Times(endpoint.config.timed)
    if endpoint.config.tasks:
        return [CallingLoop(endpoint, times, parts)]
    return [CallingThread(endpoint, number, times, part) for number, part in enumerate(parts)]

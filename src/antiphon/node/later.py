"""Calls that would wait, made for an event loop or a thread that does not want to.

Most ``*_async`` calls go out at once and never come here. Those that must wait, for a connection,
for credit or because their message is large, are made by a few threads; all that go to one peer in
the order in which they were asked for, so that nothing overtakes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antiphon.errors import Closed, QueueFull
from antiphon.node.future import Job

__all__ = ["Later"]

_MOST_THREADS = 8
_MOST_JOBS = 65536
_IDLE = 5.0
_PER_SWEEP = 512


@dataclass(slots=True)
class _Entry:
    """Work that may wait; and how to try it without waiting, and what its future is told then."""

    job: Job[Any]
    work: Callable[[], Any]
    attempt: Callable[[], bool] | None = None
    value: Any = None


class Later:
    """Queues of work, one per peer, and at most eight threads that are there while there is any."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._queues: dict[int, deque[_Entry]] = {}
        self._ready: deque[int] = deque()
        self._jobs = self._threads = self._idle = 0
        self._closed = False

    def busy(self, peer: int) -> bool:
        """Whether something waits for this peer: what comes now must queue behind it."""
        return peer in self._queues

    def add(
        self,
        peer: int,
        work: Callable[[], Any],
        kind: int | None = None,
        attempt: Callable[[], bool] | None = None,
        value: Any = None,
        job: Job[Any] | None = None,
    ) -> Job[Any]:
        """The work's future, or ``job``. Raises `QueueFull` when too much waits already.

        ``attempt`` does the same work if it need not wait, and says whether it did: then the
        future's value is ``value``. What queued up behind a call that waited goes so, all at once.
        """
        job = job or Job(peer if peer > 0 else None, kind)
        with self._condition:
            if self._closed:
                raise Closed("this node is closed; nothing can be sent any more", what="node")
            if self._jobs >= _MOST_JOBS:
                raise QueueFull(
                    f"{self._jobs} calls wait already; await some of them first",
                    capacity=_MOST_JOBS,
                    pending=self._jobs,
                )
            self._jobs += 1
            queue = self._queues.get(peer)
            if queue is None:
                queue = self._queues[peer] = deque()
                self._ready.append(peer)
            queue.append(_Entry(job, work, attempt, value))
            # One that was woken and does not run yet still counts as idle.
            if self._idle >= len(self._ready):
                self._condition.notify()
            elif self._threads < _MOST_THREADS and self._ready:
                self._start(peer, queue)
        return job

    def _start(self, peer: int, queue: deque[_Entry]) -> None:
        """One more thread; where there can be none, what was just queued is taken back."""
        self._threads += 1
        try:
            threading.Thread(target=self._run, name="ap-later", daemon=True).start()
        except RuntimeError:
            self._threads -= 1
            if self._threads:
                return  # the others get to it
            queue.pop()
            self._jobs -= 1
            if not queue:
                del self._queues[peer]
                self._ready.remove(peer)
            raise QueueFull(
                "this process can start no thread to wait for it", capacity=0, pending=self._jobs
            ) from None

    def close(self) -> None:
        """What waits ends with `Closed`. What is being done ends by itself: the node is closed."""
        with self._condition:
            self._closed = True
            left = [entry.job for queue in self._queues.values() for entry in queue]
            self._queues.clear()
            self._ready.clear()
            self._jobs = 0
            self._condition.notify_all()
        for job in left:
            job.run(_raise_closed)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._ready:
                    self._idle += 1
                    woken = self._condition.wait(_IDLE)
                    self._idle -= 1
                    if self._closed or (not woken and not self._ready):
                        self._threads -= 1
                        return
                peer = self._ready.popleft()
                entry = self._queues[peer].popleft()
            entry.job.run(entry.work)
            del entry  # the caller may be the only one who holds it
            with self._condition:
                if self._closed:
                    self._threads -= 1
                    return
                self._jobs -= 1
                settled = self._sweep(self._queues[peer])
                if self._queues[peer]:
                    self._ready.append(peer)
                else:
                    del self._queues[peer]
            Job.settle_all(settled)
            del settled

    def _sweep(self, queue: deque[_Entry]) -> list[tuple[Job[Any], Any]]:
        """Takes out what goes without waiting, from the front; with the lock."""
        settled: list[tuple[Job[Any], Any]] = []
        while queue and len(settled) < _PER_SWEEP:
            entry = queue[0]
            value = entry.value
            if entry.job.wanted:
                if entry.attempt is None:
                    break
                try:
                    if not entry.attempt():
                        break
                except BaseException as error:
                    value = error
                settled.append((entry.job, value))
            queue.popleft()
            self._jobs -= 1
        return settled


def _raise_closed() -> None:
    raise Closed("this node was closed before it could be sent", what="node")

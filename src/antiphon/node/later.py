"""Calls that would wait, made for an event loop or a thread that does not want to.

Most ``*_async`` calls go out at once and never come here. Those that must wait stand in a queue of
their peer, in the order in which they were asked for, so that nothing overtakes.

What waits for a connection, for credit or for room has no thread while it waits: the core rings
when its peer has changed, and one watcher tries again whatever is first in line there. So a peer
that is slow or dead holds up nobody else. Calls that cannot be cut into attempts, large messages
and flushes for example, are made by a few threads that wait with them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from antiphon._core import BellCore, DoorCore
from antiphon.errors import Closed, QueueFull
from antiphon.node.future import Job

__all__ = ["Later", "Sender"]

_MOST_THREADS = 8
_MOST_JOBS = 65536
_IDLE = 5.0
_PER_SWEEP = 512

_WENT, _AGAIN, _STEPS = range(3)
"""What an attempt comes to, as native/bindings/module.cpp says it."""

_NUMBERS = (1 << 64) - 1
"""Keys may be negative; through a door go numbers of 64 bits."""


class Sender(Protocol):
    """A call of the core that is tried again and again, and never blocks."""

    @property
    def until(self) -> float:
        """When it is to be tried again at the latest, by the monotonic clock."""

    def attempt(self, bell: BellCore) -> int:
        """Whether it went, is to be tried again when the bell has rung, or needs a thread.

        Raises what the call has failed with.
        """

    def drop(self) -> None:
        """It is not tried again."""


@dataclass(slots=True)
class _Entry:
    """Work that may wait; and how to try it without waiting, and what its future is told then."""

    job: Job[Any]
    work: Callable[[], Any]
    attempt: Callable[[], bool] | None = None
    sender: Sender | None = None
    value: Any = None


@dataclass(slots=True)
class _Queue:
    entries: deque[_Entry] = field(default_factory=deque)
    bell: BellCore | None = None
    watched: bool = False
    """The watcher's, and no thread's."""


class Later:
    """Queues of work, one per peer; a watcher, and at most eight threads, while there is any."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._queues: dict[int, _Queue] = {}
        self._ready: deque[int] = deque()
        self._jobs = self._threads = self._idle = 0
        self._door: DoorCore | None = None
        self._watching = False
        self._due: dict[int, float] = {}  # of the queues that are watched
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
        sender: Sender | None = None,
    ) -> Job[Any]:
        """The work's future, or ``job``. Raises `QueueFull` when too much waits already.

        ``attempt`` does the same work if it need not wait, and says whether it did: then the
        future's value is ``value``. What queued up behind a call that waited goes so, all at once.
        With a ``sender`` the work is done only if that says that it needs a thread.
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
            if sender is not None and not self._has_door():
                sender = None
            entry = _Entry(job, work, attempt, sender, value)
            if sender is not None:
                assert self._door is not None
                # The next one's turn has come.
                job.when_dropped(functools.partial(self._door.push, peer & _NUMBERS))
            self._jobs += 1
            queue = self._queues.get(peer)
            if queue is not None:
                queue.entries.append(entry)
                return job
            queue = self._queues[peer] = _Queue(deque((entry,)))
            if not self._place(peer, queue):
                del self._queues[peer]
                self._jobs -= 1
                raise self._no_thread()
        return job

    def close(self) -> None:
        """What waits ends with `Closed`. What is being done ends by itself: the node is closed."""
        with self._condition:
            self._closed = True
            left = [entry for queue in self._queues.values() for entry in queue.entries]
            self._queues.clear()
            self._ready.clear()
            self._due.clear()
            self._jobs = 0
            self._condition.notify_all()
            if self._door is not None:
                self._door.push(0)
        for entry in left:
            if entry.sender is not None:
                entry.sender.drop()
            entry.job.run(_raise_closed)

    # --- with the lock ------------------------------------------------------------------------

    def _has_door(self) -> bool:
        """False when this process has no descriptor left: then a thread waits."""
        if self._door is None:
            with contextlib.suppress(OSError, RuntimeError):
                self._door = DoorCore()
        return self._door is not None

    def _proceed(self, peer: int, queue: _Queue) -> list[tuple[Job[Any], Any]]:
        """Takes out what goes without waiting, from the front, and sees to the rest."""
        self._due.pop(peer, None)
        settled, state = self._sweep(peer, queue)
        while queue.entries and not (state == _AGAIN or self._place(peer, queue, state == _STEPS)):
            self._jobs -= 1
            entry = queue.entries.popleft()
            if entry.sender is not None:
                entry.sender.drop()
            settled.append((entry.job, self._no_thread()))
        if not queue.entries:
            self._queues.pop(peer, None)  # it may have been closed by a finaliser
        return settled

    def _sweep(self, peer: int, queue: _Queue) -> tuple[list[tuple[Job[Any], Any]], int]:
        """What went, and what the attempt came to that ended it: it went, where there is more."""
        settled: list[tuple[Job[Any], Any]] = []
        entries = queue.entries
        while entries and len(settled) < _PER_SWEEP:
            entry = entries[0]
            if entry.job.wanted:
                value = entry.value
                try:
                    state = self._attempt(peer, queue, entry)
                except BaseException as error:
                    state, value = _WENT, error
                if state != _WENT:
                    return settled, state
                settled.append((entry.job, value))
            elif entry.sender is not None:
                entry.sender.drop()
            entries.popleft()
            self._jobs -= 1
        return settled, _WENT

    def _attempt(self, peer: int, queue: _Queue, entry: _Entry) -> int:
        if entry.sender is None:
            return _WENT if entry.attempt is not None and entry.attempt() else _STEPS
        if queue.bell is None:
            assert self._door is not None
            queue.bell = self._door.bell(peer & _NUMBERS)
        state = entry.sender.attempt(queue.bell)
        if state == _AGAIN and self._watch(peer, queue):
            self._due[peer] = entry.sender.until
            return _AGAIN
        return _STEPS if state == _AGAIN else state

    def _place(self, peer: int, queue: _Queue, needs_thread: bool = False) -> bool:
        """Gives it to the watcher, or to a thread that waits with the first. False: neither."""
        if queue.entries[0].sender is not None and not needs_thread and self._watch(peer, queue):
            self._due[peer] = 0.0
            return True
        queue.watched = False
        self._ready.append(peer)
        # One that was woken and does not run yet still counts as idle.
        if self._idle >= len(self._ready):
            self._condition.notify()
        elif self._threads < _MOST_THREADS:
            if _start(self._run, "ap-later"):
                self._threads += 1
            elif not self._threads:  # or the others get to it
                self._ready.pop()
                return False
        return True

    def _watch(self, peer: int, queue: _Queue) -> bool:
        """The watcher is to look at it. False when there can be none."""
        assert self._door is not None
        if not queue.watched:
            if not self._watching and not _start(self._look, "ap-watcher"):
                return False
            self._watching = queue.watched = True
            self._door.push(peer & _NUMBERS)
        return True

    def _no_thread(self) -> QueueFull:
        return QueueFull(
            "this process can start no thread to wait for it", capacity=0, pending=self._jobs
        )

    # --- the watcher --------------------------------------------------------------------------

    def _look(self) -> None:
        door = self._door
        assert door is not None
        changed = select.poll()
        changed.register(door.fileno(), select.POLLIN)
        while True:
            with self._condition:
                due = min(self._due.values(), default=math.inf)
            patience = min(max(0.0, due - time.monotonic()), _IDLE)
            rung = changed.poll(math.ceil(patience * 1000))
            with self._condition:
                if self._closed or (not rung and not any(q.watched for q in self._queues.values())):
                    self._watching = False
                    return
                now = time.monotonic()
                peers = dict.fromkeys(peer for peer, due in self._due.items() if due <= now)
            for number in door.take():
                peers[number - (number >> 63 << 64)] = None
            for peer in peers:
                with self._condition:
                    queue = self._queues.get(peer)
                    if queue is None or not queue.watched:
                        continue
                    settled = self._proceed(peer, queue)
                Job.settle_all(settled)
                del settled, queue  # the caller may be the only one who holds them

    # --- the threads --------------------------------------------------------------------------

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
                queue = self._queues[peer]
                entry = queue.entries.popleft()
            entry.job.run(entry.work)
            del entry  # the caller may be the only one who holds it
            with self._condition:
                if self._closed:
                    self._threads -= 1
                    return
                self._jobs -= 1
                settled = self._proceed(peer, queue)
            Job.settle_all(settled)
            del settled


def _start(work: Callable[[], None], name: str) -> bool:
    """False when this process can have no more threads."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _raise_closed() -> None:
    raise Closed("this node was closed before it could be sent", what="node")

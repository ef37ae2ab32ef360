"""One process of a point of topics: an endpoint, its sending threads, and one with a timetable.

Run as ``python -m antiphon.lab.bench.topic_worker``; ``orders`` says how it is spoken to. Beside
the orders of ``worker``, for the topic that has a timetable:

====================  ===========================================================================
``prepare``           make the thread that publishes by a timetable, and find its subscribers
``record``            count and time, from a moment on, what arrives by that timetable
``pace``              publish by it
``paced``             wait until all was published; how many, and how late the publisher was
``delays``            the times of what arrived, in classes, and the longest of them
====================  ===========================================================================
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

from antiphon.lab.bench.latency import classes
from antiphon.lab.bench.orders import WorkingThread, carry_out
from antiphon.lab.bench.worker import Checker, Worker
from antiphon.lab.peers.base import EndpointConfig, OnData
from antiphon.lab.peers.topics import load_topics
from antiphon.lab.peers.topics.base import (
    PACED,
    STAMP,
    UNTIMED,
    Pace,
    TopicEndpoint,
    TopicSender,
)

__all__ = ["PacingThread", "Recorder", "TopicWorker"]

PR_SET_TIMERSLACK = 29
# Behind the timetable's end by so much, a publisher gives up.
PATIENCE_NS = 10_000_000_000
# A thread that floods keeps the interpreter for as long as this. With the 5 ms of the default it
# would be the delay of every message beside it, whatever the system under test does.
SWITCH_INTERVAL = 0.0001


class Recorder:
    """Counts what arrives by the timetable, and times what carries its time.

    ``record`` is called for every message, by one thread at a time.
    """

    def __init__(self, size: int) -> None:
        clock, unpack = time.monotonic_ns, STAMP.unpack_from
        self.delays: array[int] = array("q")
        keep = self.delays.append
        begin = UNTIMED + 1
        messages = wrong = 0

        # Cells and no attributes: at half of what a system can do, this is to leave it the rest.
        def record(data: bytes) -> None:
            nonlocal messages, wrong
            due = unpack(data)[0]
            if due < begin:
                return
            messages += 1
            if due != UNTIMED:
                keep(clock() - due)
                wrong += len(data) != size

        def start(begin_ns: int) -> None:
            nonlocal begin
            begin = begin_ns

        self.record: OnData = record
        self._start = start
        self._counts: Callable[[], tuple[int, int]] = lambda: (messages, wrong)

    def begin(self, begin_ns: int) -> None:
        """Count what is due from ``begin_ns`` on; before that, nothing."""
        self._start(begin_ns)

    @property
    def messages(self) -> int:
        """How many of those that count have come."""
        return self._counts()[0]

    @property
    def wrong(self) -> int:
        """How many of those that were timed had another size than sent."""
        return self._counts()[1]


class PacingThread(WorkingThread):
    """A thread with a sender of its own, which publishes by a timetable once it is given one."""

    def __init__(self, endpoint: TopicEndpoint) -> None:
        super().__init__("pace")
        self.sent = 0
        self.late: array[int] = array("q")
        self._endpoint = endpoint
        self._sender: TopicSender
        self._pace: Pace | None = None
        self._given = threading.Event()

    def give(self, pace: Pace) -> None:
        """Publish by this one, from now on."""
        self._pace = pace
        self._given.set()

    @property
    def pace(self) -> Pace:
        assert self._pace is not None
        return self._pace

    def _open(self) -> None:
        self._sender = self._endpoint.sender(PACED)
        # The kernel lets a sleep end up to 50 us late, to save a wake-up: not for this thread.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def _work(self) -> None:
        self._given.wait()
        if self._pace is None:
            return
        last = self._pace.end_ns + PATIENCE_NS
        stop, clock = self._stop.is_set, time.monotonic_ns
        self.sent = self._sender.send_on_time(
            self._pace, self._endpoint.config.size, lambda: stop() or clock() > last, self.late
        )
        self._sender.flush(timeout=10.0)

    def _end(self) -> None:
        self._sender.close()

    def stop(self) -> None:
        super().stop()
        self._given.set()

    def close(self, timeout: float) -> None:
        self._given.set()
        super().close(timeout)


class TopicWorker(Worker):
    """Carries out the orders of a point of topics."""

    _load = staticmethod(load_topics)

    def __init__(self) -> None:
        super().__init__()
        # Of the process of a server nothing arrives, and it has no endpoint.
        self._recorder = Recorder(0)
        self._topics: TopicEndpoint
        self._pacing: PacingThread

    def do_open(self, system: str, config: dict[str, Any], check: bool = False) -> dict[str, Any]:
        settings = EndpointConfig.from_facts(config)
        self._checker = Checker(settings.size) if check else None
        self._recorder = Recorder(settings.size)
        self._topics = self._load(system)(settings, self._checker, self._recorder.record)
        self._endpoint = self._topics
        return {"address": self._topics.listen() if settings.receives else ""}

    def do_serve(self, system: str) -> dict[str, Any]:
        return self._serve(self._load(system))

    def do_sample(self) -> dict[str, Any]:
        sample = super().do_sample()
        sample["wrong"] += self._recorder.wrong
        return {**sample, "paced": self._recorder.messages}

    def do_prepare(self) -> dict[str, Any]:
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._pacing = PacingThread(self._topics)
        return self._start([self._pacing])

    def do_record(self, begin_ns: int) -> dict[str, Any]:
        self._recorder.begin(begin_ns)
        self._topics.begin()
        return {}

    def do_pace(self, **pace: int) -> dict[str, Any]:
        self._pacing.give(Pace(**pace))
        return {}

    def do_paced(self, limit: float) -> dict[str, Any]:
        finished = self._pacing.finished.wait(limit)
        pace, sent = self._pacing.pace, self._pacing.sent
        return {
            "finished": finished,
            "scheduled": pace.total - pace.first,
            "sent": max(0, sent - pace.first),
            "late": list(classes(self._pacing.late).items()),
            "latest": max(self._pacing.late, default=0),
            **self._faults(),
        }

    def do_delays(self) -> dict[str, Any]:
        delays = self._recorder.delays
        return {
            "classes": list(classes(delays).items()),
            "maximum": max(delays, default=0),
            "figures": self._topics.figures(),
        }


if __name__ == "__main__":
    carry_out(TopicWorker())

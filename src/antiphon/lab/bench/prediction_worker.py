"""One process of the probe of predictions: the handlers, the flood, or the measured publisher.

Run as ``python -m antiphon.lab.bench.prediction_worker``; ``orders`` says how it is spoken to.

====================  ===========================================================================
``subscribe``         the measured subscription with its share, and the competitor beside it
``service``           how long the measured handler takes from now on
``begin``             a stream begins: remember the sums
``end``               it was published: wait until it is handled, and say what the model makes of it
``flood``             publish whatever the competitor takes
``pace``              find the measured subscription
``stream``            publish a Poisson stream; how late each was, on the average
``sample``            the processor time of this process
``stop``              stop publishing
``close``             close everything and exit
====================  ===========================================================================
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from antiphon.errors import Closed, SendTimeout
from antiphon.lab.bench.orders import Connectable, Orders, WorkingThread, carry_out
from antiphon.lab.peers.topics.antiphon_bus import PERIOD, open_bus
from antiphon.topics import Bus, Event, Publisher, Subscription
from antiphon.topics.model import Meters, difference, predict

__all__ = ["PredictionWorker", "burn"]

MEASURED, FLOOD = "measured", "flood"
PR_SET_TIMERSLACK = 29
FOUND_TIMEOUT = 15.0


def burn(seconds: float) -> None:
    """Keeps the processor busy for so long, of this thread's own time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class FloodThread(WorkingThread):
    """Events as fast as the competitor takes them."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__("flood")
        self._publisher = publisher

    def _open(self) -> None:
        _find(self._publisher)

    def _work(self) -> None:
        block = [b"x"] * 32
        while not self._stop.is_set():
            with contextlib.suppress(SendTimeout):
                self._publisher.publish_many(block)

    def _end(self) -> None:
        """The bus closes the publishers."""


class PredictionWorker(Orders):
    """Carries out the orders of the probe."""

    def __init__(self) -> None:
        super().__init__()
        self._bus: Bus
        self._publisher: Publisher
        self._measured: Subscription
        self._meters: Meters
        self._competitor: Subscription
        self._share = 0.0
        self._draw: Callable[[], float] = lambda: 0.0
        self._then: dict[str, Any] = {}
        self._competed, self._began = 0, 0.0

    def _parts(self) -> list[Connectable]:
        return []

    def do_subscribe(
        self, folder: str, share: float, competitor: float | None, competing: float
    ) -> dict[str, Any]:
        self._bus = open_bus(folder, threads=1)
        self._share = share

        def work(event: Event) -> None:
            burn(self._draw())

        def compete(event: Event) -> None:
            burn(competing)

        self._measured = self._bus.subscribe(MEASURED, work, share=share, capacity=65536)
        core: Any = self._measured._core
        self._meters = Meters(core, time.monotonic())
        self._competitor = self._bus.subscribe(FLOOD, compete, share=competitor, capacity=1024)
        return {}

    def do_service(self, mean: float, exponential: bool, seed: int) -> dict[str, Any]:
        source = random.Random(seed)
        self._draw = (lambda: source.expovariate(1 / mean)) if exponential else (lambda: mean)
        return {}

    def do_begin(self) -> dict[str, Any]:
        self._competed = self._competitor.statistics()["handler_ns"]
        self._began = time.perf_counter()
        self._then = self._meters.look()
        return {}

    def do_end(self, limit: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        while self._measured.pending:
            if time.monotonic() > deadline:
                return {"error": f"{self._measured.pending} events were not handled in {limit:g} s"}
            time.sleep(0.001)
        sums = difference(self._meters.look(), self._then)
        competed = (self._competitor.statistics()["handler_ns"] - self._competed) / 1e9
        return {
            "model": asdict(predict(sums, self._share, PERIOD)),
            "events": sums["events"],
            "service": sums["service"],
            "overruns": int(sums["overruns"]),
            "competitor": competed / (time.perf_counter() - self._began),
        }

    def do_flood(self, folder: str) -> dict[str, Any]:
        self._bus = open_bus(folder)
        return self._start([FloodThread(self._bus.publisher(FLOOD))])

    def do_pace(self, folder: str) -> dict[str, Any]:
        # Sleeps end within microseconds then; by default they may take 50 more.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self._bus = open_bus(folder)
        self._publisher = self._bus.publisher(MEASURED)
        _find(self._publisher)
        return {}

    def do_stream(self, rate: float, count: int, seed: int) -> dict[str, Any]:
        draw = random.Random(seed).expovariate
        publish = self._publisher.publish
        late, at = 0.0, time.perf_counter()
        for _ in range(count):
            at += draw(rate)
            while (left := at - time.perf_counter()) > 0:
                time.sleep(left)
            publish(b"x")
            late += time.perf_counter() - at
        return {"late": late / count}

    def do_sample(self) -> dict[str, Any]:
        return self._usage()

    def do_close(self) -> dict[str, Any]:
        answer = super().do_close()
        with contextlib.suppress(AttributeError, Closed):
            self._bus.close(drain=0.0)
        return answer


def _find(publisher: Publisher) -> None:
    if not publisher.wait_for_subscribers(timeout=FOUND_TIMEOUT):
        raise TimeoutError(f"nobody subscribed to {publisher.topic} within {FOUND_TIMEOUT:g} s")


if __name__ == "__main__":
    carry_out(PredictionWorker())

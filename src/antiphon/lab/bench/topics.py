"""One point of topics, measured once, in processes of its own.

As many messages as go are measured as ``point`` does. What is published on a timetable is an open
loop: nobody waits for anybody, and every message is timed from when it was due. Both ends have the
same clock, since they are on one machine. Beside a flood, the flood runs before the timetable
begins and after it has ended.

What a system can do at most by a timetable is less than what it can do: to pace, to read the time
in a message and to count it take most of a microsecond in Python, which is little to some systems
and half of their time to others. So half of its most is half of what arrives when the timetable
asks for as many as went without one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from antiphon.lab.bench.latency import Latency, latency_of
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import (
    STOP_TIMEOUT,
    Clock,
    Measurement,
    Options,
    assemble,
    await_first,
    drain,
    judge,
    measure_messages,
    measure_with,
    rate_between,
)
from antiphon.lab.bench.processes import Crew, WorkerFailed, ask_all
from antiphon.lab.peers import Peer
from antiphon.lab.peers.topics import TOPIC_PEERS
from antiphon.lab.peers.topics.base import NANOS, Pace

__all__ = ["BESIDE_RATE", "PACED_RATE", "TOPIC_WORKER", "MeasureTopics"]

TOPIC_WORKER = "antiphon.lab.bench.topic_worker"
# Messages per second of the timetable, alone and beside a flood.
PACED_RATE = 10_000
BESIDE_RATE = 1_000
# Delays that are kept, at most in all and in a second. Beyond that every k-th message is timed: to
# stamp and to time a message takes most of a microsecond, which a fast system has not left.
SAMPLES = 200_000
SAMPLES_PER_SECOND = 100_000
# From the order to the first message: both processes have got their orders by then.
LEAD_SECONDS = 0.1
# Before the window, time enough to read all counters without disturbing it.
READ_SECONDS = 0.05
# Asked for more than it can do, a system is watched for so long at most.
MOST_SECONDS = 1.0
# A publisher gives up 10 s behind its timetable; then it may still have to flush.
PACED_TIMEOUT = 25.0


class MeasureTopics:
    """Measures points one after the other; it keeps the rates that later ones are half of."""

    def __init__(
        self,
        peers: Mapping[str, Peer] = TOPIC_PEERS,
        worker: str = TOPIC_WORKER,
        paced_rate: int = PACED_RATE,
    ) -> None:
        self._peers = peers
        self._worker = worker
        self._paced_rate = paced_rate
        self._rates: dict[tuple[str, str, int], list[float]] = {}
        self._most: dict[tuple[str, str, int], list[float]] = {}

    def __call__(self, point: Point, options: Options, repeat: int = 0) -> Measurement:
        """Measure a point once. Never raises for what a peer does wrong: the outcome says it."""
        peer = self._peers[point.system]
        key = (point.system, point.variant, point.size)
        if point.pattern == "half" and (rates := self._rates.get(key)):
            asked = partial(self._paced, rate=max(1, round(statistics.median(rates))))
            short = replace(options, seconds=min(MOST_SECONDS, options.seconds))
            done = measure_with(asked, peer, point, short, repeat)
            if (most := done.figures.get("arrived_per_second", 0.0)) > 0:
                self._most.setdefault(key, []).append(most)
        if point.pattern != "one-way":
            timed = partial(self._paced, rate=None)
            return measure_with(timed, peer, point, options, repeat)
        flat_out = partial(measure_messages, peers=self._peers, worker=self._worker)
        done = measure_with(flat_out, peer, point, options, repeat)
        if done.measured:
            self._rates.setdefault(key, []).append(done.rate)
        return done

    def _rate(self, point: Point) -> int:
        if point.pattern == "isolation":
            return BESIDE_RATE
        if point.pattern == "paced":
            return self._paced_rate
        rates = self._most.get((point.system, point.variant, point.size))
        if not rates:
            raise WorkerFailed("what it can do at most was not measured before")
        return max(1, round(statistics.median(rates) / 2))

    def _paced(
        self, crew: Crew, point: Point, options: Options, repeat: int, rate: int | None
    ) -> Measurement:
        """At this rate, or at the one that the pattern has."""
        rate = rate or self._rate(point)
        floods = point.pattern == "isolation"
        receivers, senders = assemble(
            crew, point, options.capacity, peers=self._peers, worker=self._worker
        )
        ask_all(senders, "prepare", timeout=30.0)
        if floods:
            ask_all(senders, "start", timeout=30.0, threads=1)
            await_first(receivers)

        start = time.monotonic_ns() + int(LEAD_SECONDS * NANOS)
        begin = start + int(options.warmup * NANOS)
        end = begin + int(options.seconds * NANOS)
        every = math.ceil(max(1.0, rate * options.seconds / SAMPLES, rate / SAMPLES_PER_SECOND))
        pace = Pace(start, begin, end, rate, every)
        ask_all(receivers, "record", begin_ns=begin)
        ask_all(senders, "pace", start_ns=start, begin_ns=begin, end_ns=end, rate=rate, every=every)
        _sleep_until(begin - int(READ_SECONDS * NANOS))
        clock = Clock(crew.children)
        before = ask_all(receivers, "sample")
        _sleep_until(end)
        after = ask_all(receivers, "sample")
        cpu, others = clock.read()

        (paced,) = ask_all(senders, "paced", timeout=PACED_TIMEOUT + 5, limit=PACED_TIMEOUT)
        sent = int(paced["sent"])
        samples, still = drain(receivers, sent, "paced")
        stopped = ask_all(senders, "stop", timeout=STOP_TIMEOUT + 5, limit=STOP_TIMEOUT)
        outcome, reason = judge(stopped, samples, sent, still, "paced")
        scheduled = int(paced["scheduled"])
        if outcome == "ok" and sent < scheduled:
            outcome, reason = "timed out", f"{scheduled - sent} of {scheduled} were never sent"
        figures: dict[str, float] = {"offered_per_second": rate, "scheduled": scheduled}
        figures["arrived_per_second"] = sum(map(_paced_between, before, after))
        if every > 1:
            figures["timed_one_in"] = every
        figures |= _lateness(paced)
        if floods:
            poured = sum(int(answer["sent"]) for answer in stopped)
            arrived = sum(int(sample["messages"]) for sample in drain(receivers, poured)[0])
            figures["flood_per_second"] = sum(map(rate_between, before, after))
            figures["flood_sent"], figures["flood_received"] = poured, arrived
        (timed,) = ask_all(receivers, "delays", timeout=60.0)
        figures |= timed["figures"]
        if outcome != "timed out":
            try:
                crew.close()
            except WorkerFailed as error:
                outcome, reason = "failed", f"closing: {error}"
        received = sum(int(sample["paced"]) for sample in samples)
        seconds = (pace.end_ns - pace.begin_ns) / NANOS
        return Measurement(
            point,
            repeat,
            outcome,
            reason,
            messages=received,
            seconds=seconds,
            rate=received / seconds,
            sent=sent,
            received=received,
            cpu=cpu,
            others=others,
            latency=_percentiles(timed["classes"], timed["maximum"]),
            figures=figures,
        )


def _paced_between(first: dict[str, Any], last: dict[str, Any]) -> float:
    """Messages of the timetable per second between two samples of one process."""
    elapsed = (last["time_ns"] - first["time_ns"]) / NANOS
    return float((last["paced"] - first["paced"]) / elapsed) if elapsed > 0 else 0.0


def _sleep_until(moment_ns: int) -> None:
    time.sleep(max(0.0, (moment_ns - time.monotonic_ns()) / NANOS))


def _percentiles(counted: list[list[int]], maximum: int) -> Latency | None:
    return latency_of([{int(value): int(count) for value, count in counted}], int(maximum))


def _lateness(paced: dict[str, Any]) -> dict[str, float]:
    """How late the publisher itself was: what of the delays is its own."""
    late = _percentiles(paced["late"], paced["latest"])
    if late is None:
        return {}
    return {
        "sender_late_p50_us": late.p50,
        "sender_late_p99_us": late.p99,
        "sender_late_max_us": late.maximum,
    }

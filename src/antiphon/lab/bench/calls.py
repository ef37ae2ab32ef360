"""One point of requests, measured once, in processes of its own.

Every caller asks, waits for the answer, compares it with what it sent, and asks again: a closed
loop, so a slow answer also delays the next question. After a warm-up, which begins when every
calling process has got its first answer, the clock and the counts are read at both ends of a
window while the calls go on; a round trip belongs to the window in which it ends.
"""

from __future__ import annotations

import time

from antiphon.lab.bench.latency import latency_of
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.point import (
    STOP_TIMEOUT,
    Clock,
    Measurement,
    Options,
    assemble,
    await_first,
    measure_with,
    rate_between,
)
from antiphon.lab.bench.processes import Crew, WorkerFailed, ask_all
from antiphon.lab.peers.requests import REQUEST_PEERS

__all__ = ["measure_calls"]

CALL_WORKER = "antiphon.lab.bench.call_worker"


def measure_calls(point: Point, options: Options, repeat: int = 0) -> Measurement:
    """Measure a point once. Never raises for what a peer does wrong: the outcome says it."""
    return measure_with(_measure, REQUEST_PEERS[point.system], point, options, repeat)


def _measure(crew: Crew, point: Point, options: Options, repeat: int) -> Measurement:
    callers = assemble(crew, point, options.capacity, peers=REQUEST_PEERS, worker=CALL_WORKER)[1]
    ask_all(callers, "start", timeout=60.0, threads=point.threads, tasks=point.tasks)
    await_first(callers)
    time.sleep(options.warmup)

    clock = Clock(crew.children)
    before = ask_all(callers, "mark")
    time.sleep(options.seconds)
    after = ask_all(callers, "mark")
    cpu, others = clock.read()

    stopped = ask_all(callers, "stop", timeout=STOP_TIMEOUT + 5, limit=STOP_TIMEOUT)
    counted = ask_all(callers, "latencies")
    samples = ask_all(callers, "sample")
    both = list(zip(before, after, strict=True))
    outcome, reason = "ok", ""
    if blocked := sum(int(answer["blocked"]) for answer in stopped):
        outcome, reason = "timed out", f"{blocked} callers without an answer for {STOP_TIMEOUT:g} s"
    elif wrong := sum(int(sample["wrong"]) for sample in samples):
        outcome, reason = "failed", f"{wrong} answers were not what was asked"
    else:
        try:
            crew.close()
        except WorkerFailed as error:
            outcome, reason = "failed", f"closing: {error}"
    answered = sum(int(sample["messages"]) for sample in samples)
    return Measurement(
        point,
        repeat,
        outcome,
        reason,
        messages=sum(last["messages"] - first["messages"] for first, last in both),
        seconds=max((last["time_ns"] - first["time_ns"]) / 1e9 for first, last in both),
        rate=sum(rate_between(first, last) for first, last in both),
        sent=answered,
        received=answered,
        cpu=cpu,
        others=others,
        latency=latency_of(
            [{int(value): int(count) for value, count in answer["classes"]} for answer in counted],
            max(int(answer["maximum"]) for answer in counted),
        ),
    )

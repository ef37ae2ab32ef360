"""One point, measured once, in processes of its own.

The receivers count. After a warm-up, which begins when every receiver has got its first message,
the clock and the counts are read at both ends of a window while the traffic goes on: what lies in
buffers before and after does not enter the rate. Then the senders stop and say how many they sent,
and the receivers are given time to get them all, so that a fast loser shows as one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.lab.bench.latency import Latency
from antiphon.lab.bench.machine import busy_seconds, share_of_others
from antiphon.lab.bench.plan import Point
from antiphon.lab.bench.processes import (
    WORKER,
    Child,
    Crew,
    WorkerFailed,
    WorkerTimeout,
    ask_all,
)
from antiphon.lab.peers import PEERS, Peer

__all__ = [
    "STOP_TIMEOUT",
    "Check",
    "Clock",
    "Measurement",
    "Options",
    "assemble",
    "await_first",
    "check_point",
    "drain",
    "judge",
    "measure",
    "measure_messages",
    "measure_with",
    "rate_between",
]

FIRST_MESSAGE_TIMEOUT = 30.0
STOP_TIMEOUT = 15.0
# A drain that stands still this long has lost the rest; one that moves gets this long in all.
DRAIN_STILL = 2.0
DRAIN_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Options:
    """How long a point is measured, and with what.

    A window lasts at least ``seconds``, and goes on for ``min_bytes`` as long as that takes no more
    than ``stretch`` times the seconds.
    """

    seconds: float = 2.0
    warmup: float = 0.3
    min_bytes: int = 250_000_000
    stretch: float = 1.25
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run of a point gave.

    ``outcome`` is ``ok``, ``lost``, ``timed out``, ``failed`` or ``absent``, with its ``reason``.
    ``messages`` were received in ``seconds``; ``cpu`` is what all processes of the point used
    meanwhile, ``others`` the share of the processor that went elsewhere. Requests have a
    ``latency``, and their ``messages`` are answers. What is told of no other point is in
    ``figures``.
    """

    point: Point
    repeat: int
    outcome: str
    reason: str = ""
    messages: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    sent: int = 0
    received: int = 0
    cpu: float = 0.0
    others: float = 0.0
    latency: Latency | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether there is a rate. A lossy run has one: what arrived, arrived."""
        return self.rate > 0

    def facts(self) -> dict[str, object]:
        """As plain values, for JSON."""
        return {
            "repeat": self.repeat,
            "outcome": self.outcome,
            "reason": self.reason,
            "messages": self.messages,
            "seconds": self.seconds,
            "messages_per_second": self.rate,
            "sent": self.sent,
            "received": self.received,
            "cpu_seconds": self.cpu,
            "others_share": self.others,
            **({"latency_us": self.latency.facts()} if self.latency else {}),
            **self.figures,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """What a checked run gave: how many went in and came out, and what was wrong with them."""

    sent: int
    received: int
    problems: list[str] = field(default_factory=list)


def measure(point: Point, options: Options, repeat: int = 0) -> Measurement:
    """Measure a point once. Never raises for what a peer does wrong: the outcome says it."""
    peer = PEERS[point.system]
    measured = _measure_stream if peer.stream else measure_messages
    return measure_with(measured, peer, point, options, repeat)


def measure_with(
    measured: Callable[[Crew, Point, Options, int], Measurement],
    peer: Peer,
    point: Point,
    options: Options,
    repeat: int,
) -> Measurement:
    """Measure with a crew that ends with the measurement; what goes wrong is its outcome."""
    if missing := peer.missing(point.variant):
        return Measurement(point, repeat, "absent", missing)
    try:
        with Crew() as crew:
            return measured(crew, point, options, repeat)
    except WorkerTimeout as error:
        return Measurement(point, repeat, "timed out", str(error))
    except WorkerFailed as error:
        return Measurement(point, repeat, "failed", str(error))


def check_point(
    point: Point,
    messages: int,
    timeout: float = 30.0,
    peers: Mapping[str, Peer] = PEERS,
    worker: str = WORKER,
) -> Check:
    """Send ``messages`` numbered messages per thread and target, and verify every one of them.

    Raises :class:`WorkerFailed` when a process fails or does not answer.
    """
    with Crew() as crew:
        receivers, senders = assemble(crew, point, None, True, peers, worker)
        ask_all(senders, "send", threads=point.threads, messages=messages)
        stopped = ask_all(senders, "stop", timeout=timeout + 5, limit=timeout, finish=True)
        sent = sum(int(answer["sent"]) for answer in stopped)
        blocked = sum(int(answer["blocked"]) for answer in stopped)
        samples = drain(receivers, sent)[0]
        problems = [problem for sample in samples for problem in sample["problems"]]
        if blocked:
            problems.append(f"{blocked} senders were still blocked after {timeout:g} s")
        else:
            crew.close()
        return Check(sent, _received(samples), problems)


def assemble(
    crew: Crew,
    point: Point,
    capacity: int | None,
    check: bool = False,
    peers: Mapping[str, Peer] = PEERS,
    worker: str = WORKER,
) -> tuple[list[Child], list[Child]]:
    """Start and connect the processes of a point: its receivers and its senders."""
    module = ("-m", worker)
    service = ""
    peer = peers[point.system]
    if peer.served:
        server = crew.start(f"{point.system} server", module)
        service = server.ask("serve", system=point.system)["address"]
    assigned = roles(point)
    folder = str(crew.folder()) if peer.folder else ""
    tls = _certificates(crew, len(assigned)) if point.encrypted else [()] * len(assigned)
    children = [crew.start(f"{point.system} {index}", module) for index in range(len(assigned))]
    for index, (child, (receives, targets)) in enumerate(zip(children, assigned, strict=True)):
        config = {
            "index": index,
            "variant": point.variant,
            "size": point.size,
            "targets": targets,
            "receives": receives,
            "capacity": capacity,
            "service": service,
            "threads": point.threads,
            "tasks": point.tasks,
            "tls": tls[index],
            "pattern": point.pattern,
            "folder": folder,
        }
        extra = {"check": True} if check else {}
        child.tell("open", system=point.system, config=config, **extra)
    addresses = [child.answer(30.0)["address"] for child in children]
    receivers = [child for child, role in zip(children, assigned, strict=True) if role[0]]
    senders = [child for child, role in zip(children, assigned, strict=True) if role[1]]
    ask_all(senders, "connect", addresses=dict(enumerate(addresses)))
    return receivers, senders


def _certificates(crew: Crew, count: int) -> list[tuple[str, ...]]:
    """For every process certificate, key and authority: one authority, gone with the crew."""
    # Not needed for anything else, and it needs a package that may be missing.
    from antiphon.testing.certificates import Authority, node_uri

    authority = Authority(crew.folder())
    made: list[tuple[str, ...]] = []
    # The process with index 0 is node 1.
    for number in range(1, count + 1):
        certificate, key = authority.issue(f"node-{number}", node_uri(number))
        made.append((str(certificate), str(key), str(authority.path)))
    return made


def roles(point: Point) -> list[tuple[bool, list[int]]]:
    """For every process of a point: whether it receives, and to whom it sends."""
    if point.pattern not in ("duplex", "n-n"):
        return [(True, []), (False, [0])]
    count = 2 if point.pattern == "duplex" else point.processes
    return [(True, [other for other in range(count) if other != own]) for own in range(count)]


def measure_messages(
    crew: Crew,
    point: Point,
    options: Options,
    repeat: int,
    peers: Mapping[str, Peer] = PEERS,
    worker: str = WORKER,
) -> Measurement:
    """As many messages as go, counted by the receivers."""
    receivers, senders = assemble(crew, point, options.capacity, peers=peers, worker=worker)
    ask_all(senders, "start", timeout=30.0, threads=point.threads)
    await_first(receivers)
    time.sleep(options.warmup)

    clock = Clock(crew.children)
    before = ask_all(receivers, "sample")
    limit = time.monotonic() + options.seconds * options.stretch
    time.sleep(options.seconds)
    while True:
        after = ask_all(receivers, "sample")
        messages = _received(after) - _received(before)
        left = limit - time.monotonic()
        if messages * point.size >= options.min_bytes or left <= 0.05:
            break
        time.sleep(min(left, 0.25))
    cpu, others = clock.read()
    rate = sum(rate_between(first, last) for first, last in zip(before, after, strict=True))
    seconds = max(
        (last["time_ns"] - first["time_ns"]) / 1e9
        for first, last in zip(before, after, strict=True)
    )

    stopped = ask_all(senders, "stop", timeout=STOP_TIMEOUT + 5, limit=STOP_TIMEOUT)
    sent = sum(int(answer["sent"]) for answer in stopped)
    samples, still = drain(receivers, sent)
    outcome, reason = judge(stopped, samples, sent, still)
    if outcome != "timed out":
        try:
            crew.close()
        except WorkerFailed as error:
            outcome, reason = "failed", f"closing: {error}"
    return Measurement(
        point,
        repeat,
        outcome,
        reason,
        messages,
        seconds,
        rate,
        sent,
        _received(samples),
        cpu,
        others,
    )


def _measure_stream(crew: Crew, point: Point, options: Options, repeat: int) -> Measurement:
    receivers, senders = assemble(crew, point, None)
    both = [*receivers, *senders]
    patience = options.seconds + 30.0
    ask_all(both, "transfer", timeout=patience, seconds=options.warmup)
    clock = Clock(crew.children)
    received, sent = ask_all(both, "transfer", timeout=patience, seconds=options.seconds)
    cpu, others = clock.read()
    crew.close()
    count = int(received["bytes"])
    if not count or received["seconds"] <= 0:
        return Measurement(point, repeat, "failed", "no bytes arrived")
    missing = int(sent["bytes"]) - count
    return Measurement(
        point,
        repeat,
        "lost" if missing else "ok",
        f"lost {missing} bytes" if missing else "",
        count // point.size,
        received["seconds"],
        count / point.size / received["seconds"],
        int(sent["bytes"]) // point.size,
        count // point.size,
        cpu,
        others,
    )


class Clock:
    """CPU used between two moments by the processes of a point, and by everybody else."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._busy, self._own, self._time = self._now()
        self._mine = sum(os.times()[:2])

    def _now(self) -> tuple[float, float, float]:
        own = sum(float(sample["cpu"]) for sample in ask_all(self._children, "sample"))
        return busy_seconds(), own, time.monotonic()

    def read(self) -> tuple[float, float]:
        """CPU seconds of the children, and the share of the processor that others took."""
        busy, own, now = self._now()
        used = own - self._own
        # This process measures; it is no stranger either.
        mine = sum(os.times()[:2]) - self._mine
        elapsed = now - self._time
        share = share_of_others(busy - self._busy, used + mine, elapsed, os.cpu_count() or 1)
        return used, share


def await_first(receivers: Sequence[Child]) -> None:
    """Wait until every one of them has counted something."""
    deadline = time.monotonic() + FIRST_MESSAGE_TIMEOUT
    while not all(sample["messages"] for sample in ask_all(receivers, "sample")):
        if time.monotonic() > deadline:
            raise WorkerTimeout(f"no message arrived within {FIRST_MESSAGE_TIMEOUT:g} s")
        time.sleep(0.02)


def drain(
    receivers: Sequence[Child], sent: int, counted: str = "messages"
) -> tuple[list[dict[str, Any]], bool]:
    """Wait for everything that was sent. The last samples, and whether they stand still."""
    deadline = time.monotonic() + DRAIN_TIMEOUT
    samples = ask_all(receivers, "sample")
    moved = time.monotonic()
    while (count := _received(samples, counted)) < sent:
        now = time.monotonic()
        if now - moved > DRAIN_STILL:
            return samples, True
        if now > deadline:
            return samples, False
        time.sleep(0.02)
        samples = ask_all(receivers, "sample")
        if _received(samples, counted) > count:
            moved = time.monotonic()
    return samples, True


def judge(
    stopped: Sequence[dict[str, Any]],
    samples: Sequence[dict[str, Any]],
    sent: int,
    still: bool,
    counted: str = "messages",
) -> tuple[str, str]:
    """The outcome of a point whose receivers have been drained, and its reason."""
    received = _received(samples, counted)
    wrong = sum(int(sample["wrong"]) for sample in samples)
    if blocked := sum(int(answer["blocked"]) for answer in stopped):
        return "timed out", f"{blocked} senders still blocked after {STOP_TIMEOUT:g} s"
    if wrong:
        return "failed", f"{wrong} messages of another size than sent"
    if received > sent:
        return "failed", f"{received - sent} more received than sent"
    if received < sent:
        missing = f"{sent - received} of {sent}"
        if still:
            return "lost", f"lost {missing}"
        return "timed out", f"{missing} still to come after {DRAIN_TIMEOUT:g} s"
    return "ok", ""


def _received(samples: Sequence[dict[str, Any]], counted: str = "messages") -> int:
    return sum(int(sample[counted]) for sample in samples)


def rate_between(first: dict[str, Any], last: dict[str, Any]) -> float:
    """Messages per second between two samples of one process."""
    elapsed = (last["time_ns"] - first["time_ns"]) / 1e9
    return float((last["messages"] - first["messages"]) / elapsed) if elapsed > 0 else 0.0

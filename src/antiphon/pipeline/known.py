"""Runs that were never made, and all that is known about them: for campaigns by `simulate`.

Everything is a formula over whole numbers, so the true answers need no measuring. Delays are a
multiset whose n-th smallest member is known; messages per second, processor time and how a run
ends follow from the run's names and the seed. Receives a plan of the lab, hands runs to `simulate`,
which writes them, and to `answers`, which says what the tables must contain.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.lab.plan import Plan, Run
from antiphon.lab.record import facts_of

__all__ = [
    "ERROR_NS",
    "FIRST_KEPT",
    "NANOS",
    "STEPS",
    "Delays",
    "SimulatedRun",
    "key_facts",
    "quantile_us",
    "simulated_runs",
]

NANOS = 1_000_000_000
STEPS = 1 << 16
"""How many different delays a run can have."""

FIRST_KEPT = 2
"""Seconds from the begin of a run to its window; traffic begins one second before."""

ERROR_NS = 5_000
"""By how much a message arrives before it was sent, where two clocks disagree."""

_START = 1_000 * NANOS
_WAVE = (0, 30, -20, 50, -60)  # from second to second, in thousandths
_LOADS = {"none": 1000, "garbage": 880, "cpu-60": 560}  # what is kept, before the protocol's own
_HEADERS = 66  # Ethernet, IP and TCP


@dataclass(frozen=True)
class Delays:
    """``count`` delays: the n-th smallest, from 0, is ``table[n * STEPS // count]``.

    They are handed out in an order that jumps about, by a multiplication modulo ``count``, and
    all of them exactly once.
    """

    count: int
    base_ns: int
    tail_ns: int
    jump: int
    first: int

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """Ascending: a body from one to two times the base, and a tail like 1 / (1 - p)."""
        return _table(self.base_ns, self.tail_ns)

    def drawn(self, begin: int, end: int) -> NDArray[np.int64]:
        """Nanoseconds of the messages from ``begin`` to before ``end``."""
        order = np.arange(begin, end, dtype=np.int64)
        order *= self.jump
        order += self.first
        order %= self.count
        order *= STEPS
        order //= self.count
        return self.table[order]

    def up_to(self, micros: int) -> int:
        """How many of them take at most so many whole microseconds."""
        below = int(np.searchsorted(self.table, (micros + 1) * 1000, side="left"))
        return -(-below * self.count // STEPS)

    @cached_property
    def sums(self) -> tuple[int, int]:
        """Of the delays, and of their squares: exact, in ns and ns²."""
        edges = -(-np.arange(STEPS + 1, dtype=np.int64) * self.count // STEPS)
        often = np.diff(edges)
        # Squares of nanoseconds do not fit into 64 bits; those of their halves do.
        high, low = np.divmod(self.table, 1 << 16)
        squares = [int((often * part).sum()) for part in (high * high, 2 * high * low, low * low)]
        return (
            int((often * self.table).sum()),
            (squares[0] << 32) + (squares[1] << 16) + squares[2],
        )

    @property
    def least_us(self) -> int:
        return int(self.table[0]) // 1000

    @property
    def most_us(self) -> int:
        return int(self.table[(self.count - 1) * STEPS // self.count]) // 1000


@lru_cache(maxsize=64)
def _table(base_ns: int, tail_ns: int) -> NDArray[np.int64]:
    step = np.arange(STEPS, dtype=np.int64)
    return base_ns + base_ns * step // STEPS + tail_ns * STEPS // (STEPS - step)


def quantile_us(delays: Sequence[Delays], part: int, of: int) -> int:
    """The smallest number of whole microseconds that ``part / of`` of all delays do not exceed."""
    needed = -(-sum(one.count for one in delays) * part // of)
    low, high = min(one.least_us for one in delays), max(one.most_us for one in delays)
    while low < high:
        middle = (low + high) // 2
        if sum(one.up_to(middle) for one in delays) >= needed:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class SimulatedRun:
    """One run, whose files `simulate` writes. Lists are by second of the whole run, from 0."""

    run: Run
    variant: str | None
    rows: int
    clock_errors: int
    """So many of the rows, the last ones, arrive before they were sent."""

    seconds: int
    """Of the window."""

    delays: Delays
    outcome: str
    reason: str
    sent: Mapping[str, Sequence[int]]
    """Messages, by role; of a group's member each counts once, whoever gets it."""

    received: Mapping[str, Sequence[int]]
    milli_cores: Mapping[str, int]
    """Thousandths of a core in use, by role, and ``machine``."""

    wire: bool
    """Whether every process has an interface for itself."""

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def complete(self) -> bool:
        return self.outcome == "complete"

    @property
    def start_ns(self) -> int:
        """A clock that goes on from run to run is nothing that the files depend on."""
        return _START

    @property
    def window_ns(self) -> tuple[int, int]:
        begin = self.start_ns + FIRST_KEPT * NANOS
        return begin, begin + self.seconds * NANOS

    @property
    def roles(self) -> list[str]:
        return [role for role in self.milli_cores if role != "machine"]

    @property
    def topic(self) -> str | None:
        return "lab/0/1" if self.run.protocol == "antiphon-topic" else None

    @property
    def service_ns(self) -> int:
        """Of one event, of a run with a topic."""
        return 400 if self.run.rate is None else 20_000

    @property
    def response_ns(self) -> int:
        """From the arrival of an event to the end of its service."""
        return 3 * self.service_ns

    def by_second(self) -> list[int]:
        """Messages that all processes received, for each second of the window."""
        kept = range(FIRST_KEPT, FIRST_KEPT + self.seconds)
        return [sum(counts[second] for counts in self.received.values()) for second in kept]

    def in_window(self, counts: Sequence[int]) -> int:
        return sum(counts[FIRST_KEPT : FIRST_KEPT + self.seconds])

    @property
    def messages(self) -> int:
        """Received in the window."""
        return sum(self.by_second())

    def wire_bytes(self, messages: int) -> int:
        """What so many messages that were sent come to on the wire."""
        return messages * (self.run.size + _HEADERS)

    @property
    def one_in(self) -> float | None:
        return max(1.0, self.messages / self.rows) if self.rows else None


def simulated_runs(
    plan: Plan,
    runs: Sequence[Run],
    rows: int,
    variants: Mapping[str, str | None],
    slower: Mapping[str, float],
) -> list[SimulatedRun]:
    """A simulated run for each of a plan's; ``rows`` of latency are spread over them evenly.

    ``slower`` protocols have that part of their throughput left, and delays longer by as much.
    """
    seconds = int(plan.times.kept_until - plan.times.kept_from)
    each, more = divmod(rows, len(runs))
    return [
        _simulated(
            run, each + (number < more), seconds, variants.get(run.protocol), plan.seed, slower
        )
        for number, run in enumerate(runs)
    ]


def _simulated(
    run: Run,
    rows: int,
    seconds: int,
    usual: str | None,
    seed: int,
    slower: Mapping[str, float],
) -> SimulatedRun:
    errors = min(run.repeat, max(0, rows - 1))
    left = round(1000 * slower.get(run.protocol, 1.0))
    received, sent = _traffic(run, rows, seconds, seed, left)
    outcome, reason = _ending(run)
    cores = {role: 150 + _number(seed, run.protocol, role, run.workload) % 700 for role in received}
    cores["machine"] = sum(cores.values()) + 40 + (1200 if run.workload == "cpu-60" else 0)
    return SimulatedRun(
        run=run,
        variant=run.variant or usual,
        rows=rows,
        clock_errors=errors,
        seconds=seconds,
        delays=_delays(run, rows - errors, seed, left),
        outcome=outcome,
        reason=reason,
        sent=sent,
        received=received,
        milli_cores=cores,
        wire=run.link != "loopback",
    )


def _number(*names: object) -> int:
    """The same for the same names, whenever and wherever."""
    text = "/".join(str(name) for name in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little")


def _delays(run: Run, count: int, seed: int, left: int) -> Delays:
    own = _number(seed, "delay", run.series, run.protocol, run.link)
    base = 15_000 + own % 30_000
    if run.rate is None:
        base *= 200  # behind full buffers
    base = base * 1000 // _LOADS.get(run.workload, 1000) * 1000 // left
    base += 37 * run.repeat  # repeats are alike, and not the same
    jump = max(1, int(count * 0.6180339887498949))
    while math.gcd(jump, count) != 1:
        jump += 1
    return Delays(
        count=count,
        base_ns=base,
        tail_ns=(1_500 + own % 1_000) * 1000 // left,
        jump=jump,
        first=_number(seed, "first", run.id) % max(1, count),
    )


Counts = dict[str, list[int]]


def _traffic(run: Run, rows: int, seconds: int, seed: int, left: int) -> tuple[Counts, Counts]:
    """Received and sent, by role and second. Traffic begins a second before the window."""
    total = FIRST_KEPT + seconds + 1
    begin = FIRST_KEPT - 1
    if run.rate is not None:
        # By a timetable: the rows of the window are the messages, evenly spread.
        counts = [0] * total
        edges = [-(-second * rows // seconds) for second in range(seconds + 1)]
        for second in range(seconds):
            counts[FIRST_KEPT + second] = edges[second + 1] - edges[second]
        counts[begin] = counts[-1] = counts[FIRST_KEPT]
        return _one_way(run, counts)
    own = _number(seed, "rate", run.series, run.protocol)
    base = (100_000 + own % 400 * 1_000) * left // 1000
    kept = _LOADS.get(run.workload, 1000)
    if kept < 1000:
        kept -= own // 1000 % 100
    base = base * kept // 1000
    base = base * (1000 + _number(seed, "repeat", run.id) % 21 - 10) // 1000
    if run.link == "gigabit":
        base = base * 3 // 2
    stalls = run.protocol.startswith("udp") and run.workload == "cpu-60"
    counts = [
        0
        if second < begin or (stalls and second % 10 in (3, 4))
        else base * (1000 + _WAVE[second % len(_WAVE)]) // 1000
        for second in range(total)
    ]
    return _one_way(run, counts) if run.pattern == "one-way" else _group(run, counts)


def _one_way(run: Run, counts: list[int]) -> tuple[Counts, Counts]:
    """Datagrams get lost, one for every fifty that arrive."""
    lossy = run.protocol.startswith("udp") and run.rate is None
    sent = [count + count // 50 for count in counts] if lossy else list(counts)
    none = [0] * len(counts)
    return {"reader": counts, "writer": none}, {"reader": none, "writer": sent}


def _group(run: Run, counts: list[int]) -> tuple[Counts, Counts]:
    """Each member's messages reach all others; the first one sends a tenth less."""
    each = [count // (10 * run.nodes * run.nodes) * 10 for count in counts]
    sent = {f"node-{own}": each for own in range(run.nodes)}
    sent["node-0"] = [count * 9 // 10 for count in each]
    everything = [sum(some) for some in zip(*sent.values(), strict=True)]
    received = {
        role: [everyone - mine for everyone, mine in zip(everything, own, strict=True)]
        for role, own in sent.items()
    }
    return received, sent


def _ending(run: Run) -> tuple[str, str]:
    """Some do not finish: that is a result, and their delays are in no table."""
    if run.series != "throughput":
        return "complete", ""
    if run.protocol == "redis" and run.workload == "garbage":
        return "unbounded_growth", "the memory of server doubled, and still rose"
    if run.protocol == "pyzmq" and run.workload == "cpu-60" and run.repeat == 2:
        return "disconnected", "reader ended unexpectedly"
    return "complete", ""


def key_facts(one: SimulatedRun) -> dict[str, Any]:
    """What ``run.json`` has of a run's keys, the variant filled in."""
    return {**facts_of(one.run), "variant": one.variant}

"""What a campaign measures: the experiments of a plan, and the runs that they come to.

A `Plan` holds `Series`; a series is the product of its lists (protocols, sizes, loads, links and so
on), and one element of it, repeated once, is a `Run`. Plans are written as TOML, which
`antiphon.lab.plan_file` reads and checks; nothing here opens a socket or starts a process. Receives
files from the user, hands runs to the lab's runner.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError

__all__ = [
    "KNOWN_PROTOCOLS",
    "LINKS",
    "LINK_CHECKS",
    "LINK_KINDS",
    "PATTERNS",
    "SCHEDULING",
    "Adapter",
    "Garbage",
    "Link",
    "Plan",
    "PlanError",
    "Run",
    "Series",
    "Times",
    "Workload",
    "axes",
    "estimate",
    "load_plan",
    "members",
    "memory",
    "run_seconds",
    "runs_of",
    "searched",
    "shipped_plans",
    "with_messages",
]

KNOWN_PROTOCOLS = (
    "antiphon-node",
    "antiphon-topic",
    "antiphon-group",
    "antiphon-broker",
    "tcp-c",
    "tcp-python",
    "asyncio",
    "java-net",
    "java-nio",
    "udp-c",
    "udp-python",
    "udp-java",
    "sctp",
    "enet",
    "quic",
    "pyzmq",
    "zenoh",
    "nats",
    "pynng",
    "redis",
    "mqtt",
    "jgroups-udp",
    "jgroups-tcp",
    "grpc",
    "spread",
    "appia",
)
LINK_CHECKS = ("link-ping", "link-tcp", "link-udp")
LINKS = "links"
"""What is measured of the bare link, before all runs, and the series of those runs: names that no
plan can use."""

PATTERNS = ("one-way", "duplex", "1-n", "n-n", "m-n")
LINK_KINDS = ("loopback", "bridge", "ssh")
SCHEDULING = ("other", "fifo", "idle")

_PLANS = Path(__file__).parent / "plans"
_CHECK_SECONDS = 3.0
_START_SECONDS = 1.5  # processes come up and go, beside what the plan asks for
_RUN_BYTES = 24_000  # run.json, and the schemas of files with few rows
_SAMPLE_BYTES = 120  # a row of samples.parquet, as Parquet packs it
_LATENCY_BYTES = 12
_LATENCY_ROWS = 10_000  # a second, at the most: above that the runner samples
_STAMPS = 100  # a second, of a thread that sends as fast as it can
_PROCESS_BYTES = 60_000_000  # a Python process with the lab and a library in it
_JVM_BYTES = 100_000_000  # a JVM, beside its heap
_OBJECT_BYTES = 70  # of the load on Python's collector


class PlanError(ConfigError):
    """A plan cannot be used. Each fault is one line: where it is, what is wrong, what is allowed.

    The facts are those of the first fault; ``faults`` has an error for each of them.
    """

    file: str | None = None
    line: int | None = None
    allowed: tuple[str, ...] = ()
    faults: tuple[PlanError, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the begin of a run: when load and traffic start, and which samples count."""

    load: float = 0.0
    traffic: float = 0.0
    kept_from: float = 0.0
    kept_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Garbage:
    """Linked objects inside the measured process, some of which are replaced all the time."""

    live_objects: int | None
    """For Python; None: as many as make collections and replacement take ``core_share``."""

    replaced_per_second: float
    core_share: float
    java_live_bytes: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What competes with the traffic."""

    name: str
    cpu: float | None
    """Share of all cores that a pool of processes holds; None: no pool."""

    cpu_as_garbage: bool
    """Whether the pool takes the CPU that the plan's garbage load was measured to take."""

    garbage: Garbage | None
    memory_bytes: int = 0
    slow_receiver: float | None = None
    """Messages a second that the last of several receivers takes, at the most; None: all that come.
    """


@dataclass(frozen=True, slots=True)
class Link:
    """Between which hosts the traffic goes."""

    name: str
    kind: str
    rate_bits: int | None
    delay: float | None
    loss: float | None
    hosts: tuple[str, ...] = ()
    """For ``ssh``: where the roles run, in turn."""

    python: str = "python3"
    """For ``ssh``: the interpreter there, one that has this package."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A protocol that the plan brings along: a file with an endpoint in it."""

    name: str
    file: str
    """As the plan has it, relative to the plan's own folder."""

    managed: bool
    """Whether the load on the garbage collector applies to it."""

    group: bool = False
    """Whether what a member sends goes to all others."""

    lossy: bool = False
    """Whether it may drop messages, which are then counted and no error."""


@dataclass(frozen=True, slots=True)
class Series:
    """One experiment: the product of its lists.

    ``nodes`` counts for the patterns 1-n, n-n and m-n, ``senders`` for one-way and m-n; the others
    have as many as their pattern says.
    """

    name: str
    pattern: str
    protocols: tuple[str, ...]
    variants: Mapping[str, tuple[str, ...]]
    """By protocol; one that is not in it runs in its adapter's own way."""

    sizes: tuple[int, ...]
    rates: tuple[float | None, ...]
    """Messages per second and sender; None: as many as go."""

    nodes: tuple[int, ...]
    senders: tuple[int, ...]
    threads: tuple[int, ...]
    streams: tuple[int, ...]
    workloads: tuple[str, ...]
    links: tuple[str, ...]
    stacks: tuple[str | None, ...]
    messages: tuple[int | None, ...]
    """How many each sender sends; None: until the end of the kept window."""

    paced: int | None = None
    """How many of the senders keep the rate, the others being as fast as they can; None: all."""

    search: int = 0
    """Of several numbers of messages: how many more are tried, between the largest that was
    delivered and the one above it."""

    placements: tuple[str | None, ...] = (None,)
    memory_limit: int | None = None
    """Bytes that each of its measured processes may have; None: as many as the plan says."""

    later: tuple[str, ...] = ()
    """What is still missing for it. With any, the series is listed and comes to no runs."""

    offered: tuple[str, ...] = ()
    """Protocols that `Plan.with_protocols` may choose from; empty: ``protocols``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a campaign needs to know in advance."""

    name: str
    title: str
    source: str
    times: Times
    repeats: int
    seed: int
    pinned: bool
    scheduling: str
    memory_limit: int | None
    """Bytes that each measured process may have."""

    gc: Mapping[str, Any]
    """For Python processes: ``enabled``, and ``thresholds`` as for `gc.set_threshold`."""

    workloads: Mapping[str, Workload]
    links: Mapping[str, Link]
    adapters: Mapping[str, Adapter]
    series: tuple[Series, ...]
    text: str
    """The TOML that it was read from, also after `quick` and `with_protocols`."""

    folder: Path = Path()
    """Where that file was."""

    small: Plan | None = None
    """The plan with its ``[quick]`` table applied."""

    handlers: int | None = None
    """Threads of a node that call handlers; None: as many as it makes by itself."""

    reduced: bool = False
    """Whether this is that small plan."""

    spare: tuple[Series, ...] = ()
    """Of that small plan, series that have none of its protocols: they are there again when
    `with_protocols` names one of theirs."""

    def limit_of(self, run: Run) -> int | None:
        """Bytes that each process of a run may have."""
        own = (one.memory_limit for one in self.series if one.name == run.series)
        return next(own, None) or self.memory_limit

    def quick(self) -> Plan:
        """The plan with its ``[quick]`` table applied; raises `PlanError` if it has none."""
        if self.reduced:
            return self
        if self.small is None:
            raise PlanError(
                f"plan {self.name}: it has no [quick] table; add one, or run it in full",
                setting="quick",
            )
        return self.small

    def with_protocols(self, names: Sequence[str]) -> Plan:
        """The plan with these protocols alone, also those that a quick plan leaves out.

        Series that have none of them are dropped. Raises `PlanError` for a name that is in no
        series of the plan.
        """
        every = (*self.series, *self.spare)
        offered = list(dict.fromkeys(name for series in every for name in _offer(series)))
        for name in names or [""]:
            if name not in offered:
                raise PlanError(
                    f"plan {self.name}: protocols: {name!r} is in none of its series; "
                    f"allowed are {', '.join(offered)}",
                    setting="protocols",
                    value=name,
                    allowed=tuple(offered),
                )
        small = None if self.small is None else _narrowed(self.small, names)
        return replace(_narrowed(self, names), small=small)


@dataclass(frozen=True, slots=True)
class Run:
    """One element of a series' product, one repeat. What does not apply is None."""

    id: str
    """Readable, unique within its plan, the same whenever the plan is read; a file name."""

    plan: str
    series: str
    protocol: str
    variant: str | None
    stack: str | None
    pattern: str
    workload: str
    link: str
    placement: str | None
    size: int
    nodes: int
    senders: int
    threads: int
    streams: int
    rate: float | None
    scheduling: str
    repeat: int
    """From 1."""

    seed: int
    """The same for all runs of a repeat, so that all meet the same random structures."""

    messages: int | None = None
    """How many each sender sends; None: until the end of the window."""

    paced: int | None = None
    """How many of the senders keep ``rate``; None: all."""


def runs_of(plan: Plan) -> tuple[Run, ...]:
    """Every run, in the order in which they are to be made.

    All first repeats come before all second ones, so that a machine that gets slower with the hours
    does so for every protocol. Within a repeat the order is drawn: by a hash of seed, repeat and
    run, and not by `random.shuffle`, so that a protocol more or less leaves the others in order.
    """
    cells = [cell for series in plan.series for cell in _cells(plan, series)]
    runs: list[Run] = []
    for repeat in range(1, plan.repeats + 1):
        again = [
            replace(cell, id=f"{cell.id}.r{repeat}", repeat=repeat, seed=plan.seed + repeat - 1)
            for cell in cells
        ]
        runs += sorted(again, key=lambda run: _drawn(plan.seed, run))
    return tuple(runs)


def searched(plan: Plan) -> tuple[tuple[Run, int], ...]:
    """Of every ladder of numbers that is searched its first step, and how many more runs that is
    at the most. Which numbers those have depends on how the runs before them end."""
    return tuple(
        (replace(cell, id=f"{cell.id}.r1", repeat=1, seed=plan.seed), series.search)
        for series in plan.series
        if series.search
        for cell in _cells(plan, series)
        if cell.messages == series.messages[0]
    )


def with_messages(run: Run, messages: int) -> Run:
    """The same run with another number of messages than its ladder has."""
    other = replace(run, messages=messages)
    return replace(other, id=f"{_id(other, True)}.r{run.repeat}")


def load_plan(
    name_or_path: str | Path,
    *,
    known: Collection[str] = KNOWN_PROTOCOLS,
    called: str | None = None,
) -> Plan:
    """A shipped plan by its name, or the plan in a ``.toml`` file; raises `PlanError`.

    ``known`` are the protocols that a plan may name. A plan without a name has that of its file, or
    ``called``: the copy in a campaign's directory has another file name than the plan had.
    """
    # The reader needs the classes of this module, so it cannot be imported before them.
    from antiphon.lab.plan_file import read_plan

    if isinstance(name_or_path, str) and name_or_path in shipped_plans():
        return read_plan(_PLANS / f"{name_or_path}.toml", known)
    if Path(name_or_path).suffix == ".toml":
        return read_plan(Path(name_or_path), known, called)
    names = shipped_plans()
    raise PlanError(
        f"there is no plan {str(name_or_path)!r}; give the path of a .toml file, or one of "
        f"{', '.join(names)}",
        setting="plan",
        value=str(name_or_path),
        allowed=names,
    )


def shipped_plans() -> tuple[str, ...]:
    """Names of the plans that come with the package."""
    return tuple(sorted(path.stem for path in _PLANS.glob("*.toml")))


def estimate(plan: Plan) -> tuple[float, int]:
    """Seconds and bytes on disk that a campaign of the plan takes, roughly and at the most.

    Time: of every run its ``kept_until``, and 1.5 s for its processes to come and go; of every link
    three checks of at most 3 s. Bytes: of every second a row of samples for each process and for
    the machine, and of the kept seconds a row per message, up to 10,000 a second. Runs that do not
    apply take no time. Those whose protocol is absent, or that are done when their messages are,
    take less. A search takes as many runs as it may.
    """
    runs = [*runs_of(plan), *(run for run, more in searched(plan) for _ in range(more))]
    kept = plan.times.kept_until - plan.times.kept_from
    check = min(kept, _CHECK_SECONDS) + _START_SECONDS
    seconds = len({run.link for run in runs}) * len(LINK_CHECKS) * check
    size = 0.0
    apply = _suited(plan)
    for run in runs:
        size += _RUN_BYTES
        if not apply(run):
            continue
        seconds += run_seconds(plan)
        rows = _LATENCY_ROWS * kept
        if run.rate is not None:
            paced = min(run.senders, run.paced or run.senders)
            free = _STAMPS * run.threads * (run.senders - paced)
            rows = min(rows, (run.rate * paced + free) * kept)
        if run.messages is not None:
            rows = min(rows, float(run.messages * run.senders * max(1, run.nodes - 1)))
        samples = plan.times.kept_until * (run.nodes + 1)
        size += samples * _SAMPLE_BYTES + rows * _LATENCY_BYTES
    return seconds, int(size)


def memory(plan: Plan) -> int:
    """Bytes that the processes of the plan's largest run hold at the least.

    A JVM has all of its heap from the begin; of the others, what they have before the first
    message. Messages that are queued come on top, and are what some runs are for.
    """
    # They import this module.
    from antiphon.lab.java.programs import HEAP_BYTES
    from antiphon.lab.protocols import protocol_of

    apply = _suited(plan)
    most = 0
    for run in runs_of(plan):
        workload = plan.workloads[run.workload]
        java = bool(protocol_of(plan, run.protocol).program)
        each = _JVM_BYTES + HEAP_BYTES if java else _PROCESS_BYTES
        if workload.garbage is not None and not java:
            each += (workload.garbage.live_objects or 0) * _OBJECT_BYTES
        if apply(run):
            most = max(most, each * run.nodes + workload.memory_bytes)
    return most


def _suited(plan: Plan) -> Callable[[Run], bool]:
    """Whether a run is one that its protocol could make."""
    # It imports this module.
    from antiphon.lab.protocols import protocol_of, unsuited

    def suited(run: Run) -> bool:
        workload = plan.workloads[run.workload]
        return not unsuited(protocol_of(plan, run.protocol), run, workload)

    return suited


def run_seconds(plan: Plan) -> float:
    """How long a run takes at the most, its processes' coming and going included."""
    return plan.times.kept_until + _START_SECONDS


def _offer(series: Series) -> tuple[str, ...]:
    return series.offered or series.protocols


def _narrowed(plan: Plan, names: Collection[str]) -> Plan:
    chosen = [
        replace(series, protocols=protocols, offered=_offer(series))
        for series in (*plan.series, *plan.spare)
        if (protocols := tuple(name for name in _offer(series) if name in names))
    ]
    return replace(plan, series=tuple(chosen), spare=())


def _cells(plan: Plan, series: Series) -> Iterator[Run]:
    """The product of a series, each as the run of a repeat that is filled in later."""
    if series.later:
        return
    for protocol in series.protocols:
        for (
            variant,
            stack,
            workload,
            link,
            place,
            size,
            count,
            threads,
            streams,
            rate,
            messages,
        ) in itertools.product(series.variants.get(protocol, (None,)), *axes(series)):
            run = Run(
                id="",
                plan=plan.name,
                series=series.name,
                protocol=protocol,
                variant=variant,
                stack=stack,
                pattern=series.pattern,
                workload=workload,
                link=link,
                placement=place,
                size=size,
                nodes=count[0],
                senders=count[1],
                threads=threads,
                streams=streams,
                rate=rate,
                scheduling=plan.scheduling,
                repeat=0,
                seed=0,
                messages=messages,
                paced=series.paced,
            )
            yield replace(run, id=_id(run, len(series.messages) > 1))


def axes(series: Series) -> tuple[Sequence[Any], ...]:
    """What every protocol of a series is combined with, its variants besides."""
    return (
        series.stacks,
        series.workloads,
        series.links,
        series.placements,
        series.sizes,
        members(series),
        series.threads,
        series.streams,
        series.rates,
        series.messages,
    )


def members(series: Series) -> list[tuple[int, int]]:
    """Nodes and senders together, as the pattern has them; m-n has fewer senders than nodes."""
    match series.pattern:
        case "one-way":
            return [(senders + 1, senders) for senders in series.senders]
        case "duplex":
            return [(2, 2)]
        case "1-n":
            return [(nodes, 1) for nodes in series.nodes]
        case "n-n":
            return [(nodes, nodes) for nodes in series.nodes]
    return [(n, m) for n in series.nodes for m in series.senders if m < n]


def _id(run: Run, counted: bool) -> str:
    """What tells a run from the others, without its repeat. Names cannot hold ``.`` and ``_``.

    ``counted`` is whether those of its series differ in their number of messages.
    """
    parts = [
        run.series,
        run.protocol if run.variant is None else f"{run.protocol}_{run.variant}",
        *([] if run.stack is None else [f"stack_{run.stack}"]),
        run.workload,
        run.link,
        *([] if run.placement is None else [f"at_{run.placement}"]),
        f"{run.size}B",
    ]
    if run.pattern in ("1-n", "n-n", "m-n"):
        parts.append(f"n{run.nodes}")
    if run.pattern in ("one-way", "m-n") and (run.senders > 1 or run.pattern == "m-n"):
        parts.append(f"s{run.senders}")
    parts += [f"t{run.threads}"] if run.threads > 1 else []
    parts += [f"p{run.streams}"] if run.streams > 1 else []
    if run.rate is not None:
        parts.append(f"{int(run.rate) if run.rate == int(run.rate) else run.rate!r}ps")
    parts += [f"m{run.messages}"] if counted else []
    return ".".join(parts)


def _drawn(seed: int, run: Run) -> bytes:
    return hashlib.sha256(f"{seed}/{run.id}".encode()).digest()

"""Which points of requests are measured, and the targets that the project set itself for them.

One process asks another from 1, 16 and 100 threads and from 1 to 1000 tasks of an event loop, in
two sizes; then every process asks all the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.lab.bench.plan import BASE_SIZE, PROCESSES, Group, Point
from antiphon.lab.bench.summary import Target
from antiphon.lab.peers.requests import REQUEST_PEERS

__all__ = ["QUICK_PEERS", "REQUEST_REACH", "request_plan"]

SIZES = (BASE_SIZE, 4096)
THREADS = (1, 16, 100)
TASKS = (1, 10, 100, 1000)
# What the targets for many callers are about.
MANY_THREADS = 16
MANY_TASKS = 1000
# Without a choice, a quick run has those of the targets and the machine's own limit.
QUICK_PEERS = ("antiphon", "raw-tcp", "python-sockets", "pyzmq", "nats", "grpc")


def request_plan(
    peers: Iterable[str], *, size: int | None = None, quick: bool = False
) -> list[Group]:
    """The plan that the command line asks for. ``size`` wins over ``quick``."""
    chosen = set(peers)
    if quick and size is None:
        return _quick_plan(chosen)
    sizes = SIZES if size is None else (size,)
    groups = [_threads(chosen, each, threads) for threads in THREADS for each in sizes]
    groups += [_tasks(chosen, each, tasks) for tasks in TASKS for each in sizes]
    if size is None:
        groups += [_all_to_all(chosen, processes) for processes in PROCESSES]
    return [group for group in groups if group.points]


def _quick_plan(chosen: Iterable[str]) -> list[Group]:
    """The points that the targets are about, and one of every system that has no target."""
    wanted = {point for target in REQUEST_REACH for point in (*target.points, *target.bases)}
    aimed_at = {point.system for point in wanted}
    groups = [
        _threads(chosen, BASE_SIZE, 1),
        _threads(chosen, BASE_SIZE, MANY_THREADS),
        _tasks(chosen, BASE_SIZE, MANY_TASKS),
    ]
    first = groups[0].title
    kept = []
    for group in groups:
        points = [
            point
            for point in group.points
            if point in wanted or (point.system not in aimed_at and group.title == first)
        ]
        kept.append(Group(group.title, tuple(points)))
    return [group for group in kept if group.points]


def _ways(chosen: Iterable[str], callers: str) -> list[tuple[str, str]]:
    """System and variant of everything that can be called from ``threads`` or ``tasks``."""
    return [
        (peer.name, variant)
        for peer in REQUEST_PEERS.values()
        for variant in peer.variants
        if peer.name in chosen
        and callers in peer.patterns
        # A REQ socket has one question at a time: tasks cannot share it.
        and (callers, variant) != ("tasks", "req-rep")
        # Whoever waits in an event loop does not spin.
        and not (callers == "tasks" and variant in ("spin", "no-spin"))
    ]


def _threads(chosen: Iterable[str], size: int, threads: int) -> Group:
    points = [
        Point(system, variant, "call", size, threads)
        for system, variant in _ways(chosen, "threads")
    ]
    return Group(f"{size} B, {threads} threads", tuple(points))


def _tasks(chosen: Iterable[str], size: int, tasks: int) -> Group:
    points = [
        Point(system, variant, "call", size, tasks=tasks)
        for system, variant in _ways(chosen, "tasks")
    ]
    return Group(f"{size} B, {tasks} tasks", tuple(points))


def _all_to_all(chosen: Iterable[str], processes: int) -> Group:
    points = [
        Point(system, variant, "n-n", processes=processes)
        for system, variant in _ways(chosen, "threads")
    ]
    return Group(f"all to all, {processes} processes", tuple(points))


_OURS = Point("antiphon", "default", "call")
_SPIN = Point("antiphon", "spin", "call")
_REQ_REP = Point("pyzmq", "req-rep", "call")
_BASES = (
    (2.0, "pyzmq DEALER/ROUTER", "pyzmq", "dealer-router"),
    (4.0, "nats.py", "nats", "request"),
    (4.0, "gRPC", "grpc", "unary"),
)


def _rates(callers: str, **many: int) -> Sequence[Target]:
    return [
        Target(
            f"{BASE_SIZE} B requests/s, {callers}",
            factor,
            name,
            (Point("antiphon", "default", "call", **many),),
            Point(system, variant, "call", **many),
        )
        for factor, name, system, variant in _BASES
    ]


REQUEST_REACH: tuple[Target, ...] = (
    Target(f"{BASE_SIZE} B p50, defaults", 0.6, "pyzmq REQ/REP", (_OURS,), _REQ_REP, "p50"),
    Target(
        f"{BASE_SIZE} B p50, defaults",
        1.05,
        "python-sockets",
        (_OURS,),
        Point("python-sockets", "blocking", "call"),
        "p50",
    ),
    Target(f"{BASE_SIZE} B p50, spin_us=50", 0.2, "pyzmq REQ/REP", (_SPIN,), _REQ_REP, "p50"),
    Target(f"{BASE_SIZE} B p99.9, defaults", 1.0, "pyzmq REQ/REP", (_OURS,), _REQ_REP, "p999"),
    *_rates(f"{MANY_THREADS} threads", threads=MANY_THREADS),
    *_rates(f"{MANY_TASKS} asyncio tasks", tasks=MANY_TASKS),
)

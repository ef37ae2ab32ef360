"""Which points are measured: one dimension at a time around one base point.

The base is 64 bytes, raw, one way, one sending thread. A *group* is a set of points that are
compared with each other; the runner alternates between its members, so that whatever else the
machine does meets all of them alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from antiphon.lab.peers import PEERS

__all__ = [
    "BASE_SIZE",
    "LARGEST",
    "PROCESSES",
    "SIZES",
    "THREADS",
    "YARDSTICKS",
    "Group",
    "Point",
    "full_plan",
    "left_out",
    "parse_peers",
    "plan_for",
    "quick_plan",
    "size_plan",
]

BASE_SIZE = 64
SIZES = (64, 256, 1024, 4096, 16384, 65536)
# Between these only ours and the two yardsticks run: the shape shows, and it ends in time.
SIZES_OF_ALL = (64, 1024, 4096, 65536)
YARDSTICKS = ("antiphon", "raw-tcp", "pyzmq")
DUPLEX_SYSTEMS = ("antiphon", "asyncio", "pyzmq", "zenoh")
THREADED_SYSTEMS = ("antiphon", "pyzmq")
THREADS = (1, 2, 4)
PROCESSES = (2, 4, 8, 16)
LARGEST = 64 * 1024 * 1024
# From here on zenoh would use shared memory instead of TCP: both ways are shown.
ZENOH_SHM_SIZE = 4096
# Of ours, every way at the base point; elsewhere the plainest and the fastest.
OUR_VARIANTS = ("callback", "inbox", "batch", "packed")
OUR_VARIANTS_BY_SIZE = ("callback", "packed")
# Where the same is shown encrypted, right behind what it is held against.
TLS_SIZES = (64, 4096)


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to measure: a system used in one way.

    ``tasks`` is for requests: with any, they come from so many tasks of one event loop.
    """

    system: str
    variant: str
    pattern: str = "one-way"
    size: int = BASE_SIZE
    threads: int = 1
    processes: int = 2
    tasks: int = 0

    @property
    def encoding(self) -> str:
        """``typed`` or ``raw``."""
        return "typed" if self.variant == "typed" else "raw"

    @property
    def encrypted(self) -> bool:
        """Whether its processes need certificates of one authority."""
        return self.variant == "tls"

    @property
    def name(self) -> str:
        """For people: ``antiphon callback, one-way, 64 B``."""
        words = [f"{self.system} {self.variant}", self.pattern, f"{self.size} B"]
        if self.threads > 1:
            words.append(f"{self.threads} threads")
        if self.tasks:
            words.append(f"{self.tasks} tasks")
        if self.pattern == "n-n":
            words.append(f"{self.processes} processes")
        return ", ".join(words)

    def facts(self) -> dict[str, object]:
        """The point as plain values, for JSON."""
        return {**asdict(self), "encoding": self.encoding}


@dataclass(frozen=True, slots=True)
class Group:
    """Points that are compared with each other, and what varies in them."""

    title: str
    points: tuple[Point, ...]


def full_plan(peers: Iterable[str]) -> list[Group]:
    """Everything: sizes, encryption, encodings, directions, threads and processes.

    But for what `left_out` tells: with that it would take a third longer.
    """
    return [group for group in _groups(_systems(peers)) if group.points]


def left_out(peers: Iterable[str]) -> list[str]:
    """What the full plan does not measure though it could: ``full duplex: pynng, nats``."""
    chosen = _systems(peers)
    lines: dict[str, list[str]] = {}
    for group, whole in zip(_groups(chosen), _groups(chosen, whole=True), strict=True):
        measured = {point.system for point in group.points}
        missing = [point.system for point in whole.points if point.system not in measured]
        if missing:
            lines.setdefault(", ".join(dict.fromkeys(missing)), []).append(group.title)
    return [f"{' and '.join(titles)}: {systems}" for systems, titles in lines.items()]


def _groups(chosen: Sequence[str], whole: bool = False) -> list[Group]:
    """The groups of the full plan; ``whole``: with all systems that could be in each."""

    def some(names: Iterable[str], points: tuple[Point, ...]) -> tuple[Point, ...]:
        return points if whole else _only(names, points)

    yardsticks = [name for name in chosen if name in YARDSTICKS]
    groups = [
        _size_group(
            chosen if whole or size in SIZES_OF_ALL else yardsticks,
            size,
            encrypted=size in TLS_SIZES,
        )
        for size in SIZES
    ]
    groups.append(Group("typed, 3 fields", _points(chosen, "typed")))
    points = some(DUPLEX_SYSTEMS, _points(chosen, "first", pattern="duplex"))
    groups.append(Group("full duplex", points))
    messages = [name for name in chosen if not PEERS[name].stream]  # a bare stream has one writer
    for threads in THREADS[1:]:
        points = some(THREADED_SYSTEMS, _points(messages, "first", threads=threads))
        groups.append(Group(f"{threads} sending threads", points))
    for processes in PROCESSES:
        points = _points(chosen, "first", pattern="n-n", processes=processes)
        groups.append(Group(f"all to all, {processes} processes", points))
    return groups


def quick_plan(peers: Iterable[str]) -> list[Group]:
    """Enough to see where we stand: the base point, and 4 KiB beside the bare stream."""
    chosen = _systems(peers)
    streams = [name for name in chosen if PEERS[name].stream]
    messages = [name for name in chosen if name not in streams]
    large = [Point(name, PEERS[name].variants[0], size=4096) for name in ("antiphon", *streams)]
    groups = [_size_group(messages, BASE_SIZE)]
    return [*groups, Group("4096 B, one way", tuple(large))] if streams else groups


def size_plan(peers: Iterable[str], size: int) -> list[Group]:
    """Every system and variant at one size, one way."""
    if not 1 <= size <= LARGEST:
        raise ValueError(f"size {size} is out of range: give 1 to {LARGEST} bytes")
    return [_size_group(_systems(peers), size, every_variant=True, encrypted=True)]


def plan_for(peers: Iterable[str], *, size: int | None = None, quick: bool = False) -> list[Group]:
    """The plan that the command line asks for. ``size`` wins over ``quick``."""
    if size is not None:
        return size_plan(peers, size)
    return quick_plan(peers) if quick else full_plan(peers)


def parse_peers(
    text: str, default: Iterable[str] = PEERS, known: Iterable[str] = PEERS
) -> tuple[str, ...]:
    """``"pyzmq, zenoh"`` as names; ``default`` for the empty string. Ours is always among them."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"unknown peer {', '.join(unknown)}: choose from {', '.join(known)}")
    return tuple(dict.fromkeys(["antiphon", *(names or default)]))


def _systems(peers: Iterable[str]) -> list[str]:
    wanted = set(peers)
    return [name for name in PEERS if name in wanted]


def _size_group(
    systems: Sequence[str], size: int, every_variant: bool = False, encrypted: bool = False
) -> Group:
    variants = OUR_VARIANTS if every_variant or size == BASE_SIZE else OUR_VARIANTS_BY_SIZE
    if encrypted:
        variants = (variants[0], "tls", *variants[1:])
    points = [Point("antiphon", name, size=size) for name in variants if "antiphon" in systems]
    points += [
        Point(name, PEERS[name].variants[0], size=size) for name in systems if name != "antiphon"
    ]
    if "zenoh" in systems and size >= ZENOH_SHM_SIZE:
        points.append(Point("zenoh", "shm", size=size))
    return Group(f"{size} B, one way", tuple(points))


def _points(
    systems: Sequence[str],
    variant: str,
    pattern: str = "one-way",
    threads: int = 1,
    processes: int = 2,
) -> tuple[Point, ...]:
    """One point per system that can do it; ``variant`` is a name or ``first``."""
    return tuple(
        Point(
            name,
            PEERS[name].variants[0] if variant == "first" else variant,
            pattern,
            threads=threads,
            processes=processes,
        )
        for name in systems
        if pattern in PEERS[name].patterns and variant in ("first", *PEERS[name].variants)
    )


def _only(names: Iterable[str], points: Iterable[Point]) -> tuple[Point, ...]:
    return tuple(point for point in points if point.system in set(names))

"""Groups side by side: all members send to all, as much as goes, ours and JGroups in turn.

Deliveries are counted as the systems' own benchmarks do it, a sender's own messages included.
JGroups is the one that is installed (2.12 from Debian), in the stacks that come with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from antiphon.lab.bench.processes import Child, WorkerFailed
from antiphon.lab.java import programs

__all__ = ["OURS", "SYSTEMS", "Throughput", "absent", "measure_group"]

OURS = {
    "antiphon": "tcp",
    "antiphon-udp": "udp",
    "antiphon-udp-flow": "udp-flow",
    "antiphon-udp-fc": "udp-fc",
}
"""Our stacks, by the names that they have here."""
SYSTEMS = (*OURS, "jgroups-tcp", "jgroups-udp")
_WORKER = "antiphon.lab.bench.group_worker"
_PATIENCE = 90.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """What a group of one system delivered."""

    system: str
    members: int
    size: int
    deliveries: float
    """Per second, at all members together, own ones included."""
    sends: float
    """Per second, of all members together."""
    cpu_us: float
    """Microseconds of processors per delivery."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def absent(system: str) -> str:
    """One line when it cannot be measured here, else nothing."""
    return "" if system in OURS else programs.missing("Groups") or ""


def measure_group(system: str, members: int, size: int, seconds: float) -> Throughput:
    """Starts the members, lets them send for a while, and counts. Raises `WorkerFailed`."""
    children: list[Child] = []
    try:
        for number in range(members):
            label = f"{system} member {number}"
            if system in OURS:
                children.append(Child(label, ("-m", _WORKER)))
            else:
                children.append(programs.JavaChild(label, "Groups", "member"))
        ours = OURS.get(system)
        start = _ours(children, size, ours) if ours else _theirs(children, system, size)
        order = "flood" if ours else "start"
        for child in children:
            child.ask(order, _PATIENCE, **start)
        time.sleep(max(0.5, seconds / 2))  # warm
        before = [child.ask("sample", _PATIENCE) for child in children]
        time.sleep(seconds)
        after = [child.ask("sample", _PATIENCE) for child in children]
        return _count(system, size, before, after)
    finally:
        for child in children:
            child.kill()


def _ours(children: Sequence[Child], size: int, stack: str) -> dict[str, Any]:
    addresses = [child.ask("open", _PATIENCE)["address"] for child in children]
    name = f"bench-{time.monotonic_ns()}"
    for child in children:
        child.tell("join", name=name, addresses=addresses, members=len(children), stack=stack)
    for child in children:
        child.answer(_PATIENCE)
    return {"size": size}


def _theirs(children: Sequence[Child], system: str, size: int) -> dict[str, Any]:
    stack = system.removeprefix("jgroups-")
    channel = f"bench-{time.monotonic_ns()}"
    address = ""
    for index, child in enumerate(children):
        opened = child.ask(
            "open", _PATIENCE, size=size, index=index, stack=stack, channel=channel, address=address
        )
        address = address or opened["address"]
    for child in children:
        child.tell("connect", address=address, members=len(children))
    for child in children:
        child.answer(_PATIENCE)
    return {"rate": 0, "stamp_ms": 0}


def _count(
    system: str, size: int, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> Throughput:
    deliveries = sends = cpu = 0.0
    for one, other in zip(before, after, strict=True):
        lasted = (other["time_ns"] - one["time_ns"]) / 1e9
        sent = (other["sent"] - one["sent"]) / lasted
        sends += sent
        deliveries += (other["messages"] - one["messages"]) / lasted
        if system not in OURS:
            deliveries += sent  # its adapter counts what others send
        cpu += (other["cpu_ns"] - one["cpu_ns"]) / lasted
    if not deliveries:
        raise WorkerFailed(f"{system}: nothing came")
    return Throughput(system, len(before), size, deliveries, sends, cpu / deliveries / 1000)

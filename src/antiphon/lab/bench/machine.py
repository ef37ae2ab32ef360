"""What the figures were measured on, and how much of the processor others used meanwhile."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from antiphon._version import __version__
from antiphon.lab.peers import PEERS, Peer

__all__ = [
    "Machine",
    "busy_seconds",
    "describe_machine",
    "process_cpu",
    "resident_bytes",
    "share_of_others",
    "threads_cpu",
    "versions",
]

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Machine:
    """Enough to know whether two runs may be compared."""

    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    virtual: bool

    def line(self) -> str:
        """All of it on one line."""
        kind = ", virtual" if self.virtual else ""
        return f"{self.cpu}, {self.cores} cores{kind}, {self.memory_gb:g} GB, {self.kernel}"

    def facts(self) -> dict[str, object]:
        """As plain values, for JSON."""
        return asdict(self)


def describe_machine() -> Machine:
    """The machine this process runs on."""
    text = _read("/proc/cpuinfo")
    model = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE
    return Machine(
        cpu=model.group(1).strip() if model else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(memory / 1e9, 1),
        kernel=f"{platform.system()} {platform.release()}",
        virtual=" hypervisor" in text,
    )


def versions(peers: Iterable[str], known: Mapping[str, Peer] = PEERS) -> dict[str, str]:
    """Python's version, ours, and that of every named peer that is installed."""
    found = {"python": platform.python_version(), "antiphon": __version__}
    for name in peers:
        if version := known[name].version():
            found[name] = version
    return found


def busy_seconds() -> float:
    """CPU seconds that the whole machine has spent on anything, stolen time included."""
    fields = [int(field) for field in _read("/proc/stat").partition("\n")[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / _TICK


def share_of_others(busy: float, own: float, elapsed: float, cores: int) -> float:
    """The part of the processor, from 0 to 1, that went to others than ``own``.

    ``/proc/stat`` counts in ticks and ``own`` in microseconds, so a quiet machine may come out
    slightly below zero; that is zero.
    """
    if elapsed <= 0 or cores <= 0:
        return 0.0
    return min(1.0, max(0.0, (busy - own) / (elapsed * cores)))


def process_cpu(pid: int) -> float:
    """CPU seconds of a process, all threads; zero when it is gone."""
    # The command's name may hold spaces and brackets: count from the last bracket.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK if len(fields) > 12 else 0.0


def threads_cpu(pid: int) -> float:
    """CPU seconds of the threads that a process has now, to the nanosecond.

    For what ticks cannot show: an idle process stays below one tick for seconds.
    """
    spent = 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        spent += int((_read(f"{task}/schedstat").split() or ["0"])[0])
    return spent / 1e9


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; zero when it is gone."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

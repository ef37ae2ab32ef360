"""One sample a second: what each process and the machine have used so far.

Counts are totals since the process or the machine began; whoever reads the samples takes
differences. Reading costs a few files of ``/proc`` per process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

__all__ = ["interface_usage", "machine_usage", "process_usage"]

# Kernels that are made without it have no such file for anybody.
_TOLD = Path("/proc/thread-self/children").exists()


def process_usage(process: psutil.Process, interface: str = "") -> dict[str, Any]:
    """Of one process and what it has started; empty when it is gone.

    With the counts of an ``interface`` that only this process uses.
    """
    facts: dict[str, Any] = {
        "cpu_seconds": 0.0,
        "resident_bytes": 0,
        "threads": 0,
        "voluntary_switches": 0,
        "involuntary_switches": 0,
    }
    found = False
    with contextlib.suppress(psutil.Error):
        for one in _family(process):
            with contextlib.suppress(psutil.Error), one.oneshot():
                times = one.cpu_times()
                facts["cpu_seconds"] += times.user + times.system
                facts["resident_bytes"] += one.memory_info().rss
                facts["threads"] += one.num_threads()
                voluntary, involuntary = _switches(one.pid)
                facts["voluntary_switches"] += voluntary
                facts["involuntary_switches"] += involuntary
                found = True
    if not found:
        return {}
    return facts | (interface_usage(process.pid, interface) if interface else {})


def _family(process: psutil.Process) -> Iterator[psutil.Process]:
    """A process and all below it. Those that go meanwhile are left out.

    The kernel tells whom a thread has started; to find it out by everybody's parent, as psutil
    does, takes a look at every process of the machine for each one that is sampled.
    """
    if not _TOLD:
        yield from (process, *process.children(recursive=True))
        return
    waiting = [process]
    while waiting:
        one = waiting.pop()
        yield one
        for pid in _started(one.pid):
            with contextlib.suppress(psutil.Error):
                waiting.append(psutil.Process(pid))


def _started(process: int) -> list[int]:
    """Those that its threads have started, directly."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _switches(process: int) -> tuple[int, int]:
    """Of the threads that live: what the kernel tells of a process is that of its first one."""
    voluntary = involuntary = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                for line in (thread / "status").read_text(errors="replace").splitlines():
                    if line.startswith("voluntary_ctxt"):
                        voluntary += int(line.split()[1])
                    elif line.startswith("nonvoluntary_ctxt"):
                        involuntary += int(line.split()[1])
    return voluntary, involuntary


def interface_usage(process: int, interface: str) -> dict[str, int]:
    """What an interface has carried, seen from a process of its network; empty when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/net/dev").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name.strip() == interface:
                counts = [int(word) for word in rest.split()]
                return {
                    "network_received_bytes": counts[0],
                    "network_received_packets": counts[1],
                    "network_sent_bytes": counts[8],
                    "network_sent_packets": counts[9],
                }
    return {}


def machine_usage() -> dict[str, Any]:
    """Of the whole machine; stolen time counts as used."""
    times = psutil.cpu_times()
    network, disk = psutil.net_io_counters(), psutil.disk_io_counters()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Guests' time is in user's already.
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    memory: Mapping[str, int] = psutil.virtual_memory()._asdict()
    return {
        "cpu_seconds": sum(times) - idle - guests,
        "resident_bytes": memory["total"] - memory["available"],
        "network_sent_bytes": network.bytes_sent if network else None,
        "network_received_bytes": network.bytes_recv if network else None,
        "network_sent_packets": network.packets_sent if network else None,
        "network_received_packets": network.packets_recv if network else None,
        "disk_read_bytes": disk.read_bytes if disk else None,
        "disk_written_bytes": disk.write_bytes if disk else None,
    }

"""One sample a second: what each process and the machine have used so far.

Counts are totals since the process or the machine began; whoever reads the samples takes
differences. Reading costs a few files of ``/proc`` per process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import psutil

__all__ = ["machine_usage", "process_usage"]


def process_usage(process: psutil.Process) -> dict[str, Any]:
    """Of one process and what it has started; empty when it is gone."""
    facts: dict[str, Any] = {
        "cpu_seconds": 0.0,
        "resident_bytes": 0,
        "threads": 0,
        "voluntary_switches": 0,
        "involuntary_switches": 0,
    }
    found = False
    with contextlib.suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error), one.oneshot():
                times, switches = one.cpu_times(), one.num_ctx_switches()
                facts["cpu_seconds"] += times.user + times.system
                facts["resident_bytes"] += one.memory_info().rss
                facts["threads"] += one.num_threads()
                facts["voluntary_switches"] += switches.voluntary
                facts["involuntary_switches"] += switches.involuntary
                found = True
    return facts if found else {}


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
        "disk_read_bytes": disk.read_bytes if disk else None,
        "disk_written_bytes": disk.write_bytes if disk else None,
    }

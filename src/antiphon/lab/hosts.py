"""What the figures of a campaign were measured on: this machine, and those reached by SSH.

A worker answers with the same facts wherever it runs; the campaign keeps them in ``machine.json``.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from antiphon._version import __version__
from antiphon.lab.bench.machine import busy_seconds, describe_machine, share_of_others
from antiphon.lab.bench.processes import Crew, WorkerFailed
from antiphon.lab.java import programs
from antiphon.lab.places import cannot_open, open_places
from antiphon.lab.plan import Link

__all__ = ["host_facts", "machine_facts", "other_load"]

WORKER = "antiphon.lab.worker"
PATIENCE = 60.0
# What the lab itself works with; those of a protocol are in its runs.
_PACKAGES = ("psutil", "pyarrow")
# So long others are watched before a campaign begins: a few dozen of the kernel's ticks.
_WATCH_SECONDS = 0.3


def host_facts(link: Link, known: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By name, the facts of those hosts of a link by SSH that are not known yet.

    None of them where the link cannot be had: its runs say why.
    """
    missing = [host for host in link.hosts if host not in known]
    if not missing or cannot_open(link):
        return {}
    found: dict[str, dict[str, Any]] = {}
    with open_places(link, len(link.hosts)) as places, Crew() as crew:
        for place in places:
            if place.host not in missing:
                continue
            child = crew.start(
                f"worker at {place.host}", ("-m", WORKER), place.python, place.command
            )
            try:
                found[place.host] = child.ask("machine", PATIENCE)
            except WorkerFailed as error:
                found[place.host] = {"unknown": str(error)}
    return found


def machine_facts() -> dict[str, Any]:
    """What the figures were measured on."""
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    try:
        governed: str | None = governor.read_text(encoding="ascii").strip()
    except OSError:
        governed = None
    machine = describe_machine()
    return {
        **machine.facts(),
        "host": platform.node(),
        "system": _system(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "antiphon": __version__,
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "java": programs.java_version(),
        "governor": governed,
        "load_average": list(os.getloadavg()),
        "other_load": other_load(),
    }


def other_load() -> float:
    """The share of all cores that is in use while this process waits."""
    cores = len(os.sched_getaffinity(0))
    busy, begun = busy_seconds(), time.monotonic()
    time.sleep(_WATCH_SECONDS)
    return round(share_of_others(busy_seconds() - busy, 0.0, time.monotonic() - begun, cores), 3)


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""

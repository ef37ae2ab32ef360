"""What a plan's competing work comes to on this machine, found once per campaign.

Receives a plan; the campaign keeps what is found, so that all its runs have the same load, also
those after an interruption.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import psutil

from antiphon.lab.bench.processes import Child, Crew
from antiphon.lab.java.role import JavaRole
from antiphon.lab.places import Place
from antiphon.lab.plan import Garbage, Plan, runs_of
from antiphon.lab.protocols import Protocol, missing, protocol_of
from antiphon.lab.workloads.cpu import CpuLoad
from antiphon.lab.workloads.garbage import GarbageSettings, calibrate
from antiphon.lab.workloads.memory import MemoryPressure

__all__ = ["Competition", "garbage_order", "garbage_settings", "garbage_use", "share_as_garbage"]

WORKER = "antiphon.lab.worker"
# A heap fills and is looked at as a whole a few times in this time.
SETTLE_SECONDS, MEASURE_SECONDS = 1.0, 4.0
MOST = 0.95
LOAD_SECONDS = 60.0
# Beside the run's own time: for what else is set up meanwhile, and for its end.
SPARE_SECONDS = 900.0


def garbage_settings(plan: Plan) -> dict[str, GarbageSettings]:
    """By workload, the load on Python's collector, calibrated where the plan says so."""
    found: dict[str, GarbageSettings] = {}
    calibrated: dict[float, GarbageSettings] = {}
    for name, workload in plan.workloads.items():
        wanted = workload.garbage
        if wanted is None:
            continue
        if wanted.live_objects is not None:
            found[name] = GarbageSettings(wanted.live_objects, wanted.replaced_per_second)
            continue
        # Once for each share: a second time would find another number.
        if wanted.core_share not in calibrated:
            calibrated[wanted.core_share] = calibrate(wanted.core_share)
        found[name] = calibrated[wanted.core_share]
    return found


def garbage_order(protocol: Protocol, wanted: Garbage, settings: GarbageSettings) -> dict[str, Any]:
    """What a process of that protocol is told to hold and to replace."""
    if protocol.program:
        return {
            "live_bytes": wanted.java_live_bytes,
            "replaced_per_second": wanted.replaced_per_second,
        }
    return asdict(settings)


def garbage_use(plan: Plan, settings: Mapping[str, GarbageSettings]) -> dict[str, float]:
    """By language, the part of a core that the load on the collector takes, measured alone.

    A plan that asks for this has one such load. Python's is always measured: that is what protocols
    without a collector are held against.
    """
    found: dict[str, float] = {}
    runs = [run for run in runs_of(plan) if plan.workloads[run.workload].cpu_as_garbage]
    if not runs:
        return found
    ((load, its),) = settings.items()
    wanted = plan.workloads[load].garbage
    assert wanted is not None
    for name in dict.fromkeys(["tcp-python", *(run.protocol for run in runs)]):
        protocol = protocol_of(plan, name)
        if protocol.managed and protocol.language not in found and not missing(protocol):
            found[protocol.language] = _use_of(protocol, wanted, its, plan.seed)
    return found


def _use_of(protocol: Protocol, wanted: Garbage, settings: GarbageSettings, seed: int) -> float:
    def start() -> Child:
        if protocol.program:
            return JavaRole("garbage alone", protocol.program, "reader")
        return Child("garbage alone", ("-m", WORKER))

    with Crew() as crew:
        child = crew.adopt(start)
        child.ask("garbage", 60.0, seed=seed, **garbage_order(protocol, wanted, settings))
        process = psutil.Process(child.pid)
        time.sleep(SETTLE_SECONDS)
        before, since = _cpu_seconds(process), time.monotonic()
        time.sleep(MEASURE_SECONDS)
        return (_cpu_seconds(process) - before) / (time.monotonic() - since)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def share_as_garbage(
    protocol: Protocol, use: Mapping[str, float], processes: int, cores: int
) -> float:
    """Of so many cores, what the load on the collector takes in as many processes.

    A protocol without a collector competes with as much as Python's takes.
    """
    used = use.get(protocol.language, use.get("python", max(use.values(), default=0.0)))
    return min(MOST, used * processes / cores)


class Competition:
    """What competes with one run for processor and memory, on every machine that takes part.

    Here it is started by this process, elsewhere by a worker there. It ends with ``crew`` and
    ``loads``; should those never come to it, some time after the ``seconds`` that the run has.
    """

    def __init__(self, crew: Crew, loads: contextlib.ExitStack, seed: int, seconds: float) -> None:
        self._crew = crew
        self._loads = loads
        self._seed = seed
        self._limit = seconds + SPARE_SECONDS
        self._here: list[CpuLoad] = []
        self._elsewhere: list[Child] = []

    def start(self, place: Place, share: float | None, memory_bytes: int) -> None:
        """Compete on the machine of a place."""
        if place.remote:
            label = f"load at {place.host}"
            child = self._crew.start(label, ("-m", WORKER), place.python, place.command)
            order = {"cpu": share, "memory_bytes": memory_bytes, "seed": self._seed}
            child.ask("compete", LOAD_SECONDS, limit=self._limit, **order)
            self._elsewhere += [child] if share is not None else []
            return
        if share is not None:
            load = CpuLoad(share, seed=self._seed, limit=self._limit)
            self._here.append(self._loads.enter_context(load))
        if memory_bytes:
            self._loads.enter_context(MemoryPressure(memory_bytes, self._limit))

    def measured(self) -> float | None:
        """The share of all cores that was taken since the last call, in the mean of machines."""
        shares = [load.measured() for load in self._here]
        shares += [float(child.ask("competed")["cpu_share"]) for child in self._elsewhere]
        return sum(shares) / len(shares) if shares else None

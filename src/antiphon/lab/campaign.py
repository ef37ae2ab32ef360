"""A campaign: a plan, a directory, and which of its runs are done.

The directory is the only state. A run that has its folder is done; whatever else lies there was
interrupted, and is done again. So a campaign can be killed at any moment and resumed.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from antiphon._version import __version__
from antiphon.errors import AntiphonError, ConfigError
from antiphon.lab.bench.machine import busy_seconds, describe_machine, share_of_others
from antiphon.lab.java import programs
from antiphon.lab.plan import Plan, Run, load_plan, runs_of
from antiphon.lab.record import PARTIAL, SCHEMA_VERSION, RecordFailed, write_json
from antiphon.lab.workloads.garbage import GarbageSettings

__all__ = ["Campaign", "CampaignError"]

_FACTS = "campaign.json"
# What the lab itself works with; those of a protocol are in its runs.
_PACKAGES = ("psutil", "pyarrow")
_LOCK = ".lock"
_ADAPTERS = "adapters"
# So long others are watched before a campaign begins: a few dozen of the kernel's ticks.
_WATCH_SECONDS = 0.3


class CampaignError(AntiphonError):
    """A directory that holds no campaign, or one that somebody else works on."""


class Campaign:
    """One directory, held by one runner at a time: use it as a context."""

    def __init__(self, directory: Path, plan: Plan, facts: dict[str, Any]) -> None:
        self.directory = directory
        self.plan = plan
        self._facts = facts
        self._lock: int | None = None

    @classmethod
    def create(
        cls,
        plan: Plan,
        directory: Path,
        quick: bool = False,
        protocols: Sequence[str] | None = None,
    ) -> Self:
        """A new one. The directory must be new or empty."""
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(
                f"{directory} exists and is not empty; give another directory, or go on with "
                f"it: antiphon lab resume {directory}",
                setting="out",
                value=str(directory),
            )
        files = {name: plan.folder / one.file for name, one in plan.adapters.items()}
        for name, file in files.items():
            if not file.is_file():
                raise ConfigError(
                    f"the adapter of {name} is not there: {file}",
                    setting=f"adapters.{name}.file",
                    value=str(file),
                )
        directory.mkdir(parents=True, exist_ok=True)
        now = datetime.datetime.now(datetime.UTC)
        facts = {
            "schema_version": SCHEMA_VERSION,
            "campaign": f"{plan.name}-{now:%Y%m%dT%H%M%S}-{secrets.token_hex(2)}",
            "plan": plan.name,
            "created": now.isoformat(timespec="seconds"),
            "quick": quick,
            "protocols": list(protocols) if protocols is not None else None,
            "garbage": None,
            "garbage_use": {},
        }
        try:
            (directory / "plan.toml").write_text(plan.text, encoding="utf-8")
            for adapter in plan.adapters.values():
                (directory / _ADAPTERS).mkdir(exist_ok=True)
                shutil.copy(
                    plan.folder / adapter.file, directory / _ADAPTERS / f"{adapter.name}.py"
                )
            write_json(directory / "machine.json", machine_facts())
            write_json(directory / _FACTS, facts)  # the last: with it, it is a campaign
        except (OSError, RecordFailed) as error:
            raise CampaignError(f"no campaign can be written to {directory}: {error}") from error
        return cls(directory, _applied(plan, quick, protocols), facts)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """One that was begun."""
        try:
            facts = json.loads((directory / _FACTS).read_text(encoding="utf-8"))
            quick, protocols = bool(facts["quick"]), facts["protocols"]
            plan = load_plan(directory / "plan.toml")
        except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
            raise CampaignError(
                f"{directory} holds no campaign that can be resumed ({error})"
            ) from error
        return cls(directory, _applied(plan, quick, protocols), facts)

    @property
    def id(self) -> str:
        return str(self._facts["campaign"])

    def garbage(self, workload: str) -> GarbageSettings | None:
        """What a load on Python's collector was set to; the same for all runs that have it."""
        found = self._facts["garbage"] or {}
        # Up to schema version 2 there was one for all workloads.
        own = found if "live_objects" in found else found.get(workload)
        return None if own is None else GarbageSettings(**own)

    @property
    def settled(self) -> bool:
        """Whether its loads on collectors are known."""
        return self._facts["garbage"] is not None

    @property
    def garbage_use(self) -> Mapping[str, float]:
        """By language, the part of a core that this load was measured to take."""
        return dict(self._facts["garbage_use"])

    def set_garbage(
        self, settings: Mapping[str, GarbageSettings], use: Mapping[str, float]
    ) -> None:
        """By workload, what all runs that have it are to have, from now on."""
        found = {name: asdict(one) for name, one in settings.items()}
        self._facts |= {"garbage": found, "garbage_use": dict(use)}
        write_json(self.directory / _FACTS, self._facts)

    def adapter(self, protocol: str) -> str:
        """The file of a protocol that the plan brings along; empty for the others."""
        if protocol not in self.plan.adapters:
            return ""
        return str((self.directory / _ADAPTERS / f"{protocol}.py").absolute())

    def runs(self) -> tuple[Run, ...]:
        """All of them, in the order in which they are done."""
        return runs_of(self.plan)

    def done(self, run: Run) -> bool:
        return (self.directory / run.id / "run.json").is_file()

    def outcome(self, run: Run) -> dict[str, Any]:
        """What ``run.json`` says of a run that is done."""
        facts: dict[str, Any] = json.loads(
            (self.directory / run.id / "run.json").read_text(encoding="utf-8")
        )
        return facts

    def __enter__(self) -> Self:
        lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise CampaignError(
                f"another process works on the campaign in {self.directory}; wait for it to end"
            ) from None
        self._lock = lock
        for left in self.directory.glob("*" + PARTIAL):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _applied(plan: Plan, quick: bool, protocols: Sequence[str] | None) -> Plan:
    if quick:
        plan = plan.quick()
    return plan if protocols is None else plan.with_protocols(protocols)


def machine_facts() -> dict[str, Any]:
    """What the figures were measured on."""
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    try:
        governed: str | None = governor.read_text(encoding="ascii").strip()
    except OSError:
        governed = None
    machine = describe_machine()
    return {
        "schema_version": SCHEMA_VERSION,
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
        "other_load": _other_load(machine.cores),
    }


def _other_load(cores: int) -> float:
    """The share of all cores that is in use while this process waits."""
    busy, begun = busy_seconds(), time.monotonic()
    time.sleep(_WATCH_SECONDS)
    return round(share_of_others(busy_seconds() - busy, 0.0, time.monotonic() - begun, cores), 3)


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""

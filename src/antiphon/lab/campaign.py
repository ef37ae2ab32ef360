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
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from antiphon.errors import AntiphonError, ConfigError
from antiphon.lab.bench.machine import describe_machine
from antiphon.lab.bursts import search
from antiphon.lab.hosts import machine_facts
from antiphon.lab.plan import Plan, Run, load_plan, runs_of, shipped_plans
from antiphon.lab.record import PARTIAL, SCHEMA_VERSION, RecordFailed, write_json
from antiphon.lab.workloads.garbage import GarbageSettings

__all__ = ["Campaign", "CampaignError"]

_FACTS = "campaign.json"
_MACHINE = "machine.json"
_LOCK = ".lock"
_ADAPTERS = "adapters"
# What a machine is told from another by.
_SAME = ("host", "cpu", "cores")


class CampaignError(AntiphonError):
    """A directory that cannot be written, or one that somebody else works on."""


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
        if taken := _taken(directory):
            raise ConfigError(
                f"no campaign can be written to {directory}: {taken}",
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
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "plan.toml").write_text(plan.text, encoding="utf-8")
            for adapter in plan.adapters.values():
                (directory / _ADAPTERS).mkdir(exist_ok=True)
                shutil.copy(
                    plan.folder / adapter.file, directory / _ADAPTERS / f"{adapter.name}.py"
                )
            write_json(directory / _MACHINE, {"schema_version": SCHEMA_VERSION, **machine_facts()})
            write_json(directory / _FACTS, facts)  # the last: with it, it is a campaign
        except (OSError, RecordFailed) as error:
            reason = getattr(error, "strerror", None) or error
            raise CampaignError(
                f"no campaign can be written to {directory}: {reason}; give another directory"
            ) from error
        return cls(directory, _applied(plan, quick, protocols), facts)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """One that was begun; on this machine, if runs are left: their figures are compared."""
        try:
            facts = json.loads((directory / _FACTS).read_text(encoding="utf-8"))
            quick, protocols = bool(facts["quick"]), facts["protocols"]
            plan = load_plan(directory / "plan.toml", called=facts["plan"])
            machine = json.loads((directory / _MACHINE).read_text(encoding="utf-8"))
            began_on = {name: machine.get(name) for name in _SAME}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            raise ConfigError(
                f"{directory} holds no campaign that can be resumed ({error}); give a directory "
                "that antiphon lab run has made",
                setting="directory",
                value=str(directory),
            ) from error
        campaign = cls(directory, _applied(plan, quick, protocols), facts)
        if not all(campaign.done(run) for run in campaign.runs()):
            _refuse_another(began_on, directory, facts["plan"])
        return campaign

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

    @property
    def other_load(self) -> float:
        """The share of all cores that others had in use when the campaign was made."""
        facts = json.loads((self.directory / _MACHINE).read_text(encoding="utf-8"))
        return float(facts.get("other_load") or 0.0)

    def hosts(self) -> Mapping[str, Any]:
        """What is known of the machines that are reached by SSH, by the names that plans give."""
        facts = json.loads((self.directory / _MACHINE).read_text(encoding="utf-8"))
        return dict(facts.get("hosts", {}))

    def add_host(self, name: str, facts: Mapping[str, Any]) -> None:
        """What a machine is that takes part, beside the one that runs the campaign."""
        path = self.directory / _MACHINE
        machine = json.loads(path.read_text(encoding="utf-8"))
        machine["hosts"] = {**machine.get("hosts", {}), name: dict(facts)}
        write_json(path, machine)

    def adapter(self, protocol: str) -> str:
        """The file of a protocol that the plan brings along; empty for the others."""
        if protocol not in self.plan.adapters:
            return ""
        return str((self.directory / _ADAPTERS / f"{protocol}.py").absolute())

    def runs(self) -> tuple[Run, ...]:
        """All of them, in the order in which they are done."""
        return runs_of(self.plan)

    def searched(self) -> Iterator[Run]:
        """What a search adds to them, when they are all done. How one of these has ended is looked
        up when the next one is asked for: it is to be done by then."""
        return search(self.plan, self.outcome)

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


def _refuse_another(began_on: Mapping[str, Any], directory: Path, plan: str) -> None:
    """Raise `ConfigError` unless this is the machine that a campaign was begun on."""
    here = {"host": platform.node(), **describe_machine().facts()}
    if all(began_on[name] in (None, here[name]) for name in _SAME):
        return

    def words(facts: Mapping[str, Any]) -> str:
        return f"{facts['host']} ({facts['cpu']}, {facts['cores']} cores)"

    again = plan if plan in shipped_plans() else shlex.quote(str(directory / "plan.toml"))
    raise ConfigError(
        f"the campaign in {directory} was begun on {words(began_on)}, and this is {words(here)}: "
        "figures of two machines cannot be compared; go on there, or make a new campaign here, "
        f"with antiphon lab run {again} --out DIR",
        setting="directory",
        value=str(directory),
    )


def _taken(directory: Path) -> str:
    """Why a directory is not free for a new campaign, and what to do; empty: it is."""
    try:
        if not directory.exists():
            return ""
        if not directory.is_dir():
            return "it is a file; give a directory"
        if not any(directory.iterdir()):
            return ""
    except OSError as error:
        return f"{error.strerror}; give another directory"
    if (directory / _FACTS).is_file():
        return (
            "it holds one; give another directory, or go on with that one: "
            f"antiphon lab resume {shlex.quote(str(directory))}"
        )
    return "it is not empty; give another directory"


def _applied(plan: Plan, quick: bool, protocols: Sequence[str] | None) -> Plan:
    if quick:
        plan = plan.quick()
    return plan if protocols is None else plan.with_protocols(protocols)

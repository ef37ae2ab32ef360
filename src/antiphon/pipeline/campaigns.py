"""What lies in a campaign's directory: its runs, their facts and files, and what cannot be used.

Reads JSON and the footers of Parquet files, on the driver and without Spark; rows are read by
`antiphon.pipeline.read`. A file that cannot be used is set aside with the reason, and the rest goes
on: a run with a bad ``latency.parquet`` loses its latencies and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.errors import ConfigError
from antiphon.pipeline.schemas import FACTS, FILES, KEYS, LATER, READABLE, SINCE

if TYPE_CHECKING:
    from antiphon.lab.plan import Series

__all__ = ["Campaign", "RunFiles", "SetAside", "find_campaigns", "look_into", "unreadable"]

_FACTS = "campaign.json"
_PARTIAL = ".partial"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_READERS = 8
_MACHINE = ("host", "cpu", "cores", "memory_gb", "kernel", "python", "antiphon", "other_load")
_ARROW = {
    "bigint": (pa.types.is_int64, pa.types.is_int32),
    "int": (pa.types.is_int32,),
    "double": (pa.types.is_float64,),
    "boolean": (pa.types.is_boolean,),
    "string": (pa.types.is_string, pa.types.is_large_string),
    "map<bigint,bigint>": (pa.types.is_map,),
}


@dataclass(frozen=True, slots=True)
class SetAside:
    """A file or folder that is not used, and why."""

    campaign: str | None
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run, with those of its files that can be read and have rows."""

    facts: Mapping[str, Any]
    offsets: tuple[int, ...] | None
    files: Mapping[str, Path]


@dataclass(slots=True)
class Campaign:
    """A directory that was looked into."""

    directory: Path
    id: str
    runs: list[RunFiles] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """By file, how many rows of it all runs have together."""


class _Unusable(Exception):
    """The reason, in a few words."""


def find_campaigns(paths: Sequence[Path | str]) -> list[Path]:
    """Directories of campaigns: those given, and those right below one that is none itself."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if (path / _FACTS).is_file():
            found[path.resolve()] = None
            continue
        try:
            below = [one for one in sorted(path.iterdir()) if (one / _FACTS).is_file()]
        except OSError as error:
            raise ConfigError(
                f"no campaign can be read in {path}: {error.strerror}",
                setting="campaigns",
                value=str(path),
            ) from error
        if not below:
            raise ConfigError(
                f"{path} holds no campaign: neither it nor a directory in it has {_FACTS}; "
                "give what antiphon lab run has written",
                setting="campaigns",
                value=str(path),
            )
        found |= {one.resolve(): None for one in below}
    if not found:
        raise ConfigError("no campaign was given", setting="campaigns", value="")
    return list(found)


def look_into(directories: Iterable[Path]) -> tuple[list[Campaign], list[SetAside]]:
    """All of them; also what was set aside of those that are no campaigns after all.

    Raises `ConfigError` when two directories hold the same campaign.
    """
    campaigns: dict[str, Campaign] = {}
    aside: list[SetAside] = []
    for directory in directories:
        try:
            facts = _json(directory / _FACTS)
            name = facts.get("campaign")
            if not isinstance(name, str) or not _ID.fullmatch(name):
                raise _Unusable(f"its campaign is {name!r}, which is no id")
            _check_version(facts)
        except _Unusable as error:
            aside.append(SetAside(None, str(directory / _FACTS), str(error)))
            continue
        if name in campaigns:
            raise ConfigError(
                f"{directory} and {campaigns[name].directory} hold the same campaign, {name}; "
                "give one of them",
                setting="campaigns",
                value=str(directory),
            )
        campaigns[name] = Campaign(directory, name)
        _fill(campaigns[name], facts)
    return list(campaigns.values()), aside


def unreadable(path: Path) -> str | None:
    """Why a Parquet file cannot be read to its end, all of its pages; None: it can."""
    try:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(batch_size=1 << 16):
                pass
    except (OSError, pa.ArrowException) as error:
        return _words(error)
    return None


def _fill(campaign: Campaign, facts: Mapping[str, Any]) -> None:
    machine = _machine(campaign)
    known: dict[str, Path] = {}
    broken: dict[str, str] = {}
    with ThreadPoolExecutor(_READERS) as pool:
        folders = list(_folders(campaign, broken))
        for folder, found in zip(folders, pool.map(_look_at_run, folders), strict=True):
            if isinstance(found, str):
                broken[folder.name] = found
                campaign.set_aside.append(_aside(campaign, folder / "run.json", found))
                continue
            run, aside, rows = found
            name = run.facts["run"]
            if name in known:
                reason = f"it is of the same run as {known[name].name}"
                campaign.set_aside.append(_aside(campaign, folder, reason))
                continue
            known[name] = folder
            named = {**run.facts, "campaign": campaign.id, **machine}
            campaign.runs.append(RunFiles(named, run.offsets, run.files))
            campaign.set_aside += [_aside(campaign, path, why) for path, why in aside]
            for kind, count in rows.items():
                campaign.rows[kind] = campaign.rows.get(kind, 0) + count
    campaign.runs += _not_there(campaign, facts, known, broken, machine)


def _folders(campaign: Campaign, broken: dict[str, str]) -> Iterator[Path]:
    for folder in sorted(campaign.directory.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if folder.name.endswith(_PARTIAL):
            reason = "the run was interrupted; antiphon lab resume does it again"
            campaign.set_aside.append(_aside(campaign, folder, reason))
        elif any((folder / f"{kind}.parquet").exists() for kind in FILES) or (
            (folder / "run.json").exists()
        ):
            yield folder


def _look_at_run(
    folder: Path,
) -> tuple[RunFiles, list[tuple[Path, str]], dict[str, int]] | str:
    try:
        told = _json(folder / "run.json")
        version = _check_version(told)
        facts = _run_facts(told, folder)
        offsets = _offsets(told)
    except _Unusable as error:
        return str(error)
    aside: list[tuple[Path, str]] = []
    files: dict[str, Path] = {}
    rows: dict[str, int] = {}
    for kind in FILES:
        path = folder / f"{kind}.parquet"
        try:
            count = _check_footer(path, kind, version)
        except _Unusable as error:
            aside.append((path, str(error)))
            continue
        if count:
            files[kind] = path
            rows[kind] = count
    return RunFiles(facts, offsets, files), aside, rows


def _json(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _Unusable("it is not there") from None
    except OSError as error:
        raise _Unusable(_words(error)) from None
    except ValueError as error:
        raise _Unusable(f"it is no JSON: {_words(error)}") from None
    if not isinstance(facts, dict):
        raise _Unusable("it is no JSON object")
    return facts


def _check_version(facts: Mapping[str, Any]) -> int:
    version = facts.get("schema_version")
    if version not in READABLE or isinstance(version, bool):
        readable = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
        raise _Unusable(f"its schema_version is {version!r}; this Antiphon reads {readable}")
    return int(version)


def _run_facts(told: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """`FACTS`, without what belongs to the campaign and to the machine."""
    load, limits, versions = (_part(told, name) for name in ("load", "limits", "versions"))
    garbage = _part(load, "garbage")
    errors = (_typed("clock_error_ns", h.get("clock_error_ns"), "bigint") for h in _hosts(told))
    values = {
        **told,
        "run": told.get("run", folder.name),
        "cpu_share": load.get("cpu_share"),
        "cpu_share_measured": load.get("cpu_share_measured"),
        "garbage_per_second": garbage.get("replaced_per_second"),
        "garbage_per_second_measured": garbage.get("replaced_per_second_measured"),
        "memory_limit_bytes": limits.get("memory_bytes"),
        "adapter_version": versions.get("adapter"),
        "peer_version": versions.get(told.get("protocol", "")),
        "clock_error_ns": max((error for error in errors if error is not None), default=None),
    }
    facts = {
        name: _typed(name, values.get(name), kind)
        for name, kind in FACTS.items()
        if name not in _MACHINE
    }
    for name in ("run", "protocol", "outcome"):
        if not facts[name]:
            raise _Unusable(f"it does not say its {name}")
    return facts


def _part(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = told.get(name) or {}
    if not isinstance(part, dict):
        raise _Unusable(f"its {name} is {part!r}, which is no object")
    return part


def _hosts(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    hosts = told.get("hosts") or []
    if not isinstance(hosts, list) or not all(isinstance(host, dict) for host in hosts):
        raise _Unusable("its hosts are no list of objects")
    return hosts


def _offsets(told: Mapping[str, Any]) -> tuple[int, ...] | None:
    """By role, what to take from its times; None where that is nothing for all."""
    by_role: dict[int, int] = {}
    for host in _hosts(told):
        offset = _typed("clock_offset_ns", host.get("clock_offset_ns"), "bigint") or 0
        for role in host.get("roles") or []:
            if not isinstance(role, int) or not 0 <= role < 100_000:
                raise _Unusable(f"its hosts have a role {role!r}, which is no number of one")
            by_role[role] = offset
    if not any(by_role.values()):
        return None
    return tuple(by_role.get(role, 0) for role in range(max(by_role) + 1))


def _typed(name: str, value: Any, kind: str) -> Any:
    if value is None:
        return None
    wanted = {"string": str, "boolean": bool}.get(kind)
    if wanted is not None and isinstance(value, wanted):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if kind == "double":
            return float(value)
        bits = {"int": 31, "bigint": 63}.get(kind, 0)
        if bits and value == int(value) and -(1 << bits) <= value < 1 << bits:
            return int(value)
    raise _Unusable(f"its {name} is {value!r}, which is no {kind}")


def _machine(campaign: Campaign) -> dict[str, Any]:
    path = campaign.directory / "machine.json"
    try:
        told = _json(path)
        found = {name: _typed(name, told.get(name), FACTS[name]) for name in _MACHINE}
        # Roles on other machines: who was busiest holds up all of a run.
        loads = [found["other_load"]]
        for host, part in _part(told, "hosts").items():
            if not isinstance(part, dict):
                raise _Unusable(f"its host {host} is {part!r}, which is no object")
            loads.append(_typed("other_load", part.get("other_load"), FACTS["other_load"]))
        found["other_load"] = max((load for load in loads if load is not None), default=None)
        return found
    except _Unusable as error:
        campaign.set_aside.append(_aside(campaign, path, str(error)))
        return dict.fromkeys(_MACHINE)


def _check_footer(path: Path, kind: str, version: int) -> int:
    """How many rows it has; raises when it cannot be read as what it is named."""
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except FileNotFoundError:
        raise _Unusable("it is not there") from None
    except (OSError, pa.ArrowException) as error:
        raise _Unusable(_words(error)) from None
    since = SINCE.get(kind, {})
    for name, wanted in FILES[kind].items():
        index = schema.get_field_index(name)
        if index < 0:
            if since.get(name, 1) <= version:
                raise _Unusable(f"it has no column {name}")
            continue
        found = schema.field(index).type
        if pa.types.is_dictionary(found):
            found = found.value_type
        if not any(fits(found) for fits in _ARROW[wanted]):
            raise _Unusable(f"its column {name} is {found}, not {wanted}")
    return int(rows)


def _not_there(
    campaign: Campaign,
    facts: Mapping[str, Any],
    known: Mapping[str, Path],
    broken: Mapping[str, str],
    machine: Mapping[str, Any],
) -> list[RunFiles]:
    """Runs of the plan that are not there: failing to finish is a result as well.

    Series that wait for a later version come to no runs. They have a row for each protocol, without
    the keys of which they have several, so that nobody takes what is not measured for not planned.
    """
    # The lab is needed for this alone, and whoever has a campaign may not have its extras.
    from antiphon.lab.plan import load_plan, runs_of

    path = campaign.directory / "plan.toml"
    try:
        plan = load_plan(path, called=facts.get("plan"))
        if facts.get("quick"):
            plan = plan.quick()
        if facts.get("protocols") is not None:
            plan = plan.with_protocols(facts["protocols"])
        planned = runs_of(plan)
    except (ConfigError, OSError, ValueError, TypeError) as error:
        reason = f"runs that are missing cannot be told: {_words(error)}"
        campaign.set_aside.append(_aside(campaign, path, reason))
        return []
    same = {"campaign": campaign.id, "schema_version": facts["schema_version"], **machine}
    missing: list[RunFiles] = []
    for run in planned:
        if run.id in known:
            continue
        told = dict.fromkeys(FACTS) | {name: getattr(run, name, None) for name in KEYS} | same
        reason = f"its run.json cannot be used: {broken[run.id]}" if run.id in broken else ""
        told |= {"run": run.id, "repeat": run.repeat, "seed": run.seed}
        missing.append(RunFiles(told | {"outcome": "interrupted", "reason": reason}, None, {}))
    for series in plan.series:
        for protocol in series.protocols if series.later else ():
            told = dict.fromkeys(FACTS) | _settled(series) | same
            told |= {"plan": plan.name, "series": series.name, "protocol": protocol}
            told |= {"run": f"{series.name}.{protocol}", "outcome": "absent"}
            told["reason"] = f"{LATER} (needs {', '.join(series.later)})"
            missing.append(RunFiles(told, None, {}))
    return missing


def _settled(series: Series) -> dict[str, Any]:
    """Keys of which all runs of a series have the same value."""
    found: dict[str, Any] = {"pattern": series.pattern}
    for name, kind in KEYS.items():
        values = getattr(series, f"{name}s", getattr(series, name, None))
        if isinstance(values, tuple) and len(values) == 1 and values[0] is not None:
            found[name] = float(values[0]) if kind == "double" else values[0]
    return found


def _aside(campaign: Campaign, path: Path, reason: str) -> SetAside:
    return SetAside(campaign.id, str(path), reason)


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]

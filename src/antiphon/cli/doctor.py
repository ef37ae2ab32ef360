"""``antiphon doctor``: what this machine is, what was configured, and what to change.

Three questions bring people here: why is it slower than promised (kernel caps, build type), which
of my four places for a setting has won, and what do I still have to install. `collect` answers
them as plain data, which ``--json`` prints; the tables are the same data for people.

One thing it does itself: network namespaces, control groups and folders that a killed campaign of
the lab has left are removed.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import platform
import shlex
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antiphon import settings
from antiphon._version import __version__
from antiphon.broker.config import BrokerConfig
from antiphon.cli.components import COMPONENTS
from antiphon.errors import AntiphonError, ConfigError
from antiphon.groups.config import GroupConfig
from antiphon.lab import bridges, limits
from antiphon.lab.java import programs
from antiphon.lab.leftovers import Leftover, remove_folders
from antiphon.node.config import NodeConfig
from antiphon.topics.config import BusConfig

__all__ = ["collect", "doctor"]

_SYSCTL = Path("/proc/sys")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this machine has, which settings won and what to change.

    Removes what killed campaigns of the lab have left on this machine.

    Example: antiphon doctor --json
    """
    report = collect()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _show(report, Console(soft_wrap=True))
    if report["settings_error"] is not None:
        raise AntiphonError(report["settings_error"])  # nothing is wrong with the arguments


def collect() -> dict[str, Any]:
    """The whole report. A broken configuration is part of it, not a reason to have none."""
    config, values, fault = _settings()
    return {
        "antiphon": __version__,
        "python": _python(),
        "machine": _machine(),
        "core": _core(),
        "kernel": _kernel(config),
        "settings": values,
        "settings_error": fault,
        "unknown_variables": [
            {"name": name, "nearest": nearest}
            for name, nearest in settings.unknown_variables().items()
        ],
        "components": _components(),
        "leftovers": [dataclasses.asdict(one) for one in _remove_leftovers()],
    }


def _settings() -> tuple[NodeConfig, list[dict[str, Any]], str | None]:
    try:
        config = NodeConfig.load()
        rows = [
            {"name": prefix + name, "value": _plain(getattr(made, name)), "source": setting.source}
            for prefix, table, made in (
                ("", "node", config),
                ("bus.", "bus", BusConfig.load()),
                ("group.", "group", GroupConfig.load()),
                ("broker.", "broker", BrokerConfig.load()),
            )
            for name, setting in settings.resolve(type(made), table).items()
        ]
    except ConfigError as error:
        return NodeConfig(), [], str(error)
    return config, rows, None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: _plain(getattr(value, name)) for name in shown}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _python() -> dict[str, Any]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "switch_interval": sys.getswitchinterval(),
    }


def _machine() -> dict[str, Any]:
    try:
        usable = len(os.sched_getaffinity(0))
    except OSError:
        usable = os.cpu_count() or 1
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "processor": _processor(),
        "cpus": usable,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "unknown")


def _core() -> dict[str, Any]:
    """Build facts of the extension, as far as it tells them."""
    try:
        module = importlib.import_module("antiphon._core")
    except ImportError as error:
        return {"error": f"{error}; reinstall the package"}
    build_info = getattr(module, "build_info", None)
    facts = dict(build_info()) if callable(build_info) else {}
    return {"file": module.__file__, **facts}


def _kernel(config: NodeConfig) -> list[dict[str, Any]]:
    """The caps that silently shorten our kernel buffers, with the command that lifts each."""
    wanted = config.kernel_buffer_bytes
    rows = []
    for name in ("net.core.rmem_max", "net.core.wmem_max"):
        try:
            value = int((_SYSCTL / name.replace(".", "/")).read_text())
        except (OSError, ValueError):
            # Containers may hide it; the core then reports what the kernel really granted.
            rows.append({"name": name, "value": None, "wanted": wanted, "ok": None, "advice": None})
            continue
        enough = value >= wanted
        advice = None if enough else f"as root: sysctl -w {shlex.quote(f'{name}={wanted}')}"
        rows.append(
            {"name": name, "value": value, "wanted": wanted, "ok": enough, "advice": advice}
        )
    return rows


def _components() -> list[dict[str, Any]]:
    rows = []
    for component in COMPONENTS.values():
        found = component.probe()
        rows.append(
            {
                "name": component.name,
                "present": found is not None,
                "detail": found,
                "purpose": component.purpose,
                "install": None if found is not None else component.install,
            }
        )
    return rows


def _show(report: dict[str, Any], console: Console) -> None:
    python, machine = report["python"], report["machine"]
    console.print(f"[bold]antiphon {report['antiphon']}[/bold]", highlight=False)
    threads = "free-threaded" if python["free_threaded"] else "with the GIL"
    console.print(f"{python['implementation']} {python['version']} ({threads})", highlight=False)
    memory = machine["memory_bytes"] / 2**30
    console.print(
        f"{machine['processor']}, {machine['cpus']} cpus, {memory:.1f} GiB, "
        f"{machine['system']} {machine['kernel']} {machine['architecture']}",
        highlight=False,
    )
    for name, fact in report["core"].items():
        console.print(f"core {name}: {fact}", highlight=False, markup=False)

    console.print(_table("kernel", ("limit", "here", "wanted", "to do"), _kernel_rows(report)))
    settled = [(row["name"], str(row["value"]), row["source"]) for row in report["settings"]]
    console.print(_table("settings of a node", ("setting", "value", "set by"), settled))
    for one in report["unknown_variables"]:
        nearest = f"; did you mean {one['nearest']}?" if one["nearest"] else ""
        console.print(
            f"variable not understood, and without effect: {one['name']}{nearest}",
            highlight=False,
            markup=False,
        )
    optional = [
        (row["name"], row["detail"] or "missing", row["purpose"], row["install"] or "")
        for row in report["components"]
    ]
    console.print(_table("optional", ("component", "found", "used for", "to do"), optional))
    for one in report["leftovers"]:
        done = f"cannot be removed: {one['reason']}" if one["reason"] else "removed"
        inside = f", with {one['processes']} processes in it" if one["processes"] else ""
        console.print(
            f"left by a campaign: {one['what']} {one['name']}{inside}: {done}",
            highlight=False,
            markup=False,
        )


def _remove_leftovers() -> list[Leftover]:
    return [
        *bridges.remove_leftovers(),
        *limits.remove_leftovers(),
        *remove_folders(),
        *programs.remove_leftovers(),
    ]


def _kernel_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            row["name"],
            "hidden" if row["value"] is None else str(row["value"]),
            str(row["wanted"]),
            row["advice"] or "",
        )
        for row in report["kernel"]
    ]


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table

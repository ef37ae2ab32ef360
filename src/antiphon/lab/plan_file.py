"""A plan's TOML file: read, checked, and every fault in it told with its line.

All faults of a file are reported together. Those that only its ``[quick]`` table brings in are
looked for once the plan itself is right: the small plan is read by the same code, from the tables
that ``[quick]`` makes of them. Receives the path from `antiphon.lab.plan`, hands it a `Plan`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from antiphon.lab import plan_values as values
from antiphon.lab.plan import Plan, PlanError, Series
from antiphon.lab.plan_faults import Document, Faults, Table
from antiphon.lab.plan_tables import plan_of
from antiphon.toml_lines import Keys, lines_of

__all__ = ["read_plan"]

_QUICK_KEYS = ("repeats", "protocols", "leave_out", "times", "workloads", "series")


def read_plan(path: Path, known: Collection[str], called: str | None = None) -> Plan:
    """The plan in a file; raises `PlanError` with all that is wrong with it.

    ``called`` is its name if it gives none; else it is the file's.
    """
    name = path.stem if called is None else called
    source, document, lines = _parse(path)
    faults = Faults(str(path), lines, document)
    plan = plan_of(faults, document, name, known)
    faults.end()
    plan = replace(plan, text=source, folder=path.parent)
    if "quick" not in document:
        return plan
    changed, protocols = _quick(faults, document, plan)
    faults.end()
    faults.quick = True
    small = plan_of(faults, changed, name, known)
    faults.end()
    series = _reduced(small.series, plan.series, protocols)
    small = replace(
        small,
        series=tuple(one for one in series if one.protocols),
        spare=tuple(one for one in series if not one.protocols),
        text=source,
        folder=path.parent,
        reduced=True,
    )
    return replace(plan, small=small)


def _parse(path: Path) -> tuple[str, Document, dict[Keys, int]]:
    def fault(what: str, line: int | None = None) -> PlanError:
        place = str(path) if line is None else f"{path}, line {line}"
        return PlanError(f"{place}: {what}", setting="plan", file=str(path), line=line)

    try:
        raw = path.read_bytes()
        source = raw.decode()
        document = tomllib.loads(source)
        return source, document, lines_of(source.replace("\r\n", "\n"))
    except OSError as error:
        raise fault(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise fault("not UTF-8", error.object.count(b"\n", 0, error.start) + 1) from None
    except RecursionError:
        raise fault("nested too deeply") from None
    except ValueError as error:  # tomllib's own, and a number of thousands of digits
        found = re.search(r" ?\(at line (\d+), column \d+\)", str(error))
        if found is None:
            message = str(error).removesuffix(" (at end of document)")
            raise fault(f"not TOML: {message}", source.count("\n") + 1) from None
        message = str(error).replace(found[0], "")
        raise fault(f"not TOML: {message}", int(found[1])) from None


def _quick(
    faults: Faults, document: Document, plan: Plan
) -> tuple[Document, dict[str, tuple[str, ...]]]:
    """The document with ``[quick]`` applied, and of each series that stays its protocols; those of
    a series that has none of them are none."""
    table = Table(faults, document["quick"], ("quick",))
    for key in _QUICK_KEYS:
        table.get(key, lambda value: None, None)
    table.end()
    names = [one.name for one in plan.series]
    offered = dict.fromkeys(name for one in plan.series for name in one.protocols)
    protocol = values.listed(values.choice(list(offered), "a protocol of the plan"))
    chosen = table.get("protocols", protocol, tuple(offered))
    left_out = table.get("leave_out", values.listed(values.choice(names, "a series here")), ())
    changes = _named(table.table("series"), names)
    loads = _named(table.table("workloads"), list(plan.workloads))
    times = table.table("times").content

    protocols: dict[str, tuple[str, ...]] = {}
    for one in plan.series:
        own = Table(faults, changes.get(one.name, {}), ("quick", "series", one.name))
        for key in ("name", "pattern", "later"):
            if key in own:
                own.wrong(key, "cannot be changed; add a series and leave it out of the full plan")
        reader = values.listed(values.choice(one.protocols, "a protocol of the series"))
        default = tuple(name for name in one.protocols if name in chosen)
        picked = own.get("protocols", reader, one.protocols if one.later else default)
        if one.name not in left_out:
            protocols[one.name] = picked
    if not any(protocols.values()):
        table.wrong("protocols", "no series is left; name protocols that they have", names)

    changed = {key: value for key, value in document.items() if key != "quick"}
    if "repeats" in table:
        changed["repeats"] = table.content["repeats"]
    changed["times"] = _merged(document.get("times", {}), times)
    changed["workloads"] = _merged(document.get("workloads", {}), loads)
    changed["series"] = [
        _merged(
            content,
            {k: v for k, v in changes.get(content["name"], {}).items() if k != "protocols"},
        )
        for content in document["series"]
    ]
    return changed, protocols


def _named(tables: Table, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, content in tables.content.items():
        if name not in names:
            tables.wrong(name, f"the plan has no {name!r}{values.hint(name, names)}", names)
        else:
            found[name] = Table(tables.faults, content, (*tables.keys, name)).content
    return found


def _merged(below: object, above: object) -> Any:
    """Tables key by key, everything else as a whole."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    both = {**below, **above}
    return {
        key: _merged(below[key], above[key]) if key in below and key in above else value
        for key, value in both.items()
    }


def _reduced(
    changed: Iterable[Series],
    full: Iterable[Series],
    protocols: dict[str, tuple[str, ...]],
) -> tuple[Series, ...]:
    return tuple(
        replace(small, protocols=protocols[small.name], offered=large.protocols)
        for small, large in zip(changed, full, strict=True)
        if small.name in protocols
    )

"""Whether the tables of a simulated campaign are what they must be.

Receives tables through `antiphon.pipeline.store` and the answers that `simulate` wrote; hands a
list of differences to tests, benchmarks, and whoever sets up a cluster and wants to know that it
counts right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from antiphon.pipeline import schemas, store

__all__ = ["check", "differences"]

CLOSE = 1e-9
"""Relative. Whole numbers have to be equal."""

_NAMES: dict[str, tuple[str, ...]] = {
    "runs": ("run",),
    "outcomes": ("outcome",),
    "cpu": ("role",),
    "latency": ("stage", "topic"),
    "comparison": ("question", "over", "this"),
    "queueing": ("topic",),
}
"""What tells rows of one measurement apart."""

_PARTIAL = ("comparison",)
"""Tables that may have more rows than the answers know."""


def check(tables: Path | str, campaign: Path | str) -> list[str]:
    """Differences between tables and the ``answers.json`` of a campaign; none is good."""
    answers = json.loads((Path(campaign) / "answers.json").read_text(encoding="utf-8"))
    return list(differences(tables, answers))


def differences(tables: Path | str, answers: Mapping[str, Any]) -> Iterator[str]:
    """One line for each. Columns and tables that the answers do not name may hold anything."""
    for table, expected in answers["tables"].items():
        apart = [*schemas.KEYS, *_NAMES.get(table, ())]
        found = {
            _name(row, apart): row
            for row in store.read_table(tables, table).to_pylist()
            if row["campaign"] == answers["campaign"]
        }
        known = {_name(row, apart): row for row in expected}
        for name in known.keys() - found.keys():
            yield f"{table}: a row is missing: {name}"
        if table not in _PARTIAL:
            for name in found.keys() - known.keys():
                yield f"{table}: a row too many: {name}"
        for name in known.keys() & found.keys():
            for column, value in known[name].items():
                if not _same(value, found[name][column]):
                    yield f"{table}.{column}: {found[name][column]} for {value}: {name}"


def _name(row: Mapping[str, Any], apart: list[str]) -> str:
    return " ".join(f"{name}={row[name]}" for name in apart if row[name] is not None)


def _same(known: Any, found: Any) -> bool:
    if isinstance(found, Decimal):
        found = int(found)
    if isinstance(known, float) and isinstance(found, float):
        return math.isclose(known, found, rel_tol=CLOSE, abs_tol=CLOSE)
    return bool(known == found)

"""The finished tables, as rows.

A table that is not there is an empty one. One that cannot be read is empty too, and named in
`Tables.damaged`: a report without one figure is worth more than none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from antiphon.errors import AntiphonError, ConfigError
from antiphon.pipeline.schemas import KEYS, TABLES
from antiphon.pipeline.store import SET_ASIDE, arrow_schema, set_aside_of

__all__ = ["MAX_ROWS", "Row", "Tables", "in_order"]

Row = dict[str, Any]

MAX_ROWS = 50_000
"""The most rows of one table that are turned into Python's objects."""


class Tables:
    """All tables of one output directory. Raises `ConfigError` when it has none."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.damaged: dict[str, str] = {}
        self.cut: dict[str, int] = {}
        self.asked: set[str] = set()
        self._whole: dict[str, list[Row]] = {}
        if not any((out / name).is_dir() for name in TABLES):
            raise ConfigError(
                f"{out} holds no tables; make them: antiphon pipeline run CAMPAIGN --out {out}",
                setting="out",
                value=str(out),
            )

    def rows(self, table: str, where: pc.Expression | None = None) -> list[Row]:
        """Rows of a table, sorted by their keys; at most `MAX_ROWS`, and `cut` says of how many.

        They are the caller's own. A whole table is read once. `asked` has the name of every table
        since it was last emptied.
        """
        self.asked.add(table)
        if where is not None:
            return self._read(table, where)
        if table not in self._whole:
            self._whole[table] = self._read(table, None)
        return [dict(row) for row in self._whole[table]]

    def _read(self, table: str, where: pc.Expression | None) -> list[Row]:
        found = self.arrow(table, list(TABLES[table]), where)
        if found.num_rows > MAX_ROWS:
            self.cut[table] = found.num_rows
            found = found.slice(0, MAX_ROWS)
        rows: list[Row] = found.to_pylist()
        for row in rows:
            for name, value in row.items():
                # Spark has both; to a reader neither is a number.
                if isinstance(value, float) and math.isnan(value):
                    row[name] = None
        return sorted(rows, key=in_order)

    def arrow(
        self, table: str, columns: Sequence[str], where: pc.Expression | None = None
    ) -> pa.Table:
        """The same as PyArrow has it, for tables that are too long for rows."""
        schema = arrow_schema(table)
        empty = pa.schema([schema.field(name) for name in columns]).empty_table()
        folder = self.out / table
        if not folder.is_dir():
            return empty
        try:
            return self._dataset(folder, schema).to_table(columns=list(columns), filter=where)
        except (pa.ArrowException, OSError, ValueError) as error:
            self.damaged[table] = " ".join(str(error).split())[:300]
            return empty

    def _dataset(self, folder: Path, schema: pa.Schema) -> ds.Dataset:
        named = ds.partitioning(pa.schema([("campaign", pa.string())]), flavor="hive")
        return ds.dataset(folder, schema=schema, format="parquet", partitioning=named)

    def left_out(self, table: str) -> str:
        """Of a table that was cut: what is not there, in a line."""
        count = self.cut[table]
        return (
            f"The table {table} has {count:,} rows that belong here; {MAX_ROWS:,} of them are "
            f"used, and {count - MAX_ROWS:,} are left out."
        )

    def set_aside(self) -> list[Row]:
        """What the pipeline could not use: ``path`` and ``reason``."""
        try:
            listed: Any = set_aside_of(self.out)
        except AntiphonError as error:
            return [{"path": SET_ASIDE, "reason": str(error)}]
        if not isinstance(listed, list):
            return [{"path": SET_ASIDE, "reason": "is not a list"}]
        return [
            {"path": str(one.get("path", "?")), "reason": str(one.get("reason", ""))}
            for one in listed
            if isinstance(one, dict)
        ]


def in_order(row: Row) -> list[tuple[int, float, str]]:
    """Numbers by size, names by letter, nothing first."""
    return [_place(row.get(name)) for name in KEYS]


def _place(value: Any) -> tuple[int, float, str]:
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, str):
        return (2, 0.0, value)
    return (1, float(value), "")

"""Prints or exports a finished table: for a look, a spreadsheet or another program.

Reads with PyArrow, no more rows than are asked for, and says when there are more. Receives a
directory that ``antiphon pipeline run`` has written, hands text to ``antiphon pipeline show``.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.errors import ConfigError
from antiphon.pipeline import schemas, store

__all__ = ["LIMIT", "Shown", "print_table", "read_rows", "to_csv", "to_json"]

LIMIT = 40
"""Rows, unless more are asked for."""

SORTED = 200_000
"""Up to so many rows they come in order; beyond that, as they lie."""


NAMING = (*schemas.KEYS, "run", "repeat", "topic", "stage", "role", "question", "over", "this")
"""Columns that say what a row is about."""

GAP = 2
"""Between two columns."""

ENDLESS = 10_000
"""Characters: wider than any table."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Rows of a table, and how many there are in all that fit the filter."""

    table: str
    rows: pa.Table
    total: int

    @property
    def note(self) -> str:
        """One line where not all is shown; else empty."""
        if self.rows.num_rows == self.total:
            return ""
        return f"{self.rows.num_rows} of {self.total} rows; --limit 0 gives all, --where fewer"


def read_rows(
    directory: Path | str,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    where: Mapping[str, str] | None = None,
    limit: int = LIMIT,
) -> Shown:
    """At most ``limit`` rows, 0 for all, of those whose columns have the values of ``where``.

    Values are given as text: ``{"protocol": "pyzmq", "size": "2000"}``; an empty one asks for null.
    Raises `ConfigError` for a directory without tables, an unknown table or column, and a value
    that its column cannot have.
    """
    schema = store.arrow_schema(table)
    chosen = list(columns) if columns else schema.names
    for name in [*chosen, *(where or {})]:
        if name not in schema.names:
            raise ConfigError(
                f"{table} has no column {name!r}; there are {', '.join(schema.names)}",
                setting="columns",
                value=name,
            )
    if limit < 0:
        raise ConfigError("a limit is 0 for all rows, or more", setting="limit", value=limit)
    store.facts_of(directory, needed=True)
    found = _dataset(Path(directory), table, schema)
    wanted = _filter(schema, where or {})
    total = found.count_rows(filter=wanted)
    if total <= SORTED:
        rows = _in_order(found.to_table(filter=wanted)).select(chosen)
    else:
        rows = found.head(limit or total, columns=chosen, filter=wanted)
    return Shown(table, rows.slice(0, limit or total), total)


def _in_order(rows: pa.Table) -> pa.Table:
    """By what names a row: the columns that are no measured figures."""
    names = [
        field.name
        for field in rows.schema
        if pa.types.is_string(field.type) or pa.types.is_integer(field.type)
    ]
    return rows.sort_by([(name, "ascending") for name in names])


def _dataset(directory: Path, table: str, schema: pa.Schema) -> ds.Dataset:
    """What is being written beside the tables begins with a dot, and is passed over."""
    folder = directory / table
    if not folder.is_dir():
        return ds.dataset(schema.empty_table())
    named = ds.partitioning(pa.schema([("campaign", pa.string())]), flavor="hive")
    try:
        return ds.dataset(folder, schema=schema, format="parquet", partitioning=named)
    except (pa.ArrowException, OSError) as error:
        raise store.StoreFailed(
            f"{folder} cannot be read ({error}); run the pipeline again"
        ) from error


def _filter(schema: pa.Schema, where: Mapping[str, str]) -> ds.Expression | None:
    tests = []
    for name, text in where.items():
        if text == "":
            tests.append(ds.field(name).is_null())
        else:
            tests.append(ds.field(name) == _value(name, schema.field(name).type, text))
    return reduce(lambda one, other: one & other, tests) if tests else None


def _value(name: str, kind: pa.DataType, text: str) -> pa.Scalar:
    if pa.types.is_list(kind):
        raise ConfigError(f"{name} is a list, and cannot be filtered by", setting=name, value=text)
    try:
        if pa.types.is_boolean(kind) and text.lower() not in ("true", "false"):
            raise ValueError(text)
        return pa.scalar(text, pa.string()).cast(kind)
    except (pa.ArrowException, ValueError):
        raise ConfigError(
            f"{name} is a {_in_words(kind)}, and cannot be {text!r}", setting=name, value=text
        ) from None


def _in_words(kind: pa.DataType) -> str:
    """A type in the reader's words."""
    if pa.types.is_boolean(kind):
        return "truth value (true, false)"
    return "whole number" if pa.types.is_integer(kind) or pa.types.is_decimal(kind) else "number"


def to_csv(shown: Shown) -> str:
    """With a header. Lists are joined by semicolons; what is null is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(shown.rows.column_names)
    for row in _values(shown.rows):
        writer.writerow(["; ".join(one) if isinstance(one, list) else one for one in row])
    return file.getvalue()


def to_json(shown: Shown) -> str:
    """One document: the rows as objects, and how many there are in all."""
    rows = [dict(zip(shown.rows.column_names, row, strict=True)) for row in _values(shown.rows)]
    facts = {"table": shown.table, "total": shown.total, "rows": rows}
    return json.dumps(facts, indent=1)


def _values(rows: pa.Table) -> Iterator[list[Any]]:
    """Decimals are whole numbers here, and Python's have no end."""
    for batch in rows.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield [int(one) if isinstance(one, Decimal) else one for one in row.values()]


def print_table(shown: Shown, console: Console | None = None) -> None:
    """For people: columns that are null in all rows are left out, and keys come but once."""
    console = console or _console()
    rows = shown.rows
    if not rows.num_rows:
        console.print(f"{shown.table} has no such rows", markup=False, highlight=False)
        return
    same: dict[str, Any] = {}
    names = []
    for name in rows.column_names:
        values = {json.dumps(one, default=str) for one in rows[name].to_pylist()}
        if values == {"null"}:
            continue
        # A key that is the same everywhere tells nothing from row to row.
        if len(values) == 1 and rows.num_rows > 1 and name in schemas.KEYS:
            same[name] = rows[name][0].as_py()
        else:
            names.append(name)
    if same:
        line = ", ".join(f"{name} {_cell(value)}" for name, value in same.items())
        console.print(f"{shown.table}: {line}", markup=False, highlight=False)
    cells = {name: [_cell(value) for (value,) in _values(rows.select([name]))] for name in names}
    for number, block in enumerate(_blocks(cells, console.width)):
        if number:
            console.print()
        table = Table(box=None, pad_edge=False)
        for name in block:
            kind = rows.schema.field(name).type
            figure = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            table.add_column(name, justify="right" if figure else "left", overflow="fold")
        for row in zip(*(cells[name] for name in block), strict=True):
            table.add_row(*map(Text, row))
        console.print(table)
    if shown.note:
        console.print(shown.note, markup=False, highlight=False)


def _console() -> Console:
    """A terminal is as wide as it is; the lines of a file have no end."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=ENDLESS)


def _blocks(cells: Mapping[str, Sequence[str]], width: int) -> Iterator[list[str]]:
    """Columns that fit beside each other. A table that is too wide becomes several of the same
    rows, each with the columns that name a row in front, as far as these take half of the width."""

    def wide(names: Iterable[str]) -> int:
        return sum(max(map(len, [name, *cells[name]])) + GAP for name in names)

    named: list[str] = []
    if wide(cells) - GAP > width:
        for name in cells:
            if name in NAMING and wide([*named, name]) <= width // 2:
                named.append(name)
    block = list(named)
    for name in cells:
        if name in named:
            continue
        if len(block) > len(named) and wide([*block, name]) - GAP > width:
            yield block
            block = list(named)
        block.append(name)
    yield block


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.5g}"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return str(value)

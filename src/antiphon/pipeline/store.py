"""The directory of tables: ``DIR/TABLE/campaign=ID/*.parquet``, and two files of JSON.

A job writes beside the tables and then puts each campaign's part of each table in its place, in one
step: whoever reads, or kills the job, has either the old part or the new one. Reading needs PyArrow
alone. Receives Parquet files from `antiphon.pipeline.job`, hands tables to the report, to ``show``
and to ``compare``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from antiphon.errors import AntiphonError, ConfigError
from antiphon.pipeline.schemas import TABLES

__all__ = [
    "PIPELINE",
    "SET_ASIDE",
    "Store",
    "StoreFailed",
    "arrow_schema",
    "count_rows",
    "facts_of",
    "read_table",
    "set_aside_of",
]

PIPELINE = "pipeline.json"
SET_ASIDE = "set_aside.json"
_STAGE = ".staging"
_OLD = ".old"
_LOCK = ".lock"
_PART = "campaign="
_EMPTY = "part-empty.parquet"
_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "decimal(38,0)": pa.decimal128(38, 0),
    "array<string>": pa.list_(pa.string()),
}


class StoreFailed(AntiphonError):
    """A directory that cannot be written, or in which somebody else writes."""


class Store:
    """One directory, held by one job at a time: use it as a context."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).absolute()
        # Of its own: the Java of a job that was killed may write to that job's for another second.
        self.stage = self.directory / f"{_STAGE}-{secrets.token_hex(4)}"
        self._lock: int | None = None

    def __enter__(self) -> Store:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock = os.open(self.directory / _LOCK, flags, 0o644)
        except OSError as error:
            raise StoreFailed(
                f"no tables can be written to {self.directory}: {error.strerror}; "
                "give another directory as --out"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release()
            raise StoreFailed(
                f"another job writes to {self.directory}; wait for it, or give another --out"
            ) from None
        try:
            self._tidy()
            self.stage.mkdir()
        except OSError as error:
            self._release()
            raise StoreFailed(
                f"no tables can be written to {self.directory}: {error.strerror}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.stage, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _tidy(self) -> None:
        """After a job that was killed: what it had taken away goes back, the rest goes."""
        for old in self.directory.glob(f"*/{_OLD}.{_PART}*"):
            place = old.with_name(old.name.removeprefix(f"{_OLD}."))
            if place.exists():
                shutil.rmtree(old)
            else:
                old.rename(place)
        for stage in self.directory.glob(f"{_STAGE}*"):
            shutil.rmtree(stage, ignore_errors=True)

    def publish(self, table: str, campaigns: Iterable[str]) -> None:
        """Puts what lies in ``stage / table`` in its place, for these campaigns.

        One that has no rows there gets a file without any: whoever opens the table by its path
        finds it, with its columns.
        """
        for campaign in campaigns:
            new = self.stage / table / f"{_PART}{campaign}"
            place = self.directory / table / f"{_PART}{campaign}"
            if not new.exists():
                new.mkdir(parents=True)
                schema = arrow_schema(table)
                columns = schema.remove(schema.get_field_index("campaign"))
                pq.write_table(columns.empty_table(), new / _EMPTY, compression="zstd")
            place.parent.mkdir(exist_ok=True)
            _replace(new, place)

    def tell(self, campaigns: Mapping[str, Any], aside: Sequence[Mapping[str, Any]]) -> None:
        """Adds to what is said of campaigns, and replaces it for these."""
        told = facts_of(self.directory)
        told["campaigns"] = {**told.get("campaigns", {}), **campaigns}
        _write(self.directory / PIPELINE, told)
        again = {str(facts["directory"]) for facts in campaigns.values()}
        kept = [
            one
            for one in set_aside_of(self.directory)
            if one["campaign"] not in campaigns and str(Path(one["path"]).parent) not in again
        ]
        paths = {one["path"] for one in aside}
        kept = [one for one in kept if one["path"] not in paths]
        _write(self.directory / SET_ASIDE, [*kept, *aside])


def arrow_schema(table: str) -> pa.Schema:
    """A table's columns as PyArrow has them; ``ConfigError`` for a name that is none."""
    if table not in TABLES:
        raise ConfigError(
            f"there is no table {table!r}; there are {', '.join(TABLES)}",
            setting="table",
            value=table,
        )
    return pa.schema([(name, _ARROW[kind]) for name, kind in TABLES[table].items()])


def read_table(directory: Path | str, table: str) -> pa.Table:
    """A table of all campaigns; one that was never written has no rows."""
    schema = arrow_schema(table)
    found = [part.to_table() for part in _parts(Path(directory), table, schema).values()]
    return pa.concat_tables(found) if found else schema.empty_table()


def count_rows(directory: Path | str) -> dict[str, dict[str, int]]:
    """By table and campaign, how many rows there are; read from footers alone."""
    return {
        table: {
            campaign: part.count_rows()
            for campaign, part in _parts(Path(directory), table, arrow_schema(table)).items()
        }
        for table in TABLES
    }


def _parts(directory: Path, table: str, schema: pa.Schema) -> dict[str, ds.Dataset]:
    facts_of(directory, needed=True)
    by = ds.partitioning(pa.schema([("campaign", pa.string())]), flavor="hive")
    found = {
        path.name.removeprefix(_PART): ds.dataset(
            path,
            schema=schema,
            format="parquet",
            partitioning=by,
            partition_base_dir=str(directory / table),
        )
        for path in sorted((directory / table).glob(f"{_PART}*"))
    }
    return found


def facts_of(directory: Path | str, *, needed: bool = False) -> dict[str, Any]:
    """What ``pipeline.json`` says; nothing if there is none, unless it is ``needed``."""
    path = Path(directory) / PIPELINE
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if needed:
            raise ConfigError(
                f"{directory} holds no tables; make them with: "
                f"antiphon pipeline run CAMPAIGN --out {directory}",
                setting="directory",
                value=str(directory),
            ) from None
        return {}
    except (OSError, ValueError) as error:
        raise StoreFailed(f"{path} cannot be read ({error}); remove it and run again") from error
    return facts


def set_aside_of(directory: Path | str) -> list[dict[str, Any]]:
    """What could not be used: ``campaign``, ``path``, ``reason``."""
    path = Path(directory) / SET_ASIDE
    try:
        aside: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreFailed(f"{path} cannot be read ({error}); remove it and run again") from error
    return aside


def _write(path: Path, facts: object) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def _replace(new: Path, place: Path) -> None:
    if not place.exists():
        new.rename(place)
        return
    if _exchange(new, place):
        return  # what was there lies in the stage now
    # A file system that cannot: for a moment there is nothing, and `_tidy` knows what to do.
    old = place.with_name(f"{_OLD}.{place.name}")
    place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two directories in one step; False where the system cannot do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    at_cwd, exchange = -100, 2
    if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(other))

"""The files of a run: samples, latencies, topics and events as Parquet, and ``run.json``.

Receives rows from the runner and buffers a bounded number of them. A run's folder has another name
while it is written, and gets its own when all is there: what has its name is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.lab.plan import Run

__all__ = ["SCHEMAS", "SCHEMA_VERSION", "Report", "RunFolder", "write_json"]

SCHEMA_VERSION = 1
PARTIAL = ".partial"
ROWS = 10_000

SCHEMAS: dict[str, pa.Schema] = {
    "samples": pa.schema(
        [
            ("time_ns", pa.int64()),
            ("second", pa.int32()),
            ("kept", pa.bool_()),
            ("host", pa.string()),
            ("process", pa.int32()),
            ("role", pa.string()),
            ("cpu_seconds", pa.float64()),
            ("resident_bytes", pa.int64()),
            ("threads", pa.int32()),
            ("voluntary_switches", pa.int64()),
            ("involuntary_switches", pa.int64()),
            ("network_sent_bytes", pa.int64()),
            ("network_received_bytes", pa.int64()),
            ("disk_read_bytes", pa.int64()),
            ("disk_written_bytes", pa.int64()),
            ("gc_collections", pa.int64()),
            ("gc_pause_ns", pa.int64()),
            ("sent_messages", pa.int64()),
            ("sent_bytes", pa.int64()),
            ("received_messages", pa.int64()),
            ("received_bytes", pa.int64()),
        ]
    ),
    "latency": pa.schema(
        [
            ("sequence", pa.int64()),
            ("source", pa.int32()),
            ("target", pa.int32()),
            ("topic", pa.string()),
            ("stage", pa.string()),
            ("intended_ns", pa.int64()),
            ("sent_ns", pa.int64()),
            ("received_ns", pa.int64()),
            ("weight", pa.float64()),
        ]
    ),
    "topics": pa.schema(
        [
            ("time_ns", pa.int64()),
            ("second", pa.int32()),
            ("topic", pa.string()),
            ("arrivals", pa.int64()),
            ("service_seconds", pa.float64()),
            ("queue_length", pa.int64()),
            ("conformant", pa.bool_()),
        ]
    ),
    "events": pa.schema(
        [
            ("time_ns", pa.int64()),
            ("host", pa.string()),
            ("role", pa.string()),
            ("event", pa.string()),
            ("text", pa.string()),
        ]
    ),
}

_COLUMNS = {name: frozenset(schema.names) for name, schema in SCHEMAS.items()}


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Replaces the file as a whole, and is on the disk when it returns."""
    beside = path.with_name(path.name + PARTIAL)
    with beside.open("w", encoding="utf-8") as file:
        json.dump(facts, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of a run when it is over; ``rate`` and ``bytes`` per second of the window."""

    run: Run
    outcome: str
    reason: str
    rate: float = 0.0
    bytes: float = 0.0


class RunFolder:
    """One run's files. Rows are added by one thread; `finish` makes the folder whole."""

    def __init__(self, campaign: Path, run: str) -> None:
        self.path = campaign / run
        self._partial = campaign / (run + PARTIAL)
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir()
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._writers: dict[str, pq.ParquetWriter] = {}

    def add(self, table: str, **row: Any) -> None:
        """A row; columns that are not given are null."""
        rows = self._rows[table]
        if unknown := row.keys() - _COLUMNS[table]:
            raise KeyError(f"{table} has no column {', '.join(sorted(unknown))}")
        rows.append(row)
        if len(rows) >= ROWS:
            self._write(table)

    def _write(self, table: str) -> None:
        rows, self._rows[table] = self._rows[table], []
        schema = SCHEMAS[table]
        if table not in self._writers:
            path = self._partial / f"{table}.parquet"
            self._writers[table] = pq.ParquetWriter(path, schema, compression="zstd")
        if rows:
            self._writers[table].write_table(pa.Table.from_pylist(rows, schema=schema))

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Writes what is left and ``run.json``, and gives the folder its name."""
        for table in SCHEMAS:
            self._write(table)
        self._close()
        write_json(self._partial / "run.json", {"schema_version": SCHEMA_VERSION, **facts})
        shutil.rmtree(self.path, ignore_errors=True)
        self._partial.rename(self.path)

    def discard(self) -> None:
        """The run does not count: nothing is left of it."""
        self._close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def _close(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

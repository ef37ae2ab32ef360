"""The files of a run: samples, latencies, topics and events as Parquet, and ``run.json``.

Receives rows from the runner and buffers a bounded number of them. A run's folder has another name
while it is written, and gets its own when all is there: what has its name is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.lab.plan import Run

__all__ = [
    "SCHEMAS",
    "SCHEMA_VERSION",
    "RecordFailed",
    "Report",
    "RunFolder",
    "facts_of",
    "write_json",
]

SCHEMA_VERSION = 3
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
            ("network_sent_packets", pa.int64()),
            ("network_received_packets", pa.int64()),
            ("disk_read_bytes", pa.int64()),
            ("disk_written_bytes", pa.int64()),
            ("gc_collections", pa.int64()),
            ("gc_pause_ns", pa.int64()),
            ("sent_messages", pa.int64()),
            ("sent_bytes", pa.int64()),
            ("received_messages", pa.int64()),
            ("received_bytes", pa.int64()),
            ("ring_bytes", pa.int64()),
            ("ring_waits", pa.int64()),
            ("credit_waits", pa.int64()),
            ("queued_messages", pa.int64()),
            ("buffer_bytes", pa.int64()),
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
            ("handled", pa.int64()),
            ("service_squares", pa.float64()),
            ("slices", pa.int64()),
            ("busy_slices", pa.int64()),
            ("full_slices", pa.int64()),
            ("resumed_slices", pa.int64()),
            ("resumed_seconds", pa.float64()),
            ("resumed_squares", pa.float64()),
            ("waited_seconds", pa.float64()),
            ("waited_squares", pa.float64()),
            ("queue_seen", pa.int64()),
            ("overruns", pa.int64()),
            ("dropped", pa.int64()),
            ("responses", pa.int64()),
            ("response_seconds", pa.float64()),
            ("response_classes", pa.map_(pa.int64(), pa.int64())),
            ("capacity", pa.int64()),
            ("share", pa.float64()),
            ("period", pa.float64()),
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


class RecordFailed(Exception):
    """What was measured cannot be written down: the disk is full, for one."""


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordFailed(str(error)) from error


def facts_of(run: Run) -> dict[str, Any]:
    """A run as ``run.json`` has it."""
    facts = asdict(run)
    return {"run": facts.pop("id"), **facts}


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Replaces the file as a whole, and is on the disk when it returns; raises `RecordFailed`."""
    beside = path.with_name(path.name + PARTIAL)
    with _on_disk():
        with beside.open("w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of a run when it is over; ``rate`` and ``bytes`` per second of the window.

    ``delays`` and ``loss`` are keys of ``run.json``: how long messages took, and what became of
    those that may get lost; the latter empty where none may. ``notes`` are what whoever reads these
    figures should know.
    """

    run: Run
    outcome: str
    reason: str
    rate: float = 0.0
    bytes: float = 0.0
    notes: tuple[str, ...] = ()
    delays: Mapping[str, int | None] = field(default_factory=dict)
    loss: Mapping[str, int | None] = field(default_factory=dict)


class RunFolder:
    """One run's files. Rows are added by one thread; `finish` makes the folder whole.

    Whatever cannot be written raises `RecordFailed`.
    """

    def __init__(self, campaign: Path, run: str) -> None:
        self.path = campaign / run
        self._partial = campaign / (run + PARTIAL)
        shutil.rmtree(self._partial, ignore_errors=True)
        with _on_disk():
            self._partial.mkdir()
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._parts: dict[str, list[pa.Table]] = {name: [] for name in SCHEMAS}
        self._writers: dict[str, pq.ParquetWriter] = {}

    def add(self, table: str, **row: Any) -> None:
        """A row; columns that are not given are null."""
        rows = self._rows[table]
        if unknown := row.keys() - _COLUMNS[table]:
            raise KeyError(f"{table} has no column {', '.join(sorted(unknown))}")
        rows.append(row)
        if len(rows) >= ROWS:
            self._write(table)

    def add_table(self, table: str, rows: pa.Table) -> None:
        """Many rows at once, with all columns of the table."""
        parts = self._parts[table]
        parts.append(rows)
        if sum(part.num_rows for part in parts) >= ROWS:
            self._write(table)

    def _write(self, table: str) -> None:
        rows, self._rows[table] = self._rows[table], []
        parts, self._parts[table] = self._parts[table], []
        schema = SCHEMAS[table]
        if rows:
            parts.append(pa.Table.from_pylist(rows, schema=schema))
        with _on_disk():
            if table not in self._writers:
                path = self._partial / f"{table}.parquet"
                self._writers[table] = pq.ParquetWriter(path, schema, compression="zstd")
            if parts:
                together = pa.concat_tables(parts).combine_chunks()
                self._writers[table].write_table(together, row_group_size=10 * ROWS)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Writes what is left and ``run.json``, and gives the folder its name."""
        for table in SCHEMAS:
            self._write(table)
        with _on_disk():
            self._close()
        write_json(self._partial / "run.json", {"schema_version": SCHEMA_VERSION, **facts})
        shutil.rmtree(self.path, ignore_errors=True)
        with _on_disk():
            self._partial.rename(self.path)

    def discard(self) -> None:
        """The run does not count: nothing is left of it."""
        with contextlib.suppress(OSError):  # they are not wanted any more
            self._close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def _close(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

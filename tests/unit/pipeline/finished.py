"""Finished tables, made by hand: for what reads them without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.pipeline import store

MACHINE = {
    "host": "here",
    "cpu": "a processor",
    "cores": 2,
    "memory_gb": 8.0,
    "kernel": "Linux 6",
    "python": "3.11",
    "antiphon": "0.1.0",
}


def write(directory: Path, table: str, campaign: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A campaign's part of a table; columns that are not given are null."""
    schema = store.arrow_schema(table)
    part = directory / table / f"campaign={campaign}"
    part.mkdir(parents=True)
    known = [{name: row.get(name) for name in schema.names} for row in rows]
    filled = pa.Table.from_pylist(known, schema=schema).drop_columns(["campaign"])
    pq.write_table(filled, part / "part-0.parquet")
    facts = store.facts_of(directory)
    campaigns = {**facts.get("campaigns", {}), campaign: {"directory": str(directory)}}
    (directory / store.PIPELINE).write_text(json.dumps({**facts, "campaigns": campaigns}))
    return directory


def run(
    protocol: str = "pyzmq",
    rate: float | None = 1000.0,
    p50: int | None = 100,
    p99: int | None = 900,
    *,
    outcome: str = "complete",
    workload: str = "none",
    **more: Any,
) -> dict[str, Any]:
    """A row of ``runs``."""
    return {
        **MACHINE,
        "plan": "stability",
        "series": "throughput",
        "protocol": protocol,
        "workload": workload,
        "link": "loopback",
        "pattern": "one-way",
        "size": 2000,
        "outcome": outcome,
        "messages_per_second": rate,
        "latency_p50_us": p50,
        "latency_p99_us": p99,
        **more,
    }

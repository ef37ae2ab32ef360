"""Small finished tables, made by hand, for the tests of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.pipeline.store import arrow_schema

KEYS: dict[str, Any] = {
    "campaign": "stability-1",
    "plan": "stability",
    "series": "throughput",
    "protocol": "antiphon-node",
    "variant": None,
    "stack": None,
    "pattern": "one-way",
    "workload": "none",
    "link": "loopback",
    "placement": None,
    "size": 2000,
    "nodes": 2,
    "senders": 1,
    "threads": 1,
    "streams": 1,
    "rate": None,
    "scheduling": "other",
    "messages": None,
    "paced": None,
}

MACHINE: dict[str, Any] = {
    "host": "aida",
    "cpu": "Example CPU at 3 GHz",
    "cores": 2,
    "memory_gb": 23.0,
    "kernel": "Linux 6.1.0",
    "python": "3.12.1",
    "antiphon": "0.1.0",
}


def write(out: Path, table: str, rows: list[dict[str, Any]]) -> None:
    """Rows of a table, one file per campaign, as the pipeline leaves them."""
    schema = arrow_schema(table)
    schema = schema.remove(schema.get_field_index("campaign"))
    for campaign in {row["campaign"] for row in rows}:
        folder = out / table / f"campaign={campaign}"
        folder.mkdir(parents=True, exist_ok=True)
        held = [
            {name: row.get(name) for name in schema.names}
            for row in rows
            if row["campaign"] == campaign
        ]
        number = len(list(folder.iterdir()))
        made = pa.Table.from_pylist(held, schema=schema)
        pq.write_table(made, folder / f"part-{number}.parquet")


def spread(name: str, mean: float, by: float = 0.05) -> dict[str, float]:
    return {
        f"{name}_mean": mean,
        f"{name}_min": mean * (1 - by),
        f"{name}_max": mean * (1 + by),
        f"{name}_stddev": mean * by / 2,
    }

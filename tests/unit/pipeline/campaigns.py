"""Hand-made data of campaigns: rows with what a test is about, and the rest filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from antiphon.pipeline import schemas
from antiphon.pipeline.inputs import Inputs

SECOND = 1_000_000_000

FACTS: dict[str, Any] = {
    "campaign": "c1",
    "plan": "stability",
    "series": "throughput",
    "protocol": "pyzmq",
    "pattern": "one-way",
    "workload": "none",
    "link": "loopback",
    "size": 100,
    "nodes": 2,
    "senders": 1,
    "threads": 1,
    "streams": 1,
    "scheduling": "other",
    "repeat": 1,
    "seed": 1,
    "schema_version": 1,
    "outcome": "complete",
    "reason": "",
    "kept_from_ns": 0,
    "kept_until_ns": 10 * SECOND,
    "messages_per_second": 1000.0,
    "bytes_per_second": 100_000.0,
    "latency_one_in": 1.0,
    "latency_left_out": 0,
    "clock_error_ns": 0,
    "host": "here",
    "cores": 2,
}
SAMPLE: dict[str, Any] = {
    "campaign": "c1",
    "run": "a",
    "second": 0,
    "elapsed_ns": SECOND,
    "kept": True,
    "host": "here",
    "process": 10,
    "role": "reader",
}
DELAY: dict[str, Any] = {
    "campaign": "c1",
    "run": "a",
    "source": 1,
    "target": 0,
    "stage": "delivery",
    "weight": 1.0,
}
TOPIC: dict[str, Any] = {"campaign": "c1", "run": "a", "topic": "lab/0/1", "conformant": True}

Rows = Sequence[dict[str, Any]]


def frame(spark: SparkSession, columns: dict[str, str], rows: Rows) -> DataFrame:
    """Rows with exactly these columns; what a row does not give is null."""
    for row in rows:
        unknown = row.keys() - columns.keys()
        assert not unknown, f"no such column: {unknown}"
    wanted = to_arrow_schema(StructType.fromDDL(schemas.ddl(columns)))
    # By way of Arrow it is a constant of the plan, and no job of its own.
    return spark.createDataFrame(
        pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows], wanted)
    )


def run(name: str = "a", **facts: Any) -> dict[str, Any]:
    return {**FACTS, "run": name, **facts}


def sample(**facts: Any) -> dict[str, Any]:
    row = {**SAMPLE, **facts}
    return {"time_ns": (row["second"] + 1) * SECOND, **row}


def delay(nanos: int, **facts: Any) -> dict[str, Any]:
    """A message that took so long; sent when it was due."""
    row = {**DELAY, "sequence": 0, "intended_ns": 0, **facts}
    row.setdefault("sent_ns", row["intended_ns"])
    row.setdefault("received_ns", row["intended_ns"] + nanos)
    return {**row, "latency_ns": nanos}


def inputs(
    spark: SparkSession,
    runs: Rows,
    samples: Rows = (),
    latency: Rows = (),
    topics: Rows = (),
) -> Inputs:
    return Inputs(
        runs=frame(spark, schemas.FACTS, runs),
        samples=frame(spark, schemas.CLEAN["samples"], samples),
        latency=frame(spark, schemas.CLEAN["latency"], latency),
        topics=frame(spark, schemas.CLEAN["topics"], topics),
    )


def rows_of(table: DataFrame, *order: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.orderBy(*order).collect()]


def only(table: DataFrame) -> dict[str, Any]:
    """The single row of a table."""
    (row,) = table.collect()
    return dict(row.asDict())

"""The stage ``read``: what campaigns hold, as DataFrames.

All files of a kind are one DataFrame, however many runs there are. A row knows its run by ``file``,
a hash of the path that it was read from, which `schemas.RUNS` has for every run: joining two whole
numbers costs next to nothing, even for a hundred million rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from antiphon.pipeline.campaigns import Campaign, RunFiles
from antiphon.pipeline.schemas import FACTS, FILES, RUNS, Columns, ddl

__all__ = ["Read", "read"]

_ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "array<bigint>": pa.list_(pa.int64()),
}


@dataclass(frozen=True, slots=True)
class Read:
    """``runs`` has the columns of `schemas.RUNS`, the others of `schemas.FILES` and ``file``."""

    runs: DataFrame
    samples: DataFrame
    latency: DataFrame
    topics: DataFrame
    events: DataFrame


def read(spark: SparkSession, campaigns: Sequence[Campaign]) -> Read:
    """Everything, lazily: rows are read when a table asks for them."""
    runs = [run for campaign in campaigns for run in campaign.runs]
    frames: dict[str, DataFrame] = {}
    addresses: dict[Path, str] = {}
    start = ""
    for kind, columns in FILES.items():
        paths = [run.files[kind] for run in runs if kind in run.files]
        if not paths:
            frames[kind] = _nothing(spark, {**columns, "file": "bigint"})
            continue
        rows = _parquet(spark, columns, paths)
        start = start or _start(rows)
        addresses |= _addresses(rows, paths, start)
        frames[kind] = rows.select(*columns, fn.xxhash64("_metadata.file_path").alias("file"))
    return Read(runs=_runs(spark, runs, addresses), **frames)


def _nothing(spark: SparkSession, columns: Columns) -> DataFrame:
    """No rows. Spark would start Python for an empty list."""
    nulls = (fn.lit(None).cast(kind).alias(name) for name, kind in columns.items())
    return spark.range(0).select(*nulls)


def _parquet(spark: SparkSession, columns: Columns, paths: Sequence[Path]) -> DataFrame:
    # With their scheme, since the default of a cluster may be another file system, and as they are:
    # a directory may be called [1]. The option that turns patterns off reads such files repeatedly.
    names = (re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path)) for path in paths)
    return spark.read.schema(ddl(columns)).parquet(*(f"file://{name}" for name in names))


def _start(rows: DataFrame) -> str:
    """How names of files begin in ``_metadata.file_path``, which depends on Spark's version."""
    told = rows.select("_metadata.file_path").first()
    assert told is not None  # files without rows are not read
    return "file:///" if told[0].startswith("file:///") else "file:/"


def _addresses(rows: DataFrame, paths: Sequence[Path], start: str) -> dict[Path, str]:
    """How Spark writes the name of each file in ``_metadata.file_path``.

    It has its own way to escape characters, which it tells by ``inputFiles``. There a name begins
    with three slashes.
    """
    found = {Path(unquote(name.removeprefix("file://"))): name for name in rows.inputFiles()}
    return {path: start + found[path].removeprefix("file:///") for path in paths}


def _runs(
    spark: SparkSession, runs: Iterable[RunFiles], addresses: Mapping[Path, str]
) -> DataFrame:
    facts: dict[str, list[object]] = {name: [] for name in RUNS}
    for run in runs:
        for name in FACTS:
            facts[name].append(run.facts[name])
        facts["clock_offsets_ns"].append(None if run.offsets is None else list(run.offsets))
        for kind in FILES:
            path = run.files.get(kind)
            facts[f"{kind}_file"].append(None if path is None else addresses[path])
    fields = {name: pa.string() if name.endswith("_file") else _ARROW[RUNS[name]] for name in RUNS}
    table = pa.table({name: pa.array(facts[name], kind) for name, kind in fields.items()})
    # As text first: the hash is Spark's, so that both sides of the join agree on it.
    frame = spark.createDataFrame(table)
    return frame.select(
        *(_hashed(name).alias(name) if name.endswith("_file") else fn.col(name) for name in RUNS)
    )


def _hashed(name: str) -> Column:
    return fn.when(fn.col(name).isNotNull(), fn.xxhash64(name))

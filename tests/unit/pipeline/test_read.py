"""The stage ``read``: rows find their runs, and versions mix."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from antiphon.lab.record import SCHEMA_VERSION
from antiphon.pipeline.campaigns import look_into
from antiphon.pipeline.read import Read, read
from antiphon.pipeline.schemas import FILES, RUNS
from unit.pipeline.made import RUN, SECOND, make_campaign, make_run, message


def read_all(spark: SparkSession, *directories: Path) -> Read:
    campaigns, aside = look_into(directories)
    assert aside == []
    return read(spark, campaigns)


def kinds(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


def by_run(data: Read, kind: str) -> dict[tuple[str, str], int]:
    rows = getattr(data, kind)
    joined = rows.join(data.runs, rows.file == data.runs[f"{kind}_file"])
    counted = joined.groupBy("campaign", "run").agg(fn.count("*").alias("rows")).collect()
    return {(row["campaign"], row["run"]): row["rows"] for row in counted}


def test_the_columns_are_the_declared_ones(spark: SparkSession, tmp_path: Path) -> None:
    directory = make_campaign(tmp_path / "campaign", repeats=1)
    make_run(directory, topics=[{"time_ns": 1, "second": 1, "topic": "t", "arrivals": 1}])
    data = read_all(spark, directory)
    assert kinds(data.runs) == RUNS
    for kind, columns in FILES.items():
        assert kinds(getattr(data, kind)) == {**columns, "file": "bigint"}


def test_a_campaign_without_rows_has_the_same_columns(spark: SparkSession, tmp_path: Path) -> None:
    data = read_all(spark, make_campaign(tmp_path / "campaign", repeats=2))
    for kind, columns in FILES.items():
        frame = getattr(data, kind)
        assert kinds(frame) == {**columns, "file": "bigint"}
        assert frame.count() == 0
    assert [row["outcome"] for row in data.runs.collect()] == ["interrupted"] * 2


@pytest.mark.parametrize("name", ["plain", "a b", "50%25 [1]*{x}?", "+~(é),'&;=#"])
def test_every_row_finds_its_run_whatever_the_directory_is_called(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    one = make_campaign(tmp_path / name / "one", "one")
    two = make_campaign(tmp_path / name / "two", "two")
    make_run(one, 1)
    make_run(one, 2, latency=[message(0, 0, 5)])
    make_run(two, 1, latency=[message(0, 0, 5), message(1, 0, 5)])
    data = read_all(spark, one, two)
    assert by_run(data, "latency") == {
        ("one", RUN.format(1)): 11,
        ("one", RUN.format(2)): 1,
        ("two", RUN.format(1)): 2,
    }
    assert set(by_run(data, "samples").values()) == {18}


def test_versions_may_be_mixed(spark: SparkSession, tmp_path: Path) -> None:
    directory = make_campaign(tmp_path / "campaign")
    row = {"time_ns": 2 * SECOND, "second": 2, "topic": "t", "arrivals": 4, "share": 0.5}
    old, new = make_run(directory, 1, topics=[row]), make_run(directory, 2, topics=[row])
    facts = json.loads((old / "run.json").read_text())
    (old / "run.json").write_text(json.dumps({**facts, "schema_version": 1}))
    path = old / "topics.parquet"
    first = ["time_ns", "second", "topic", "arrivals", "service_seconds", "queue_length"]
    pq.write_table(pq.read_table(path).select([*first, "conformant"]), path)
    data = read_all(spark, directory)
    shares = data.topics.join(data.runs, data.topics.file == data.runs.topics_file).select(
        "run", "schema_version", "arrivals", "share"
    )
    assert sorted(tuple(row) for row in shares.collect()) == [
        (old.name, 1, 4, None),
        (new.name, SCHEMA_VERSION, 4, 0.5),
    ]


def test_a_run_without_a_file_meets_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    directory = make_campaign(tmp_path / "campaign", repeats=3)
    make_run(directory, 1)
    (make_run(directory, 2) / "latency.parquet").write_bytes(b"half a fi")
    data = read_all(spark, directory)
    assert by_run(data, "latency") == {("small-1", RUN.format(1)): 11}
    assert data.runs.where("latency_file is null").count() == 2

"""A run's files: whole under their name, or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antiphon.lab import record
from antiphon.lab.record import SCHEMAS, RunFolder


def test_every_table_is_there_with_its_columns_also_when_it_is_empty(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "one")
    folder.add("events", time_ns=1, host="local", role="", event="start", text="")
    folder.finish({"outcome": "complete"})
    for name, schema in SCHEMAS.items():
        table = pq.read_table(tmp_path / "one" / f"{name}.parquet")
        assert table.schema.names == schema.names
        assert len(table) == (name == "events")
    facts = json.loads((tmp_path / "one" / "run.json").read_text())
    assert facts == {"schema_version": 3, "outcome": "complete"}
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_until_it_is_finished_a_run_has_no_folder_of_its_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "one")
    folder.add("events", time_ns=1, event="start")
    assert not (tmp_path / "one").exists()
    folder.discard()
    assert list(tmp_path.iterdir()) == []


def test_what_was_left_of_an_earlier_attempt_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "one.partial").mkdir()
    (tmp_path / "one.partial" / "samples.parquet").write_bytes(b"half")
    folder = RunFolder(tmp_path, "one")
    folder.finish({})
    assert len(pq.read_table(tmp_path / "one" / "samples.parquet")) == 0


def test_rows_are_written_in_parts_and_all_of_them_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "ROWS", 10)
    folder = RunFolder(tmp_path, "one")
    for number in range(95):
        folder.add("latency", sequence=number, intended_ns=number, weight=1.0)
    folder.finish({})
    table = pq.read_table(tmp_path / "one" / "latency.parquet")
    assert table.column("sequence").to_pylist() == list(range(95))
    assert table.column("topic").null_count == 95


def test_many_rows_at_once_are_as_rows_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "ROWS", 10)
    folder = RunFolder(tmp_path, "one")
    for number in range(0, 40, 4):
        rows = [{"sequence": number + at, "weight": 1.0} for at in range(3)]
        folder.add_table("latency", pa.Table.from_pylist(rows, schema=SCHEMAS["latency"]))
        folder.add("latency", sequence=number + 3, weight=1.0)
    folder.finish({})
    path = tmp_path / "one" / "latency.parquet"
    assert sorted(pq.read_table(path).column("sequence").to_pylist()) == list(range(40))
    # Not a group of rows for each of them: readers pay for every group.
    assert pq.ParquetFile(path).num_row_groups <= 5


def test_classes_of_responses_are_a_map(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "one")
    folder.add("topics", topic="a", response_classes=[(1000, 2), (2000, 1)])
    folder.add("topics", topic="b")
    folder.finish({})
    rows = pq.read_table(tmp_path / "one" / "topics.parquet").to_pylist()
    assert [row["response_classes"] for row in rows] == [[(1000, 2), (2000, 1)], None]


def test_a_column_that_does_not_exist_is_an_error_and_not_lost(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "one")
    with pytest.raises(KeyError):
        folder.add("events", tiem_ns=1)
    with pytest.raises(KeyError):
        folder.add("no such table", time_ns=1)

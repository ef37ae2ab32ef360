"""A run's files: whole under their name, or not there."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert facts == {"schema_version": 1, "outcome": "complete"}
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


def test_a_column_that_does_not_exist_is_an_error_and_not_lost(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "one")
    with pytest.raises(KeyError):
        folder.add("events", tiem_ns=1)
    with pytest.raises(KeyError):
        folder.add("no such table", time_ns=1)

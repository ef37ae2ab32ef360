"""A look at finished tables: bounded, chosen, filtered, and in three forms."""

from __future__ import annotations

import csv
import io
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from antiphon.errors import ConfigError
from antiphon.pipeline import schemas
from antiphon.pipeline.show import print_table, read_rows, to_csv, to_json
from unit.pipeline.finished import run, write


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    rows = [
        run(protocol, rate=100.0 * size, size=size, repeat=1)
        for protocol in ("pyzmq", "antiphon-node")
        for size in (4000, 64)
    ]
    write(tmp_path, "runs", "monday", rows)
    write(tmp_path, "runs", "tuesday", [run("redis", reason='said "no", then left')])
    write(
        tmp_path,
        "latency",
        "monday",
        [{"protocol": "pyzmq", "count": 3, "sum_ns": Decimal(10**30), "mean_us": 1.5}],
    )
    reasons = ["lost, its peer", "gone"]
    return write(tmp_path, "outcomes", "monday", [{"protocol": "pyzmq", "reasons": reasons}])


def test_rows_of_all_campaigns_come_in_order(tables: Path) -> None:
    shown = read_rows(tables, "runs", columns=["campaign", "protocol", "size"])
    assert shown.rows.to_pylist() == [
        {"campaign": "monday", "protocol": "antiphon-node", "size": 64},
        {"campaign": "monday", "protocol": "antiphon-node", "size": 4000},
        {"campaign": "monday", "protocol": "pyzmq", "size": 64},
        {"campaign": "monday", "protocol": "pyzmq", "size": 4000},
        {"campaign": "tuesday", "protocol": "redis", "size": 2000},
    ]
    assert shown.note == ""


def test_more_rows_than_asked_for_are_counted_and_not_shown(tables: Path) -> None:
    shown = read_rows(tables, "runs", limit=2)
    assert shown.rows.num_rows == 2
    assert shown.total == 5
    assert "2 of 5 rows" in shown.note
    assert read_rows(tables, "runs", limit=0).rows.num_rows == 5


def test_a_table_too_long_to_be_sorted_is_cut_as_it_lies(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["antiphon.pipeline.show"], "SORTED", 3)
    shown = read_rows(tables, "runs", limit=4)
    assert (shown.rows.num_rows, shown.total) == (4, 5)
    assert read_rows(tables, "runs", limit=0).rows.num_rows == 5


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ({"protocol": "pyzmq"}, 2),
        ({"protocol": "pyzmq", "size": "64"}, 1),
        ({"campaign": "tuesday"}, 1),
        ({"messages_per_second": "6400"}, 2),
        ({"repeat": ""}, 1),
        ({"protocol": "nobody"}, 0),
    ],
)
def test_rows_are_chosen_by_their_values(tables: Path, where: dict[str, str], count: int) -> None:
    assert read_rows(tables, "runs", where=where).total == count


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"table": "runz"}, "no table 'runz'; there are runs, outcomes"),
        ({"table": "runs", "columns": ["colour"]}, "no column 'colour'; there are campaign"),
        ({"table": "runs", "where": {"colour": "red"}}, "no column 'colour'"),
        ({"table": "runs", "where": {"size": "big"}}, "size is a whole number"),
        ({"table": "resources", "where": {"kept": "maybe"}}, "kept is a truth value"),
        ({"table": "outcomes", "where": {"reasons": "gone"}}, "a list"),
        ({"table": "runs", "limit": -1}, "limit"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_a_line(
    tables: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read_rows(tables, **arguments)


def test_a_directory_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="antiphon pipeline run"):
        read_rows(tmp_path, "runs")


def test_a_table_that_was_never_written_has_no_rows(tables: Path) -> None:
    shown = read_rows(tables, "queueing")
    assert (shown.rows.num_rows, shown.total, shown.note) == (0, 0, "")
    assert to_csv(shown).startswith("campaign,plan,")


def test_csv_is_read_back_as_it_was(tables: Path) -> None:
    shown = read_rows(tables, "runs", where={"campaign": "tuesday"})
    (row,) = csv.DictReader(io.StringIO(to_csv(shown)))
    assert row["reason"] == 'said "no", then left'
    assert row["repeat"] == ""
    assert row["messages_per_second"] == "1000.0"
    (row,) = csv.DictReader(io.StringIO(to_csv(read_rows(tables, "outcomes"))))
    assert row["reasons"] == "lost, its peer; gone"


def test_json_has_whole_numbers_of_any_length(tables: Path) -> None:
    document = json.loads(to_json(read_rows(tables, "latency", columns=["sum_ns", "mean_us"])))
    assert document == {
        "table": "latency",
        "total": 1,
        "rows": [{"sum_ns": 10**30, "mean_us": 1.5}],
    }


def printed(tables: Path, *arguments: Any, **options: Any) -> str:
    text = io.StringIO()
    print_table(read_rows(tables, *arguments, **options), Console(file=text, width=400))
    return text.getvalue()


def test_people_see_common_keys_once_and_no_empty_columns(tables: Path) -> None:
    shown = printed(tables, "runs", where={"campaign": "monday"})
    assert shown.count("stability") == 1
    assert shown.startswith("runs: campaign monday, plan stability")
    assert "stack" not in shown
    assert "antiphon-node" in shown
    assert "400,000" in shown


def test_a_table_that_is_too_wide_becomes_several_with_the_names_in_front(tables: Path) -> None:
    text = io.StringIO()
    print_table(read_rows(tables, "runs"), Console(file=text, width=60))
    lines = text.getvalue().splitlines()
    assert all(len(line) <= 60 for line in lines)
    heads = [line.split() for line in lines if line.startswith("campaign")]
    assert len(heads) > 1
    assert all(head[:2] == ["campaign", "protocol"] for head in heads)
    # No word is broken, and no column comes twice.
    assert all(name in schemas.TABLES["runs"] for head in heads for name in head)
    others = [name for head in heads for name in head[2:] if name != "repeat"]
    assert len(set(others)) == len(others)


def test_people_are_told_of_rows_that_are_not_shown(tables: Path) -> None:
    assert "2 of 5 rows" in printed(tables, "runs", limit=2)
    assert "has no such rows" in printed(tables, "runs", where={"protocol": "nobody"})


def test_text_with_brackets_is_printed_as_it_is(tables: Path) -> None:
    write(tables, "runs", "brackets", [run("pyzmq", reason="[red]gone[/red]", repeat=9)])
    assert "[red]gone[/red]" in printed(tables, "runs", where={"repeat": "9"})

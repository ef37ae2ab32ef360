"""How tables lie on the disk, and what a job that was killed leaves."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antiphon import pipeline
from antiphon.errors import ConfigError
from antiphon.pipeline import store as module
from antiphon.pipeline.schemas import TABLES
from antiphon.pipeline.store import (
    Store,
    StoreFailed,
    arrow_schema,
    count_rows,
    read_table,
    set_aside_of,
)


def write(store: Store, campaign: str, outcomes: list[str]) -> None:
    """A part of ``outcomes`` into the stage, as Spark does: the campaign is the folder's name."""
    folder = store.stage / "outcomes" / f"campaign={campaign}"
    folder.mkdir(parents=True)
    schema = arrow_schema("outcomes")
    rows = pa.Table.from_pylist([{"outcome": one} for one in outcomes], schema=schema)
    pq.write_table(rows.drop_columns(["campaign"]), folder / "part-0.parquet")


def publish(directory: Path, campaign: str, outcomes: list[str] | None) -> None:
    with Store(directory) as store:
        if outcomes is not None:
            write(store, campaign, outcomes)
        store.publish("outcomes", [campaign])
        store.tell({campaign: {"directory": f"/{campaign}"}}, [])


def outcomes_in(directory: Path) -> list[tuple[str, str]]:
    rows = read_table(directory, "outcomes").to_pylist()
    return sorted((row["campaign"], row["outcome"]) for row in rows)


def hidden(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob(".*") if path.name != ".lock")


def test_a_campaign_is_added_and_replaced_by_itself(tmp_path: Path) -> None:
    publish(tmp_path, "one", ["complete"])
    publish(tmp_path, "2", ["error", "blocked"])
    assert outcomes_in(tmp_path) == [("2", "blocked"), ("2", "error"), ("one", "complete")]
    publish(tmp_path, "2", ["absent"])
    assert outcomes_in(tmp_path) == [("2", "absent"), ("one", "complete")]
    assert hidden(tmp_path) == []


def test_the_rows_of_a_part_that_has_none_any_more_go(tmp_path: Path) -> None:
    publish(tmp_path, "one", ["complete"])
    publish(tmp_path, "one", None)
    assert outcomes_in(tmp_path) == []
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("table", TABLES)
def test_a_table_without_rows_is_there_with_its_columns(tmp_path: Path, table: str) -> None:
    with Store(tmp_path) as store:
        store.publish(table, ["one"])
        store.tell({"one": {"directory": "/one"}}, [])
    found = pq.read_table(tmp_path / table)  # as an outside program does, by its path alone
    assert found.num_rows == 0
    assert set(found.column_names) == set(TABLES[table])
    for field in arrow_schema(table):
        if field.name != "campaign":
            assert found.schema.field(field.name).type == field.type
    assert count_rows(tmp_path)[table] == {"one": 0}
    assert read_table(tmp_path, table).schema == arrow_schema(table)
    assert pipeline.show(tmp_path, table).total == 0
    assert hidden(tmp_path) == []


def test_rows_replace_a_part_that_had_none(tmp_path: Path) -> None:
    publish(tmp_path, "one", None)
    publish(tmp_path, "two", ["error"])
    assert outcomes_in(tmp_path) == [("two", "error")]
    publish(tmp_path, "one", ["complete"])
    assert outcomes_in(tmp_path) == [("one", "complete"), ("two", "error")]
    assert len(list((tmp_path / "outcomes" / "campaign=one").iterdir())) == 1


def test_without_an_exchange_in_one_step_the_old_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_exchange", lambda one, other: False)
    publish(tmp_path, "one", ["complete"])
    publish(tmp_path, "one", ["error"])
    assert outcomes_in(tmp_path) == [("one", "error")]
    assert hidden(tmp_path) == []


def test_what_a_killed_job_took_away_comes_back(tmp_path: Path) -> None:
    publish(tmp_path, "one", ["complete"])
    place = tmp_path / "outcomes" / "campaign=one"
    place.rename(place.with_name(".old.campaign=one"))
    (tmp_path / ".staging" / "runs").mkdir(parents=True)
    with Store(tmp_path) as store:
        assert outcomes_in(tmp_path) == [("one", "complete")]
        assert list(tmp_path.glob(".staging*")) == [store.stage]
        assert list(store.stage.iterdir()) == []
    assert hidden(tmp_path) == []


def test_what_a_killed_job_had_already_replaced_goes(tmp_path: Path) -> None:
    publish(tmp_path, "one", ["complete"])
    (tmp_path / "outcomes" / ".old.campaign=one").mkdir()
    with Store(tmp_path):
        pass
    assert outcomes_in(tmp_path) == [("one", "complete")]
    assert hidden(tmp_path) == []


def test_a_second_job_is_refused_while_the_first_one_writes(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(StoreFailed, match="another job writes"), Store(tmp_path):
        pass
    with Store(tmp_path):
        pass


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StoreFailed, match=r"no tables can be written to .*give another"),
        Store(tmp_path / "file" / "out"),
    ):
        pass


def test_what_was_set_aside_is_replaced_by_campaign(tmp_path: Path) -> None:
    def one(campaign: str | None, path: str) -> dict[str, str | None]:
        return {"campaign": campaign, "path": path, "reason": "bad"}

    with Store(tmp_path) as store:
        store.tell({"a": {"directory": "/a"}}, [one("a", "/a/r/x"), one(None, "/b/campaign.json")])
        store.tell({"c": {"directory": "/c"}}, [one("c", "/c/y")])
        assert [row["path"] for row in set_aside_of(tmp_path)] == [
            "/a/r/x",
            "/b/campaign.json",
            "/c/y",
        ]
        store.tell({"a": {"directory": "/a"}, "b": {"directory": "/b"}}, [])
    assert [row["path"] for row in set_aside_of(tmp_path)] == ["/c/y"]


def test_every_table_can_be_read_before_it_was_written(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.tell({}, [])
    for table in TABLES:
        rows = read_table(tmp_path, table)
        assert rows.num_rows == 0
        assert rows.column_names == list(TABLES[table])
    assert set(count_rows(tmp_path)) == set(TABLES)


def test_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no table 'speed'; there are runs, "):
        read_table(tmp_path, "speed")
    with pytest.raises(ConfigError, match="holds no tables; make them with: antiphon pipeline run"):
        read_table(tmp_path, "runs")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file holds no tables"):
        count_rows(tmp_path / "file")

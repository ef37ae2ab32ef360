"""The whole job on small campaigns, with a real Spark."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from antiphon import pipeline
from antiphon.errors import AntiphonError, ConfigError
from antiphon.pipeline import job, schemas, session, store
from unit.lab.descendants import await_none, descendants
from unit.pipeline.made import LATER, RUN, make_campaign, make_run, message

Rows = list[dict[str, Any]]


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return two_runs(tmp_path / "campaign")


def two_runs(directory: Path) -> Path:
    make_campaign(directory, "one")
    make_run(directory, 1)
    make_run(directory, 2)
    return directory


@dataclasses.dataclass(frozen=True)
class Finished:
    """A campaign with its tables, which several tests look at and none changes."""

    campaign: Path
    out: Path
    result: job.Result
    lines: list[str]


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    directory, out = (tmp_path_factory.mktemp("finished") / name for name in ("campaign", "out"))
    lines: list[str] = []
    two_runs(directory)
    result = pipeline.run([directory], out, progress=lines.append, spark=spark)
    return Finished(directory, out, result, lines)


def rows_of(out: Path, table: str) -> Rows:
    rows: Rows = store.read_table(out, table).to_pylist()
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def all_rows(out: Path) -> dict[str, Rows]:
    return {table: rows_of(out, table) for table in schemas.TABLES}


def test_all_tables_are_made_with_the_declared_columns(finished: Finished) -> None:
    out, lines = finished.out, finished.lines
    assert finished.result.campaigns == ("one",)
    assert finished.result.set_aside == ()
    counts = pipeline.tables(out)
    assert set(counts) == set(schemas.TABLES)
    assert counts["runs"] == {"one": 2}
    for table in schemas.TABLES:
        assert store.read_table(out, table).schema == store.arrow_schema(table)
    (latency,) = rows_of(out, "latency")
    # Eight of eleven are due in the window, in each of two runs: 3 to 10 us.
    assert (latency["count"], latency["repeats"]) == (16, 2)
    assert (latency["min_us"], latency["p50_us"], latency["max_us"]) == (3, 6, 10)
    (throughput,) = rows_of(out, "throughput")
    assert throughput["bytes_per_second_mean"] == pytest.approx(1000.0)
    assert any(line.startswith("read: one: 2 runs") for line in lines)
    assert sum(line.startswith("table: ") for line in lines) == len(schemas.TABLES)
    assert json.loads((out / "set_aside.json").read_text()) == []
    told = json.loads((out / "pipeline.json").read_text())
    assert told["campaigns"]["one"]["runs"] == 2


def test_every_table_can_be_opened_by_its_path_also_without_rows(
    spark: SparkSession, finished: Finished
) -> None:
    empty = [table for table, rows in pipeline.tables(finished.out).items() if rows == {"one": 0}]
    assert empty
    for table in schemas.TABLES:
        frame = spark.read.parquet(str(finished.out / table))
        has = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        assert has == schemas.TABLES[table]
        assert (frame.count() == 0) == (table in empty)


def test_running_again_replaces_and_another_campaign_is_added(
    spark: SparkSession, finished: Finished, tmp_path: Path
) -> None:
    first = all_rows(finished.out)
    other = make_campaign(tmp_path / "other", "two")
    make_run(other, 1, latency=[message(0, 2_000_000_000, 12_345)])
    make_run(other, 2, outcome="blocked", reason="nothing came")
    added, both = tmp_path / "added", tmp_path / "both"
    for copy in (added, both):
        shutil.copytree(finished.out, copy)
    pipeline.run([other], added, spark=spark)
    # Here the first is made again. Many at once are the same as one by one.
    pipeline.run([finished.campaign, other], both, spark=spark)
    again = all_rows(both)
    assert again == all_rows(added)
    for table, rows in first.items():
        assert [row for row in again[table] if row["campaign"] == "one"] == rows
    new = {table: [row for row in again[table] if row["campaign"] == "two"] for table in again}
    assert sorted(row["outcome"] for row in new["runs"]) == ["blocked", "complete"]
    assert len(new["outcomes"]) == 2
    # One run alone has no spread.
    (row,) = new["throughput"]
    assert (row["repeats"], row["bytes_per_second_stddev"]) == (1, None)
    (row,) = new["latency"]
    assert (row["count"], row["p50_us"]) == (1, 12)


def test_rows_go_when_there_is_nothing_any_more(
    spark: SparkSession, finished: Finished, tmp_path: Path
) -> None:
    out, campaign = tmp_path / "out", tmp_path / "campaign"
    shutil.copytree(finished.out, out)
    # The campaign is measured again, and this time nothing is complete.
    make_campaign(campaign, "one")
    with (campaign / "plan.toml").open("a") as plan:
        plan.write(LATER)
    pipeline.run([campaign], out, spark=spark)
    counts = {name: sum(rows.values()) for name, rows in pipeline.tables(out).items()}
    assert counts.pop("runs") == 3
    assert counts.pop("outcomes") == 2
    assert set(counts.values()) == {0}
    assert [row["outcome"] for row in rows_of(out, "runs")].count("interrupted") == 2
    named = {row["protocol"]: row["reasons"] for row in rows_of(out, "outcomes")}
    assert named["antiphon-group"] == ["missing until a later version (needs antiphon-group)"]


def test_files_that_cannot_be_used_are_listed_and_cost_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = make_campaign(tmp_path / "campaign", "one", repeats=5)
    for repeat in range(1, 6):
        make_run(directory, repeat)
    footer = directory / RUN.format(1) / "latency.parquet"
    footer.write_bytes(footer.read_bytes()[:-5])
    pages = directory / RUN.format(2) / "latency.parquet"
    content = bytearray(pages.read_bytes())
    content[4:400] = bytes(396)  # the footer, at the end, stays good
    pages.write_bytes(content)
    (directory / RUN.format(3) / "run.json").unlink()
    facts = json.loads((directory / RUN.format(4) / "run.json").read_text())
    (directory / RUN.format(4) / "run.json").write_text(json.dumps({**facts, "schema_version": 99}))
    out = tmp_path / "out"
    done = pipeline.run([directory], out, spark=spark)
    listed = {Path(one["path"]): one["reason"] for one in store.set_aside_of(out)}
    assert set(listed) == {
        footer,
        pages,
        directory / RUN.format(3) / "run.json",
        directory / RUN.format(4) / "run.json",
    }
    assert all(listed.values())
    assert len(done.set_aside) == 4
    outcomes = {row["run"]: row["outcome"] for row in rows_of(out, "runs")}
    assert list(outcomes.values()).count("complete") == 3
    assert list(outcomes.values()).count("interrupted") == 2
    # Two runs have lost their delays, and not what else was measured.
    (throughput,) = rows_of(out, "throughput")
    assert throughput["repeats"] == 3
    (latency,) = rows_of(out, "latency")
    assert (latency["repeats"], latency["count"]) == (1, 8)


def test_a_table_with_other_columns_than_declared_is_refused(
    spark: SparkSession, campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from antiphon.pipeline.tables import TABLES

    made = TABLES["outcomes"]
    monkeypatch.setitem(
        TABLES, "outcomes", lambda inputs: made(inputs).withColumnRenamed("of", "x")
    )
    with pytest.raises(job.SchemaMismatch, match=r"outcomes does not have .*of bigint, x bigint"):
        pipeline.run([campaign], tmp_path / "out", spark=spark)
    assert not (tmp_path / "out" / "runs").exists()


def test_errors_are_one_line(spark: SparkSession, campaign: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no campaign"):
        pipeline.run([tmp_path / "campaign" / RUN.format(1)], tmp_path / "out", spark=spark)
    (tmp_path / "file").write_text("")
    with pytest.raises(AntiphonError, match="no tables can be written"):
        pipeline.run([campaign], tmp_path / "file", spark=spark)
    (campaign / "campaign.json").write_text("{}")
    with pytest.raises(AntiphonError, match=r"no campaign can be read: .*no id"):
        pipeline.run([campaign], tmp_path / "out", spark=spark)


def command(*arguments: str | Path) -> Sequence[str]:
    return [sys.executable, "-m", "antiphon.cli.main", "pipeline", *map(str, arguments)]


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.timeout(1200)
def test_a_killed_job_leaves_the_old_tables_and_the_next_one_tidies_up(
    spark: SparkSession, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, out, temporary = (tmp_path / name for name in ("campaign", "out", "tmp"))
    temporary.mkdir()
    shutil.copytree(finished.campaign, campaign)
    shutil.copytree(finished.out, out)
    before = all_rows(out)
    # More is measured: new tables would differ from the old ones.
    make_run(campaign, 3)
    running = subprocess.Popen(
        command("run", campaign, "--out", out, "--master", "local[2]", "--no-report"),
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 400
        while not list(out.glob(".staging-*/*/campaign=one/*.parquet")):
            assert running.poll() is None, "it has ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        java = descendants(running.pid)
        running.send_signal(signal.SIGKILL)
        running.wait(20)
    assert all_rows(out) == before
    assert list(out.glob(".staging-*"))
    await_none(java)  # it ends by itself
    pipeline.run([campaign], out, spark=spark)
    assert len(rows_of(out, "runs")) == 3
    assert rows_of(out, "latency")[0]["count"] == 24
    # Spark has sums beside its files; else nothing is hidden there.
    hidden = [path for path in out.rglob(".*") if path.suffix != ".crc"]
    assert [path.name for path in hidden] == [".lock"]
    # What it has left on the disk goes with the next session.
    assert listing(temporary)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with session._scratch() as scratch:
        assert listing(temporary) == {scratch.name}
    assert listing(temporary) == set()


def test_the_command_lists_shows_and_explains(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from antiphon.cli.main import main

    out, campaign = finished.out, finished.campaign
    assert main(["pipeline", "tables", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == {"one": 2}
    assert main(["pipeline", "tables", str(out)]) == 0
    assert "latency_counts" in capsys.readouterr().out
    assert main(["pipeline", "show", str(out), "runs", "--csv", "--columns", "run,outcome"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run,outcome"
    assert sorted(lines[1:]) == [f"{RUN.format(repeat)},complete" for repeat in (1, 2)]
    for arguments, code, text in [
        (["show", str(out), "speed"], 2, "there is no table 'speed'"),
        (["show", str(out), "runs", "--csv", "--json"], 2, "not both"),
        (["show", str(out), "runs", "--where", "protocol"], 2, "protocol=pyzmq"),
        (["tables", str(tmp_path)], 2, "holds no tables"),
        (["run", str(campaign)], 2, "--out"),
        (["run", str(campaign), "--out", str(out), "--conf", "cores"], 2, "spark.driver.memory"),
        (["run", str(campaign), "--out", str(out), "--update-share", "15"], 2, "at most 1"),
        (["run", str(tmp_path / "no"), "--out", str(out)], 2, "No such file"),
    ]:
        assert main(["pipeline", *arguments]) == code, arguments
        told = capsys.readouterr().err
        assert text in told
        assert told.count("\n") == 1


@pytest.mark.parametrize("verb", ["", "run", "tables", "show", "report", "compare", "simulate"])
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    from antiphon.cli.main import main

    assert main(["pipeline", *([verb] if verb else []), "--help"]) == 0
    told = capsys.readouterr().out
    assert f"Example: antiphon pipeline {verb}" in told if verb else "simulate" in told


def test_a_name_of_a_function_is_not_hidden_by_the_module_of_that_name() -> None:
    import antiphon.pipeline.compare
    import antiphon.pipeline.report
    import antiphon.pipeline.simulate
    import antiphon.pipeline.tables  # noqa: F401

    for name in pipeline.__all__:
        assert callable(getattr(pipeline, name)), name
    assert dataclasses.is_dataclass(job.Result)

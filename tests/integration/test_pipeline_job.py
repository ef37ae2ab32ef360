"""The whole job on small campaigns, with a real Spark."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from antiphon import pipeline
from antiphon.errors import AntiphonError, ConfigError
from antiphon.pipeline import job, schemas, store
from unit.pipeline.made import LATER, RUN, make_campaign, make_run, message

Rows = list[dict[str, Any]]


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    directory = make_campaign(tmp_path / "campaign", "one")
    make_run(directory, 1)
    make_run(directory, 2)
    return directory


def rows_of(out: Path, table: str) -> Rows:
    rows: Rows = store.read_table(out, table).to_pylist()
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def all_rows(out: Path) -> dict[str, Rows]:
    return {table: rows_of(out, table) for table in schemas.TABLES}


def test_all_tables_are_made_with_the_declared_columns(
    spark: SparkSession, campaign: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    out = tmp_path / "out"
    done = pipeline.run([campaign], out, progress=lines.append, spark=spark)
    assert done.campaigns == ("one",)
    assert done.set_aside == ()
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


def test_running_again_replaces_and_another_campaign_is_added(
    spark: SparkSession, campaign: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    pipeline.run([campaign], out, spark=spark)
    first = all_rows(out)
    pipeline.run([campaign], out, spark=spark)
    assert all_rows(out) == first
    other = make_campaign(tmp_path / "other", "two", repeats=1)
    make_run(other, 1, outcome="blocked", reason="nothing came")
    pipeline.run([other], out, spark=spark)
    again = all_rows(out)
    for table, rows in first.items():
        assert [row for row in again[table] if row["campaign"] == "one"] == rows
    (run,) = [row for row in again["runs"] if row["campaign"] == "two"]
    assert run["outcome"] == "blocked"
    assert not [row for row in again["throughput"] if row["campaign"] == "two"]
    assert [row["campaign"] for row in again["outcomes"]].count("two") == 1
    # The campaign is measured again, and this time nothing is complete: its old rows go.
    for repeat in (1, 2):
        shutil.rmtree(campaign / RUN.format(repeat))
    pipeline.run([campaign], out, spark=spark)
    assert not [row for row in rows_of(out, "latency") if row["campaign"] == "one"]
    assert {row["outcome"] for row in rows_of(out, "runs") if row["campaign"] == "one"} == {
        "interrupted"
    }


def test_many_at_once_are_the_same_as_one_by_one(
    spark: SparkSession, campaign: Path, tmp_path: Path
) -> None:
    other = make_campaign(tmp_path / "other", "two", repeats=1)
    make_run(other, 1, latency=[message(0, 2_000_000_000, 12_345)])
    pipeline.run([campaign, other], tmp_path / "both", spark=spark)
    pipeline.run([campaign], tmp_path / "each", spark=spark)
    pipeline.run([other], tmp_path / "each", spark=spark)
    assert all_rows(tmp_path / "both") == all_rows(tmp_path / "each")


def test_a_campaign_without_runs_has_outcomes_only(spark: SparkSession, tmp_path: Path) -> None:
    empty = make_campaign(tmp_path / "empty", "empty")
    with (empty / "plan.toml").open("a") as plan:
        plan.write(LATER)
    pipeline.run([empty], tmp_path / "out", spark=spark)
    counts = {name: sum(rows.values()) for name, rows in pipeline.tables(tmp_path / "out").items()}
    assert counts.pop("runs") == 3
    assert counts.pop("outcomes") == 2
    assert set(counts.values()) == {0}
    named = {row["protocol"]: row["reasons"] for row in rows_of(tmp_path / "out", "outcomes")}
    assert named["antiphon-group"] == ["missing until a later version (needs antiphon-group)"]


def test_one_run_has_no_spread(spark: SparkSession, tmp_path: Path) -> None:
    directory = make_campaign(tmp_path / "single", "single", repeats=1)
    make_run(directory, 1)
    pipeline.run([directory], tmp_path / "out", spark=spark)
    (row,) = rows_of(tmp_path / "out", "throughput")
    assert (row["repeats"], row["bytes_per_second_stddev"]) == (1, None)


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
    campaign: Path, tmp_path: Path
) -> None:
    out, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary)}
    job_command = command("run", campaign, "--out", out, "--master", "local[2]", "--no-report")
    subprocess.run(job_command, env=environ, check=True, timeout=400, capture_output=True)
    before = all_rows(out)
    assert listing(temporary) == set()
    # More is measured: new tables would differ from the old ones.
    make_run(campaign, 3)
    running = subprocess.Popen(
        job_command, env=environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        stage = out / ".staging"
        deadline = time.monotonic() + 400
        while not list(stage.glob("*/campaign=one/*.parquet")):
            assert running.poll() is None, "it has ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait(20)
    assert all_rows(out) == before
    assert stage.exists()
    subprocess.run(job_command, env=environ, check=True, timeout=400, capture_output=True)
    assert len(rows_of(out, "runs")) == 3
    assert rows_of(out, "latency")[0]["count"] == 24
    # Spark has sums beside its files; else nothing is hidden there.
    hidden = [path for path in out.rglob(".*") if path.suffix != ".crc"]
    assert [path.name for path in hidden] == [".lock"]
    assert listing(temporary) == set()


def test_the_command_lists_shows_and_explains(
    spark: SparkSession, campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from antiphon.cli.main import main

    out = tmp_path / "out"
    pipeline.run([campaign], out, spark=spark)
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

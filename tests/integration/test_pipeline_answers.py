"""The whole pipeline on campaigns whose answers are known, and DuckDB as a second opinion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from antiphon import pipeline
from antiphon.pipeline import schemas, store
from antiphon.pipeline.answers import QUANTILES
from antiphon.pipeline.check import check
from antiphon.pipeline.compare import SAME

pytestmark = [pytest.mark.needs("pyspark"), pytest.mark.timeout(300)]

ROWS = 240_000
PROTOCOLS = ("antiphon-topic", "pyzmq", "redis", "udp-python")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("answers") / "campaign"
    return pipeline.simulate(out, ROWS, protocols=PROTOCOLS, repeats=2)


@pytest.fixture(scope="module")
def slow_campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("answers") / "slow"
    slower = {"pyzmq": 0.7}
    return pipeline.simulate(
        out, 20_000, protocols=PROTOCOLS[:2], repeats=2, groups=False, slower=slower
    )


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession,
    campaign: Path,
    slow_campaign: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("answers") / "tables"
    pipeline.run([campaign, slow_campaign], out, spark=spark)
    return out


def test_every_table_has_the_known_answers(
    tables: Path, campaign: Path, slow_campaign: Path
) -> None:
    assert not check(tables, campaign)
    assert not check(tables, slow_campaign)


def test_all_rows_were_counted_but_those_of_runs_that_did_not_finish(tables: Path) -> None:
    rows = [
        row for row in store.read_table(tables, "runs").to_pylist() if row["outcome"] == "complete"
    ]
    counted = sum(store.read_table(tables, "latency")["count"].to_pylist())
    assert counted == sum(row["latency_rows"] - row["clock_errors"] for row in rows)
    assert counted > 200_000


def test_duckdb_finds_the_same_quantiles_on_the_same_files(tables: Path, campaign: Path) -> None:
    files: dict[str, list[str]] = {}
    for path in campaign.glob("*/run.json"):
        facts = json.loads(path.read_text())
        if facts["outcome"] == "complete":
            key = json.dumps([facts[name] for name in schemas.KEYS])
            files.setdefault(key, []).append(str(path.parent / "latency.parquet"))
    own = json.loads((campaign / "campaign.json").read_text())["campaign"]
    rows = {
        json.dumps([row[name] for name in schemas.KEYS]): row
        for row in store.read_table(tables, "latency").to_pylist()
        if row["campaign"] == own
    }
    assert rows.keys() == files.keys()
    quantiles = ", ".join(
        f"quantile_disc(us, {part}/{of}) as {name}" for name, (part, of) in QUANTILES.items()
    )
    for key, paths in files.items():
        (found,) = (
            duckdb.sql(
                f"""select count(*) as count, sum(ns)::hugeint as sum_ns, min(us) as min_us,
                max(us) as max_us, {quantiles}
                from (select received_ns - intended_ns as ns, ns // 1000 as us
                      from read_parquet({paths}) where ns >= 0)"""
            )
            .to_arrow_table()
            .to_pylist()
        )
        assert {name: int(rows[key][name]) for name in found} == {
            name: int(value) for name, value in found.items()
        }, key


def test_the_buckets_add_up_to_the_rows(tables: Path) -> None:
    buckets, rows = store.read_table(tables, "latency_counts"), store.read_table(tables, "latency")
    assert pc.sum(buckets["count"]).as_py() == pc.sum(rows["count"]).as_py()
    assert pc.sum(buckets["sum_ns"]).as_py() == pc.sum(rows["sum_ns"]).as_py()


def test_compare_finds_the_protocol_that_was_made_slower(
    tables: Path, campaign: Path, slow_campaign: Path
) -> None:
    before, after = (
        json.loads((path / "campaign.json").read_text())["campaign"]
        for path in (campaign, slow_campaign)
    )
    found = pipeline.compare(tables, tables, before=before, after=after)
    changed = [row for row in found.rows if row.metric == "messages/s" and row.verdict != SAME]
    assert {row.keys["protocol"] for row in changed} == {"pyzmq"}
    # Of the busiest one repeat has failed: with a single one left nobody can tell.
    assert {row.keys["workload"]: row.verdict for row in changed} == {
        "none": "slower",
        "garbage": "slower",
        "cpu-60": "cannot tell",
    }


def facts(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_what_is_wrong_shows(tables: Path, campaign: Path, tmp_path: Path) -> None:
    """The check of the answers can fail: one changed number is one line."""
    answers = facts(campaign / "answers.json")
    answers["tables"]["latency"][0]["p99_us"] += 1
    answers["tables"]["cpu"].pop()
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    wrong = sorted(check(tables, tmp_path))
    assert len(wrong) == 2
    assert "a row too many" in wrong[0]
    assert "latency.p99_us" in wrong[1]


def test_files_of_the_lab_are_read_as_they_are(campaign: Path) -> None:
    """What a simulated campaign has more than the lab's rows would be no test of the lab's."""
    (path,) = campaign.glob("delay.pyzmq.none.*.r1/latency.parquet")
    assert set(schemas.FILES["latency"]) == set(pq.read_schema(path).names)

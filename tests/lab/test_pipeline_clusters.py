"""The same tables wherever they are made: here, in a local cluster, and by two workers."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon import pipeline
from antiphon.pipeline import schemas, store
from integration.spark_clusters import standalone

CLOSE = 1e-9
# Nothing of ours runs in Python on an executor: one that cannot start Python is good enough.
NO_PYTHON = {"spark.pyspark.python": "/nonexistent/python", "spark.executor.memory": "900m"}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipeline.simulate(tmp_path_factory.mktemp("campaigns") / "simulated", 20_000, repeats=2)


def sorted_rows(out: Path, table: str) -> list[dict[str, Any]]:
    names = [name for name, kind in schemas.TABLES[table].items() if kind != "array<string>"]
    rows: list[dict[str, Any]] = store.read_table(out, table).to_pylist()

    def order(row: dict[str, Any]) -> list[tuple[bool, Any]]:
        # Floats may differ in their last digits, and must not decide the order.
        return [
            (row[name] is None, "" if row[name] is None else str(row[name]))
            for name in names
            if schemas.TABLES[table][name] != "double" or name == "rate"
        ]

    return sorted(rows, key=order)


def assert_same(one: Path, other: Path) -> None:
    """Floats to `CLOSE`, all else to the last bit.

    The deviation of figures that are all the same is 0 or a last digit of theirs, depending on the
    order in which they are added up: it is held against their mean.
    """
    for table in schemas.TABLES:
        left, right = sorted_rows(one, table), sorted_rows(other, table)
        assert len(left) == len(right), table
        for a, b in zip(left, right, strict=True):
            for name in a:
                if isinstance(a[name], float) and isinstance(b[name], float):
                    least = CLOSE * max(1.0, abs(a.get(name.replace("_stddev", "_mean")) or 0.0))
                    close = math.isclose(a[name], b[name], rel_tol=CLOSE, abs_tol=least)
                    assert close, (table, name, a, b)
                else:
                    assert a[name] == b[name], (table, name, a, b)


@pytest.fixture(scope="module")
def here(campaign: Path, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("here") / "out"
    pipeline.run([campaign], out, spark=spark)
    assert sum(pipeline.tables(out)["latency_counts"].values()) > 100
    return out


def run_apart(campaign: Path, out: Path, master: str) -> None:
    """In a process of its own: this one has a session."""
    conf = [part for name, value in NO_PYTHON.items() for part in ("--conf", f"{name}={value}")]
    verb = [sys.executable, "-m", "antiphon.cli.main", "pipeline", "run", str(campaign)]
    done = subprocess.run(
        [*verb, "--out", str(out), "--master", master, "--no-report", *conf],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_local_cluster_gives_the_same_tables(campaign: Path, here: Path, tmp_path: Path) -> None:
    run_apart(campaign, tmp_path / "out", "local-cluster[2,1,1024]")
    assert_same(here, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_master_and_two_workers_give_the_same_tables(
    campaign: Path, here: Path, tmp_path: Path
) -> None:
    with standalone(tmp_path / "cluster", workers=2) as master:
        run_apart(campaign, tmp_path / "out", master)
    assert_same(here, tmp_path / "out")

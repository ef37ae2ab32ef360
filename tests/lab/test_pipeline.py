"""A real campaign, from the command that measures to the page that tells what came out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from antiphon.pipeline import store


def antiphon(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.needs("pyspark")
@pytest.mark.timeout(1200)
def test_a_quick_campaign_becomes_tables_and_a_report(tmp_path: Path) -> None:
    campaign, out = tmp_path / "campaign", tmp_path / "tables"
    told = antiphon("lab", "run", "stability", "--quick", "--out", campaign, "--json")
    said = json.loads(told)
    measured = {run["run"]: run for run in said["runs"]}
    assert Counter(run["outcome"] for run in measured.values()) == {"complete": len(measured)}
    protocols = {"antiphon-node", "tcp-python", "asyncio", "pyzmq", "zenoh"}
    assert {run["protocol"] for run in measured.values()} == protocols
    printed = antiphon("pipeline", "run", campaign, "--out", out).splitlines()
    assert printed[-1] == str(out / "report.html")
    rows = {row["run"]: row for row in store.read_table(out, "runs").to_pylist()}
    links = {link["run"]: link for link in said["links"]}
    assert len(links) == 3
    assert {name: row["outcome"] for name, row in rows.items()} == {
        name: run["outcome"] for name, run in (measured | links).items()
    }
    assert store.set_aside_of(out) == []
    throughput = store.read_table(out, "throughput").to_pylist()
    complete = [
        run["bytes_per_second"]
        for run in measured.values()
        if run["outcome"] == "complete" and run["series"] == "throughput"
    ]
    found = [row["bytes_per_second_mean"] for row in throughput if row["series"] == "throughput"]
    assert sorted(found) == pytest.approx(sorted(complete), rel=0.05)
    for table in ("latency", "cpu", "resources", "stability", "bandwidth_ecdf", "degradation"):
        assert store.read_table(out, table).num_rows, table
    page = (out / "report.html").read_text()
    for protocol in protocols:
        assert protocol in page

"""The last act of ``antiphon demo``: from measurements to a report, on Spark."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from integration.demos import REPORT_ONLY, interrupt, quick_demo

pytestmark = [pytest.mark.needs("pyspark"), pytest.mark.timeout(300)]

WITHOUT_SPARK = "report.NEEDED = ('no_such_module',)\n"


def run(tmp_path: Path, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        quick_demo(*arguments, before=REPORT_ONLY + before),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


def test_the_last_act_leaves_a_report_and_nothing_else(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    act = json.loads(done.stdout)["acts"]["report"]
    assert set(act["kept"]) >= {"antiphon-node", "tcp-python"}, act
    assert act["bytes_per_second"]["tcp-python, idle"] > 0
    (report,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert str(report) == act["report"]
    assert "antiphon-node" in report.read_text(encoding="utf-8")


def test_without_spark_the_last_act_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, before=WITHOUT_SPARK)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("no report")]
    assert "no_such_module" in line
    assert "pip install 'antiphon[all]'" in line
    assert not list(tmp_path.iterdir())


def test_control_c_during_a_run_leaves_nothing_behind(tmp_path: Path) -> None:
    interrupt(quick_demo(before=REPORT_ONLY), "run 1 of 6", 2, 0.3, tmp_path)

"""Ctrl-C while Spark starts or works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from antiphon import pipeline
from integration.demos import REPORT_ONLY, interrupt, quick_demo

pytestmark = [pytest.mark.needs("pyspark"), pytest.mark.timeout(300)]

# Progress goes where the test reads it.
RUN = """
import sys
from antiphon.cli.main import main
sys.stderr, errors = sys.stdout, sys.stderr
code = main(["pipeline", "run", *sys.argv[1:]])
sys.stderr = errors
sys.exit(code)
"""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipeline.simulate(tmp_path_factory.mktemp("campaigns") / "simulated", 20_000, repeats=1)


# Java starts, is connected to, makes its session, is asked for tables, and makes them.
@pytest.mark.parametrize("later", [0.0, 0.3, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0])
def test_control_c_leaves_no_process_no_file_and_no_traceback(
    later: float, campaign: Path, tmp_path: Path
) -> None:
    out, place = tmp_path / "out", tmp_path / "place"
    place.mkdir()
    command = [sys.executable, "-c", RUN, str(campaign), "--out", str(out)]
    interrupt(command, "spark: starting", 1, later, place)
    assert {path.name for path in out.iterdir()} <= {".lock"}


def test_control_c_in_the_last_act_of_the_demonstration(tmp_path: Path) -> None:
    interrupt(quick_demo(before=REPORT_ONLY), "Spark makes", 1, 1.5, tmp_path)

"""Ctrl-C while Spark starts or works."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.demos import REPORT_ONLY, interrupt, quick_demo

pytestmark = [pytest.mark.needs("pyspark"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("later", [0.0, 0.3, 1.5, 6.0])
def test_control_c_while_spark_is_there_leaves_nothing_behind(later: float, tmp_path: Path) -> None:
    interrupt(quick_demo(before=REPORT_ONLY), "Spark makes", 1, later, tmp_path)

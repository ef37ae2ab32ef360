"""Ten million latencies through the pipeline: every table has the known answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon import pipeline
from antiphon.pipeline.check import check

pytestmark = [pytest.mark.stress, pytest.mark.needs("pyspark")]


@pytest.mark.timeout(1800)
def test_ten_million_latencies_give_exactly_the_known_answers(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    campaign = pipeline.simulate(tmp_path / "campaign", count(100_000, 10_000_000), seed=3)
    pipeline.run([campaign], tmp_path / "tables", "local[2]")
    assert not check(tmp_path / "tables", campaign)


@pytest.mark.timeout(1800)
def test_processes_of_their_own_give_the_same_answers(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    campaign = pipeline.simulate(tmp_path / "campaign", count(50_000, 2_000_000), seed=4)
    pipeline.run([campaign], tmp_path / "tables", "local-cluster[2,1,1024]")
    assert not check(tmp_path / "tables", campaign)

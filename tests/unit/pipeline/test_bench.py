"""What the benchmark of the pipeline takes for too slow or too large."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

MILLION = 1_000_000


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import bench_pipeline

    return bench_pipeline


def _measured(bench: ModuleType, millions: int, seconds: float, java: float = 2e9) -> object:
    return bench.Measured(millions * MILLION, 0, 0.0, seconds, started=5.0, java=int(java))


def test_what_is_fast_and_small_enough_misses_nothing(bench: ModuleType) -> None:
    found = [_measured(bench, 10, 14.0), _measured(bench, 50, 60.0), _measured(bench, 100, 105.0)]
    assert bench.missed(found) == []
    # Nearly all of it is Spark's start.
    assert bench.missed([bench.Measured(10_000, 0, 0.0, 39.0, started=5.0)]) == []


def test_every_miss_is_a_line(bench: ModuleType) -> None:
    slow, large = _measured(bench, 50, 91.0), _measured(bench, 50, 60.0, java=4.2e9)
    assert bench.missed([slow]) == ["50,000,000 rows took 91.0 s; at most 90.0 s"]
    (line,) = bench.missed([large])
    assert line == "50,000,000 rows took 4.20 GB of Java's memory; at most 4 GB"


def test_more_rows_that_take_longer_each_are_a_miss(bench: ModuleType) -> None:
    (line,) = bench.missed([_measured(bench, 10, 15.0), _measured(bench, 100, 135.0)])
    assert line.startswith("100,000,000 rows were 0.77 times as fast a row as 10,000,000")

"""From a campaign of the lab to tables, models and a report, on Spark.

::

    read ──▶ clean ──▶ tables ──▶ model ──▶ report

`schemas` names every column. `session` starts Spark; `campaigns`, `read` and `clean` turn a
campaign's files into DataFrames; every module of `tables` has functions from those to a table;
`job` alone brings paths and DataFrames together, and `store` knows how tables lie on the disk. The
report, `show` and `compare` read the finished tables and need no Spark.

Receives campaigns from `antiphon.lab`, hands tables and ``report.html`` to people and to
``antiphon pipeline``. What the command can do, the functions here do::

    from antiphon import pipeline

    pipeline.run(["stability-1"], "tables")
    pipeline.show("tables", "latency").rows.to_pandas()
    pipeline.report("tables")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from antiphon.pipeline.compare import Comparison
    from antiphon.pipeline.job import Result
    from antiphon.pipeline.show import Shown

__all__ = ["compare", "report", "run", "show", "simulate", "tables"]


def run(
    campaigns: Sequence[Path | str],
    out: Path | str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
    spark: SparkSession | None = None,
    update_share: float | None = None,
) -> Result:
    """Make all tables of these campaigns in ``out``; those of other campaigns there stay.

    ``master`` is a URL of Spark, by default all cores of this machine; ``conf`` has settings of
    Spark; ``progress`` is called with a line per stage. With ``spark`` your session is used.
    ``update_share`` is the part of a cluster's requests that are updates, for the table ``sizing``;
    0.15 unless it is given.
    """
    from antiphon.pipeline import job

    return job.run(campaigns, out, master, conf, progress, spark, update_share)


def tables(out: Path | str) -> dict[str, dict[str, int]]:
    """By table and campaign, how many rows are in ``out``."""
    from antiphon.pipeline import store

    return store.count_rows(out)


def show(out: Path | str, table: str, **options: Any) -> Shown:
    """Rows of a table of ``out``.

    The options are those of `antiphon.pipeline.show.read_rows`.
    """
    from antiphon.pipeline.show import read_rows

    return read_rows(out, table, **options)


def report(out: Path | str) -> Path:
    """Write ``report.html`` beside the tables in ``out``; returns its path."""
    from antiphon.pipeline.report import write_report

    return write_report(Path(out))


def compare(a: Path | str, b: Path | str, **options: Any) -> Comparison:
    """Whether anything got slower from the tables in ``a`` to those in ``b``.

    The options are those of `antiphon.pipeline.compare.compare`.
    """
    from antiphon.pipeline.compare import compare

    return compare(a, b, **options)


def simulate(out: Path | str, rows: int = 1_000_000, **options: Any) -> Path:
    """Write a campaign that was never run, with ``rows`` latencies and known answers.

    The options are those of `antiphon.pipeline.simulate.simulate`.
    """
    from antiphon.pipeline.simulate import simulate

    return simulate(Path(out), rows, **options)


class _Package(ModuleType):
    """Importing a module binds its name in its package; here such a name stays the function's."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

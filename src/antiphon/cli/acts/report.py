"""Last act: a small campaign of the lab, through Spark, to a report that opens in a browser.

Three systems, idle and beside a load on the processor, some seconds each. Windows that short make
it a demonstration; the campaign to quote is ``antiphon lab run stability``. Without Spark, or a
Java for it, the act is one line that says what to install.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from antiphon.cli.acts.stage import Act, ActFailed, Scene, Stage
from antiphon.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.lab.plan import Run
    from antiphon.lab.record import Report

__all__ = ["ACT"]

CODE = """
plan = load_plan("demo.toml")       # three systems, idle and beside a load
run_campaign(Campaign.create(plan, Path("campaign")))

pipeline.run(["campaign"], "tables")        # Parquet tables, by Spark
pipeline.report("tables")                   # one HTML file of them
"""

PLAN = """
name = "demo"
title = "Three systems, idle and beside a busy processor"

[times]
kept_from = 0.4
kept_until = {until}

[workloads.busy]
cpu = 0.6

[[series]]
name = "throughput"
pattern = "one-way"
protocols = ["antiphon-node", "tcp-python", "pyzmq"]
sizes = [2000]
workloads = ["none", "busy"]
"""

KEPT_UNTIL = 2.0
NEEDED = ("psutil", "pyarrow", "pyspark", "plotly")
INSTALL = "pip install 'antiphon[all]'"


def perform(stage: Stage) -> dict[str, object]:
    """The campaign, its tables and the report; only the report stays on the disk."""
    if missing := _missing():
        stage.say(f"no report: {missing}\n")
        return {"report": None, "reason": missing}
    with _directory() as directory:
        rates = _measure(stage, directory / "campaign")
        tables = directory / "tables"
        try:
            kept = _tables(stage, directory / "campaign", tables)
        except AntiphonError as error:
            shutil.rmtree(directory, ignore_errors=True)
            stage.say(f"no report: {error}\n")
            return {"report": None, "reason": str(error), "bytes_per_second": rates}
        report = _keep_report(directory, tables)
    _show(stage, rates, kept)
    stage.say(f"The report: {report}\n")
    return {"report": str(report), "bytes_per_second": rates, "kept": kept}


def _missing() -> str:
    """What keeps this act from being played, and how to get it; empty: nothing."""
    gone = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if gone:
        return f"it needs {', '.join(gone)}: {INSTALL}"
    from antiphon.pipeline.java import find_java

    try:
        find_java()
    except AntiphonError as error:
        return str(error)
    return ""


@contextmanager
def _directory() -> Iterator[Path]:
    """A new one, which is gone unless all went well."""
    directory = Path(tempfile.mkdtemp(prefix="antiphon-demo-"))
    try:
        yield directory
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _measure(stage: Stage, directory: Path) -> dict[str, float]:
    from antiphon.lab.campaign import Campaign
    from antiphon.lab.plan import load_plan
    from antiphon.lab.runner import run_campaign

    plan = directory.with_suffix(".toml")
    plan.write_text(PLAN.format(until=KEPT_UNTIL), encoding="utf-8")
    rates: dict[str, float] = {}
    reasons: list[str] = []

    def begin(run: Run, number: int, total: int) -> None:
        stage.say(f"  run {number + 1} of {total}: {_name(run)}", style="dim")

    def end(report: Report) -> None:
        if report.outcome == "absent":
            stage.say(f"  absent: {report.reason}", style="dim")
        elif report.outcome != "complete":
            reasons.append(f"{_name(report.run)}: {report.outcome}, {report.reason}")
        elif not report.run.protocol.startswith("link-"):
            rates[_name(report.run)] = report.bytes

    with stage.now("the bare link"):
        run_campaign(Campaign.create(load_plan(plan), directory), begin, end)
    for reason in reasons:
        stage.say(f"  {reason}", style="dim")
    if not rates:
        raise ActFailed(f"no run of its campaign was complete ({reasons[0] if reasons else ''})")
    return rates


def _name(run: Run) -> str:
    return f"{run.protocol}, {'idle' if run.workload == 'none' else 'busy'}"


def _tables(stage: Stage, campaign: Path, tables: Path) -> dict[str, float | None]:
    """By protocol, what is kept of its throughput beside the load."""
    from antiphon import pipeline

    stage.say("  Spark makes tables of it", style="dim")
    with stage.now("Spark"):
        pipeline.run([campaign], tables)
        pipeline.report(tables)
    rows = pipeline.show(tables, "degradation", limit=0).rows.to_pylist()
    return {row["protocol"]: row["kept"] for row in rows}


def _keep_report(directory: Path, tables: Path) -> Path:
    report = (tables / "report.html").rename(directory / "report.html")
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path != report:
            path.unlink()
    return report


def _show(stage: Stage, rates: dict[str, float], kept: dict[str, float | None]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("messages of 2000 bytes")
    for name in ("idle, MB/s", "busy, MB/s", "keeps"):
        table.add_column(name, justify="right")
    measured = (name.partition(",")[0] for name in rates)
    for protocol in dict.fromkeys([*kept, *measured]):
        part = kept.get(protocol)
        figures = (rates.get(f"{protocol}, {state}") for state in ("idle", "busy"))
        table.add_row(
            protocol,
            *("" if rate is None else f"{rate / 1e6:,.0f}" for rate in figures),
            "" if part is None else f"{part:.0%}",
        )
    stage.show(table)
    stage.say("  busy: beside processes that use 60 % of all cores", style="dim")


ACT = Act(
    name="report",
    title="From measurements to a report, on Spark",
    seconds=50.0,
    scenes=(Scene(CODE, perform),),
)

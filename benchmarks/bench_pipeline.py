"""How long the pipeline takes for so many latencies, and how much memory: all tables, on Spark.

Campaigns are made up (`antiphon pipeline simulate`), so every table is also checked against what it
must contain. A run is a process of its own, as a user would start it; its time is divided into what
Spark takes to start and the rest. Memory is the most that Python and Java had at one moment each,
as the kernel counts it.

    python benchmarks/bench_pipeline.py [--rows N] [--growth] [--check]
                                        [--master URL] [--folder DIR]

With --growth also a fifth and twice as many: rows per second should be the same. A hundred million
rows take about 1.2 GB in the folder while they are there. With --check it says what is too slow or
too large, and ends with status 1 if anything is. That is for a quiet machine with two cores.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from measuring import print_head
from rich.console import Console
from rich.table import Table

from antiphon.pipeline.check import check
from antiphon.pipeline.java import find_java
from antiphon.pipeline.simulate import simulate

LOOK = 0.1
STEPS = (0.2, 1.0, 2.0)
# A small campaign takes 40 s, of which Spark's start is the most, and 50 million rows 90 s.
START_SECONDS = 40.0
SECONDS_PER_ROW = 1e-6
MOST_JAVA = 4_000_000_000
LEAST_GROWTH = 0.8

JOB = """
import json, sys, time
from antiphon import pipeline
begin = time.perf_counter()
lines = []
def say(line):
    lines.append((time.perf_counter() - begin, line))
    print(json.dumps(lines[-1]), flush=True)
campaign, out, master = sys.argv[1:]
pipeline.run([campaign], out, master, progress=say)
"""


@dataclass
class Measured:
    rows: int
    bytes: int
    simulated: float
    seconds: float = 0.0
    started: float = 0.0
    """When Spark was there."""

    python: int = 0
    java: int = 0
    lines: list[tuple[float, str]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Without the start of Spark, which is the same for all."""
        return self.rows / (self.seconds - self.started)


def measure(rows: int, folder: Path, master: str) -> Measured:
    began = time.perf_counter()
    campaign = simulate(folder / "campaign", rows)
    size = sum(path.stat().st_size for path in campaign.glob("*/latency.parquet"))
    found = Measured(rows, size, time.perf_counter() - began)
    tables = folder / "tables"
    command = [sys.executable, "-c", JOB, str(campaign), str(tables), master]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(job.pid, found, over))
        watch.start()
        assert job.stdout is not None
        for line in job.stdout:
            when, text = json.loads(line)
            found.lines.append((when, text))
        job.wait()
        over.set()
        watch.join()
    found.seconds = time.perf_counter() - began
    if job.returncode:
        sys.exit(f"the job ended with {job.returncode}")
    tabled = [when for when, text in found.lines if text.startswith("spark: started")]
    found.started = tabled[0] if tabled else 0.0
    if wrong := check(tables, campaign):
        sys.exit("\n".join(["the tables are wrong:", *wrong[:20]]))
    return found


def missed(found: list[Measured]) -> list[str]:
    """What is not as it should be, a line each."""
    lines = []
    for one in found:
        most = START_SECONDS + one.rows * SECONDS_PER_ROW
        if one.seconds > most:
            lines.append(f"{one.rows:,} rows took {one.seconds:.1f} s; at most {most:.1f} s")
        if one.java > MOST_JAVA:
            lines.append(
                f"{one.rows:,} rows took {one.java / 1e9:.2f} GB of Java's memory; "
                f"at most {MOST_JAVA / 1e9:.0f} GB"
            )
    growth = found[-1].rate / found[0].rate
    if growth < LEAST_GROWTH:
        lines.append(
            f"{found[-1].rows:,} rows were {growth:.2f} times as fast a row as {found[0].rows:,}; "
            f"at least {LEAST_GROWTH}"
        )
    return lines


def _watch(own: int, found: Measured, over: threading.Event) -> None:
    """The high-water mark of each process, kept by the kernel, until they are gone."""
    while not over.wait(LOOK):
        for pid in [own, *_children(own)]:
            peak, name = _peak(pid)
            if pid == own:
                found.python = max(found.python, peak)
            elif name == "java":
                found.java = max(found.java, peak)


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            below = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in below:
            found += [child, *_children(child)]
    return found


def _peak(pid: int) -> tuple[int, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, ""
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(facts.get("VmHWM", "0").split()[0]) << 10, facts["Name"].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast the pipeline is.")
    parser.add_argument("--rows", type=int, default=50_000_000, help="latencies in all")
    parser.add_argument("--growth", action="store_true", help="also a fifth and twice as many")
    parser.add_argument("--check", action="store_true", help="fail if it is too slow or large")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path, help="where campaigns lie meanwhile")
    arguments = parser.parse_args()
    if arguments.rows < 10_000:
        parser.error("give at least 10,000 rows")
    console = Console(soft_wrap=True)
    print_head(console)
    spark = importlib.metadata.version("pyspark")
    console.print(f"spark     {spark} on {arguments.master}, {find_java()}", highlight=False)
    console.print(f"load      {os.getloadavg()[0]:.2f} before the first run", highlight=False)
    found = []
    for step in STEPS if arguments.growth else (1.0,):
        with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder:
            found.append(measure(int(arguments.rows * step), Path(folder), arguments.master))
            _print_stages(console, found[-1])
    _print_all(console, found)
    if arguments.check:
        lines = missed(found)
        for line in lines or ["as fast and as small as it should be"]:
            console.print(line, highlight=False)
        sys.exit(1 if lines else 0)


def _print_stages(console: Console, one: Measured) -> None:
    console.print(f"\n{one.rows:,} rows", highlight=False)
    for when, text in one.lines:
        console.print(f"{when:7.1f} s  {text}", markup=False, highlight=False)


def _print_all(console: Console, found: list[Measured]) -> None:
    table = Table(title="all tables, checked", title_justify="left", box=None, pad_edge=False)
    names = ("rows", "Parquet", "made in", "in all", "Spark's start", "rows/s", "Python", "Java")
    for name in names:
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(
            f"{one.rows:,}",
            f"{one.bytes / 1e9:.2f} GB",
            f"{one.simulated:.1f} s",
            f"{one.seconds:.1f} s",
            f"{one.started:.1f} s",
            f"{one.rate:,.0f}",
            f"{one.python / 1e9:.2f} GB",
            f"{one.java / 1e9:.2f} GB",
        )
    console.print()
    console.print(table)
    if len(found) > 1:
        ratio = found[-1].rate / found[0].rate
        console.print(
            f"from {found[0].rows:,} to {found[-1].rows:,} rows: {ratio:.2f} times as fast a row",
            highlight=False,
        )


if __name__ == "__main__":
    main()

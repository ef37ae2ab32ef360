"""What the micro benchmarks share: a head line that makes a figure worth quoting, and a table.

These programs time single calls inside one process. What whole systems do between processes is
``antiphon bench node``.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from antiphon.lab.bench.machine import describe_machine, versions

__all__ = ["Timing", "print_head", "print_timings", "time_rounds"]


@dataclass
class Timing:
    """Nanoseconds per operation, one entry per round."""

    name: str
    rounds: list[float] = field(default_factory=list)

    def add(self, seconds: float, operations: int) -> None:
        self.rounds.append(seconds / operations * 1e9)


def time_rounds(name: str, seconds: float, step: Callable[[], tuple[float, int]]) -> Timing:
    """Calls ``step``, which returns (seconds, operations), for about ``seconds`` in all.

    The first round only warms up.
    """
    timing = Timing(name)
    step()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(timing.rounds) < 3:
        timing.add(*step())
    return timing


def print_head(console: Console) -> None:
    console.print(f"machine   {describe_machine().line()}", highlight=False)
    found = ", ".join(f"{name} {version}" for name, version in versions([]).items())
    console.print(f"versions  {found}", highlight=False)
    console.print(f"command   {shlex.join(['python', *sys.argv])}", highlight=False)


def print_timings(console: Console, title: str, timings: list[Timing]) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("operation")
    for name in ("median", "lowest", "highest", "rounds"):
        table.add_column(name, justify="right")
    for timing in timings:
        table.add_row(
            timing.name,
            f"{statistics.median(timing.rounds):,.1f} ns",
            f"{min(timing.rounds):,.1f}",
            f"{max(timing.rounds):,.1f}",
            str(len(timing.rounds)),
        )
    console.print()
    console.print(table)

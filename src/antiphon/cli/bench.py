"""``antiphon bench``: measure this machine, ours and the peers in one run."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from antiphon.lab.bench.machine import describe_machine, versions
from antiphon.lab.bench.plan import YARDSTICKS, Group, Point, parse_peers, plan_for
from antiphon.lab.bench.point import Measurement, Options
from antiphon.lab.bench.probes import probe_idle, probe_stalled
from antiphon.lab.bench.report import Probe, document, print_header, print_report
from antiphon.lab.bench.run import count_runs, estimate_seconds, run_plan
from antiphon.lab.bench.summary import evaluate, summarise
from antiphon.lab.peers import PEERS

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure this machine: ours and the named peers, side by side in one run.",
)

QUICK_SECONDS = 0.75
FULL_SECONDS = 2.0
PROBE_SECONDS = 3.0


@app.callback()
def bench() -> None:
    """Measure this machine: ours and the named peers, side by side in one run.

    Example: antiphon bench node --quick
    """


@app.command()
def node(
    size: Annotated[
        int | None, typer.Option(help="Bytes per message: only this size, one way.", min=1)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Least time measured per point (2, quick 0.75).", min=0.1, max=600.0),
    ] = None,
    peers: Annotated[
        str, typer.Option(help=f"Beside ours, comma-separated: {', '.join(PEERS)}. Default: all.")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Runs of every point.", min=1, max=100)] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A small set, in about 40 s.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document with every repeat.")
    ] = False,
) -> None:
    """Messages between processes: rates, ratios to pyzmq and to a raw C stream.

    Varies one thing at a time from 64 bytes, raw, one way, one thread: size, encoding, direction,
    sending threads, number of processes. The whole table takes about 10 minutes.

    Example: antiphon bench node --size 4096 --peers pyzmq,raw-tcp --seconds 3
    """
    try:
        systems = parse_peers(peers, YARDSTICKS if quick and size is None else PEERS)
        groups = plan_for(systems, size=size, quick=quick)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    used = [name for name in systems if _used(name, groups)]
    options = Options(seconds=seconds or (QUICK_SECONDS if quick else FULL_SECONDS))
    command = shlex.join(["antiphon", *sys.argv[1:]])
    machine = describe_machine()
    absent = [line for name in used if (line := PEERS[name].missing())]
    found = versions(used)

    notes = Console(stderr=True)
    # A file or a pipe has no width of its own; the table wants this much.
    console = Console(width=None if sys.stdout.isatty() else 130)
    for line in absent:
        notes.print(f"absent: {line}", highlight=False)
    if not as_json:
        print_header(console, machine, found, command)
    measurements = _run(groups, repeats, options, notes)
    probes: dict[str, Probe] = {}
    if size is None and not quick:
        probes = {"stalled": probe_stalled(PROBE_SECONDS), "idle": probe_idle(PROBE_SECONDS)}
    rows = summarise(groups, measurements)
    reach = evaluate(rows)
    if as_json:
        result = document(machine, found, command, options, rows, reach, absent, probes)
        print(json.dumps(result, indent=2))
    else:
        print_report(console, rows, reach, absent, probes)
    if any(row.point.system == "antiphon" and row.outcome != "ok" for row in rows):
        raise typer.Exit(1)


def _used(name: str, groups: list[Group]) -> bool:
    return any(point.system == name for group in groups for point in group.points)


def _run(groups: list[Group], repeats: int, options: Options, notes: Console) -> list[Measurement]:
    minutes, rest = divmod(round(estimate_seconds(groups, repeats, options)), 60)
    total = count_runs(groups, repeats)
    notes.print(f"{total} runs, about {minutes} min {rest:02d} s", highlight=False)
    columns = (
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    # Redrawn between points only: a thread that draws would be one of the others that we count.
    with Progress(*columns, console=notes, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=total)

        def begin(point: Point, repeat: int) -> None:
            progress.update(task, description=f"{point.name} ({repeat + 1}/{repeats})")
            progress.refresh()

        def end(measurement: Measurement) -> None:
            progress.advance(task)

        return run_plan(groups, repeats, options, begin, end)

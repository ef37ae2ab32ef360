"""``antiphon bench group``: all members of a group send to all, ours and JGroups in turn."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from antiphon.lab.bench.groups import SYSTEMS, Throughput, absent, measure_group
from antiphon.lab.bench.machine import describe_machine
from antiphon.lab.bench.processes import WorkerFailed

__all__ = ["group"]


def group(
    members: Annotated[
        str, typer.Option(help="Numbers of members, comma-separated: each is a process.")
    ] = "2,4",
    size: Annotated[int, typer.Option(help="Bytes per message.", min=1, max=1 << 24)] = 1000,
    seconds: Annotated[
        float, typer.Option(help="Time measured per point.", min=0.1, max=600.0)
    ] = 3.0,
    peers: Annotated[
        str, typer.Option(help=f"Beside ours, comma-separated: {', '.join(SYSTEMS[1:])}.")
    ] = "jgroups-tcp",
    repeats: Annotated[int, typer.Option(help="Runs of every point.", min=1, max=100)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """All members send to all, as much as goes: deliveries per second, own ones included.

    Ours over TCP on the loopback (over UDP: --peers antiphon-udp and others), and JGroups from
    libjgroups-java beside it in the same run, in turn. The ratio is of the medians.

    Example: antiphon bench group --members 2,4 --size 1000 --peers jgroups-tcp
    """
    try:
        numbers = [int(one) for one in members.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= 64 for number in numbers):
        raise typer.BadParameter(f"--members {members!r}: numbers from 1 to 64, such as 2,4")
    systems = ["antiphon", *(one for one in peers.split(",") if one and one != "antiphon")]
    unknown = set(systems) - set(SYSTEMS)
    if unknown:
        raise typer.BadParameter(f"--peers: {', '.join(SYSTEMS[1:])}; not {', '.join(unknown)}")
    notes = Console(stderr=True)
    missing = {one: line for one in systems if (line := absent(one))}
    for one, line in missing.items():
        notes.print(f"absent: {one}: {line}", highlight=False)
    rows: dict[tuple[int, str], list[Throughput]] = {}
    failed = False
    for number in numbers:
        for _ in range(repeats):  # in turn, so that all see the same machine
            for system in systems:
                if system in missing:
                    continue
                notes.print(f"{system}, {number} members", highlight=False)
                try:
                    found = measure_group(system, number, size, seconds)
                except WorkerFailed as error:
                    notes.print(f"failed: {error}", highlight=False)
                    failed = failed or system == "antiphon"
                    continue
                rows.setdefault((number, system), []).append(found)
    if as_json:
        _as_json(rows, missing)
    else:
        _as_table(rows, size, seconds, repeats)
    if failed:
        raise typer.Exit(1)


def _median(found: list[Throughput]) -> float:
    return statistics.median(one.deliveries for one in found)


def _as_json(rows: dict[tuple[int, str], list[Throughput]], missing: dict[str, str]) -> None:
    document = {
        "benchmark": "group",
        "machine": describe_machine(),
        "command": shlex.join(["antiphon", *sys.argv[1:]]),
        "absent": missing,
        "runs": [one.as_dict() for found in rows.values() for one in found],
    }
    print(json.dumps(document, indent=2, default=str))


def _as_table(
    rows: dict[tuple[int, str], list[Throughput]], size: int, seconds: float, repeats: int
) -> None:
    table = Table(title=f"all to all, {size} bytes, median of {repeats} runs of {seconds:g} s")
    for title in ("members", "system", "deliveries/s", "sends/s", "CPU us/delivery", "ours / it"):
        table.add_column(title, justify="left" if title == "system" else "right")
    for (number, system), found in rows.items():
        ours = rows.get((number, "antiphon"))
        ratio = f"{_median(ours) / _median(found):.1f}" if ours else ""
        table.add_row(
            str(number),
            system,
            f"{_median(found):,.0f}",
            f"{statistics.median(one.sends for one in found):,.0f}",
            f"{statistics.median(one.cpu_us for one in found):.2f}",
            ratio,
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)

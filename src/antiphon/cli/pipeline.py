"""``antiphon pipeline``: from campaigns of the lab to tables and a report."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from antiphon import pipeline
from antiphon.pipeline import store
from antiphon.pipeline.inputs import UPDATE_SHARE

__all__ = ["app"]

app = typer.Typer(
    help="Make tables and a report of what antiphon lab has recorded."
    "\n\nExample: antiphon pipeline run stability-1 --out tables",
    add_completion=False,
    pretty_exceptions_enable=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Tables = Annotated[Path, typer.Argument(help="A directory that antiphon pipeline run has made.")]


@app.command()
def run(
    campaigns: Annotated[
        list[Path],
        typer.Argument(help="Directories of campaigns, or a directory that holds such."),
    ],
    out: Annotated[
        Path,
        typer.Option(help="Where the tables go. Campaigns that are there already stay."),
    ],
    master: Annotated[
        str | None,
        typer.Option(help="A URL of Spark, such as spark://HOST:7077. Default: this machine."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(help="A setting of Spark, such as spark.driver.memory=6g; repeatable."),
    ] = None,
    update_share: Annotated[
        float,
        typer.Option(help="The part of a cluster's requests that are updates: table sizing."),
    ] = UPDATE_SHARE,
    report: Annotated[bool, typer.Option(help="Also write report.html.")] = True,
    as_json: AsJson = False,
) -> None:
    """Make all tables and the report. Running again replaces; another campaign is added.

    Example: antiphon pipeline run stability-1 --out tables
    """
    settings = dict(_pair(one, "--conf", "spark.driver.memory=6g") for one in conf or [])
    begin = time.monotonic()
    notes = Console(stderr=True, soft_wrap=True, highlight=False)

    def say(line: str) -> None:
        notes.print(f"{time.monotonic() - begin:6.1f} s  {line}", markup=False)

    with _ended_by_sigterm():
        done = pipeline.run(campaigns, out, master, settings, say, update_share=update_share)
    page = pipeline.report(out) if report else None
    if page is not None:
        say(f"report: {page}")
    if as_json:
        facts = {
            "directory": str(done.directory),
            "campaigns": list(done.campaigns),
            "tables": list(done.tables),
            "set_aside": len(done.set_aside),
            "seconds": round(time.monotonic() - begin, 3),
            "report": None if page is None else str(page),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    if done.set_aside:
        typer.echo(f"{len(done.set_aside)} set aside, listed in {out / store.SET_ASIDE}")
    typer.echo(str(done.directory if page is None else page))


@app.command()
def tables(directory: Tables, as_json: AsJson = False) -> None:
    """List the tables, with how many rows each has.

    Example: antiphon pipeline tables tables
    """
    counts = pipeline.tables(directory)
    if as_json:
        typer.echo(json.dumps(counts, indent=1))
        return
    listed = Table("table", "rows", "campaigns", box=None)
    for name, rows in counts.items():
        listed.add_row(name, f"{sum(rows.values()):,}", str(sum(map(bool, rows.values()))))
    Console(soft_wrap=True).print(listed)


@app.command()
def show(
    directory: Tables,
    table: Annotated[str, typer.Argument(help="Its name, as antiphon pipeline tables has it.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print it as CSV.")] = False,
    as_json: AsJson = False,
    columns: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only rows with this value, such as protocol=pyzmq; repeatable."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="The most rows, 0 for all. Default: 40 as text.")
    ] = None,
) -> None:
    """Print a table, or export it.

    Example: antiphon pipeline show tables latency --csv > latency.csv
    """
    from antiphon.pipeline.show import LIMIT, print_table, to_csv, to_json

    if as_csv and as_json:
        raise typer.BadParameter("give --csv or --json, not both")
    if limit is None:
        limit = 0 if as_csv or as_json else LIMIT
    shown = pipeline.show(
        directory,
        table,
        columns=None if columns is None else [name.strip() for name in columns.split(",")],
        where=dict(_pair(one, "--where", "protocol=pyzmq") for one in where or []),
        limit=limit,
    )
    if as_csv:
        typer.echo(to_csv(shown), nl=False)
    elif as_json:
        typer.echo(to_json(shown))
    else:
        print_table(shown)


@app.command()
def report(directory: Tables) -> None:
    """Write report.html beside the tables: one file that opens without a network.

    Example: antiphon pipeline report tables
    """
    typer.echo(str(pipeline.report(directory)))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Tables of the campaign before.")],
    b: Annotated[Path, typer.Argument(help="Tables of the campaign after; may be the same.")],
    before: Annotated[
        str | None, typer.Option(help="Which campaign of A, where it has several.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Which campaign of B, where it has several.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="The part by which a figure may change and be the same.")
    ] = 0.1,
    as_json: AsJson = False,
) -> None:
    """Tell whether anything got slower. Exit code 1 when something did, or nothing was compared.

    Example: antiphon pipeline compare tables-main tables-branch
    """
    from antiphon.pipeline.compare import print_comparison, to_json

    found = pipeline.compare(a, b, before=before, after=after, tolerance=tolerance)
    if as_json:
        typer.echo(to_json(found))
    else:
        print_comparison(found)
    if found.slower or not found.rows:
        raise typer.Exit(1)


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="A new directory.")],
    rows: Annotated[int, typer.Option(min=1, help="Latencies in all; 50 million are 0.6 GB.")] = (
        1_000_000
    ),
    seed: Annotated[int, typer.Option(help="The same seed gives the same campaign.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Of every measurement.")] = 3,
) -> None:
    """Write a campaign that was never run, of any size, with known answers.

    Example: antiphon pipeline simulate --out simulated --rows 10000000
    """
    notes = Console(stderr=True, soft_wrap=True, highlight=False)
    told = 0

    def say(done: int, of: int) -> None:
        nonlocal told
        if done * 10 // of > told:
            told = done * 10 // of
            notes.print(f"{done:,} of {of:,} rows", markup=False)

    typer.echo(str(pipeline.simulate(out, rows, seed=seed, repeats=repeats, progress=say)))


def _pair(given: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"write it as {example}, not {given!r}", param_hint=option)
    return name, value


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends Spark and leaves no files, as Ctrl-C does."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)

"""``antiphon lab``: campaigns that measure messaging under stress."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
import typer
from rich.console import Console
from rich.table import Table

from antiphon.errors import ConfigError
from antiphon.lab.bursts import Burst, bursts
from antiphon.lab.campaign import Campaign
from antiphon.lab.plan import (
    Plan,
    Run,
    Series,
    estimate,
    load_plan,
    memory,
    runs_of,
    searched,
    shipped_plans,
)
from antiphon.lab.progress import Progress
from antiphon.lab.protocols import PROTOCOLS, missing, protocol_of, unsuited
from antiphon.lab.record import Report
from antiphon.lab.runner import run_campaign

__all__ = ["app"]

app = typer.Typer(
    help="Measure messaging under stress, by a plan. What it records is for antiphon pipeline."
    "\n\nExample: antiphon lab run stability --quick --out campaign",
    add_completion=False,
    pretty_exceptions_enable=False,
)

# What may tell one run from another in the table at the end.
_KEYS = (
    "series", "variant", "stack", "pattern", "workload", "link", "placement", "size", "nodes",
    "senders", "threads", "streams", "rate", "messages", "repeat",
)  # fmt: skip
_NUMBERS = ("size", "nodes", "senders", "threads", "streams", "rate", "messages", "repeat")
_COMMON = ("pattern", "workload", "link", "size", "rate", "messages")  # worth telling of all runs
_WORDS = {"workload": "load", "rate": "rate/s"}

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def plans(as_json: AsJson = False) -> None:
    """List the plans that come with Antiphon.

    Example: antiphon lab plans
    """
    loaded = [load_plan(name) for name in shipped_plans()]
    if as_json:
        typer.echo(json.dumps([_plan_facts(plan) for plan in loaded], indent=1))
        return
    table = Table("plan", "what it asks", "full size", "--quick", box=None)
    for plan in loaded:
        table.add_row(plan.name, plan.title, _extent(plan), _extent(plan.quick()))
    console = Console(soft_wrap=True)
    console.print(table)
    for plan in loaded:
        waiting: dict[str, list[str]] = {}
        for series in plan.series:
            for name in series.later:
                waiting.setdefault(name, []).append(series.name)
        for name, those in waiting.items():
            line = f"{plan.name}: missing until a later version: {name} ({', '.join(those)})"
            console.print(line, markup=False, highlight=False)


@app.command()
def run(
    plan: Annotated[str, typer.Argument(help="The name of a plan, or the path of a .toml file.")],
    out: Annotated[
        Path | None, typer.Option(help="A new directory. Default: the plan's name and a number.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small one, in two minutes.")] = False,
    protocols: Annotated[
        str | None, typer.Option(help="Only these, or more than --quick has; comma-separated.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would do and take, and do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan. Ctrl-C stops it; antiphon lab resume goes on.

    Example: antiphon lab run stability --quick --out stability
    """
    loaded = load_plan(plan)
    names = _names(loaded, protocols)
    chosen = loaded.quick() if quick else loaded
    if names is not None:
        chosen = chosen.with_protocols(names)
    if dry_run:
        return _describe(chosen, as_json)
    directory = _free_directory(loaded.name) if out is None else out
    _carry_out(Campaign.create(loaded, directory, quick, names), as_json)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a campaign.")],
    as_json: AsJson = False,
) -> None:
    """Go on with a campaign that was stopped. What is done is kept.

    Example: antiphon lab resume stability
    """
    _carry_out(Campaign.open(directory), as_json)


def _names(plan: Plan, protocols: str | None) -> list[str] | None:
    if protocols is None:
        return None
    there = [*PROTOCOLS, *plan.adapters]
    names = [name.strip() for name in protocols.split(",") if name.strip()]
    later = _awaited(plan)
    if names and all(name in later for name in names):
        raise ConfigError(
            f"missing until a later version: {', '.join(names)}; there are {', '.join(there)}",
            setting="protocols",
            value=protocols,
        )
    there += later
    unknown = [name for name in names if name not in there]
    if unknown or not names:
        raise ConfigError(
            f"no such protocol: {', '.join(unknown) or protocols!r}; there are " + ", ".join(there),
            setting="protocols",
            value=protocols,
        )
    return names


def _awaited(plan: Plan) -> list[str]:
    """Protocols that a plan names, this one or a shipped one, and no version has yet."""
    plans = [plan, *map(load_plan, shipped_plans())]
    series = [one for each in plans for one in each.series if one.later]
    names = [name for one in series for name in one.protocols if name in one.later]
    return [name for name in dict.fromkeys(names) if name not in PROTOCOLS]


def _free_directory(name: str) -> Path:
    for number in range(1, 10_000):
        directory = Path(f"{name}-{number}")
        if not directory.exists():
            return directory
    raise ConfigError(
        f"{name}-1 to {name}-9999 are all there; give --out", setting="out", value=name
    )


def _plan_facts(plan: Plan) -> dict[str, object]:
    seconds, size = estimate(plan)
    return {
        "name": plan.name,
        "title": plan.title,
        "runs": len(runs_of(plan)),
        "searched": _more(plan),
        "seconds": seconds,
        "bytes": size,
        "memory_bytes": memory(plan),
        "later": _later(plan),
    }


def _more(plan: Plan) -> int:
    """Runs that are added in search of the largest burst, at the most."""
    return sum(more for _, more in searched(plan))


def _later(plan: Plan) -> list[dict[str, object]]:
    """Series that come to no runs yet, with what they wait for."""
    return [
        {
            "series": series.name,
            "protocols": list(series.protocols),
            "sizes": list(series.sizes),
            "needs": list(series.later),
        }
        for series in plan.series
        if series.later
    ]


def _extent(plan: Plan) -> str:
    count = len(runs_of(plan))
    return f"{count} runs, {_duration(estimate(plan)[0])}" if count else "later"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _describe(plan: Plan, as_json: bool) -> None:
    runs = runs_of(plan)
    absent = {
        (run.protocol, run.variant, run.stack): reason
        for run in runs
        if run.protocol in PROTOCOLS
        and (reason := missing(PROTOCOLS[run.protocol], run.variant or "", run.stack or ""))
    }
    unfit = Counter(
        reason
        for run in runs
        if (reason := unsuited(protocol_of(plan, run.protocol), run, plan.workloads[run.workload]))
    )
    if as_json:
        facts = {
            **_plan_facts(plan),
            "ids": [run.id for run in runs],
            "absent": sorted(set(absent.values())),
            "not_applicable": dict(sorted(unfit.items())),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    seconds, size = estimate(plan)
    needed, there = memory(plan), psutil.virtual_memory().total
    takes = f"{_duration(seconds)} at the most, about {size / 1e6:.0f} MB"
    typer.echo(f"{plan.name}: {len(runs)} runs, {takes}, {needed / 1e9:.1f} GB of memory")
    if needed > there:
        typer.echo(f"its largest run needs more memory than this machine has: {there / 1e9:.1f} GB")
    for run in runs:
        typer.echo(f"  {run.id}")
    if more := _more(plan):
        typer.echo(f"then at most {more} runs in search of the largest burst")
    for reason in sorted(set(absent.values())):
        typer.echo(f"absent: {reason}")
    for reason, count in sorted(unfit.items()):
        typer.echo(f"not applicable: {reason} ({count} {'runs' if count > 1 else 'run'})")
    for series in plan.series:
        if series.later:
            typer.echo(f"missing until a later version: {series.name}: {_needs(series)}")


def _needs(series: Series) -> str:
    return f"{', '.join(series.protocols)} (needs {', '.join(series.later)})"


def _carry_out(campaign: Campaign, as_json: bool) -> None:
    notes = Console(stderr=True, soft_wrap=True, highlight=False)
    runs = campaign.runs()
    progress = Progress(campaign)
    done = sum(map(campaign.done, runs))
    what = f"{len(runs)} runs" + (f", {done} of them done" if done else "")
    notes.print(f"{what}, {_duration(progress.left())}, into {campaign.directory}", markup=False)

    def begin(run: Run, number: int, count: int) -> None:
        progress.begin(run)
        left = _duration(progress.left())
        notes.print(f"{number + 1}/{count}  {run.id}  ({left} left)", markup=False)

    def end(report: Report) -> None:
        progress.end(report.run)
        what = report.outcome if not report.reason else f"{report.outcome}: {report.reason}"
        if report.rate:
            what += f", {report.bytes / 1e6:,.0f} MB/s, {report.rate:,.0f} messages/s"
        notes.print("; ".join([f"      {what}", *report.notes]), markup=False)

    try:
        with _ended_by_sigterm():
            run_campaign(campaign, begin, end)
    except (KeyboardInterrupt, SystemExit):
        again = f"antiphon lab resume {shlex.quote(str(campaign.directory))}"
        notes.print(f"stopped; what is done is kept. Go on with: {again}", markup=False)
        raise
    _summarise(campaign, as_json)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM takes everything down as Ctrl-C does, and does not leave namespaces behind."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _summarise(campaign: Campaign, as_json: bool) -> None:
    """All of the campaign, those runs included that were done before."""
    runs = [*campaign.runs(), *campaign.searched()]
    done = [campaign.outcome(run) for run in runs]
    if as_json:
        facts = {
            "campaign": campaign.id,
            "directory": str(campaign.directory),
            "runs": done,
            "bursts": [one.facts() for one in bursts(campaign.plan, done)],
            "later": _later(campaign.plan),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    apart, same = _told_apart(done)
    table = Table(box=None, pad_edge=False)
    for name in ("protocol", *apart):
        table.add_column(_WORDS.get(name, name), no_wrap=True, justify=_side(name in _NUMBERS))
    for name in ("MB/s", "messages/s"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("outcome", overflow="fold")
    for one in sorted(done, key=lambda facts: (facts["series"], facts["protocol"], facts["run"])):
        measured = one["outcome"] == "complete"
        table.add_row(
            one["protocol"],
            *(_key(one.get(name)) for name in apart),
            f"{one['bytes_per_second'] / 1e6:,.1f}" if measured else "",
            f"{one['messages_per_second']:,.0f}" if measured else "",
            _ending(one),
        )
    for series in campaign.plan.series:
        for protocol in series.protocols if series.later else ():
            why = f"missing until a later version ({series.name} needs {', '.join(series.later)})"
            table.add_row(protocol, *("" for _ in apart), "", "", why)
    console = _wide_enough()
    if same:
        line = ", ".join(f"{_WORDS.get(name, name)} {_key(value)}" for name, value in same.items())
        console.print(f"all runs: {line}", markup=False, highlight=False)
    console.print(table)
    if found := bursts(campaign.plan, done):
        console.print(_burst_table(found))


def _wide_enough() -> Console:
    """A terminal is as wide as it is; a file need not break lines."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=160)


def _told_apart(done: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """Keys in which runs of one protocol differ, and what is the same of all runs."""
    apart: list[str] = []
    same: dict[str, Any] = {}
    for name in _KEYS:
        values: dict[str, set[Any]] = {}
        for one in done:
            values.setdefault(one["protocol"], set()).add(one.get(name))
        if any(len(own) > 1 for own in values.values()):
            apart.append(name)
        elif name in _COMMON and len(every := set().union(*values.values())) == 1:
            same[name] = every.pop()
    same = {name: value for name, value in same.items() if value is not None}
    return apart, same


def _key(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:,.0f}" if value == int(value) else f"{value:,}"
    return "" if value is None else str(value)


def _side(number: bool) -> Literal["left", "right"]:
    return "right" if number else "left"


def _ending(facts: dict[str, Any]) -> str:
    if facts["reason"]:
        return f"{facts['outcome']}: {facts['reason']}"
    skipped = facts.get("latency_skipped", 0)
    # Without a rate only those that carry their times are due at all.
    what = "delays not taken" if facts.get("rate") is None else "never sent"
    return f"{facts['outcome']}; {skipped:,} {what}" if skipped else str(facts["outcome"])


def _burst_table(found: list[Burst]) -> Table:
    """How many messages in one go were all delivered, and what became of more."""
    table = Table("series", "protocol", "nodes", "size", "fits", "beyond that", box=None)
    for one in found:
        keys = one.keys
        name = keys["protocol"] if keys["stack"] is None else f"{keys['protocol']} {keys['stack']}"
        beyond = f"{one.above:,}: {one.ended}: {one.reason}" if one.above else "not tried"
        more = (str(keys["nodes"]), str(keys["size"]), f"{one.fits:,}", beyond)
        table.add_row(keys["series"], name, *more)
    return table

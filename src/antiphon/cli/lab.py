"""``antiphon lab``: campaigns that measure messaging under stress."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from antiphon.cli.lab_table import print_results, told
from antiphon.errors import ConfigError
from antiphon.lab.bursts import bursts
from antiphon.lab.campaign import Campaign
from antiphon.lab.hosts import other_load
from antiphon.lab.link_runs import link_runs
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

# The share of all cores from which on others are told to be in the way.
_BUSY = 0.10

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def plans(
    name: Annotated[
        str | None, typer.Argument(help="Print this one, as TOML, to copy and change it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the plans that come with Antiphon, or print one of them.

    Example: antiphon lab plans

    Example: antiphon lab plans stability > mine.toml
    """
    if name is not None:
        return _print_plan(name, as_json)
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


def _print_plan(name: str, as_json: bool) -> None:
    if name not in shipped_plans():
        raise ConfigError(
            f"no plan {name!r} comes with Antiphon; there are {', '.join(shipped_plans())}",
            setting="name",
            value=name,
        )
    plan = load_plan(name)
    if as_json:
        typer.echo(json.dumps({**_plan_facts(plan), "toml": plan.text}, indent=1))
    else:
        typer.echo(plan.text, nl=False)


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
    campaign = Campaign.create(loaded, directory, quick, names)
    _carry_out(campaign, campaign.other_load, as_json)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a campaign.")],
    as_json: AsJson = False,
) -> None:
    """Go on with a campaign that was stopped. What is done is kept.

    Example: antiphon lab resume stability
    """
    _carry_out(Campaign.open(directory), other_load(), as_json)


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


def _carry_out(campaign: Campaign, busy: float, as_json: bool) -> None:
    notes = Console(stderr=True, soft_wrap=True, highlight=False)
    if busy >= _BUSY:
        notes.print(
            f"warning: others use {busy:.0%} of this machine's processor time already; figures "
            "will be theirs too. Stop them, or wait",
            markup=False,
        )
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
        notes.print(f"      {told(report)}", markup=False)

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
    done = [campaign.outcome(run) for run in (*campaign.runs(), *campaign.searched())]
    links = [campaign.outcome(run) for run in link_runs(campaign)]
    if as_json:
        facts = {
            "campaign": campaign.id,
            "directory": str(campaign.directory),
            "links": links,
            "runs": done,
            "bursts": [one.facts() for one in bursts(campaign.plan, done)],
            "later": _later(campaign.plan),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    print_results(campaign.plan, done, links)

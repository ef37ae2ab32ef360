"""``antiphon bench``: measure this machine, ours and the peers in one run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from antiphon.cli.bench_group import group
from antiphon.lab.bench.broker_plan import BROKER_RATE, BROKER_REACH, broker_plan
from antiphon.lab.bench.calls import measure_calls
from antiphon.lab.bench.client_probe import probe_clients
from antiphon.lab.bench.machine import describe_machine, versions
from antiphon.lab.bench.plan import (
    LARGEST,
    YARDSTICKS,
    Group,
    Point,
    left_out,
    parse_peers,
    plan_for,
)
from antiphon.lab.bench.point import Measurement, Options, measure
from antiphon.lab.bench.prediction import probe_prediction
from antiphon.lab.bench.probes import probe_connections, probe_idle, probe_stalled
from antiphon.lab.bench.report import (
    BROKERS_NOTE,
    MESSAGES_NOTE,
    REQUESTS_NOTE,
    TOPICS_NOTE,
    Probe,
    brokers_table,
    document,
    print_header,
    print_report,
    requests_table,
    results_table,
    topics_table,
)
from antiphon.lab.bench.request_plan import QUICK_PEERS, REQUEST_REACH, request_plan
from antiphon.lab.bench.run import Measure, count_runs, estimate_seconds, run_plan
from antiphon.lab.bench.summary import REACH, Reach, Row, evaluate, summarise
from antiphon.lab.bench.topic_plan import topic_plan, topic_reach
from antiphon.lab.bench.topic_probes import (
    probe_echo,
    probe_many_topics,
    probe_scaling,
    probe_shares,
)
from antiphon.lab.bench.topics import MeasureTopics
from antiphon.lab.peers import PEERS, Peer
from antiphon.lab.peers.brokers import BROKER_PEERS
from antiphon.lab.peers.requests import REQUEST_PEERS
from antiphon.lab.peers.topics import TOPIC_PEERS
from antiphon.lab.peers.topics.base import STAMP

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure this machine: ours and the named peers, side by side in one run."
    "\n\nExample: antiphon bench node --peers pyzmq --seconds 1",
)

QUICK_SECONDS = 0.75
FULL_SECONDS = 2.0
PROBE_SECONDS = 3.0
CONNECTIONS_SECONDS = 5.0
QUICK_REQUEST_SECONDS = 0.4
FULL_REQUEST_SECONDS = 1.0
QUICK_TOPIC_SECONDS, QUICK_TOPIC_REPEATS = 0.5, 2
FULL_TOPIC_SECONDS, FULL_TOPIC_REPEATS = 4.0, 3
TOPIC_PROBE_SECONDS = 2.0
QUICK_BROKER_SECONDS, QUICK_BROKER_REPEATS = 1.0, 3
FULL_BROKER_SECONDS, FULL_BROKER_REPEATS = 4.0, 5
BROKER_WORKER = "antiphon.lab.bench.broker_worker"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What distinguishes one benchmark from another: its peers, its measuring, its table."""

    name: str
    peers: Mapping[str, Peer]
    measure: Measure
    reach: Callable[[Sequence[Row]], list[Reach]]
    table: Callable[[Sequence[Row]], Table]
    note: str
    width: int
    probe: Callable[[], dict[str, Probe]] = dict


def _probe_node() -> dict[str, Probe]:
    return {
        "stalled": probe_stalled(PROBE_SECONDS),
        "idle": probe_idle(PROBE_SECONDS),
        "connections": probe_connections(CONNECTIONS_SECONDS),
    }


def _probe_topics() -> dict[str, Probe]:
    return {
        "echo": probe_echo(TOPIC_PROBE_SECONDS),
        "shares": probe_shares(TOPIC_PROBE_SECONDS),
        "scaling": probe_scaling(TOPIC_PROBE_SECONDS),
        "prediction": probe_prediction(),
        **probe_many_topics(TOPIC_PROBE_SECONDS),
    }


NODE = Benchmark(
    "node",
    PEERS,
    measure,
    partial(evaluate, targets=REACH),
    results_table,
    MESSAGES_NOTE,
    130,
    _probe_node,
)
REQUEST = Benchmark(
    "request",
    REQUEST_PEERS,
    measure_calls,
    partial(evaluate, targets=REQUEST_REACH),
    requests_table,
    REQUESTS_NOTE,
    170,
)
TOPIC = Benchmark(
    "topic",
    TOPIC_PEERS,
    MeasureTopics(),
    topic_reach,
    topics_table,
    TOPICS_NOTE,
    190,
    _probe_topics,
)

BROKER = Benchmark(
    "broker",
    BROKER_PEERS,
    MeasureTopics(BROKER_PEERS, BROKER_WORKER, BROKER_RATE),
    partial(evaluate, targets=BROKER_REACH),
    brokers_table,
    BROKERS_NOTE,
    170,
    lambda: {"clients": probe_clients()},
)

Repeats = Annotated[int, typer.Option(help="Runs of every point.", min=1, max=100)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document with every repeat.")]


app.command()(group)


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
    repeats: Repeats = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A small set, in about 40 s.")] = False,
    as_json: AsJson = False,
) -> None:
    """Messages between processes: rates, ratios to pyzmq and to a raw C stream.

    Varies one thing at a time from 64 bytes, raw, one way, one thread: size, TLS, encoding,
    direction, sending threads, number of processes; then what a node costs that does nothing, alone
    and with 1,000 idle connections. All of it takes about 11 minutes.

    Example: antiphon bench node --size 4096 --peers pyzmq,raw-tcp --seconds 3
    """
    try:
        systems = parse_peers(peers, YARDSTICKS if quick and size is None else PEERS)
        groups = plan_for(systems, size=size, quick=quick)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    options = Options(seconds=seconds or (QUICK_SECONDS if quick else FULL_SECONDS))
    whole = size is None and not quick
    lacks = left_out(systems) if whole else []
    _carry_out(NODE, groups, repeats, options, as_json, probing=whole, lacks=lacks)


@app.command()
def request(
    size: Annotated[
        int | None,
        typer.Option(help="Bytes per request and answer: only this size.", min=1, max=LARGEST),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time measured per point (1, quick 0.4).", min=0.1, max=600.0),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            help=f"Beside ours, comma-separated: {', '.join(REQUEST_PEERS)}. Default: all."
        ),
    ] = "",
    repeats: Repeats = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what the targets are about, in under a minute.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Round trips between processes: requests per second and latencies, beside other libraries.

    From 1, 16 and 100 threads, from 1 to 1000 asyncio tasks, with 64 bytes and 4 KiB, and between
    2 to 16 processes that all ask each other. The whole table takes about 15 minutes.

    Example: antiphon bench request --size 64 --peers pyzmq,grpc --seconds 2
    """
    try:
        systems = parse_peers(
            peers, QUICK_PEERS if quick and size is None else REQUEST_PEERS, REQUEST_PEERS
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    groups = request_plan(systems, size=size, quick=quick)
    window = seconds or (QUICK_REQUEST_SECONDS if quick else FULL_REQUEST_SECONDS)
    # Latencies need no number of bytes: the window is as long as it is.
    options = Options(seconds=window, warmup=min(0.2, window), min_bytes=0, stretch=1.0)
    _carry_out(REQUEST, groups, repeats, options, as_json)


@app.command()
def topic(
    size: Annotated[
        int | None,
        typer.Option(help="Bytes per message: only this size.", min=STAMP.size, max=LARGEST),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time measured per point (4, quick 0.5).", min=0.1, max=600.0),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(help=f"Beside ours, comma-separated: {', '.join(TOPIC_PEERS)}. Default: all."),
    ] = "",
    repeats: Annotated[
        int | None, typer.Option(help="Runs of every point (3, quick 2).", min=1, max=100)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small set, in about 40 s.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish and subscribe between processes: rates, delays, and what shares are worth.

    One publisher and one subscriber with 128 bytes: as many as go, the delay at 10,000 per second
    and at half of what each system can do, and the delay of 1,000 per second beside a topic that
    floods; then handlers that compete for their shares, predicted delays beside measured ones, and
    50,000 topics. All of it takes about 12 minutes.

    Example: antiphon bench topic --size 1024 --peers zenoh,nats --seconds 5
    """
    try:
        systems = parse_peers(peers, TOPIC_PEERS, TOPIC_PEERS)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    groups = topic_plan(systems, size=size, quick=quick)
    window = seconds or (QUICK_TOPIC_SECONDS if quick else FULL_TOPIC_SECONDS)
    runs = repeats or (QUICK_TOPIC_REPEATS if quick else FULL_TOPIC_REPEATS)
    # Delays need no number of bytes: the window is as long as it is.
    options = Options(seconds=window, warmup=min(0.3, window), min_bytes=0, stretch=1.0)
    # What a system can do at most is remembered from point to point, and not from run to run.
    benchmark = replace(TOPIC, measure=MeasureTopics())
    _carry_out(benchmark, groups, runs, options, as_json, probing=size is None and not quick)


@app.command()
def broker(
    size: Annotated[
        int | None,
        typer.Option(help="Bytes per message: only this size.", min=STAMP.size, max=LARGEST),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time measured per point (4, quick 1).", min=0.1, max=600.0),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            help=f"Beside ours, comma-separated: {', '.join(BROKER_PEERS)}. Default: all."
        ),
    ] = "",
    repeats: Annotated[
        int | None, typer.Option(help="Runs of every point (5, quick 3).", min=1, max=100)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Shorter, and without idle clients: about a minute.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publisher, broker and subscriber in three processes: rates, delays, and idle clients.

    128 bytes: as many as go, and the delay of single messages at 2,000 per second, beside other
    brokers with Python clients; then what 4,000 clients cost that do nothing. All of it takes about
    6 minutes.

    Example: antiphon bench broker --peers nats,nats-raw --quick
    """
    try:
        systems = parse_peers(peers, BROKER_PEERS, BROKER_PEERS)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    groups = broker_plan(systems, size=size)
    window = seconds or (QUICK_BROKER_SECONDS if quick else FULL_BROKER_SECONDS)
    runs = repeats or (QUICK_BROKER_REPEATS if quick else FULL_BROKER_REPEATS)
    options = Options(seconds=window, warmup=min(0.5, window), min_bytes=0, stretch=1.0)
    _carry_out(BROKER, groups, runs, options, as_json, probing=size is None and not quick)


def _carry_out(
    benchmark: Benchmark,
    groups: list[Group],
    repeats: int,
    options: Options,
    as_json: bool,
    probing: bool = False,
    lacks: Sequence[str] = (),
) -> None:
    """Run the plan, and print its tables or its JSON. Exit code 1 when one of ours failed."""
    used = [name for name in benchmark.peers if _used(name, groups)]
    command = shlex.join(["antiphon", *sys.argv[1:]])
    machine = describe_machine()
    absent = _absent(benchmark, groups)
    found = versions(used, benchmark.peers)

    notes = Console(stderr=True)
    # A file or a pipe has no width of its own; the table wants this much.
    console = Console(width=None if sys.stdout.isatty() else benchmark.width)
    for line in absent:
        notes.print(f"absent: {line}", highlight=False)
    if not as_json:
        print_header(console, machine, found, command)
    measurements = _run(benchmark, groups, repeats, options, notes)
    probes: dict[str, Probe] = {}
    if probing:
        notes.print("probes", highlight=False)
        probes = benchmark.probe()
    rows = summarise(groups, measurements)
    reach = benchmark.reach(rows)
    if as_json:
        result = document(
            machine, found, command, options, rows, reach, absent, probes, benchmark.name, lacks
        )
        print(json.dumps(result, indent=2))
    else:
        print_report(console, rows, reach, absent, probes, benchmark.table, benchmark.note, lacks)
    if any(_failed(benchmark, row) for row in rows):
        raise typer.Exit(1)


def _absent(benchmark: Benchmark, groups: list[Group]) -> list[str]:
    """A line for each system that cannot be measured here, or for a variant of it."""
    ways = {(point.system, point.variant) for group in groups for point in group.points}
    lines = [
        peer.missing(variant)
        for peer in benchmark.peers.values()
        for variant in peer.variants
        if (peer.name, variant) in ways
    ]
    return list(dict.fromkeys(line for line in lines if line))


def _failed(benchmark: Benchmark, row: Row) -> bool:
    """Whether one of ours went wrong. A variant that lacks something optional did not."""
    if row.point.system != "antiphon" or row.outcome == "ok":
        return False
    return row.outcome != "absent" or bool(benchmark.peers["antiphon"].missing())


def _used(name: str, groups: list[Group]) -> bool:
    return any(point.system == name for group in groups for point in group.points)


def _run(
    benchmark: Benchmark, groups: list[Group], repeats: int, options: Options, notes: Console
) -> list[Measurement]:
    seconds = estimate_seconds(groups, repeats, options, benchmark.peers)
    minutes, rest = divmod(round(seconds), 60)
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

        return run_plan(groups, repeats, options, begin, end, benchmark.measure)

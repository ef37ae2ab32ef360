"""First act: 64-byte messages between two processes, beside pyzmq in the same run.

The harness is that of ``antiphon bench``: real processes, receivers that count, systems that take
turns, backwards in every second round. Short windows make it a demonstration; the measurement to
quote is ``antiphon bench node``.
"""

from __future__ import annotations

import contextlib

from rich.table import Table

from antiphon.cli.acts.stage import Act, ActFailed, Stage
from antiphon.lab.bench.machine import describe_machine, versions
from antiphon.lab.bench.plan import BASE_SIZE, Group, Point
from antiphon.lab.bench.point import Measurement, Options
from antiphon.lab.bench.run import run_plan
from antiphon.lab.bench.summary import Row, summarise
from antiphon.lab.peers import PEERS

__all__ = ["ACT"]

CODE = """
# receiving, one of three ways
node.on(200, handler)              # callback: handler(source, data) each
inbox = node.inbox(202)            # inbox: source, data = inbox.receive()
node.on(201, handler, batch=True)  # batch: handler(source, batch) per block

# sending, in another process
node.send(1, payload, kind=200)    # for callback and inbox
node.send_many(1, payloads, kind=201)

# beside it, in the same run
push.send(payload)                 # pyzmq: PUSH over TCP, to pull.recv()
"""

BASE = Point("pyzmq", "push-pull")
OURS = tuple(Point("antiphon", variant) for variant in ("callback", "inbox", "batch"))
ROUNDS = 2
OPTIONS = Options(seconds=1.2, warmup=0.25, min_bytes=0)
BAR = 32


def perform(stage: Stage) -> dict[str, object]:
    """Measure, and show every run as it ends."""
    if missing := PEERS["antiphon"].missing():
        raise ActFailed(missing)
    absent = PEERS["pyzmq"].missing()
    if absent:
        stage.say(f"no ratio: {absent}, or pip install 'antiphon[lab]'", style="yellow")
    points = OURS if absent else (BASE, *OURS)
    group = Group(f"{BASE_SIZE} B, one way", points)
    machine, found = describe_machine(), versions(point.system for point in points)
    stage.say(f"machine   {machine.line()}")
    stage.say(f"versions  {', '.join(f'{name} {text}' for name, text in found.items())}\n")

    running = contextlib.ExitStack()

    def begin(point: Point, repeat: int) -> None:
        running.enter_context(stage.now(f"round {repeat + 1}: {_name(point)}"))

    def end(measurement: Measurement) -> None:
        running.close()
        stage.say(_line(measurement))

    with running:
        measurements = run_plan([group], ROUNDS, OPTIONS, begin, end)
    rows = summarise([group], measurements)
    stage.say("")
    stage.show(_table(rows, stage.block))
    if broken := [row for row in rows if row.point.system == "antiphon" and row.outcome != "ok"]:
        raise ActFailed(f"{_name(broken[0].point)}: {broken[0].outcome}, {broken[0].reason}")
    return {
        "machine": machine.facts(),
        "versions": found,
        "absent": absent,
        "points": [row.facts() for row in rows],
    }


def _name(point: Point) -> str:
    return "pyzmq PUSH/PULL" if point == BASE else f"antiphon, {point.variant}"


def _line(measurement: Measurement) -> str:
    head = f"  round {measurement.repeat + 1}  {_name(measurement.point):<20}"
    if not measurement.measured:
        return f"{head} {measurement.outcome}: {measurement.reason}"
    return f"{head} {measurement.rate / 1e6:6.2f} million messages/s"


def _table(rows: list[Row], block: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"{BASE_SIZE} bytes, one way", no_wrap=True)
    table.add_column("million/s", justify="right", no_wrap=True)
    table.add_column("x pyzmq", justify="right", no_wrap=True, style="bold")
    table.add_column("", no_wrap=True)
    most = max((row.median or 0.0 for row in rows), default=0.0)
    for row in rows:
        rate = row.median or 0.0
        bar = block * max(1, round(BAR * rate / most)) if rate else row.outcome
        table.add_row(
            _name(row.point),
            f"{rate / 1e6:.2f}" if rate else "-",
            "" if row.to_pyzmq is None else f"{row.to_pyzmq:.1f}",
            bar,
            style="cyan" if row.point.system == "antiphon" else "",
        )
    return table


ACT = Act(
    name="messages",
    title="Messages between two processes",
    code=CODE,
    seconds=15.0,
    run=perform,
)

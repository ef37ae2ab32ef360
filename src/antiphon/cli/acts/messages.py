"""First act: 64 bytes between two processes, one way and there and back, beside pyzmq.

This module has the first scene, messages that go one way, and `round_trips` the second. Short
windows make it a demonstration; the measurement to quote is ``antiphon bench node``.
"""

from __future__ import annotations

from antiphon.cli.acts import round_trips
from antiphon.cli.acts.side_by_side import Figure, compare
from antiphon.cli.acts.stage import Act, ActFailed, Scene, Stage
from antiphon.lab.bench.machine import describe_machine, versions
from antiphon.lab.bench.plan import BASE_SIZE, Group, Point
from antiphon.lab.bench.point import Options
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
OPTIONS = Options(seconds=0.5, warmup=0.15, min_bytes=0)
RATE = Figure(
    "rate",
    unit="million/s",
    live="million messages/s",
    text=lambda rate: f"{rate / 1e6:.2f}",
)


def perform(stage: Stage) -> dict[str, object]:
    """Say where this is, then measure, and show every run as it ends."""
    if missing := PEERS["antiphon"].missing():
        raise ActFailed(missing)
    absent = PEERS["pyzmq"].missing()
    if absent:
        stage.say(f"no ratio: {absent}, or pip install 'antiphon[lab]'", style="yellow")
    points = OURS if absent else (BASE, *OURS)
    machine, found = describe_machine(), versions(point.system for point in points)
    stage.say(f"machine   {machine.line()}")
    stage.say(f"versions  {', '.join(f'{name} {text}' for name, text in found.items())}\n")
    group = Group(f"{BASE_SIZE} B, one way", points)
    rows = compare(stage, group, RATE, _name, ROUNDS, OPTIONS)
    return {
        "machine": machine.facts(),
        "versions": found,
        "absent": absent,
        "points": [row.facts() for row in rows],
    }


def _name(point: Point) -> str:
    return "pyzmq PUSH/PULL" if point == BASE else f"antiphon, {point.variant}"


ACT = Act(
    name="messages",
    title="Messages and answers between two processes",
    seconds=20.0,
    scenes=(Scene(CODE, perform), round_trips.SCENE),
)

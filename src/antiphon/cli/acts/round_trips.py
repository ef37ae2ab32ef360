"""Second scene of the first act: a question and its answer, beside pyzmq in the same run.

Every caller asks, waits for the answer, compares it with what it sent, and asks again. One caller
shows what a round trip takes, sixteen how many there are in a second. The measurement to quote is
``antiphon bench request``.
"""

from __future__ import annotations

from antiphon.cli.acts.side_by_side import Figure, compare, to_base
from antiphon.cli.acts.stage import ActFailed, Scene, Stage
from antiphon.lab.bench.calls import measure_calls
from antiphon.lab.bench.plan import BASE_SIZE, Group, Point
from antiphon.lab.bench.point import Options
from antiphon.lab.peers.requests import REQUEST_PEERS

__all__ = ["SCENE"]

CODE = """
# answering: with what the handler returns
node.on(200, lambda source, data: data)

# asking, in another process: from one thread, then from 16 at once
answer = node.request(1, payload, kind=200)

# beside it, in the same run
req.send(payload)                  # pyzmq: REQ over TCP, to REP;
answer = req.recv()                # 16 of them to a proxy before 4 REP
"""

MANY = 16
ROUNDS = 3
OPTIONS = Options(seconds=0.25, warmup=0.1, min_bytes=0, stretch=1.0)
P50 = Figure(
    "p50",
    unit="p50, us",
    live="us, p50",
    text="{:.1f}".format,
    ratio_text="{:.2f}".format,
    note="less is better",
)
RATE = Figure("rate", unit="requests/s", live=f"requests/s, {MANY} threads", text="{:,.0f}".format)


def perform(stage: Stage) -> dict[str, object]:
    """Measure both, and show every run as it ends."""
    if missing := REQUEST_PEERS["antiphon"].missing():
        raise ActFailed(missing)
    figures = []
    for threads, figure in ((1, P50), (MANY, RATE)):
        rows = compare(stage, _group(threads), figure, _name, ROUNDS, OPTIONS, measure_calls)
        stage.say("")
        figures += [{**row.facts(), "p50_ratio_to_pyzmq": to_base(rows, row, P50)} for row in rows]
    return {"round_trips": figures}


def _group(threads: int) -> Group:
    points = [Point("antiphon", "default", "call", threads=threads)]
    # The scene before this one has said that there is no ratio, and why.
    if not REQUEST_PEERS["pyzmq"].missing():
        points.insert(0, Point("pyzmq", "req-rep", "call", threads=threads))
    callers = "1 thread" if threads == 1 else f"{threads} threads"
    return Group(f"{BASE_SIZE} B and back, {callers}", tuple(points))


def _name(point: Point) -> str:
    return "pyzmq REQ/REP" if point.system == "pyzmq" else "antiphon, request"


SCENE = Scene(CODE, perform)

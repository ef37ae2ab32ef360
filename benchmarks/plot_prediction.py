"""Predicted against measured: the mean response of a subscription with a share, as its load grows.

A subscription has a fifth of the time, next to a competitor that has the rest as its share and
always has work: the worst neighbour there can be. Its events come at random (a Poisson stream),
from a process of their own that keeps to its times whether or not anybody is behind. The handler
burns processor time: the same for each event, or exponentially distributed. Each point compares
`DelayModel.mean_response` with the mean of the same events as it was; ``bound`` is what the share
alone guarantees.

    python benchmarks/plot_prediction.py [--quick] [--arrivals N] [--competitor SHARE]
        [--plot FILE.svg] [--json]

Needs two idle cores: one for the handlers, one for both publishers. The output says how much of the
processors others used meanwhile; if that is more than a little, measure again.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from measuring import print_head
from rich.console import Console
from rich.table import Table

import antiphon
from antiphon.lab.bench.machine import busy_seconds, describe_machine, share_of_others, versions
from antiphon.topics.model import Meters, difference, predict

SHARE = 0.2
PERIOD = 0.010
SERVICE = 100e-6
COMPETITOR = 100e-6
SERVICES = ("constant", "exponential")
FULL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
QUICK = (0.2, 0.4, 0.6, 0.8)
QUICK_ARRIVALS = 12_000
WARM_UP = 400
MEASURED, FLOOD = "measured", "flood"
PATIENCE = 30.0


@dataclass(frozen=True)
class Point:
    """One load. Seconds; ``utilisation`` is that of the guaranteed rate, as it was."""

    service: str
    utilisation: float
    arrivals: int
    predicted: float
    measured: float
    bound: float
    overruns: int
    competitor: float
    """Part of the time in which the competitor's handler ran."""
    lateness: float
    """Mean of the publisher's own lateness: its stream is as random as it should be, or not."""

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


# --- processes that publish -----------------------------------------------------------------------


def sleep_exactly() -> None:
    """Lets this process's sleeps end within microseconds; by default they may take 50 more."""
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK


def publish_paced(channel: str, orders: Connection) -> None:
    """A Poisson stream for each order (rate, count, seed); answers with its mean lateness."""
    sleep_exactly()
    with antiphon.Bus(channel) as bus, bus.publisher(MEASURED) as publisher:
        publisher.wait_for_subscribers(timeout=PATIENCE)
        orders.send("ready")
        while (order := orders.recv()) is not None:
            rate, count, seed = order
            draw = random.Random(seed).expovariate
            late, at = 0.0, time.perf_counter()
            for _ in range(count):
                at += draw(rate)
                while (left := at - time.perf_counter()) > 0:
                    time.sleep(left)
                publisher.publish(b"x")
                late += time.perf_counter() - at
            orders.send(late / count)


def publish_flood(channel: str) -> None:
    """Events as fast as the competitor takes them, until the process is ended."""
    with antiphon.Bus(channel) as bus, bus.publisher(FLOOD) as publisher:
        publisher.wait_for_subscribers(timeout=PATIENCE)
        block = [b"x"] * 32
        while True:
            publisher.publish_many(block)


@contextlib.contextmanager
def publishers(channel: str) -> Iterator[Connection]:
    """Both publishers, each in a process; yields the way to order a stream."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    paced = spawn.Process(target=publish_paced, args=(channel, theirs), daemon=True)
    flood = spawn.Process(target=publish_flood, args=(channel,), daemon=True)
    for process in (paced, flood):
        process.start()
    try:
        if not ours.poll(PATIENCE):
            raise SystemExit("the publisher did not find its subscription; is the machine alive?")
        ours.recv()
        yield ours
        ours.send(None)
        paced.join(PATIENCE)
    finally:
        for process in (paced, flood):
            process.kill()
            process.join()


# --- what is measured -----------------------------------------------------------------------------


def burn(seconds: float) -> None:
    """Keeps the processor busy for so long, of this thread's own time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Burner:
    """A handler that takes as long as ``service`` says; drawn anew, but the same in every run."""

    def __init__(self) -> None:
        self.draw: Callable[[], float] = lambda: SERVICE

    def begin(self, service: str, seed: int) -> None:
        source = random.Random(seed)
        exponential = service == "exponential"
        self.draw = (lambda: source.expovariate(1 / SERVICE)) if exponential else (lambda: SERVICE)

    def __call__(self, event: antiphon.Event) -> None:
        burn(self.draw())


class Bench:
    """The subscription, its competitor, and the stream of events to it."""

    def __init__(self, bus: antiphon.Bus, competitor: float | None) -> None:
        self.handler = Burner()
        self.subscription = bus.subscribe(MEASURED, self.handler, share=SHARE, capacity=65536)
        self.meters = Meters(self.subscription._core)  # type: ignore[arg-type]
        self.competitor = bus.subscribe(
            FLOOD, lambda event: burn(COMPETITOR), share=competitor, capacity=1024
        )

    def stream(
        self, orders: Connection, rate: float, count: int, seed: int
    ) -> tuple[dict[str, Any], float, float]:
        """What the meters have counted during one stream; the competitor's part; lateness."""
        before, began = self.competitor.statistics()["handler_ns"], time.perf_counter()
        then = self.meters.look()
        orders.send((rate, count, seed))
        lateness = orders.recv()
        while self.subscription.pending:
            time.sleep(0.001)
        sums = difference(self.meters.look(), then)
        busy = self.competitor.statistics()["handler_ns"] - before
        return sums, busy / 1e9 / (time.perf_counter() - began), lateness

    def points(
        self, orders: Connection, loads: tuple[float, ...], arrivals: int
    ) -> Iterator[Point]:
        """Each load for the same time, so that the high ones, which vary more, get more events."""
        seeds = itertools.count(1)
        for service in SERVICES:
            self.handler.begin(service, next(seeds))
            sums, _, _ = self.stream(orders, 0.5 * SHARE / SERVICE, WARM_UP, next(seeds))
            # Its own part of a call is service too: the load is that of what an event really takes.
            guaranteed = SHARE * sums["events"] / sums["service"]
            for load in loads:
                count = max(100, round(arrivals / len(SERVICES) * load / sum(loads)))
                sums, competitor, late = self.stream(orders, load * guaranteed, count, next(seeds))
                model = predict(sums, SHARE, PERIOD)
                yield Point(
                    service,
                    model.utilisation,
                    count,
                    model.mean_response,
                    model.measured_response,
                    model.bound,
                    int(sums["overruns"]),
                    competitor,
                    late,
                )


# --- what is shown --------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, INSIDE, TALL, GAP = 760, 360, 62, 46, 300, 250, 50
COLOURS = {"measured": "#b5492f", "predicted": "#2f6fb5", "bound": "#777777"}


def svg(points: list[Point]) -> str:
    """One panel per kind of service: bound and prediction as lines, measurements as dots."""
    # The bound of a load near 1 is beyond all measure: it may leave the panel.
    shown = [(p.measured, p.predicted, p.bound if p.utilisation < 0.9 else 0) for p in points]
    top = 1.05e3 * max(max(heights) for heights in shown)
    marks: list[str] = []
    for number, service in enumerate(SERVICES):
        own = sorted((p for p in points if p.service == service), key=lambda p: p.utilisation)
        marks += panel(LEFT + number * (INSIDE + GAP), service, own, top, number == 0)
    marks.append(label(LEFT - 44, TOP - 10, "mean response, ms"))
    for number, (name, colour) in enumerate(COLOURS.items()):
        at = LEFT + 2 * INSIDE + GAP - 260 + number * 92
        marks += [dot(at, HEIGHT - 12, colour), label(at + 9, HEIGHT - 8, name)]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    font = 'font-family="sans-serif" font-size="12" fill="#333333"'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    return "\n".join([head, background, *marks, "</svg>", ""])


def panel(left: int, service: str, own: list[Point], top: float, scale: bool) -> Iterator[str]:
    def x(load: float) -> float:
        return left + load * INSIDE

    def y(milliseconds: float) -> float:
        return TOP + TALL * (1 - milliseconds / top)

    yield label(left, TOP - 26, f"{service} service", size=14)
    for step in range(6):
        value = top * step / 5
        yield f'<path d="M{left} {y(value):.1f}h{INSIDE}" stroke="#dddddd"/>'
        yield label(x(step / 5), TOP + TALL + 16, f"{step / 5:g}", "middle")
        if scale:
            yield label(left - 6, y(value) + 4, f"{value:.1f}", "end")
    for name, dashes in (("bound", "5 4"), ("predicted", "none")):
        # What leaves the panel ends at the edge of the picture.
        heights = {point.utilisation: min(getattr(point, name) * 1e3, 2 * top) for point in own}
        places = [(x(load), max(0.0, y(height))) for load, height in heights.items()]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
        style = f'stroke="{COLOURS[name]}" stroke-width="1.6" stroke-dasharray="{dashes}"'
        yield f'<polyline points="{path}" fill="none" {style}/>'
    for point in own:
        yield dot(x(point.utilisation), y(point.measured * 1e3), COLOURS["measured"])
    yield label(x(0.5), TOP + TALL + 36, "utilisation of the guaranteed rate", "middle")


def label(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{text}</text>'


def dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}"/>'


def print_points(console: Console, points: list[Point]) -> None:
    table = Table(
        title=f"mean response in ms, share {SHARE:g}, period {PERIOD * 1e3:g} ms",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("service")
    for name in ("load", "arrivals", "predicted", "measured", "ratio", "bound", "overruns"):
        table.add_column(name, justify="right")
    for point in points:
        table.add_row(
            point.service,
            f"{point.utilisation:.2f}",
            f"{point.arrivals:,}",
            f"{point.predicted * 1e3:.3f}",
            f"{point.measured * 1e3:.3f}",
            f"{point.ratio:.2f}",
            f"{point.bound * 1e3:.3f}",
            f"{point.overruns:,}",
        )
    console.print()
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted against measured mean response.")
    parser.add_argument("--arrivals", type=int, default=200_000, help="in all; 7 minutes of them")
    parser.add_argument("--quick", action="store_true", help="fewer loads, about 20 s")
    parser.add_argument(
        "--competitor", type=float, default=1 - SHARE, help="its share; 0: none, it takes the rest"
    )
    parser.add_argument("--plot", type=Path, help="write an SVG to this path")
    parser.add_argument("--json", action="store_true", help="print one object instead of a table")
    arguments = parser.parse_args()
    if not 1000 <= arguments.arrivals <= 100_000_000:
        parser.error("give from 1000 to 100000000 arrivals")
    if not 0 <= arguments.competitor <= 1 - SHARE:
        parser.error(f"the competitor's share is from 0 to {1 - SHARE:g}")
    arrivals = min(arguments.arrivals, QUICK_ARRIVALS) if arguments.quick else arguments.arrivals
    loads = QUICK if arguments.quick else FULL

    console = Console()
    if not arguments.json:
        print_head(console)
    channel = f"local://prediction-{os.getpid()}"
    schedule = antiphon.Schedule(period=PERIOD, threads=1)
    busy, spent, began = busy_seconds(), os.times(), time.perf_counter()
    with antiphon.Bus(channel, node_config=antiphon.NodeConfig(schedule=schedule)) as bus:
        bench = Bench(bus, arguments.competitor or None)
        with publishers(channel) as orders:
            points = list(bench.points(orders, loads, arrivals))
    elapsed, now = time.perf_counter() - began, os.times()
    own = sum(now[:4]) - sum(spent[:4])
    others = share_of_others(busy_seconds() - busy, own, elapsed, describe_machine().cores)

    if arguments.plot is not None:
        arguments.plot.write_text(svg(points))
    if arguments.json:
        report = {
            "machine": describe_machine().facts(),
            "versions": versions([]),
            "command": shlex.join(["python", *sys.argv]),
            "share": SHARE,
            "competitor_share": arguments.competitor,
            "period": PERIOD,
            "others": others,
            "seconds": elapsed,
            "points": [{**asdict(point), "ratio": point.ratio} for point in points],
        }
        print(json.dumps(report, indent=2))
        return
    console.print(f"others    used {others:.0%} of the processors meanwhile", highlight=False)
    print_points(console, points)


if __name__ == "__main__":
    main()

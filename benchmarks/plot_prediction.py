"""Draws predicted against measured: the mean response of a subscription with a share.

The measuring is that of ``antiphon bench topic``: see `antiphon.lab.bench.prediction`.

    python benchmarks/plot_prediction.py [--quick] [--arrivals N] [--competitor SHARE]
        [--plot FILE.svg] [--json]

Needs two idle cores: one for the handlers, one for both publishers. The output says how much of the
processors others used meanwhile; if that is more than a little, measure again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from measuring import print_head
from rich.console import Console
from rich.table import Table

from antiphon.lab.bench.machine import describe_machine, versions
from antiphon.lab.bench.prediction import (
    ARRIVALS,
    LOADS,
    SERVICES,
    SHARE,
    Predicted,
    probe_prediction,
)
from antiphon.lab.peers.topics.antiphon_bus import PERIOD

QUICK = (0.2, 0.4, 0.6, 0.8)
QUICK_ARRIVALS = 12_000

WIDTH, HEIGHT, LEFT, TOP, INSIDE, TALL, GAP = 760, 360, 62, 46, 300, 250, 50
COLOURS = {"measured": "#b5492f", "predicted": "#2f6fb5", "bound": "#777777"}


def svg(points: Sequence[Predicted]) -> str:
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


def panel(
    left: int, service: str, own: Sequence[Predicted], top: float, scale: bool
) -> Iterator[str]:
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


def print_points(console: Console, points: Sequence[Predicted]) -> None:
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
    parser.add_argument("--arrivals", type=int, default=ARRIVALS, help="in all; 5 minutes of them")
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

    console = Console()
    if not arguments.json:
        print_head(console)
    found = probe_prediction(
        arrivals, QUICK if arguments.quick else LOADS, arguments.competitor or None
    )
    if isinstance(found, str):
        raise SystemExit(found)
    if arguments.plot is not None:
        arguments.plot.write_text(svg(found.points))
    if arguments.json:
        report = {
            "machine": describe_machine().facts(),
            "versions": versions([]),
            "command": shlex.join(["python", *sys.argv]),
            "share": SHARE,
            "competitor_share": arguments.competitor,
            "period": PERIOD,
            **found.facts(),
        }
        print(json.dumps(report, indent=2))
        return
    console.print(f"others    used {found.others:.0%} of the processors meanwhile", highlight=False)
    print_points(console, found.points)


if __name__ == "__main__":
    main()

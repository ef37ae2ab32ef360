"""Predicted against measured: the mean response of a subscription with a share, as its load grows.

A subscription has a fifth of the time, next to a competitor that has the rest as its share and
always has work: the worst neighbour there can be. Its events come at random (a Poisson stream),
from a process of their own that keeps to its times whether or not anybody is behind. The handler
burns processor time: the same for each event, or exponentially distributed. Each point compares
`DelayModel.mean_response` with the mean of the same events as it was; ``bound`` is what the share
alone guarantees. The loads are gone through in rounds; of each the round in the middle counts.

Needs two idle cores: one for the handlers, one for both publishers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from antiphon.lab.bench.point import Clock
from antiphon.lab.bench.processes import Child, Crew, WorkerFailed
from antiphon.lab.peers import PEERS

__all__ = [
    "ARRIVALS",
    "LOADS",
    "SERVICES",
    "SHARE",
    "Predicted",
    "Prediction",
    "probe_prediction",
]

WORKER = ("-m", "antiphon.lab.bench.prediction_worker")
SHARE = 0.2
# Seconds per event, of the measured handler and of the competitor's.
SERVICE = COMPETING = 100e-6
SERVICES = ("constant", "exponential")
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
ARRIVALS = 200_000
WARM_UP = 400
# A machine that stands still for a moment spoils one of them.
ROUNDS = 3
# A stream may take so much longer than its rate says, and then its backlog so long.
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """One load, in its middle round. Seconds; ``utilisation`` is of the guaranteed rate."""

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

    @property
    def bounded(self) -> bool:
        """Whether the measured mean kept below the bound."""
        return self.measured <= self.bound

    def facts(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class Prediction:
    """All loads, and the part of the processors that went to others meanwhile."""

    points: Sequence[Predicted]
    others: float

    @property
    def worst(self) -> Predicted:
        """Where prediction and measurement are furthest apart."""
        return max(self.points, key=lambda point: abs(point.ratio - 1))

    @property
    def arrivals(self) -> int:
        return sum(point.arrivals for point in self.points)

    @property
    def above_bound(self) -> int:
        """Loads whose measured mean was above the bound."""
        return sum(not point.bounded for point in self.points)

    def facts(self) -> dict[str, object]:
        return {
            "points": [point.facts() for point in self.points],
            "arrivals": self.arrivals,
            "worst_ratio": self.worst.ratio,
            "above_bound": self.above_bound,
            "others_share": self.others,
        }


def probe_prediction(
    arrivals: int = ARRIVALS,
    loads: Sequence[float] = LOADS,
    competitor: float | None = 1 - SHARE,
) -> Prediction | str:
    """Measure every load with both kinds of service, or say in one line why not.

    ``arrivals`` is of all of them together; the competitor's share may be None, so that it takes
    what is left.
    """
    if missing := PEERS["antiphon"].missing():
        return missing
    try:
        with Crew() as crew:
            folder = str(crew.folder())
            handlers = crew.start("handlers", WORKER)
            flood, paced = crew.start("flood", WORKER), crew.start("paced", WORKER)
            handlers.ask(
                "subscribe", folder=folder, share=SHARE, competitor=competitor, competing=COMPETING
            )
            flood.ask("flood", timeout=30.0, folder=folder)
            paced.ask("pace", timeout=30.0, folder=folder)
            clock = Clock(crew.children)
            points = list(_points(handlers, paced, loads, arrivals))
            _, others = clock.read()
            flood.ask("stop", timeout=20.0, limit=15.0)
            crew.close(timeout=30.0)
    except WorkerFailed as error:
        return str(error)
    return Prediction(points, others)


def _points(
    handlers: Child, paced: Child, loads: Sequence[float], arrivals: int
) -> Iterator[Predicted]:
    """Each load for the same time, so that the high ones, which vary more, get more events."""
    seeds = itertools.count(1)
    for service in SERVICES:
        exponential = service == "exponential"
        handlers.ask("service", mean=SERVICE, exponential=exponential, seed=next(seeds))
        warm, _ = _stream(handlers, paced, 0.5 * SHARE / SERVICE, WARM_UP, next(seeds))
        # Its own part of a call is service too: the load is that of what an event really takes.
        guaranteed = SHARE * warm["events"] / warm["service"]
        rounds: list[list[Predicted]] = []
        for _ in range(ROUNDS):
            rounds.append([])
            for load in loads:
                part = arrivals / len(SERVICES) / ROUNDS * load / sum(loads)
                rate, count = load * guaranteed, max(100, round(part))
                seen, late = _stream(handlers, paced, rate, count, next(seeds))
                rounds[-1].append(_point(service, count, seen, late))
        for same_load in zip(*rounds, strict=True):
            yield _middle(same_load)


def _point(service: str, count: int, seen: dict[str, Any], late: float) -> Predicted:
    model = seen["model"]
    return Predicted(
        service,
        model["utilisation"],
        count,
        model["mean_response"],
        model["measured_response"],
        model["bound"],
        seen["overruns"],
        seen["competitor"],
        late,
    )


def _middle(rounds: Sequence[Predicted]) -> Predicted:
    """The round whose ratio is in the middle, with the arrivals and the overruns of all."""
    middle = sorted(rounds, key=lambda point: point.ratio)[len(rounds) // 2]
    arrivals = sum(point.arrivals for point in rounds)
    return replace(middle, arrivals=arrivals, overruns=sum(point.overruns for point in rounds))


def _stream(
    handlers: Child, paced: Child, rate: float, count: int, seed: int
) -> tuple[dict[str, Any], float]:
    """What the handlers' side says of one stream, and the publisher's lateness."""
    handlers.ask("begin")
    late = paced.ask("stream", count / rate + PATIENCE, rate=rate, count=count, seed=seed)["late"]
    return handlers.ask("end", PATIENCE + 5, limit=PATIENCE), late

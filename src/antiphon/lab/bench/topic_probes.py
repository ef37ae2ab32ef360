"""What shares give under full load, and what very many topics cost."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from antiphon.lab.bench.latency import Latency, latency_of
from antiphon.lab.bench.point import rate_between
from antiphon.lab.bench.processes import Crew, WorkerFailed
from antiphon.lab.peers import PEERS

__all__ = [
    "ACTIVE",
    "TOPICS",
    "Dispatch",
    "Echo",
    "Registration",
    "Scaling",
    "Shares",
    "deviation",
    "probe_echo",
    "probe_many_topics",
    "probe_scaling",
    "probe_shares",
    "shares_of",
]

WORKER = ("-m", "antiphon.lab.bench.topic_probe_worker")
HANDLERS = (2, 5, 10, 50)
# A handler uses so much of the processor in one call, and up to twice as much.
BUSY_MICROS = 100
TOPICS = 50_000
ACTIVE = 50
WARMUP = 0.5
REGISTER_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Shares:
    """How far the processor time of handlers that are always busy is from their shares.

    By the number of handlers: the largest difference, as a fraction of the period.
    """

    deviations: Mapping[int, float]
    seconds: float

    @property
    def largest(self) -> float:
        """Of all numbers of handlers."""
        return max(self.deviations.values())

    def facts(self) -> dict[str, object]:
        by_handlers = {str(number): value for number, value in self.deviations.items()}
        return {"deviations": by_handlers, "largest": self.largest, "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Registration:
    """What one of very many subscriptions took to make, and one of as many publishers."""

    topics: int
    subscribe_us: float
    publisher_us: float

    def facts(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Messages per second over some topics: when there are no others, and among very many."""

    topics: int
    active: int
    alone: float
    among_all: float

    @property
    def ratio(self) -> float:
        """What is left among all."""
        return self.among_all / self.alone if self.alone else 0.0

    def facts(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class Scaling:
    """Events per second of as many topics as there are cores, to those of one topic.

    Sources and handlers are in one process; the handlers do the same work per event.
    """

    topics: int
    batch: float
    """Handlers of batches, whose work lets the interpreter's lock go."""
    event: float
    """Handlers of single events, which hold it."""

    def facts(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Echo:
    """Delays at a rate, in microseconds: by echoes of a random sample, as between machines whose
    clocks differ, and by the clock that two processes of one machine share."""

    rate: int
    sample: float
    echoes: int
    half_trip: Latency
    """Half of the way there and back."""
    one_way: Latency
    """Of all of them."""

    def facts(self) -> dict[str, object]:
        return asdict(self)


def probe_echo(seconds: float = 2.0, rate: int = 10_000, sample: float = 0.01) -> Echo | str:
    """Measure the delay of events in both ways at once, or say why not."""
    if missing := PEERS["antiphon"].missing():
        return missing
    try:
        with Crew() as crew:
            folder = str(crew.folder())
            answering, asking = crew.start("answering", WORKER), crew.start("asking", WORKER)
            answering.ask("answer", folder=folder, sample=sample)
            asking.ask("ask", timeout=30.0, folder=folder, rate=rate)
            time.sleep(WARMUP)
            for worker in (answering, asking):
                worker.ask("delays")
            time.sleep(seconds)
            there, back = answering.ask("delays"), asking.ask("delays")
            crew.close()
    except WorkerFailed as error:
        return str(error)
    echoes = sum(number for _, number in back["classes"])
    halves: list[Mapping[int, int]] = [{value // 2: number for value, number in back["classes"]}]
    half_trip = latency_of(halves, back["maximum"] // 2)
    one_way = latency_of([dict(there["classes"])], there["maximum"])
    if half_trip is None or one_way is None:
        return f"of {rate} events per second none came back"
    return Echo(rate, sample, echoes, half_trip, one_way)


def probe_scaling(
    seconds: float = 2.0, topics: int | None = None, repeats: int = 3
) -> Scaling | str:
    """Measure one topic beside as many as there are cores, in turn, or say why not."""
    if missing := PEERS["antiphon"].missing():
        return missing
    most = topics or len(os.sched_getaffinity(0))
    ratios: dict[bool, list[float]] = {True: [], False: []}
    try:
        for _ in range(repeats):
            for batch, measured in ratios.items():
                one = _rate_of(1, batch, seconds)
                measured.append(_rate_of(most, batch, seconds) / one)
    except WorkerFailed as error:
        return str(error)
    return Scaling(most, statistics.median(ratios[True]), statistics.median(ratios[False]))


def _rate_of(topics: int, batch: bool, seconds: float) -> float:
    with Crew() as crew:
        worker = crew.start("topics", WORKER)
        worker.ask("scale", folder=str(crew.folder()), topics=topics, batch=batch)
        time.sleep(WARMUP)
        before = worker.ask("sample")
        time.sleep(seconds)
        after = worker.ask("sample")
        worker.ask("stop", limit=15.0)
        crew.close(timeout=30.0)
    rate = rate_between(before, after)
    if rate <= 0:
        raise WorkerFailed(f"nothing was handled of {topics} topics")
    return rate


def shares_of(handlers: int) -> list[float]:
    """Shares that add up to one, each second one three times its neighbour."""
    weights = [1 + 2 * (number % 2) for number in range(handlers)]
    return [weight / sum(weights) for weight in weights]


def deviation(used: Sequence[float], shares: Sequence[float]) -> float:
    """The largest difference between what was used, as a part of all of it, and the share."""
    total = sum(used)
    if total <= 0:
        raise WorkerFailed("the handlers have used no processor time")
    return max(abs(part / total - share) for part, share in zip(used, shares, strict=True))


def probe_shares(seconds: float = 2.0, handlers: Sequence[int] = HANDLERS) -> Shares | str:
    """Measure handlers that are always busy, or say in one line why not."""
    if missing := PEERS["antiphon"].missing():
        return missing
    try:
        return Shares({number: _deviation_of(number, seconds) for number in handlers}, seconds)
    except WorkerFailed as error:
        return str(error)


def _deviation_of(handlers: int, seconds: float) -> float:
    shares = shares_of(handlers)
    with Crew() as crew:
        folder = str(crew.folder())
        busy, feeder = crew.start("busy handlers", WORKER), crew.start("feeder", WORKER)
        busy.ask("busy", folder=folder, shares=shares, micros=BUSY_MICROS)
        feeder.ask("feed", timeout=30.0, folder=folder, handlers=handlers)
        time.sleep(WARMUP)
        before = busy.ask("used")
        time.sleep(seconds)
        after = busy.ask("used")
        if idle := sum(not waiting for waiting in after["pending"]):
            raise WorkerFailed(f"{idle} of {handlers} handlers had nothing to do")
        crew.close()
    used = [last - first for first, last in zip(before["used"], after["used"], strict=True)]
    return deviation(used, shares)


def probe_many_topics(
    seconds: float = 2.0, topics: int = TOPICS, active: int = ACTIVE, repeats: int = 3
) -> dict[str, Registration | Dispatch | str]:
    """Measure very many topics beside few, in turn, or say in one line why not."""
    if missing := PEERS["antiphon"].missing():
        return {"registration": missing, "dispatch": missing}
    registered: list[tuple[float, float]] = []
    rates: dict[int, list[float]] = {active: [], topics: []}
    try:
        for _ in range(repeats):
            for number in (active, topics):
                subscribe, publisher, rate = _dispatch(number, active, seconds)
                rates[number].append(rate)
                if number == topics:
                    registered.append((subscribe * 1e6, publisher * 1e6))
    except WorkerFailed as error:
        return {"registration": str(error), "dispatch": str(error)}
    subscribes, publishers = zip(*registered, strict=True)
    return {
        "registration": Registration(
            topics, statistics.median(subscribes), statistics.median(publishers)
        ),
        "dispatch": Dispatch(
            topics, active, statistics.median(rates[active]), statistics.median(rates[topics])
        ),
    }


def _dispatch(topics: int, active: int, seconds: float) -> tuple[float, float, float]:
    """Seconds per subscription and per publisher, and messages per second over the active ones."""
    with Crew() as crew:
        folder = str(crew.folder())
        subscriber, publisher = crew.start("subscriber", WORKER), crew.start("publisher", WORKER)
        # One after the other: the subscriptions are made before there is anybody to tell of them.
        subscribing = subscriber.ask("subscribe", REGISTER_TIMEOUT, folder=folder, topics=topics)
        publishing = publisher.ask(
            "publishers", REGISTER_TIMEOUT, folder=folder, topics=topics, active=active
        )
        publisher.ask("found", REGISTER_TIMEOUT + 5, limit=REGISTER_TIMEOUT)
        publisher.ask("start")
        time.sleep(WARMUP)
        before = subscriber.ask("sample")
        time.sleep(seconds)
        after = subscriber.ask("sample")
        publisher.ask("stop", limit=15.0)
        crew.close(timeout=30.0)
    rate = rate_between(before, after)
    if rate <= 0:
        raise WorkerFailed(f"nothing arrived on {active} of {topics} topics")
    return subscribing["seconds"] / topics, publishing["seconds"] / topics, rate

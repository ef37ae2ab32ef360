"""How long a subscription's events wait: predicted from its rates, and calibrated.

The core measures, per slice, when events came, how long they took and how long the subscription
waited for its turn; this module makes a queueing model of the difference between two looks at
those sums. The formulas themselves are in `antiphon.queueing`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from antiphon import queueing
from antiphon._core import Handle
from antiphon.errors import Closed, ConfigError
from antiphon.topics.conformance import OFTEN_FULL

if TYPE_CHECKING:
    from antiphon.topics.subscription import Subscription

__all__ = [
    "WINDOW",
    "DelayModel",
    "Meters",
    "Plan",
    "Threads",
    "calibrate",
    "predict",
    "quantile",
]

WINDOW = 10.0
"""Seconds of the past that a prediction rests on."""

_LEAST_EVENTS = 30
_ROUNDING = 1e-9
_LOOKS = 64


@dataclass(frozen=True)
class DelayModel:
    """The delay of one subscription at its present rates. Seconds, and events per second.

    A wait ends when the handler gets the event, a response when it returns; both count from the
    arrival at this node. NaN where too little is known; ``basis`` says what the numbers rest on.
    """

    arrival_rate: float
    service_rate: float
    """Events per second that the handler would get done if it had all the time of one thread."""
    utilisation: float
    """Of the rate that its share guarantees; of the service rate without a share."""
    mean_wait: float
    mean_response: float
    """The estimate: M/G/1 with the measured service times and waits for a turn."""
    p99_response: float
    """As if responses were spread exponentially about the estimate."""
    bound: float
    """Of the mean response, from the guaranteed rate alone, whatever the others do."""
    worst_wait: float
    """No event at the head of the queue waits longer for its turn: the period, as long as it, and
    everybody else with a share, is stable and conformant."""
    queue_length: float
    """Measured: how many events an arriving one has found waiting."""
    little_wait: float
    """The mean wait that this means by Little's law, where events come at random: those of a
    timetable or in bursts see another queue than there is on average."""
    full_probability: float
    stable: bool
    conformant: bool
    period: float
    basis: str
    measured_response: float = math.nan
    """Of the same events, as it was."""
    measured_p99: float = math.nan
    measured_max: float = math.nan
    """The longest since the subscription began."""

    def __str__(self) -> str:
        lines = []
        for one in fields(self):
            value = getattr(self, one.name)
            lines.append(
                f"{one.name:18} {value:.6g}"
                if isinstance(value, float)
                else f"{one.name:18} {value}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Plan:
    """What `Subscription.calibrate` has found."""

    feasible: bool
    share: float | None
    """The share it has now."""
    measured: float
    """The mean response with it, in seconds."""
    basis: str = ""


class Meters:
    """The sums of one subscription, and how they were some seconds ago. Thread-safe enough: looks
    are appended and dropped by single operations."""

    __slots__ = ("_began", "_handle", "_looks", "_usage", "watched")

    def __init__(
        self, handle: Handle, began: float, usage: Callable[[], dict[str, float]] | None = None
    ) -> None:
        """``usage``: the sums of its node's threads, which are then looked at with its own."""
        self._handle = handle
        self._began = began
        self._usage = usage
        self.watched = False
        """Whether the bus looks once a second: not at thousands that nobody asks about."""
        self._looks: tuple[dict[str, Any], ...] = ()

    def look(self) -> dict[str, Any]:
        """The sums of now; remembered."""
        self.watched = True
        now = self._read()
        self._looks = (*self._looks[1 - _LOOKS :], now)
        return now

    @property
    def handed(self) -> int:
        """Events that the handler has been called for."""
        return int(self._handle.delays()["events"])

    def _nothing(self, like: dict[str, Any]) -> dict[str, Any]:
        return dict.fromkeys(like, 0.0) | {"time": self._began, "classes": {}}

    def _read(self) -> dict[str, Any]:
        now: dict[str, Any] = dict(self._handle.meter())
        delays = self._handle.delays()
        now.update(responses=delays["sum"], handed=delays["events"], classes=delays["classes"])
        now["longest"] = delays["longest"]
        if self._usage is not None:
            now.update(self._usage())
        return now

    def since(self, seconds: float = WINDOW) -> dict[str, Any]:
        """What has been added in about the last ``seconds``, or since the beginning."""
        self.watched = True
        now = self._read()
        then = self._nothing(now)
        for look in self._looks:
            if look["time"] <= now["time"] - seconds:
                then = look
        return difference(now, then)


def difference(now: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """``now`` less ``then``, where that makes sense."""
    keep = ("pending", "capacity", "longest", "longest_overrun", "threads")
    gone = {
        name: value - then[name] for name, value in now.items() if name not in (*keep, "classes")
    }
    gone["classes"] = {
        upper: count - then["classes"].get(upper, 0) for upper, count in now["classes"].items()
    }
    return {**now, **gone, "elapsed": now["time"] - then["time"]}


@dataclass(frozen=True)
class Threads:
    """What the threads of a node make of the time while they are in slices; NaN: not known."""

    at_once: float
    """How many are in one at a time, on average, while any is."""
    running: float
    """The fraction of that time for which one of them has a processor, and the interpreter's lock
    if it needs that."""

    @classmethod
    def of(cls, sums: dict[str, Any]) -> Threads:
        """From the sums of a node's ``_schedule_usage``, or from a difference of them."""
        worked, lasted = sums.get("worked", 0.0), sums.get("thread_lasted", 0.0)
        if not worked > 0 or not lasted > 0:
            return cls(math.nan, math.nan)
        # Clocks are read one after the other.
        return cls(max(1.0, sums["engaged"] / worked), min(1.0, sums["thread_used"] / lasted))

    @property
    def largest_share(self) -> float:
        """The most that one task can have of what they get done.

        `queueing.largest_share` is for a fixed number of threads. Here it is one number for a part
        of the time, and the next for the rest: what the task can have and what there is are each
        added up over both.
        """
        if not self.running > 0:
            return math.nan
        fewer = int(self.at_once)
        more_often = self.at_once - fewer
        served = sum(
            part * count * queueing.largest_share(count, self.running)
            for count, part in ((fewer, 1 - more_often), (fewer + 1, more_often))
        )
        return min(1.0, served / self.at_once)


def predict(sums: dict[str, Any], share: float | None, period: float) -> DelayModel:
    """The model of what the sums say."""
    events, elapsed = sums["events"], sums["elapsed"]
    few = f"{events:,.0f} events"
    nothing = math.nan
    conformant = sums["overruns"] == 0
    often_full = sums["slices"] > 0 and sums["full_slices"] / sums["slices"] > OFTEN_FULL
    if events < _LEAST_EVENTS or not elapsed > 0 or sums["service"] <= 0:
        return DelayModel(
            arrival_rate=nothing,
            service_rate=nothing,
            utilisation=nothing,
            mean_wait=nothing,
            mean_response=nothing,
            p99_response=nothing,
            bound=nothing,
            worst_wait=nothing,
            queue_length=nothing,
            little_wait=nothing,
            full_probability=nothing,
            stable=not often_full,
            conformant=conformant,
            period=period,
            basis=f"too few samples: {few}",
        )
    arrivals = sums["arrived"] / elapsed
    service = sums["service"] / events
    rate = 1 / service
    variance = _variance(sums)
    # Time between two slices of one busy period is as good as service to those who wait behind it.
    resumed = sums["resumed"] / events
    resumed_squares = sums["resumed_squares"] / events
    fresh = sums["slices"] - sums["resumed_slices"]
    setup = sums["waited"] / fresh if fresh > 0 else 0.0
    setup_squares = sums["waited_squares"] / fresh if fresh > 0 else 0.0
    spread = variance + max(0.0, resumed_squares - resumed**2)
    wait = queueing.mg1_setup_mean_wait(
        arrivals, service + resumed, setup, max(setup_squares, setup**2), variance=spread
    )
    response = wait + service
    guaranteed = rate if share is None else queueing.guaranteed_rate(share, rate)
    load = arrivals / guaranteed
    bound = nothing
    if share is not None:
        # A server that is slower by the share, and is not there for the rest of a period.
        bound = (
            queueing.mg1_mean_response(arrivals, 1 / guaranteed, variance=variance / share**2)
            + (1 - share) * period
        )
    found = sums["found"] / sums["arrived"] if sums["arrived"] else nothing
    stable = load < 1 and not often_full
    why = f"{few} in {elapsed:.1f} s; M/G/1 with the measured wait for a turn"
    if share is None:
        why += "; no share, so no bound"
    elif not conformant:
        why += f"; {sums['overruns']:.0f} overruns, so the bound does not hold"
    if load >= 1:
        why += "; more comes than is guaranteed to be done"
    threads = Threads.of(sums)
    if share is not None and share > threads.largest_share * (1 + _ROUNDING):
        why += (
            f"; a share of {share:g} is above {threads.largest_share:.2f}, the most that one task "
            f"can have of {threads.at_once:.1f} threads at once that run {threads.running:.2f} of "
            "the time"
        )
    return DelayModel(
        arrival_rate=arrivals,
        service_rate=rate,
        utilisation=load,
        mean_wait=wait,
        mean_response=response,
        p99_response=response * math.log(100),
        bound=bound,
        worst_wait=period if share is not None and conformant and stable else math.inf,
        queue_length=found,
        little_wait=found / arrivals if arrivals > 0 else nothing,
        full_probability=queueing.MM1K(
            arrivals, guaranteed, int(sums["capacity"]) + 1
        ).full_probability,
        stable=stable,
        conformant=conformant,
        period=period,
        basis=why,
        measured_response=sums["responses"] / sums["handed"] if sums["handed"] else nothing,
        # A class is told by its upper bound, which nothing need have reached.
        measured_p99=min(quantile(sums["classes"], 0.99), sums["longest"]),
        measured_max=sums["longest"],
    )


def _variance(sums: dict[str, Any]) -> float:
    """Of one event's service, from the means of slices."""
    slices = sums["busy_slices"]
    if slices < 2:
        return 0.0
    spread = sums["service_squares"] - sums["service"] ** 2 / sums["events"]
    return max(0.0, float(spread / (slices - 1)))


def quantile(classes: dict[int, int], p: float) -> float:
    """The smallest class whose cumulative count reaches p of all, in seconds."""
    total = sum(classes.values())
    if not total:
        return math.nan
    passed = 0
    for upper in sorted(classes):
        passed += classes[upper]
        if passed >= p * total:
            return upper / 1e9
    return max(classes) / 1e9


_STEPS = 12
_LEAST_MEASURE = 0.5


def calibrate(
    subscription: Subscription, meters: Meters, mean_delay: float, timeout: float
) -> Plan:
    """Raises the share in steps and measures, until the mean is low enough or no time is left."""
    for name, value in (("mean_delay", mean_delay), ("timeout", timeout)):
        given: object = value
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not value >= 0 or (name == "mean_delay" and value == 0):
            wanted = "a number of seconds" + (" above 0" if name == "mean_delay" else ", 0 or more")
            raise ConfigError(
                f"{name} is {given!r}; it must be {wanted}", setting=name, value=given
            )
    before = subscription.share
    try:
        plan = _calibrate(subscription, meters, mean_delay, timeout)
    except BaseException:  # Ctrl-C above all
        with contextlib.suppress(Closed):
            subscription.share = before
        raise
    if not plan.feasible:
        subscription.share = before
        return replace(plan, share=before)
    return plan


def _calibrate(
    subscription: Subscription, meters: Meters, mean_delay: float, timeout: float
) -> Plan:
    """The share that was reached may be left in place: the caller sees to it."""
    until = time.monotonic() + timeout
    share = subscription.share
    patience = max(_LEAST_MEASURE, timeout / _STEPS)
    measured = _measure(subscription, meters, patience, until)
    while not measured <= mean_delay:
        if math.isnan(measured):
            return Plan(False, share, measured, "too few events to measure")
        wanted = min(1.0, max(0.05, (share or 0.0) * 1.5))
        left = 1 - subscription._bus._shares_of_others(subscription)
        wanted = min(wanted, left)
        if (share is not None and wanted <= share) or wanted <= 0 or time.monotonic() >= until:
            why = "all the time that is left is given" if wanted <= (share or 0) else "out of time"
            return Plan(False, share, measured, f"{why}; {share or 0:g} gave {measured:.6g} s")
        subscription.share = share = wanted
        measured = _measure(subscription, meters, patience, until)
    return Plan(True, share, measured, "measured with this share")


def _measure(subscription: Subscription, meters: Meters, patience: float, until: float) -> float:
    """The mean response of what is handled in so many seconds from now on. Raises `Closed`.

    For a topic on which little happens it takes longer, but not beyond ``until``; NaN if that is
    not enough.
    """
    then = meters.look()
    enough = time.monotonic() + patience
    while True:
        if subscription.closed or subscription._bus.closed:
            raise Closed("this subscription was closed meanwhile", what="subscription")
        now = time.monotonic()
        if now >= until or (now >= enough and meters.handed - then["handed"] >= _LEAST_EVENTS):
            break
        time.sleep(min(0.05, max(0.0, until - now)))
    sums = difference(meters.look(), then)
    handed = sums["handed"]
    return float(sums["responses"] / handed) if handed >= _LEAST_EVENTS else math.nan

"""How long events wait: the common delay models, as plain functions.

Seconds and events per second throughout. Events come at random, independently of each other (a
Poisson stream of ``arrival_rate``), to one server that takes them in order. Beyond that:

========================  ==================================  ====================================
use                       when service times                  and the queue
========================  ==================================  ====================================
``mm1_...``               scatter widely (exponential):       never fills
                          short ones often, long ones rarely
`MM1K`                    the same                            holds ``capacity`` events and turns
                                                              away the others
``mg1_...``               have any distribution, with a       never fills
                          known mean and variance
``mg1_setup_...``         the same, and the server has to be  never fills
                          woken up when it had nothing to do
``little_...``            anything                            anything: these hold for averages over
                                                              time of whatever was measured
========================  ==================================  ====================================

A wait ends when service begins; a response ends when service ends. All results are averages over a
long time, or quantiles of it. Arrivals in bursts wait longer than these models say, arrivals at a
steady pace less.

A queue that gets as much work as its server can do, or more, has no average: it grows for ever.
Such a queue gives ``math.inf``, never a negative number. Arguments that make no sense, NaN among
them, raise `ConfigError`.

A task with a share of a server is taken for a queue with a slower server of its own: see
`guaranteed_rate`. That is true over times that are long compared with the period in which shares
are dealt out; a single event may find its task in the middle of its turn, or just after.

Receives nothing and hands on nothing: pure functions over floats, which need only the errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from antiphon.errors import ConfigError

__all__ = [
    "MM1K",
    "guaranteed_rate",
    "largest_share",
    "little_number",
    "little_rate",
    "little_time",
    "mg1_mean_response",
    "mg1_mean_wait",
    "mg1_setup_mean_response",
    "mg1_setup_mean_wait",
    "mm1_mean_number",
    "mm1_mean_queue_length",
    "mm1_mean_response",
    "mm1_mean_wait",
    "mm1_response_quantile",
    "share_for",
    "utilisation",
]

_MOST = 2**53  # above it, float(n) and float(n + 1) may be one number


def utilisation(arrival_rate: float, service_rate: float) -> float:
    """The work that arrives, as a part of what the server can do: arrivals over services.

    Below 1 it is also the part of the time in which the server is busy. From 1 on the queue is
    unstable.

    >>> utilisation(8, 10)
    0.8
    """
    return _arrivals(arrival_rate) / _positive("service_rate", service_rate)


def mm1_mean_wait(arrival_rate: float, service_rate: float) -> float:
    """Mean time until service begins: utilisation, over the rate that is left.

    >>> mm1_mean_wait(8, 10)
    0.4
    """
    load = utilisation(arrival_rate, service_rate)
    return _over(load, service_rate - arrival_rate)


def mm1_mean_response(arrival_rate: float, service_rate: float) -> float:
    """Mean time until service ends: 1 over the rate that is left, service minus arrivals.

    >>> mm1_mean_response(8, 10)
    0.5
    """
    _check_rates(arrival_rate, service_rate)
    return _over(1.0, service_rate - arrival_rate)


def mm1_mean_number(arrival_rate: float, service_rate: float) -> float:
    """Mean number of events there, the one in service included: arrivals over the rate left.

    >>> mm1_mean_number(8, 10)
    4.0
    """
    _check_rates(arrival_rate, service_rate)
    return _over(float(arrival_rate), service_rate - arrival_rate)


def mm1_mean_queue_length(arrival_rate: float, service_rate: float) -> float:
    """Mean number of events that wait, the one in service not counted: utilisation times
    `mm1_mean_number`.

    >>> mm1_mean_queue_length(8, 10)
    3.2
    """
    number = mm1_mean_number(arrival_rate, service_rate)
    return number * utilisation(arrival_rate, service_rate)


def mm1_response_quantile(arrival_rate: float, service_rate: float, quantile: float) -> float:
    """The response time that this part of the events does not exceed; 0.99 for the 99th percentile.

    Response times are exponential themselves, so this is the mean response times minus the
    logarithm of (1 - quantile).

    >>> round(mm1_response_quantile(8, 10, 0.99), 3)
    2.303
    """
    _check_rates(arrival_rate, service_rate)
    part = _real(quantile)
    if not 0.0 <= part < 1.0:
        raise _refuse("quantile", quantile, "a number from 0 to below 1")
    return _over(0.0 - math.log1p(-part), service_rate - arrival_rate)


@dataclass(frozen=True, slots=True)
class MM1K:
    """A queue with room for ``capacity`` events, the one in service among them.

    An event that finds it full is turned away and does not come again. So there is always an
    average, also when more arrives than can be served. Where senders wait for room instead, the
    stream is no longer random: take ``full_probability`` as a hint of how often they wait.

    >>> queue = MM1K(arrival_rate=10, service_rate=10, capacity=4)
    >>> queue.full_probability, queue.mean_number
    (0.2, 2.0)
    """

    arrival_rate: float
    service_rate: float
    capacity: int

    def __post_init__(self) -> None:
        _check_rates(self.arrival_rate, self.service_rate)
        _count("capacity", self.capacity)

    # With n events there as likely as load**n, a queue with load r and one with load 1/r are
    # mirror images: events of the one are free places of the other. Everything is worked out for
    # the smaller of both, whose powers fade instead of overflowing, and from its logarithm, since
    # 1 - x**n loses its digits just where it matters, near a load of 1.

    @property
    def utilisation(self) -> float:
        """Arrivals over services, those turned away included; may be above 1."""
        return utilisation(self.arrival_rate, self.service_rate)

    @property
    def full_probability(self) -> float:
        """The part of all events that is turned away, and of the time in which there is no room.

        Load to the power of capacity, over the sum of all powers of the load up to that one.

        >>> round(MM1K(5, 10, 3).full_probability, 4)
        0.0667
        """
        log = self._log
        likely = _powers(log, 1, self.capacity + 1)  # of the more likely end: full, or empty
        if self.arrival_rate > self.service_rate:
            return likely
        return likely * math.exp(self.capacity * log)

    @property
    def accepted_rate(self) -> float:
        """Events per second that get in, and are served: arrivals times (1 - full_probability).

        >>> round(MM1K(5, 10, 3).accepted_rate, 4)
        4.6667
        """
        slower = float(min(self.arrival_rate, self.service_rate))
        return slower * _powers(self._log, self.capacity, self.capacity + 1)

    @property
    def mean_number(self) -> float:
        """Mean number of events there, the one in service included.

        With m for capacity + 1: load / (1 - load) - m load^m / (1 - load^m). At a load of 1 that
        is capacity / 2.

        >>> round(MM1K(5, 10, 3).mean_number, 4)
        0.7333
        """
        log, places = self._log, float(self.capacity + 1)
        if -log * places < 0.01:
            # Both terms are near 1/log here, and their difference is rounding. The series in log
            # is exact to 1e-14 where the closed form has lost at most three digits.
            near = places * log
            number = (
                self.capacity / 2
                + (places * near - log) / 12
                - (places * near * near * near - log * log * log) / 720
            )
        else:
            load = math.exp(log)
            rest = math.exp(places * log)
            number = load / -math.expm1(log) - places * rest / -math.expm1(places * log)
        return self.capacity - number if self.arrival_rate > self.service_rate else number

    @property
    def mean_queue_length(self) -> float:
        """Mean number of events that wait, the one in service not counted.

        >>> round(MM1K(5, 10, 3).mean_queue_length, 4)
        0.2667
        """
        return max(0.0, self.mean_number - self.accepted_rate / self.service_rate)

    @property
    def mean_response(self) -> float:
        """Mean time until service ends, of the events that get in: their number over their rate.

        >>> round(MM1K(5, 10, 3).mean_response, 4)
        0.1571
        """
        if self.utilisation == 0.0:
            return 1.0 / self.service_rate
        return self.mean_number / self.accepted_rate

    @property
    def mean_wait(self) -> float:
        """Mean time until service begins, of the events that get in.

        >>> round(MM1K(5, 10, 3).mean_wait, 4)
        0.0571
        """
        return max(0.0, self.mean_response - 1.0 / self.service_rate)

    @property
    def _log(self) -> float:
        """Logarithm of the load, or of its inverse if that is smaller: from minus infinity to 0."""
        low, high = sorted((self.arrival_rate, self.service_rate))
        ratio = low / high
        if ratio > 0.5:
            return math.log1p((low - high) / high)  # a quotient near 1 would round its distance
        return math.log(ratio) if ratio > 0.0 else -math.inf


def mg1_mean_wait(
    arrival_rate: float,
    mean_service: float,
    *,
    variance: float | None = None,
    scv: float | None = None,
) -> float:
    """Mean time until service begins, after Pollaczek and Khinchine.

    Arrivals times the mean square of the service time, over twice (1 - utilisation). Give the
    ``variance`` of service times, or ``scv``, the variance over the mean's square: 0 for constant
    times, 1 for exponential ones. Constant times halve the wait of exponential ones.

    >>> round(mg1_mean_wait(8, 0.1, scv=0), 9), round(mg1_mean_wait(8, 0.1, variance=0.01), 9)
    (0.2, 0.4)
    """
    square = _mean_square(mean_service, variance, scv)
    arrivals = _arrivals(arrival_rate)
    return _over(arrivals * square / 2.0, 1.0 - arrivals * mean_service)


def mg1_mean_response(
    arrival_rate: float,
    mean_service: float,
    *,
    variance: float | None = None,
    scv: float | None = None,
) -> float:
    """Mean time until service ends: `mg1_mean_wait` and the mean service.

    >>> round(mg1_mean_response(8, 0.1, scv=0), 9)
    0.3
    """
    return mean_service + mg1_mean_wait(arrival_rate, mean_service, variance=variance, scv=scv)


def mg1_setup_mean_wait(
    arrival_rate: float,
    mean_service: float,
    setup_mean: float,
    setup_second_moment: float,
    *,
    variance: float | None = None,
    scv: float | None = None,
) -> float:
    """Mean time until service begins, where the server stops whenever nothing is left to do.

    An event that comes to an empty queue starts the server, which takes a setup time: a thread
    wakes up, a lock is taken. Whoever comes meanwhile waits for that as well. ``setup_mean`` is
    its mean, ``setup_second_moment`` its mean square (variance and mean squared).

    `mg1_mean_wait`, and (twice the mean setup + arrivals times its mean square) over twice
    (1 + arrivals times the mean setup). Events that come rarely are delayed by the whole setup;
    events of which many come during one setup by what is then left of it on average, its mean
    square over twice its mean. How busy the server is makes no difference to this part.

    >>> round(mg1_setup_mean_wait(8, 0.1, 0.05, 0.05**2, scv=0), 6)
    0.242857
    """
    wait = mg1_mean_wait(arrival_rate, mean_service, variance=variance, scv=scv)
    setup = _not_negative("setup_mean", setup_mean)
    square = _not_negative("setup_second_moment", setup_second_moment)
    if square < setup * setup * (1.0 - 1e-9):
        raise _refuse(
            "setup_second_moment",
            setup_second_moment,
            f"at least setup_mean squared ({setup * setup})",
        )
    return wait + (2.0 * setup + arrival_rate * square) / (2.0 * (1.0 + arrival_rate * setup))


def mg1_setup_mean_response(
    arrival_rate: float,
    mean_service: float,
    setup_mean: float,
    setup_second_moment: float,
    *,
    variance: float | None = None,
    scv: float | None = None,
) -> float:
    """Mean time until service ends: `mg1_setup_mean_wait` and the mean service.

    >>> round(mg1_setup_mean_response(8, 0.1, 0.05, 0.05**2, scv=0), 6)
    0.342857
    """
    return mean_service + mg1_setup_mean_wait(
        arrival_rate, mean_service, setup_mean, setup_second_moment, variance=variance, scv=scv
    )


def little_number(arrival_rate: float, mean_time: float) -> float:
    """Mean number of events somewhere: the rate at which they come, times how long they stay.

    Little's law, for any place with an inside and an outside: events that wait with the mean wait,
    events that wait or are served with the mean response.

    >>> little_number(8, 0.5)
    4.0
    """
    arrivals = _arrivals(arrival_rate)
    time = _or_infinite("mean_time", mean_time)
    return arrivals * time if arrivals else 0.0


def little_time(mean_number: float, arrival_rate: float) -> float:
    """Mean time that events stay somewhere: how many are there, over the rate at which they come.

    What a queue's length says about the wait in it, whatever the distributions are: its mean over
    time, which is what arriving events see of it only where they come at random.

    >>> little_time(4, 8)
    0.5
    """
    return _or_infinite("mean_number", mean_number) / _positive("arrival_rate", arrival_rate)


def little_rate(mean_number: float, mean_time: float) -> float:
    """Rate at which events pass somewhere: how many are there, over how long they stay.

    >>> little_rate(4, 0.5)
    8.0
    """
    return _not_negative("mean_number", mean_number) / _positive("mean_time", mean_time)


def guaranteed_rate(share: float, service_rate: float) -> float:
    """The service rate on which a task with this share can count, when all others have work, too.

    Share times ``service_rate``, which is the rate that the task would have alone. A task gets
    more while others are idle.

    >>> guaranteed_rate(0.25, 1000)
    250.0
    """
    part = _real(share)
    if not 0.0 <= part <= 1.0:
        raise _refuse("share", share, "a number from 0 to 1")
    return part * _positive("service_rate", service_rate)


def largest_share(threads: int, running: float) -> float:
    """The most that one task can have of what several scheduler threads get done.

    A task is served by one thread at a time. There are ``threads`` of them, each with a core of
    its own, and each is ``running`` for this part of the time, independently of the others.

    How many run at one moment is binomial. On average it is threads times running: that much
    scheduling time there is per second. The task can use one thread's worth of it while at least
    one runs, and nothing while none does, so it is served for 1 - (1 - running)^threads of each
    second at the most. The largest share is the ratio::

        (1 - (1 - running)^threads) / (threads * running)

    - Threads that always run, ``running`` = 1: 1/threads.
    - Threads that hardly ever run: near 1, since two of them hardly ever run together.
    - Very many threads: near 1 / (threads * running). It falls as 1/threads does, and stays above
      that by the factor 1/running.

    An upper bound: the task has to move at once from a thread that is stopped to one that runs.
    A task that is stopped in the middle of an event stays with its thread. If that were always
    so, the task would run just as long as one thread does, and its share would be 1/threads.

    >>> largest_share(2, 1.0), largest_share(2, 0.5)
    (0.5, 0.75)
    """
    count = _count("threads", threads)
    part = _real(running)
    if not 0.0 < part <= 1.0:
        raise _refuse("running", running, "a number above 0 and at most 1")
    some = -math.expm1(count * math.log1p(-part)) if part < 1.0 else 1.0
    return min(1.0, some / (count * part))


def share_for(
    mean_response: float, arrival_rate: float, service_rate: float, *, scv: float = 1.0
) -> float | None:
    """The smallest share whose guaranteed rate keeps the mean response; None when even 1 does not.

    ``service_rate`` is the rate that the task would have alone. A share stretches all service
    times by the same factor, so their ``scv`` remains: 1, the default, is M/M/1, and 0 is for
    constant times. With r for the arrivals times the mean response::

        (1 + r + sqrt(1 + r^2 + 2 r scv)) / (2 * mean_response * service_rate)

    which is `mg1_mean_response`, solved for the service time. For M/M/1 it is the rate of arrivals
    and 1 / mean_response, over the service rate.

    >>> share_for(0.5, 8, 40), share_for(0.01, 8, 40)
    (0.25, None)
    """
    target = _positive("mean_response", mean_response)
    load = _arrivals(arrival_rate) * target
    spread = _not_negative("scv", scv)
    root = math.sqrt(1.0 + load * load + 2.0 * load * spread)
    share = (1.0 + load + root) / (2.0 * target) / _positive("service_rate", service_rate)
    # A response that the whole server just reaches is feasible, whichever way the digits fall.
    return min(1.0, share) if share <= 1.0 + 1e-12 else None


def _over(work: float, left: float) -> float:
    """``work / left``, or infinity when nothing is left of the server."""
    return work / left if left > 0.0 else math.inf


def _powers(log: float, upper: int, lower: int) -> float:
    """(1 - x^upper) / (1 - x^lower), from the logarithm of x; its limit for x = 1."""
    return math.expm1(upper * log) / math.expm1(lower * log) if log else upper / lower


def _mean_square(mean_service: float, variance: float | None, scv: float | None) -> float:
    mean = _positive("mean_service", mean_service)
    if variance is not None and scv is not None:
        raise ConfigError(
            "variance and scv are two words for one thing; give one of them",
            setting="scv",
            value=scv,
        )
    if variance is not None:
        return mean * mean + _not_negative("variance", variance)
    if scv is not None:
        return mean * mean * (1.0 + _not_negative("scv", scv))
    raise ConfigError("the spread of service times is missing; give variance or scv", setting="scv")


def _check_rates(arrival_rate: object, service_rate: object) -> None:
    _arrivals(arrival_rate)
    _positive("service_rate", service_rate)


def _arrivals(value: object) -> float:
    return _not_negative("arrival_rate", value)


def _real(value: object) -> float:
    """The value as a float; NaN, which is in no range, for what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _positive(name: str, value: object) -> float:
    number = _real(value)
    if not 0.0 < number < math.inf:
        raise _refuse(name, value, "a finite number above 0")
    return number


def _not_negative(name: str, value: object) -> float:
    number = _real(value)
    if not 0.0 <= number < math.inf:
        raise _refuse(name, value, "a finite number, at least 0")
    return number


def _or_infinite(name: str, value: object) -> float:
    number = _real(value)
    if not number >= 0.0:
        raise _refuse(name, value, "a number, at least 0")
    return number


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise _refuse(name, value, f"a whole number from 1 to {_MOST}")
    return value


def _refuse(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}; it must be {wanted}", setting=name, value=value)

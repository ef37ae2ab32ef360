"""The delay models against textbook values, against each other, and against a simulated queue."""

from __future__ import annotations

import dataclasses
import doctest
import math
import pickle
import random
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import queueing
from antiphon.errors import ConfigError
from antiphon.queueing import (
    MM1K,
    guaranteed_rate,
    largest_share,
    little_number,
    little_rate,
    little_time,
    mg1_mean_response,
    mg1_mean_wait,
    mg1_setup_mean_response,
    mg1_setup_mean_wait,
    mm1_mean_number,
    mm1_mean_queue_length,
    mm1_mean_response,
    mm1_mean_wait,
    mm1_response_quantile,
    share_for,
    utilisation,
)

ROOT = Path(__file__).parents[2]

# The same examples in every run: a formula is right or wrong, and a find must be seen again.
steady = settings(derandomize=True)

rates = st.floats(1e-3, 1e6)
loads = st.just(0.0) | st.floats(1e-9, 0.99)
capacities = st.integers(1, 10_000)
spreads = st.floats(0.0, 20.0)


def close(value: float, rel: float = 1e-9) -> Any:
    return pytest.approx(value, rel=rel, abs=0.0)


# -- values that can be worked out on paper


def test_mm1_gives_the_textbook_values() -> None:
    # A link of 64 kbit/s with packets of 1000 bits: 60 of the 64 that it can carry per second.
    assert utilisation(60, 64) == close(0.9375)
    assert mm1_mean_number(60, 64) == close(15)
    assert mm1_mean_response(60, 64) == close(0.25)
    assert mm1_mean_wait(60, 64) == close(0.25 - 1 / 64)
    assert mm1_mean_queue_length(60, 64) == close(15 - 0.9375)


def test_mm1_response_times_are_exponential() -> None:
    assert mm1_response_quantile(8, 10, 0.5) == close(0.5 * math.log(2))
    assert mm1_response_quantile(8, 10, 0.9) == close(0.5 * math.log(10))
    assert mm1_response_quantile(8, 10, 1 - math.exp(-1)) == close(mm1_mean_response(8, 10))
    assert math.copysign(1.0, mm1_response_quantile(8, 10, 0.0)) == 1.0


def test_mg1_gives_the_textbook_values() -> None:
    # Service times of 1 or 9 with equal chance: mean 5, mean square 41.
    assert mg1_mean_wait(0.1, 5, variance=16) == close(0.1 * 41 / (2 * 0.5))
    assert mg1_mean_response(0.1, 5, variance=16) == close(9.1)
    assert mg1_mean_wait(0.1, 5, scv=16 / 25) == close(4.1)


def test_mm1k_gives_the_textbook_values() -> None:
    # Load 1/2 and 3 places: probabilities 8, 4, 2 and 1 of 15.
    queue = MM1K(5, 10, 3)
    assert queue.utilisation == 0.5
    assert queue.full_probability == close(1 / 15)
    assert queue.accepted_rate == close(5 * 14 / 15)
    assert queue.mean_number == close((4 + 2 * 2 + 3) / 15)
    assert queue.mean_queue_length == close((2 + 2 * 1) / 15)
    assert queue.mean_response == close(11 / 15 / (5 * 14 / 15))
    assert queue.mean_wait == close(4 / 15 / (5 * 14 / 15))


def test_mm1k_without_room_to_wait_is_the_loss_formula_of_one_line() -> None:
    queue = MM1K(30, 10, 1)
    assert queue.full_probability == close(0.75)
    assert queue.mean_response == close(0.1)
    assert queue.mean_wait == pytest.approx(0.0, abs=1e-15)
    assert queue.mean_queue_length == pytest.approx(0.0, abs=1e-15)


def test_setup_of_a_fixed_length_adds_to_the_wait() -> None:
    without = mg1_mean_wait(8, 0.1, scv=0)
    assert mg1_setup_mean_wait(8, 0.1, 0, 0, scv=0) == without
    # Two of the known cases: nobody else comes, and many come.
    assert mg1_setup_mean_wait(0, 0.1, 0.05, 0.0025, scv=0) == close(0.05)
    many = mg1_setup_mean_wait(1e6, 1e-7, 0.05, 0.0025, scv=0)
    assert many - mg1_mean_wait(1e6, 1e-7, scv=0) == close(0.025, rel=1e-4)
    assert mg1_setup_mean_response(8, 0.1, 0.05, 0.0025, scv=0) == close(0.1 + 0.2 + 0.12 / 2.8)


def test_an_exponential_setup_adds_its_mean() -> None:
    # With an exponential setup the extra wait is the mean setup, whatever the arrivals are.
    for arrivals in (0.1, 1.0, 7.0):
        extra = mg1_setup_mean_wait(arrivals, 0.1, 0.3, 2 * 0.3**2, scv=1) - mg1_mean_wait(
            arrivals, 0.1, scv=1
        )
        assert extra == close(0.3)


# -- limits


def test_an_unstable_queue_has_an_infinite_delay() -> None:
    for arrivals in (10, 11, 1e9):
        assert mm1_mean_wait(arrivals, 10) == math.inf
        assert mm1_mean_response(arrivals, 10) == math.inf
        assert mm1_mean_number(arrivals, 10) == math.inf
        assert mm1_mean_queue_length(arrivals, 10) == math.inf
        assert mm1_response_quantile(arrivals, 10, 0.5) == math.inf
        assert mg1_mean_wait(arrivals, 0.1, scv=0) == math.inf
        assert mg1_mean_response(arrivals, 0.1, variance=3) == math.inf
        assert mg1_setup_mean_wait(arrivals, 0.1, 1, 1, scv=0) == math.inf
        assert mg1_setup_mean_response(arrivals, 0.1, 1, 1, scv=0) == math.inf


def test_an_idle_queue_has_no_wait() -> None:
    assert utilisation(0, 10) == 0.0
    assert mm1_mean_wait(0, 10) == mg1_mean_wait(0, 0.1, scv=1) == 0.0
    assert mm1_mean_response(0, 10) == mg1_mean_response(0, 0.1, scv=1) == close(0.1)
    queue = MM1K(0, 10, 5)
    assert (queue.full_probability, queue.mean_number, queue.mean_wait) == (0.0, 0.0, 0.0)
    assert queue.mean_response == close(0.1)


@pytest.mark.parametrize("capacity", [1, 2, 7, 4096, 10**9])
def test_a_full_load_makes_all_fillings_equally_likely(capacity: int) -> None:
    queue = MM1K(10, 10, capacity)
    assert queue.full_probability == close(1 / (capacity + 1))
    assert queue.mean_number == close(capacity / 2)
    assert queue.accepted_rate == close(10 * capacity / (capacity + 1))
    assert queue.mean_response == close((capacity + 1) / 20)


def test_an_overloaded_queue_of_finite_size_is_full_and_serves_at_its_rate() -> None:
    queue = MM1K(1e6, 10, 100)
    assert queue.mean_number == close(100, rel=1e-6)
    assert queue.accepted_rate == close(10)
    assert queue.mean_response == close(10, rel=1e-6)
    assert queue.full_probability == close(1 - 1e-5)


def test_extreme_loads_stay_numbers() -> None:
    for arrivals, services in [(1e-300, 1e300), (1e300, 1e-300), (5e-324, 1e9), (1e9, 5e-324)]:
        for capacity in (1, 10, 2**53):
            queue = MM1K(arrivals, services, capacity)
            assert 0.0 <= queue.full_probability <= 1.0
            assert 0.0 <= queue.mean_number <= capacity
            assert queue.mean_response >= 1.0 / services * (1 - 1e-9)


@steady
@given(load=st.just(0.0) | st.floats(1e-9, 0.9), services=rates)
def test_a_queue_with_ample_room_is_mm1(load: float, services: float) -> None:
    arrivals = load * services
    queue = MM1K(arrivals, services, 2000)
    assert queue.full_probability < 1e-80
    assert queue.accepted_rate == close(arrivals)
    assert queue.mean_number == close(mm1_mean_number(arrivals, services))
    assert queue.mean_response == close(mm1_mean_response(arrivals, services))


@steady
@given(load=loads, services=rates)
def test_mg1_with_exponential_service_is_mm1_and_with_constant_service_half_the_wait(
    load: float, services: float
) -> None:
    arrivals, mean = load * services, 1 / services
    wait = mm1_mean_wait(arrivals, services)
    assert mg1_mean_wait(arrivals, mean, variance=mean * mean) == close(wait)
    assert mg1_mean_wait(arrivals, mean, scv=1) == close(wait)
    assert mg1_mean_wait(arrivals, mean, scv=0) == close(wait / 2)
    response = mm1_mean_response(arrivals, services)
    assert mg1_mean_response(arrivals, mean, scv=1) == close(response)


# -- properties


@steady
@given(load=loads, services=rates)
def test_littles_law_holds_in_mm1(load: float, services: float) -> None:
    arrivals = load * services
    number = mm1_mean_number(arrivals, services)
    response = mm1_mean_response(arrivals, services)
    assert little_number(arrivals, response) == close(number)
    wait = mm1_mean_wait(arrivals, services)
    assert little_number(arrivals, wait) == close(mm1_mean_queue_length(arrivals, services))
    if arrivals:
        assert little_time(number, arrivals) == close(response)
    assert little_rate(number, response) == close(arrivals)


@steady
@given(load=st.floats(0.01, 100.0), services=rates, capacity=capacities)
def test_littles_law_holds_for_the_events_that_get_in(
    load: float, services: float, capacity: int
) -> None:
    queue = MM1K(load * services, services, capacity)
    accepted = queue.accepted_rate
    assert accepted == close(queue.arrival_rate * (1 - queue.full_probability), rel=1e-6)
    assert little_number(accepted, queue.mean_response) == close(queue.mean_number)
    waiting = little_number(accepted, queue.mean_wait)
    assert waiting == pytest.approx(queue.mean_queue_length, rel=1e-6, abs=1e-9)


def exact(load: Fraction, capacity: int) -> tuple[float, float]:
    """Probability of a full queue and mean number, by adding up all states."""
    weights = [load**n for n in range(capacity + 1)]
    total = sum(weights)
    number = sum(n * weight for n, weight in enumerate(weights)) / total
    return float(weights[-1] / total), float(number)


@pytest.mark.parametrize("capacity", [1, 2, 5, 40])
@pytest.mark.parametrize("exponent", [-40, -30, -20, -13, -12, -11, -10, -8, -6, -4, -2, -1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_mm1k_keeps_its_digits_near_a_full_load(capacity: int, exponent: int, sign: int) -> None:
    load = 1 + sign * Fraction(2) ** exponent  # exact as a float
    queue = MM1K(float(load), 1.0, capacity)
    full, number = exact(load, capacity)
    assert queue.full_probability == close(full, rel=1e-12)
    assert queue.mean_number == close(number, rel=1e-12)


@steady
@given(load=st.floats(0.001, 1000.0).filter(lambda load: abs(load - 1) > 1e-9), capacity=capacities)
def test_mm1k_is_the_mirror_of_its_inverse(load: float, capacity: int) -> None:
    there, mirrored = MM1K(load, 1.0, capacity), MM1K(1.0, load, capacity)
    assert there.mean_number + mirrored.mean_number == close(capacity)
    assert there.accepted_rate == close(mirrored.accepted_rate)


@steady
@given(services=rates, low=loads, high=loads, spread=spreads, setup=st.floats(0.0, 10.0))
def test_more_arrivals_never_wait_less(
    services: float, low: float, high: float, spread: float, setup: float
) -> None:
    low, high = sorted((low * services, high * services))
    slack = 1 + 1e-12
    assert mm1_mean_wait(low, services) <= mm1_mean_wait(high, services) * slack
    assert mm1_mean_response(low, services) <= mm1_mean_response(high, services) * slack
    mean = 1 / services
    before = mg1_mean_wait(low, mean, scv=spread)
    assert before <= mg1_mean_wait(high, mean, scv=spread) * slack
    assert mg1_setup_mean_wait(low, mean, setup, 2 * setup**2, scv=spread) >= before
    few, many = MM1K(low, services, 20), MM1K(high, services, 20)
    assert few.full_probability <= many.full_probability * slack
    assert few.mean_response <= many.mean_response * slack


@steady
@given(arrivals=rates, slow=rates, fast=rates, spread=spreads)
def test_a_faster_server_never_means_a_longer_response(
    arrivals: float, slow: float, fast: float, spread: float
) -> None:
    slow, fast = sorted((slow, fast))
    slack = 1 + 1e-9
    assert mm1_mean_response(arrivals, fast) <= mm1_mean_response(arrivals, slow) * slack
    after = mg1_mean_response(arrivals, 1 / fast, scv=spread)
    before = mg1_mean_response(arrivals, 1 / slow, scv=spread)
    # Within a rounding of full load, one is infinite and the other astronomical.
    assert after <= before * slack or arrivals / fast == pytest.approx(1.0, rel=1e-9)
    after, before = MM1K(arrivals, fast, 9).mean_response, MM1K(arrivals, slow, 9).mean_response
    assert after <= before * slack


@steady
@given(load=st.floats(0.0, 100.0), capacity=st.integers(1, 2000))
def test_more_room_loses_less_and_waits_longer(load: float, capacity: int) -> None:
    small, large = MM1K(load, 1.0, capacity), MM1K(load, 1.0, capacity + 1)
    assert large.full_probability <= small.full_probability * (1 + 1e-12)
    assert large.mean_response * (1 + 1e-12) >= small.mean_response


# -- shares


def test_a_share_guarantees_its_part_of_the_rate() -> None:
    assert guaranteed_rate(0.25, 1000) == 250.0
    assert guaranteed_rate(1, 1000) == 1000.0
    assert guaranteed_rate(0, 1000) == 0.0


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("running", [0.01, 0.25, 0.5, 0.9, 1.0])
def test_the_largest_share_is_what_the_binomial_distribution_gives(
    threads: int, running: float
) -> None:
    chance = [
        math.comb(threads, k) * running**k * (1 - running) ** (threads - k)
        for k in range(threads + 1)
    ]
    served = sum(chance[1:])
    available = sum(k * p for k, p in enumerate(chance))
    assert largest_share(threads, running) == close(served / available)


def test_the_largest_share_has_the_expected_limits() -> None:
    for threads in (1, 2, 3, 8):
        assert largest_share(threads, 1.0) == close(1 / threads)
        assert largest_share(threads, 1e-12) == close(1.0)
        assert largest_share(threads, 5e-324) == 1.0
    for running in (0.1, 0.5, 1.0):
        assert largest_share(10**6, running) * 10**6 == close(1 / running)
        assert largest_share(1, running) == close(1.0)


@steady
@given(threads=st.integers(1, 1000), running=st.floats(0.001, 1.0), more=st.floats(0.001, 1.0))
def test_the_largest_share_lies_between_one_thread_and_all(
    threads: int, running: float, more: float
) -> None:
    running, more = sorted((running, more))
    share = largest_share(threads, running)
    assert 1 / threads <= share * (1 + 1e-12)
    assert share <= 1.0
    assert largest_share(threads, more) <= share * (1 + 1e-12)
    assert largest_share(threads + 1, running) <= share * (1 + 1e-12)


def test_a_share_for_a_mean_response_in_mm1() -> None:
    # 8 per second and half a second: the server must do 10 per second, of the 40 that it can do.
    assert share_for(0.5, 8, 40) == close(0.25)
    assert share_for(0.5, 8, 10) == 1.0
    assert share_for(0.5, 8, 9.99) is None
    assert share_for(0.5, 0, 40) == close(0.05)


def test_a_share_for_a_mean_response_in_md1() -> None:
    # 6.4 per second that take 0.125 each: 0.125 and half of 0.5 is 0.375.
    assert mg1_mean_response(6.4, 0.125, scv=0) == close(0.375)
    assert share_for(0.375, 6.4, 32, scv=0) == close(0.25)


def test_what_a_share_of_one_just_reaches_is_feasible() -> None:
    for arrivals, services in [(3.0, 7.0), (0.1, 0.3), (49.0, 49.5), (1e5, 1.1e5)]:
        for spread in (0.0, 0.3, 1.0, 7.0):
            reached = mg1_mean_response(arrivals, 1 / services, scv=spread)
            assert share_for(reached * (1 + 1e-9), arrivals, services, scv=spread) == close(1.0)
            assert share_for(reached * (1 - 1e-9), arrivals, services, scv=spread) is None


@steady
@given(services=rates, load=st.floats(0.0, 1.5), target=st.floats(0.5, 1000.0), spread=spreads)
def test_the_share_meets_the_response_and_a_smaller_one_does_not(
    services: float, load: float, target: float, spread: float
) -> None:
    arrivals, wanted = load * services, target / services
    share = share_for(wanted, arrivals, services, scv=spread)
    if share is None:
        assert mg1_mean_response(arrivals, 1 / services, scv=spread) > wanted * (1 - 1e-9)
        return
    assert 0.0 < share <= 1.0

    def response(share: float) -> float:
        return mg1_mean_response(arrivals, 1 / guaranteed_rate(share, services), scv=spread)

    assert response(share) <= wanted * (1 + 1e-6)
    assert response(share * 0.999) > wanted
    if spread == 1.0:
        assert mm1_mean_response(arrivals, share * services) == close(wanted)


# -- arguments that make no sense

RATES = {"arrival_rate": 8, "service_rate": 10}
SERVICE = {"arrival_rate": 8, "mean_service": 0.1}
SETUP = {**SERVICE, "setup_mean": 0.1, "setup_second_moment": 0.01}
GOOD: dict[Callable[..., object], dict[str, Any]] = {
    utilisation: RATES,
    mm1_mean_wait: RATES,
    mm1_mean_response: RATES,
    mm1_mean_number: RATES,
    mm1_mean_queue_length: RATES,
    mm1_response_quantile: {**RATES, "quantile": 0.5},
    MM1K: {**RATES, "capacity": 4},
    mg1_mean_wait: {**SERVICE, "variance": 0.01},
    mg1_mean_response: {**SERVICE, "scv": 1},
    mg1_setup_mean_wait: {**SETUP, "scv": 0},
    mg1_setup_mean_response: {**SETUP, "variance": 0},
    little_number: {"arrival_rate": 8, "mean_time": 0.5},
    little_time: {"mean_number": 4, "arrival_rate": 8},
    little_rate: {"mean_number": 4, "mean_time": 0.5},
    guaranteed_rate: {"share": 0.5, "service_rate": 10},
    largest_share: {"threads": 4, "running": 0.5},
    share_for: {**RATES, "mean_response": 0.5, "scv": 0.5},
}
CASES = [(function, name) for function, arguments in GOOD.items() for name in arguments]


def test_the_list_of_calls_is_complete() -> None:
    assert {function.__name__ for function in GOOD} == set(queueing.__all__)
    for function, arguments in GOOD.items():
        function(**arguments)


@pytest.mark.parametrize(
    "value", [math.nan, -1, -math.inf, "8", None, True, pytest.param(10**400, id="huge")]
)
@pytest.mark.parametrize(("function", "name"), CASES)
def test_nonsense_is_refused_by_name(
    function: Callable[..., object], name: str, value: object
) -> None:
    with pytest.raises(ConfigError) as caught:
        function(**{**GOOD[function], name: value})
    missing = value is None and name in ("variance", "scv") and function is not share_for
    assert caught.value.setting == ("scv" if missing else name)
    assert missing or caught.value.value is value
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (mm1_mean_wait, "service_rate", 0),
        (mm1_mean_wait, "arrival_rate", math.inf),
        (mm1_response_quantile, "quantile", 1.0),
        (MM1K, "capacity", 0),
        (MM1K, "capacity", 4.0),
        (mg1_mean_wait, "mean_service", 0),
        (mg1_setup_mean_wait, "setup_second_moment", 0.0099),
        (little_time, "arrival_rate", 0),
        (little_rate, "mean_time", 0),
        (little_rate, "mean_time", math.inf),
        (guaranteed_rate, "share", 1.01),
        (largest_share, "threads", 0),
        (largest_share, "running", 0.0),
        (largest_share, "running", 1.01),
        (share_for, "mean_response", 0),
        (share_for, "mean_response", math.inf),
    ],
)
def test_the_edge_of_a_range_is_refused(
    function: Callable[..., object], name: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is ") as caught:
        function(**{**GOOD[function], name: value})
    assert (caught.value.setting, caught.value.value) == (name, value)


def test_the_spread_is_given_once() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        mg1_mean_wait(8, 0.1, variance=0.01, scv=1)
    with pytest.raises(ConfigError, match="give variance or scv"):
        mg1_mean_wait(8, 0.1)


def test_little_takes_the_infinite_wait_of_an_unstable_queue() -> None:
    assert little_number(11, mm1_mean_wait(11, 10)) == math.inf
    assert little_number(0, math.inf) == 0.0
    assert little_time(math.inf, 11) == math.inf


def test_a_finite_queue_is_a_value() -> None:
    queue = MM1K(8, 10, 4)
    assert queue == MM1K(8, 10, 4)
    assert pickle.loads(pickle.dumps(queue)) == queue
    assert dataclasses.replace(queue, capacity=5).capacity == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        queue.capacity = 5  # type: ignore[misc]


# -- a simulated queue


@dataclass
class Observed:
    mean_wait: float
    mean_response: float
    mean_number: float
    turned_away: float


def simulate(
    events: int,
    between: Callable[[], float],
    service: Callable[[], float],
    *,
    setup: Callable[[], float] | None = None,
    capacity: int | None = None,
) -> Observed:
    """One server, in order of arrival. What an arrival finds is what a look at any time would."""
    departures: deque[float] = deque()
    now = waits = responses = 0.0
    found = refused = 0
    for _ in range(events):
        now += between()
        while departures and departures[0] <= now:
            departures.popleft()
        found += len(departures)
        if len(departures) == capacity:
            refused += 1
            continue
        begin = departures[-1] if departures else now + (setup() if setup else 0.0)
        end = begin + service()
        waits += begin - now
        responses += end - now
        departures.append(end)
    taken = events - refused
    return Observed(waits / taken, responses / taken, found / events, refused / events)


@pytest.fixture(scope="module")
def observed() -> dict[str, Observed]:
    """Rates of 5 and 10 per second; 100,000 events bring the means within 2 % or so."""
    chance = random.Random(20080402)
    arrivals, events = 5.0, 100_000

    def between() -> float:
        return chance.expovariate(arrivals)

    def exponential() -> float:
        return chance.expovariate(10.0)

    def uniform() -> float:
        return 0.2 * chance.random()

    return {
        "mm1": simulate(events, between, exponential),
        "md1": simulate(events, between, lambda: 0.1),
        "mm1k": simulate(events, between, exponential, capacity=3),
        "overload": simulate(events, lambda: chance.expovariate(15.0), exponential, capacity=5),
        "setup": simulate(events, between, uniform, setup=lambda: 0.4 * chance.random()),
    }


def test_the_simulated_mm1_agrees(observed: dict[str, Observed]) -> None:
    queue = observed["mm1"]
    assert mm1_mean_wait(5, 10) == close(queue.mean_wait, rel=0.03)
    assert mm1_mean_response(5, 10) == close(queue.mean_response, rel=0.03)
    assert mm1_mean_number(5, 10) == close(queue.mean_number, rel=0.03)


def test_the_simulated_md1_agrees(observed: dict[str, Observed]) -> None:
    queue = observed["md1"]
    assert mg1_mean_wait(5, 0.1, variance=0) == close(queue.mean_wait, rel=0.03)
    assert mg1_mean_response(5, 0.1, scv=0) == close(queue.mean_response, rel=0.03)


@pytest.mark.parametrize(
    ("name", "model"), [("mm1k", MM1K(5, 10, 3)), ("overload", MM1K(15, 10, 5))]
)
def test_the_simulated_mm1k_agrees(observed: dict[str, Observed], name: str, model: MM1K) -> None:
    queue = observed[name]
    assert model.full_probability == close(queue.turned_away, rel=0.03)
    assert model.mean_number == close(queue.mean_number, rel=0.03)
    assert model.mean_response == close(queue.mean_response, rel=0.03)
    assert model.mean_wait == close(queue.mean_wait, rel=0.03)


def test_the_simulated_setup_agrees(observed: dict[str, Observed]) -> None:
    queue = observed["setup"]
    spread, setup, square = 0.2**2 / 12, 0.2, 0.4**2 / 3
    wait = mg1_setup_mean_wait(5, 0.1, setup, square, variance=spread)
    assert wait == close(queue.mean_wait, rel=0.03)
    response = mg1_setup_mean_response(5, 0.1, setup, square, variance=spread)
    assert response == close(queue.mean_response, rel=0.03)
    # The part of the setup is large enough here to be told from its absence.
    assert mg1_mean_wait(5, 0.1, variance=spread) < 0.5 * queue.mean_wait


# -- what is written about it


def test_the_examples_in_the_docstrings_run() -> None:
    result = doctest.testmod(queueing)
    assert result.failed == 0
    assert result.attempted >= len(queueing.__all__)


def test_the_page_names_everything() -> None:
    page = (ROOT / "docs/reference/queueing.md").read_text()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", page))))
    wanted = set(queueing.__all__) | {name for name in dir(MM1K) if not name.startswith("_")}
    assert not wanted - named

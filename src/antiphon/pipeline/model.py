"""The delay models of `antiphon.queueing`, as expressions over columns of Spark.

The same formulas and the same limits: a queue that gets more than its server can do has an infinite
delay, never a negative one. Where those functions refuse their arguments, a row is null here:
one measurement that makes no sense does not end a job. Seconds and events per second.

Receives sums that the lab has recorded of topics, through `antiphon.pipeline.tables.queueing`.
"""

from __future__ import annotations

import math

from pyspark.sql import Column
from pyspark.sql import functions as fn

__all__ = [
    "exponential_quantile",
    "guaranteed_rate",
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
    "slice_variance",
    "utilisation",
]

_INFINITE = math.inf


def utilisation(arrival_rate: Column, service_rate: Column) -> Column:
    """Arrivals over services."""
    return _rates(arrival_rate, service_rate, arrival_rate / service_rate)


def mm1_mean_wait(arrival_rate: Column, service_rate: Column) -> Column:
    """Until service begins, with exponential service times."""
    load = arrival_rate / service_rate
    return _rates(arrival_rate, service_rate, _over(load, service_rate - arrival_rate))


def mm1_mean_response(arrival_rate: Column, service_rate: Column) -> Column:
    """Until service ends, with exponential service times."""
    return _rates(arrival_rate, service_rate, _over(fn.lit(1.0), service_rate - arrival_rate))


def mm1_mean_number(arrival_rate: Column, service_rate: Column) -> Column:
    """Events there, the one in service included."""
    return _rates(arrival_rate, service_rate, _over(arrival_rate, service_rate - arrival_rate))


def mm1_mean_queue_length(arrival_rate: Column, service_rate: Column) -> Column:
    """Events that wait, the one in service not counted."""
    number = mm1_mean_number(arrival_rate, service_rate)
    return number * utilisation(arrival_rate, service_rate)


def mm1_response_quantile(arrival_rate: Column, service_rate: Column, quantile: float) -> Column:
    """What this part of the responses does not exceed."""
    far = fn.lit(0.0 - math.log1p(-quantile))
    return _rates(arrival_rate, service_rate, _over(far, service_rate - arrival_rate))


def exponential_quantile(mean: Column, quantile: float) -> Column:
    """What this part of the responses does not exceed, as if they were spread exponentially."""
    return mean * (0.0 - math.log1p(-quantile))


def mg1_mean_wait(arrival_rate: Column, mean_service: Column, variance: Column) -> Column:
    """Until service begins, with service times of any distribution: Pollaczek and Khinchine."""
    square = mean_service * mean_service + variance
    wait = _over(arrival_rate * square / 2.0, 1.0 - arrival_rate * mean_service)
    return fn.when(_services(arrival_rate, mean_service, variance), wait)


def mg1_mean_response(arrival_rate: Column, mean_service: Column, variance: Column) -> Column:
    """Until service ends, with service times of any distribution."""
    return mean_service + mg1_mean_wait(arrival_rate, mean_service, variance)


def mg1_setup_mean_wait(
    arrival_rate: Column,
    mean_service: Column,
    variance: Column,
    setup_mean: Column,
    setup_second_moment: Column,
) -> Column:
    """Until service begins, where the server has to be woken up when it had nothing to do."""
    wait = mg1_mean_wait(arrival_rate, mean_service, variance)
    extra = (setup_mean * 2.0 + arrival_rate * setup_second_moment) / (
        (arrival_rate * setup_mean + 1.0) * 2.0
    )
    possible = (
        _at_least_0(setup_mean)
        & _at_least_0(setup_second_moment)
        & (setup_second_moment >= setup_mean * setup_mean * (1.0 - 1e-9))
    )
    return fn.when(possible, wait + extra)


def mg1_setup_mean_response(
    arrival_rate: Column,
    mean_service: Column,
    variance: Column,
    setup_mean: Column,
    setup_second_moment: Column,
) -> Column:
    """Until service ends, where the server has to be woken up when it had nothing to do."""
    return mean_service + mg1_setup_mean_wait(
        arrival_rate, mean_service, variance, setup_mean, setup_second_moment
    )


def little_number(arrival_rate: Column, mean_time: Column) -> Column:
    """Events somewhere: the rate at which they come, times how long they stay."""
    none = fn.when(arrival_rate == 0, fn.lit(0.0)).otherwise(arrival_rate * mean_time)
    return fn.when(_at_least_0(arrival_rate) & (mean_time >= 0) & ~fn.isnan(mean_time), none)


def little_time(mean_number: Column, arrival_rate: Column) -> Column:
    """How long events stay: how many are there, over the rate at which they come."""
    known = _above_0(arrival_rate) & (mean_number >= 0) & ~fn.isnan(mean_number)
    return fn.when(known, mean_number / arrival_rate)


def little_rate(mean_number: Column, mean_time: Column) -> Column:
    """Rate at which events pass: how many are there, over how long they stay."""
    return fn.when(_at_least_0(mean_number) & _above_0(mean_time), mean_number / mean_time)


def guaranteed_rate(share: Column, service_rate: Column) -> Column:
    """The service rate on which a task with this share can count."""
    known = (share >= 0) & (share <= 1) & _above_0(service_rate)
    return fn.when(known, share * service_rate)


def slice_variance(
    service: Column, service_squares: Column, events: Column, slices: Column
) -> Column:
    """Of one event's service, from sums over slices that had several each, as the core has them.

    0 with fewer than two slices.
    """
    spread = service_squares - service * service / events
    most = fn.greatest(fn.lit(0.0), spread / (slices - 1))
    return fn.when(events > 0, fn.when(slices >= 2, most).otherwise(fn.lit(0.0)))


def _over(work: Column, left: Column) -> Column:
    """``work / left``, or infinity when nothing is left of the server."""
    return fn.when(left > 0, work / left).when(left.isNotNull(), fn.lit(_INFINITE))


def _rates(arrival_rate: Column, service_rate: Column, result: Column) -> Column:
    return fn.when(_at_least_0(arrival_rate) & _above_0(service_rate), result)


def _services(arrival_rate: Column, mean_service: Column, variance: Column) -> Column:
    return _at_least_0(arrival_rate) & _above_0(mean_service) & _at_least_0(variance)


# NaN is larger than everything else in Spark, and so is not below infinity.


def _at_least_0(value: Column) -> Column:
    return (value >= 0) & (value < fn.lit(_INFINITE))


def _above_0(value: Column) -> Column:
    return (value > 0) & (value < fn.lit(_INFINITE))

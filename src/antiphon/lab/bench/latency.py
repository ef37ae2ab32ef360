"""Round-trip times: counted per process in narrow classes, added up, and read as percentiles.

A class is about a thousandth of its value wide, so a percentile is off by less than that; the
maximum is exact. Every time is kept until the window is over: counting costs the calls nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

__all__ = ["Latency", "classes", "latency_of", "median_latency"]

# Significant bits of a class.
BITS = 10


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of round trips, in microseconds."""

    p50: float
    p90: float
    p99: float
    p999: float
    maximum: float

    def facts(self) -> dict[str, float]:
        """As plain values, for JSON."""
        return asdict(self)


def classes(nanos: Iterable[int]) -> dict[int, int]:
    """How many of the times fall into each class; a class is named by its lower bound."""

    def lower(value: int) -> int:
        shift = max(0, value.bit_length() - BITS)
        return value >> shift << shift

    return Counter(map(lower, nanos))


def latency_of(counted: Sequence[Mapping[int, int]], maximum: int) -> Latency | None:
    """The percentiles of all the classes together, or None when nothing was counted."""
    total: Counter[int] = Counter()
    for counts in counted:
        total.update(counts)
    count = total.total()
    if not count:
        return None
    ordered = sorted(total.items())

    def percentile(share: float) -> float:
        rank = max(1, math.ceil(share * count))
        for value, number in ordered:
            rank -= number
            if rank <= 0:
                return value / 1000
        raise AssertionError("a rank beyond the count")

    return Latency(
        percentile(0.50), percentile(0.90), percentile(0.99), percentile(0.999), maximum / 1000
    )


def median_latency(repeats: Sequence[Latency]) -> Latency | None:
    """The median of every percentile over the repeats, and the largest maximum of them."""
    if not repeats:
        return None
    return Latency(
        statistics.median(item.p50 for item in repeats),
        statistics.median(item.p90 for item in repeats),
        statistics.median(item.p99 for item in repeats),
        statistics.median(item.p999 for item in repeats),
        max(item.maximum for item in repeats),
    )

"""What filters cost: one of them, and the index of very many.

Selectors of three conditions, of several kinds. Each kind has as many matches per event with few of
them as with many, so that what grows is the work of finding and nothing else. The naive evaluator
asks one after the other; the index is held against it before it is timed. A call from Python, and
the list of ids that it returns, are part of each figure.

    python benchmarks/bench_selectors.py [--seconds S] [--most N]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

from measuring import Timing, print_head, print_timings, time_rounds
from rich.console import Console

from antiphon._core import FilterIndex
from antiphon.topics.publisher import encode_properties
from antiphon.topics.where import Where

MATCHES = 10
EVENTS = 200
FEW = 1000

Event = dict[str, Any]
Kind = Callable[[int, int, random.Random], str]
REGIONS = ("EU", "UK", "US", "ASIA")


def by_symbol(number: int, count: int, chance: random.Random) -> str:
    """An equality that few share, and two conditions that all have."""
    symbol = number % max(1, count // MATCHES)
    return f"symbol = 'S{symbol}' AND price > 0 AND region IN ('EU', 'UK', 'US', 'ASIA')"


def by_narrow_range(number: int, count: int, chance: random.Random) -> str:
    """Two conditions that all have, and a range that few share."""
    width = 1_000_000 * MATCHES // count
    low = chance.randrange(-width, 1_000_000)
    return f"region <> 'NONE' AND active = TRUE AND price BETWEEN {low} AND {low + width}"


def by_two_equalities(number: int, count: int, chance: random.Random) -> str:
    """Neither of them is much by itself."""
    side = max(2, round((count / MATCHES / 2) ** 0.5))
    first, second = chance.randrange(side), chance.randrange(side)
    return f"desk = {first} AND trader = {second} AND price > {chance.randrange(1_000_000)}"


def by_three_ranges(number: int, count: int, chance: random.Random) -> str:
    """Each of them is true of many filters, all of them of few."""
    low = [chance.randrange(1_000_000) for _ in range(3)]
    return f"price > {low[0]} AND qty > {low[1]} AND weight > {low[2]}"


def by_three_windows(number: int, count: int, chance: random.Random) -> str:
    """The same, with two ends each."""
    width = round(1_000_000 * (MATCHES / count) ** (1 / 3))
    low = [chance.randrange(-width, 1_000_000) for _ in range(3)]
    parts = zip(("price", "qty", "weight"), low, strict=True)
    return " AND ".join(f"{name} BETWEEN {low} AND {low + width}" for name, low in parts)


def event(kind: Kind, count: int, chance: random.Random) -> Event:
    side = max(2, round((count / MATCHES / 2) ** 0.5))
    found: Event = {
        "symbol": f"S{chance.randrange(max(1, count // MATCHES))}",
        "region": chance.choice(REGIONS),
        "active": True,
        "price": chance.randrange(1_000_000),
        "qty": chance.randrange(1_000_000),
        "weight": chance.random() * 1_000_000,
        "desk": chance.randrange(side),
        "trader": chance.randrange(side),
    }
    if kind is by_three_ranges:  # each is true of this share of the filters
        share = (MATCHES / count) ** (1 / 3)
        found |= {name: int(1_000_000 * share) for name in ("price", "qty", "weight")}
    return found


def asked(index: FilterIndex, events: list[bytes]) -> Callable[[], tuple[float, int]]:
    def step() -> tuple[float, int]:
        match = index.match
        began = time.perf_counter()
        for encoded in events:
            match(encoded)
        return time.perf_counter() - began, len(events)

    return step


def measure(kind: Kind, count: int, seconds: float) -> Timing:
    chance = random.Random(7)
    wheres = [Where(kind(number, count, chance)) for number in range(count)]
    events = [event(kind, count, chance) for _ in range(EVENTS)]
    encoded = [encode_properties(one) for one in events]
    index = FilterIndex()
    for number, where in enumerate(wheres):
        index.add(number, where.core)
    for one in encoded[:3]:
        naive = [n for n, where in enumerate(wheres) if where.core.matches_encoded(one)]
        assert sorted(index.match(one)) == naive
    matches = sum(len(index.match(one)) for one in encoded) / len(encoded)
    name = f"{kind.__name__[3:].replace('_', ' ')}, {count:,}, {matches:.0f} match"
    return time_rounds(name, seconds, asked(index, encoded))


def one_filter(seconds: float) -> list[Timing]:
    where = Where("price > 100 AND region IN ('EU', 'UK') AND name LIKE '%ab_%'")
    encoded = encode_properties({"price": 120, "region": "UK", "name": "fabian", "qty": 3})

    def evaluate() -> tuple[float, int]:
        call = where.core.matches_encoded
        began = time.perf_counter()
        for _ in range(1000):
            call(encoded)
        return time.perf_counter() - began, 1000

    def read() -> tuple[float, int]:
        began = time.perf_counter()
        for _ in range(100):
            Where(where.text)
        return time.perf_counter() - began, 100

    return [
        time_rounds("read a filter of 3 conditions", seconds, read),
        time_rounds("evaluate it, all true", seconds, evaluate),
    ]


def changes(count: int, seconds: float) -> list[Timing]:
    """Adding and removing, in an index that holds others."""
    chance = random.Random(7)
    cores = [Where(by_narrow_range(number, count, chance)).core for number in range(count)]
    index = FilterIndex()
    for number, core in enumerate(cores):
        index.add(number, core)
    timings = [Timing(f"remove, of {count:,}"), Timing(f"add, to {count:,}")]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        some = chance.sample(range(count), 500)
        for timing, change in zip(
            timings, (index.remove, lambda n: index.add(n, cores[n])), strict=True
        ):
            began = time.perf_counter()
            for number in some:
                change(number)
            timing.add(time.perf_counter() - began, len(some))
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description="What filters cost.")
    parser.add_argument("--seconds", type=float, default=0.5, help="per operation")
    parser.add_argument("--most", type=int, default=100_000, help="selectors in the index")
    arguments = parser.parse_args()
    if not 0 < arguments.seconds <= 60 or not FEW <= arguments.most <= 1_000_000:
        parser.error("give up to 60 seconds, and 1,000 to 1,000,000 selectors")
    console = Console()
    print_head(console)
    print_timings(console, "one filter", one_filter(arguments.seconds))
    timings = [
        measure(kind, count, arguments.seconds)
        for kind in (
            by_symbol,
            by_narrow_range,
            by_two_equalities,
            by_three_ranges,
            by_three_windows,
        )
        for count in (FEW, arguments.most)
    ]
    print_timings(console, "the index, per event", timings)
    print_timings(console, "changes of the index", changes(arguments.most, arguments.seconds))


if __name__ == "__main__":
    main()

"""Whether very many topics make an event slower: dispatch with 1,000 and with a million of them.

One bus publishes, another one in the same process subscribes to all of it with one pattern and
takes batches. Events are published in turn on 1,000 of the topics, however many there are beside
them; and then on all of them, where each event also waits for memory that no cache holds.
The indexes that are asked once per publisher and subscription are timed apart.

    python benchmarks/bench_topics.py [--seconds S] [--most N]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import Timing, print_head, print_timings, time_rounds
from rich.console import Console

from antiphon import Bus, Publisher
from antiphon.topics.names import Pattern, PatternIndex, TopicIndex

FEW = 1000
EVENTS = 20_000
BODY = bytes(64)


class Counted:
    """A handler of batches that can be waited for."""

    def __init__(self) -> None:
        self._reached = threading.Condition()
        self._count = 0

    def __call__(self, batch: Any) -> None:
        with self._reached:
            self._count += len(batch)
            self._reached.notify_all()

    def wait(self, more: int, before: int) -> None:
        with self._reached:
            if not self._reached.wait_for(lambda: self._count >= before + more, 60.0):
                raise TimeoutError(f"{self._count - before} of {more} events came")

    @property
    def count(self) -> int:
        with self._reached:
            return self._count


def dispatched(publishers: list[Publisher], counted: Counted) -> Callable[[], tuple[float, int]]:
    calls = [one.publish for one in publishers]
    start = 0

    def step() -> tuple[float, int]:
        nonlocal start
        before = counted.count
        began = time.perf_counter()
        for at in range(start, start + EVENTS):
            calls[at % len(calls)](BODY)
        counted.wait(EVENTS, before)
        start += EVENTS
        return time.perf_counter() - began, EVENTS

    return step


def memory() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def measure(console: Console, count: int, seconds: float) -> list[Timing]:
    counted = Counted()
    with Bus("local://bench") as here, Bus("local://bench") as there:
        there.subscribe("t/**", counted, batch=True)
        began, before = time.perf_counter(), memory()
        publishers = [here.publisher(f"t/{number % 997}/{number}") for number in range(count)]
        publishers[-1].wait_for_subscribers(1, 60.0)
        took, held = time.perf_counter() - began, memory() - before
        console.print(
            f"{count:,} topics: {took / count * 1e6:.1f} us and {held / count:,.0f} bytes each",
            highlight=False,
        )
        # Their names are said once.
        for first in range(0, count, EVENTS):
            some = publishers[first : first + EVENTS]
            seen = counted.count
            for one in some:
                one.publish(BODY)
            counted.wait(len(some), seen)
        hot = publishers[:: max(1, count // FEW)][:FEW]
        timings = [time_rounds(f"on {FEW:,} of {count:,}", seconds, dispatched(hot, counted))]
        if count > FEW:
            everywhere = dispatched(publishers, counted)
            timings.append(time_rounds(f"on all of {count:,}", seconds, everywhere))
        return timings


def indexes(count: int, seconds: float) -> list[Timing]:
    names = [f"t/{number % 997}/{number}" for number in range(count)]
    by_name: PatternIndex[int] = PatternIndex()
    by_pattern: TopicIndex[int] = TopicIndex()
    for number, name in enumerate(names):
        by_name.add(Pattern(name), number)
        by_pattern.add(name, number)
    some = names[:: max(1, count // FEW)][:FEW]
    patterns = [Pattern(name) for name in some]

    def find_patterns() -> tuple[float, int]:
        began = time.perf_counter()
        for name in some:
            by_name.matching(name)
        return time.perf_counter() - began, len(some)

    def find_names() -> tuple[float, int]:
        began = time.perf_counter()
        for pattern in patterns:
            by_pattern.matching(pattern)
        return time.perf_counter() - began, len(some)

    return [
        time_rounds(f"subscriptions of a topic, of {count:,}", seconds, find_patterns),
        time_rounds(f"topics of a subscription, of {count:,}", seconds, find_names),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether very many topics make an event slower.")
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    parser.add_argument("--most", type=int, default=1_000_000, help="topics")
    arguments = parser.parse_args()
    if not 0 < arguments.seconds <= 60 or not FEW <= arguments.most <= 1_000_000:
        parser.error("give up to 60 seconds, and 1,000 to 1,000,000 topics")
    console = Console()
    print_head(console)
    with tempfile.TemporaryDirectory(prefix="ap-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        timings = [
            timing
            for count in (FEW, arguments.most)
            for timing in measure(console, count, arguments.seconds)
        ]
    print_timings(console, "an event, from publish to the handler of a batch", timings)
    found = [
        timing
        for count in (FEW, arguments.most)
        for timing in indexes(count, arguments.seconds / 4)
    ]
    print_timings(console, "who matches, once per publisher and subscription", found)


if __name__ == "__main__":
    main()

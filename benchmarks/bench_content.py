"""What filters on data cost: regular expressions by the thousand, and XPath.

The judge alone, as a publisher or a broker calls it for a batch of bodies; then whole events
through a bus, with a filter of each kind beside none. What a judge finds is held against asking
one expression after the other before it is timed.

    python benchmarks/bench_content.py [--seconds S] [--most N]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
import time
from collections.abc import Callable

from measuring import Timing, print_head, print_timings, time_rounds
from rich.console import Console

from antiphon import AllOf, Bus, Regex, XPath
from antiphon.topics.content import Filter, read_where
from antiphon.topics.judge import ContentJudge, JudgePlan

BATCH = 256
WORDS = ("connected", "refused", "timeout", "retry", "closed", "accepted", "user", "session")


def lines(chance: random.Random, users: int) -> list[bytes]:
    """Of about 100 bytes, each of one user."""

    def line() -> str:
        words = " ".join(chance.choice(WORDS) for _ in range(12))
        return f"user {chance.randrange(users)}: {words}"

    return [line().encode() for _ in range(BATCH)]


def orders(chance: random.Random, items: int) -> list[bytes]:
    def item() -> str:
        return f"<item price='{chance.randrange(100)}'><name>{chance.choice(WORDS)}</name></item>"

    def order() -> str:
        all_items = "".join(item() for _ in range(items))
        return f"<order><total>{chance.randrange(200)}</total>{all_items}</order>"

    return [order().encode() for _ in range(BATCH)]


def planned(judge: ContentJudge, filters: list[Filter]) -> tuple[JudgePlan, dict[int, Filter]]:
    numbers = {judge.add(read_where(one)[1]): one for one in filters}
    return judge.plan(tuple(sorted(numbers)), None), numbers


def judged(plan: JudgePlan, bodies: list[bytes]) -> Callable[[], tuple[float, int]]:
    def step() -> tuple[float, int]:
        began = time.perf_counter()
        plan(bodies)
        return time.perf_counter() - began, len(bodies)

    return step


def many_regexes(count: int, seconds: float) -> Timing:
    chance = random.Random(7)
    judge = ContentJudge()
    filters: list[Filter] = [
        Regex(rf"^user {number}:.*(timeout|refused)") for number in range(count)
    ]
    plan, numbers = planned(judge, filters)
    bodies = lines(chance, count)
    for body, passed in zip(bodies[:5], plan(bodies[:5]), strict=True):
        alone = {one for one, where in numbers.items() if re.search(where.text.encode(), body)}
        assert set(passed) == alone
    return time_rounds(f"{count:,} expressions, 100 B", seconds, judged(plan, bodies))


def some_xpaths(count: int, items: int, seconds: float) -> Timing:
    chance = random.Random(7)
    judge = ContentJudge()
    filters: list[Filter] = [XPath(f"/order[total = {number}]") for number in range(count)]
    plan, numbers = planned(judge, filters)
    bodies = orders(chance, items)
    try:
        for body, passed in zip(bodies[:5], plan(bodies[:5]), strict=True):
            total = re.search(rb"<total>(\d+)</total>", body)
            assert total is not None
            assert [numbers[one] for one in passed] == [
                one for one in filters if one.text == f"/order[total = {int(total[1])}]"
            ]
        size = sum(map(len, bodies)) // len(bodies)
        name = f"{count:,} XPath{'s' * (count > 1)}, {size:,} B"
        return time_rounds(name, seconds, judged(plan, bodies))
    finally:
        judge.close()


def published(where: Filter | None, name: str, seconds: float) -> list[Timing]:
    """From a publisher to a subscription in the same process: single events, and many in one go."""
    bodies = orders(random.Random(7), 1)
    with Bus("local://bench") as bus:
        bus.subscribe("a", lambda batch: None, where=where, batch=True)
        publisher = bus.publisher("a")
        publisher.wait_for_subscribers()

        def singly() -> tuple[float, int]:
            began = time.perf_counter()
            for body in bodies:
                publisher.publish(body)
            return time.perf_counter() - began, len(bodies)

        def together() -> tuple[float, int]:
            began = time.perf_counter()
            publisher.publish_many(bodies)
            return time.perf_counter() - began, len(bodies)

        return [
            time_rounds(f"publish, {name}", seconds, singly),
            time_rounds(f"publish_many, {name}", seconds, together),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What filters on data cost.")
    parser.add_argument("--seconds", type=float, default=0.5, help="per operation")
    parser.add_argument("--most", type=int, default=1000, help="expressions on one topic")
    arguments = parser.parse_args()
    if not 0 < arguments.seconds <= 60 or not 10 <= arguments.most <= 10_000:
        parser.error("give up to 60 seconds, and 10 to 10,000 expressions")
    seconds = arguments.seconds
    console = Console()
    print_head(console)
    timings = [many_regexes(count, seconds) for count in (1, arguments.most)]
    timings += [some_xpaths(1, 1, seconds), some_xpaths(100, 1, seconds)]
    timings += [some_xpaths(1, 200, seconds)]
    print_timings(console, f"the judge, per event, in batches of {BATCH}", timings)
    with tempfile.TemporaryDirectory(prefix="ap-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        kinds: list[tuple[str, Filter | None]] = [
            ("no filter", None),
            ("SQL", "price IS NULL"),
            ("Regex", Regex("total>1")),
            ("XPath", XPath("/order[total > 100]")),
            ("SQL that is not true and XPath", AllOf("price > 1", XPath("/order[total > 100]"))),
        ]
        events = [one for name, where in kinds for one in published(where, name, seconds)]
    print_timings(console, "an event of about 100 B, at its publisher", events)


if __name__ == "__main__":
    main()

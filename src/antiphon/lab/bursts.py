"""The largest number of messages that was sent in one go, of series that try several.

Receives a plan and what ``run.json`` says of its runs; hands a row for each ladder of numbers to
whoever prints the end of a campaign, and to the runner the numbers that are to be tried next: a
series with ``search`` closes in on the largest one, between its steps. That is no state of its own:
it follows from the runs that are done, so a search that was killed goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from antiphon.lab.plan import Plan, Run, runs_of, searched, with_messages

__all__ = ["Burst", "bursts", "search"]

# What tells one ladder from another; its steps differ in `messages`, its repeats in `repeat`.
_APART = (
    "series", "protocol", "variant", "stack", "workload", "link", "placement", "size", "nodes",
    "senders", "threads", "rate",
)  # fmt: skip
# A step that was not tried is none that failed.
_UNTRIED = ("absent", "not_applicable")

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Burst:
    """One ladder: ``fits`` is the largest number whose runs are all complete, with all that are
    smaller; 0: not even the smallest. ``ended`` is the outcome of the step above, and ``reason``
    why; both are empty where there is none: the answer is then at least ``fits``."""

    keys: Mapping[str, Any]
    fits: int
    above: int | None = None
    ended: str = ""
    reason: str = ""

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        beside = {"above": self.above, "ended": self.ended, "reason": self.reason}
        return {**self.keys, "fits": self.fits, **beside}


def bursts(plan: Plan, done: Iterable[Facts]) -> list[Burst]:
    """A row for each ladder of the plan of which a run was carried out."""
    ladders = {series.name for series in plan.series if len(series.messages) > 1}
    found: dict[tuple[Any, ...], list[Facts]] = {}
    for facts in done:
        if facts["series"] in ladders and facts["outcome"] not in _UNTRIED:
            found.setdefault(_ladder(facts), []).append(facts)
    return [
        _climb(dict(zip(_APART, keys, strict=True)), steps)
        for keys, steps in sorted(found.items(), key=lambda one: str(one[0]))
    ]


def search(plan: Plan, outcome: Callable[[Run], Facts]) -> Iterator[Run]:
    """The runs that a search adds to those of the plan, when these are all done.

    ``outcome`` is asked for each run of the plan, and for each of the others when the one after it
    is wanted. All ladders go on side by side, and each number is tried once: the middle, by ratio,
    of what fits and what does not.
    """
    ladders = [(run, more, _ladder(asdict(run))) for run, more in searched(plan)]
    steps: dict[tuple[Any, ...], list[Facts]] = {keys: [] for _, _, keys in ladders}
    for run in runs_of(plan) if ladders else ():
        # By the run and not by its facts, which name the variant that it had in the end.
        keys = _ladder(asdict(run))
        if keys in steps and (facts := outcome(run))["outcome"] not in _UNTRIED:
            steps[keys].append(facts)
    for number in range(max((more for _, more, _ in ladders), default=0)):
        for first, more, keys in ladders:
            if number < more and (messages := _middle(_climb({}, steps[keys]))):
                run = with_messages(first, messages)
                yield run
                facts = outcome(run)
                # What has become absent meanwhile is not searched any more.
                steps[keys] = [] if facts["outcome"] in _UNTRIED else [*steps[keys], facts]


def _ladder(facts: Facts) -> tuple[Any, ...]:
    return tuple(facts[name] for name in _APART)


def _middle(found: Burst) -> int | None:
    """The number to try next; None: there is none between, or nothing that did not fit."""
    if found.above is None:
        return None
    middle = round(math.sqrt(max(1, found.fits) * found.above))
    return middle if found.fits < middle < found.above else None


def _climb(keys: Mapping[str, Any], runs: Iterable[Facts]) -> Burst:
    fits = 0
    for facts in sorted(runs, key=lambda one: (one["messages"], one["outcome"] == "complete")):
        if facts["outcome"] != "complete":
            return Burst(keys, fits, facts["messages"], facts["outcome"], facts["reason"])
        fits = facts["messages"]
    return Burst(keys, fits)

"""The largest number of messages that was sent in one go, of series that try several.

Receives a plan and what ``run.json`` says of its runs; hands a row for each ladder of numbers to
whoever prints the end of a campaign.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.lab.plan import Plan

__all__ = ["Burst", "bursts"]

# What tells one ladder from another; its steps differ in `messages`, its repeats in `repeat`.
_APART = (
    "series", "protocol", "variant", "stack", "workload", "link", "placement", "size", "nodes",
    "senders", "threads", "rate",
)  # fmt: skip
# A step that was not tried is none that failed.
_UNTRIED = ("absent", "not_applicable")


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


def bursts(plan: Plan, done: Iterable[Mapping[str, Any]]) -> list[Burst]:
    """A row for each ladder of the plan of which a run was carried out."""
    ladders = {series.name for series in plan.series if len(series.messages) > 1}
    found: dict[tuple[Any, ...], dict[int, list[Mapping[str, Any]]]] = {}
    for facts in done:
        if facts["series"] in ladders and facts["outcome"] not in _UNTRIED:
            steps = found.setdefault(tuple(facts[name] for name in _APART), {})
            steps.setdefault(facts["messages"], []).append(facts)
    return [
        _climb(dict(zip(_APART, keys, strict=True)), steps)
        for keys, steps in sorted(found.items(), key=lambda one: str(one[0]))
    ]


def _climb(keys: Mapping[str, Any], steps: Mapping[int, list[Mapping[str, Any]]]) -> Burst:
    fits = 0
    for messages, runs in sorted(steps.items()):
        for facts in runs:
            if facts["outcome"] != "complete":
                return Burst(keys, fits, messages, facts["outcome"], facts["reason"])
        fits = messages
    return Burst(keys, fits)

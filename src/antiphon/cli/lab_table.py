"""What ``antiphon lab`` prints of its runs: a line for each when it ends, a table of all of them.

Receives what ``run.json`` has, and a `Report` before it is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from antiphon.lab.bursts import Burst, bursts
from antiphon.lab.plan import LINKS, Plan
from antiphon.lab.record import Report

__all__ = ["print_results", "told"]

# What may tell one run from another in the table at the end.
_KEYS = (
    "series", "variant", "stack", "pattern", "workload", "link", "placement", "size", "nodes",
    "senders", "threads", "streams", "rate", "messages", "repeat",
)  # fmt: skip
_NUMBERS = ("size", "nodes", "senders", "threads", "streams", "rate", "messages", "repeat")
_COMMON = ("pattern", "workload", "link", "size", "rate", "messages")  # worth telling of all runs
_WORDS = {"workload": "load", "rate": "rate/s"}
# By column, the key of a delay.
_DELAYS = {"p50 us": "latency_p50_us", "p99 us": "latency_p99_us", "max us": "latency_max_us"}
# Above this a row of the delays stands for more than one message: a sample has no true tails.
_ALL_TIMED = 1.01
_SAMPLED = "~"
# With fewer columns there is no room for the largest delay beside names.
_WIDE = 100


def told(report: Report) -> str:
    """A run that has just ended, in one line."""
    if report.run.series == LINKS:
        ended = {"outcome": report.outcome, "reason": report.reason}
        figures = {"bytes_per_second": report.bytes, **report.delays, **report.loss}
        facts = {"protocol": report.run.protocol, **ended, **figures}
        return f"bare {report.run.link}: {_of_link(facts)}"
    what = report.outcome if not report.reason else f"{report.outcome}: {report.reason}"
    parts = [what]
    if report.rate:
        parts += [f"{report.bytes / 1e6:,.0f} MB/s", f"{report.rate:,.0f} messages/s"]
    middle, tail = (report.delays.get(f"latency_{name}_us") for name in ("p50", "p99"))
    if middle is not None:
        parts.append(f"p50 {middle:,} us, p99 {tail:,} us")
    if part := _lost(report.loss):
        parts.append(f"{part} lost")
    return "; ".join([", ".join(parts), *report.notes])


def _of_link(facts: Mapping[str, Any]) -> str:
    """A check of a bare link: its name, and the one figure that it is for."""
    name = facts["protocol"]
    if facts["outcome"] != "complete":
        return f"{name} {facts['outcome']}: {facts['reason']}"
    if name == "link-ping":
        middle = facts.get("latency_p50_us")
        return f"{name} without an answer" if middle is None else f"{name} {middle:,} us"
    part = _lost(facts)
    return f"{name} {facts['bytes_per_second'] / 1e6:,.0f} MB/s" + (
        f", {part} lost" if part else ""
    )


def print_results(
    plan: Plan, done: list[dict[str, Any]], links: Sequence[dict[str, Any]] = ()
) -> None:
    """A table with a row per run, and one of the largest bursts where they were searched.

    Before it a line for every bare link, from the facts of its checks.
    """
    console = _wide_enough()
    for name in dict.fromkeys(one["link"] for one in links):
        checks = "; ".join(_of_link(one) for one in links if one["link"] == name)
        console.print(f"bare {name}: {checks}", markup=False, highlight=False)
    apart, same = _told_apart(done)
    figures = _figures(done)
    if console.width < _WIDE and "max us" in figures:
        figures.remove("max us")
    table = Table(box=None, pad_edge=False)
    for name in ("protocol", *apart):
        table.add_column(_WORDS.get(name, name), no_wrap=True, justify=_side(name in _NUMBERS))
    for name in figures:
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("outcome", overflow="fold")
    for one in sorted(done, key=_place):
        keys = (_key(one.get(name)) for name in apart)
        measured = one["outcome"] == "complete"
        cells = (_figure(one, name) if measured else "" for name in figures)
        table.add_row(one["protocol"], *keys, *cells, _ending(one))
    for series in plan.series:
        for protocol in series.protocols if series.later else ():
            why = f"missing until a later version ({series.name} needs {', '.join(series.later)})"
            table.add_row(protocol, *("" for _ in (*apart, *figures)), why)
    if same:
        line = ", ".join(f"{_WORDS.get(name, name)} {_key(value)}" for name, value in same.items())
        console.print(f"all runs: {line}", markup=False, highlight=False)
    console.print(table)
    if any(map(_sampled, done)):
        line = f"{_SAMPLED} delays of some of the messages: tails are those of a sample"
        console.print(line, markup=False, highlight=False)
    if found := bursts(plan, done):
        console.print(_burst_table(found))


def _place(facts: dict[str, Any]) -> tuple[str, str, str]:
    return facts["series"], facts["protocol"], facts["run"]


def _wide_enough() -> Console:
    """A terminal is as wide as it is; a file need not break lines."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=160)


def _told_apart(done: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """Keys in which runs of one protocol differ, and what is the same of all runs."""
    apart: list[str] = []
    same: dict[str, Any] = {}
    for name in _KEYS:
        values: dict[str, set[Any]] = {}
        for one in done:
            values.setdefault(one["protocol"], set()).add(one.get(name))
        if any(len(own) > 1 for own in values.values()):
            apart.append(name)
        elif name in _COMMON and len(every := set().union(*values.values())) == 1:
            same[name] = every.pop()
    same = {name: value for name, value in same.items() if value is not None}
    return apart, same


def _figures(done: list[dict[str, Any]]) -> list[str]:
    """The columns that a number is in, of any run."""
    complete = [one for one in done if one["outcome"] == "complete"]
    timed = any(one.get(key) is not None for one in complete for key in _DELAYS.values())
    lossy = any(map(_lost, complete))
    return ["MB/s", "messages/s", *(_DELAYS if timed else ()), *(["lost"] if lossy else ())]


def _figure(one: dict[str, Any], name: str) -> str:
    if name == "MB/s":
        return f"{one['bytes_per_second'] / 1e6:,.1f}"
    if name == "messages/s":
        return f"{one['messages_per_second']:,.0f}"
    if name == "lost":
        return _lost(one)
    delay = one.get(_DELAYS[name])
    if delay is None:
        return ""
    return f"{_SAMPLED if _sampled(one) else ''}{delay:,}"


def _lost(one: Mapping[str, Any]) -> str:
    """Which part of what was to come did not; empty where nothing may get lost."""
    lost = one.get("lost")
    if not one.get("sent") or lost is None:
        return ""
    part = 100 * lost / max(1, one["received"] + lost)
    return "< 0.1 %" if 0 < part < 0.1 else f"{part:.1f} %"


def _sampled(one: dict[str, Any]) -> bool:
    timed = one["outcome"] == "complete" and one.get("latency_p50_us") is not None
    return timed and (one.get("latency_one_in") or 1.0) > _ALL_TIMED


def _key(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:,.0f}" if value == int(value) else f"{value:,}"
    return "" if value is None else str(value)


def _side(number: bool) -> Literal["left", "right"]:
    return "right" if number else "left"


def _ending(facts: dict[str, Any]) -> str:
    if facts["reason"]:
        return f"{facts['outcome']}: {facts['reason']}"
    skipped = facts.get("latency_skipped", 0)
    # Without a rate only those that carry their times are due at all.
    what = "delays not taken" if facts.get("rate") is None else "never sent"
    return f"{facts['outcome']}; {skipped:,} {what}" if skipped else str(facts["outcome"])


def _burst_table(found: list[Burst]) -> Table:
    """How many messages in one go were all delivered, and what became of more."""
    table = Table("series", "protocol", "nodes", "size", "fits", "beyond that", box=None)
    for one in found:
        keys = one.keys
        name = keys["protocol"] if keys["stack"] is None else f"{keys['protocol']} {keys['stack']}"
        beyond = f"{one.above:,}: {one.ended}: {one.reason}" if one.above else "not tried"
        more = (str(keys["nodes"]), str(keys["size"]), f"{one.fits:,}", beyond)
        table.add_row(keys["series"], name, *more)
    return table

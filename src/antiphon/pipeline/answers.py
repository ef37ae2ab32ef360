"""What the tables must contain for a simulated campaign, computed without reading it.

Receives the runs of `known`; hands `simulate` a document for ``answers.json``. Rows and columns
have the names of `antiphon.pipeline.schemas`, so that they can be laid beside the tables. Only
complete runs count, but for ``runs`` and ``outcomes``.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from itertools import groupby
from typing import Any

from antiphon.pipeline import schemas
from antiphon.pipeline.known import NANOS, SimulatedRun, key_facts, quantile_us

__all__ = ["QUANTILES", "answers"]

Row = dict[str, Any]

QUANTILES = {
    "p50_us": (1, 2),
    "p75_us": (3, 4),
    "p90_us": (9, 10),
    "p95_us": (19, 20),
    "p99_us": (99, 100),
    "p999_us": (999, 1000),
    "p9999_us": (9999, 10_000),
}


def answers(campaign: str, runs: Sequence[SimulatedRun]) -> dict[str, Any]:
    """By table, its rows. Integers are exact; the others are right to the last digits."""
    complete = list(_measurements(campaign, (run for run in runs if run.complete)))
    return {
        "campaign": campaign,
        "rows": sum(run.rows for run in runs),
        "tables": {
            "runs": [_run(campaign, run) for run in runs],
            "outcomes": list(_outcomes(campaign, runs)),
            "throughput": [_throughput(keys, group) for keys, group in complete],
            "degradation": list(_degradation(complete)),
            "stability": [_stability(keys, group) for keys, group in complete],
            "cpu": [row for keys, group in complete for row in _cpu(keys, group)],
            "latency": [_latency(keys, group) for keys, group in complete],
            "scaling": list(_scaling(complete)),
            "comparison": list(_comparison(complete)),
            "queueing": [_queueing(keys, group) for keys, group in complete if group[0].topic],
        },
    }


def _keys(campaign: str, run: SimulatedRun) -> Row:
    facts = {"campaign": campaign, **key_facts(run)}
    return {name: facts.get(name) for name in schemas.KEYS}


def _measurements(
    campaign: str, runs: Iterable[SimulatedRun]
) -> Iterable[tuple[Row, list[SimulatedRun]]]:
    """Runs that differ in their repeat alone."""
    keyed = [(json.dumps(_keys(campaign, run)), run) for run in runs]
    keyed.sort(key=lambda pair: (pair[0], pair[1].run.repeat))
    for key, group in groupby(keyed, key=lambda pair: pair[0]):
        yield json.loads(key), [run for _, run in group]


def _run(campaign: str, run: SimulatedRun) -> Row:
    counted = {
        "sent_messages": sum(run.in_window(counts) for counts in run.sent.values()),
        "received_messages": run.messages,
    }
    return {
        **_keys(campaign, run),
        "run": run.id,
        "repeat": run.run.repeat,
        "outcome": run.outcome,
        "reason": run.reason,
        "window_seconds": float(run.seconds),
        # Of a run that did not finish, more than the window is counted.
        **(counted if run.complete else {}),
        "latency_rows": run.rows if run.complete else 0,
        "clock_errors": run.clock_errors if run.complete else 0,
        "latency_p50_us": quantile_us([run.delays], 1, 2) if run.complete else None,
        "latency_p99_us": quantile_us([run.delays], 99, 100) if run.complete else None,
        "messages_per_second": run.messages / run.seconds,
        "bytes_per_second": run.messages / run.seconds * run.run.size,
    }


def _outcomes(campaign: str, runs: Sequence[SimulatedRun]) -> Iterable[Row]:
    for keys, group in _measurements(campaign, runs):
        for outcome, count in sorted(Counter(run.outcome for run in group).items()):
            yield {
                **keys,
                "outcome": outcome,
                "runs": count,
                "of": len(group),
                "part": count / len(group),
            }


def _spread(name: str, figures: Sequence[float]) -> Row:
    return {
        f"{name}_mean": statistics.fmean(figures),
        f"{name}_min": min(figures),
        f"{name}_max": max(figures),
        f"{name}_stddev": statistics.stdev(figures) if len(figures) > 1 else None,
    }


def _rates(group: Sequence[SimulatedRun]) -> list[float]:
    return [run.messages / run.seconds for run in group]


def _throughput(keys: Row, group: Sequence[SimulatedRun]) -> Row:
    size = keys["size"]
    worst = [min(run.in_window(sent) for sent in _senders(run)) / run.seconds for run in group]
    sent = [sum(run.in_window(one) for one in run.sent.values()) for run in group]
    wire = [run.wire_bytes(one) / run.messages for run, one in zip(group, sent, strict=True)]
    ip = [
        (run.wire_bytes(one) - 14 * one) / run.messages
        for run, one in zip(group, sent, strict=True)
    ]
    cpu = [
        sum(run.milli_cores[role] for role in run.roles)
        * run.seconds
        * (NANOS // 1000)
        / run.messages
        for run in group
    ]
    return {
        **keys,
        "repeats": len(group),
        **_spread("messages_per_second", _rates(group)),
        **_spread("bytes_per_second", [rate * size for rate in _rates(group)]),
        "worst_sender_messages_per_second": statistics.fmean(worst),
        "worst_sender_bytes_per_second": statistics.fmean(worst) * size,
        "cpu_ns_per_message": statistics.fmean(cpu),
        "wire_bytes_per_message": statistics.fmean(wire) if group[0].wire else None,
        "ip_bytes_per_message": statistics.fmean(ip) if group[0].wire else None,
    }


def _senders(run: SimulatedRun) -> list[Sequence[int]]:
    return [sent for role, sent in run.sent.items() if role != "reader"]


def _degradation(measured: Sequence[tuple[Row, list[SimulatedRun]]]) -> Iterable[Row]:
    idle = {
        _without(keys, "workload"): (statistics.fmean(_rates(group)), len(group))
        for keys, group in measured
        if keys["workload"] == "none"
    }
    for keys, group in measured:
        if keys["workload"] == "none" or (found := idle.get(_without(keys, "workload"))) is None:
            continue
        rate = statistics.fmean(_rates(group))
        yield {
            **keys,
            "repeats": len(group),
            "baseline_repeats": found[1],
            "bytes_per_second": rate * keys["size"],
            "baseline_bytes_per_second": found[0] * keys["size"],
            "kept": rate / found[0],
        }


def _without(keys: Row, *names: str) -> str:
    return json.dumps({name: value for name, value in keys.items() if name not in names})


def _stability(keys: Row, group: Sequence[SimulatedRun]) -> Row:
    size = keys["size"]
    seconds = [[count * size for count in run.by_second()] for run in group]
    medians = [statistics.median(some) for some in seconds]
    return {
        **keys,
        "repeats": len(group),
        "seconds": sum(map(len, seconds)),
        "bytes_per_second_mean": statistics.fmean(statistics.fmean(some) for some in seconds),
        "bytes_per_second_median": statistics.fmean(medians),
        "variation": statistics.fmean(
            statistics.stdev(some) / statistics.fmean(some) for some in seconds
        ),
        "longest_stall_seconds": float(max(map(_longest_stall, seconds))),
        "part_below_half": sum(
            one < median / 2 for some, median in zip(seconds, medians, strict=True) for one in some
        )
        / sum(map(len, seconds)),
    }


def _longest_stall(seconds: Sequence[int]) -> int:
    return max(
        (len(list(some)) for zero, some in groupby(seconds, lambda n: n == 0) if zero), default=0
    )


def _cpu(keys: Row, group: Sequence[SimulatedRun]) -> Iterable[Row]:
    """Members of a group are all in one role, ``node``."""
    run = group[0]
    together: Counter[str] = Counter()
    for role, milli in run.milli_cores.items():
        together[role.partition("-")[0]] += milli
    for role, milli in together.items():
        yield {
            **keys,
            "role": role,
            "repeats": len(group),
            "cores_mean": milli / 1000,
            "cores_min": milli / 1000,
            "cores_max": milli / 1000,
        }


def _latency(keys: Row, group: Sequence[SimulatedRun]) -> Row:
    delays = [run.delays for run in group]
    count = sum(one.count for one in delays)
    total = sum(one.sums[0] for one in delays)
    squares = sum(one.sums[1] for one in delays)
    with localcontext() as context:
        context.prec = 60
        variance = (Decimal(squares) - Decimal(total) ** 2 / count) / max(1, count - 1)
        stddev = float(variance.sqrt() / 1000)
        mean = float(Decimal(total) / count / 1000)
    weighted = sum((run.one_in or 0.0) * run.delays.count for run in group)
    return {
        **keys,
        "stage": "delivery",
        "topic": group[0].topic,
        "repeats": len(group),
        "sampled_one_in": weighted / count,
        "count": count,
        "sum_ns": total,
        "mean_us": mean,
        "stddev_us": stddev if count > 1 else None,
        "min_us": min(one.least_us for one in delays),
        **{name: quantile_us(delays, *part) for name, part in QUANTILES.items()},
        "max_us": max(one.most_us for one in delays),
    }


def _scaling(measured: Sequence[tuple[Row, list[SimulatedRun]]]) -> Iterable[Row]:
    """Of the groups: what one node sends, against the smallest group."""
    groups = [(keys, group) for keys, group in measured if keys["pattern"] == "n-n"]
    apart = ("nodes", "senders")
    smallest: dict[str, tuple[int, float]] = {}
    for keys, group in groups:
        found = (keys["nodes"], _per_node(keys, group))
        smallest[_without(keys, *apart)] = min(found, smallest.get(_without(keys, *apart), found))
    for keys, group in groups:
        rate, (nodes, most) = _per_node(keys, group), smallest[_without(keys, *apart)]
        total = statistics.fmean(_rates(group))
        yield {
            **keys,
            "repeats": len(group),
            "smallest_nodes": nodes,
            "messages_per_second_node": rate,
            "messages_per_second_total": total,
            "bytes_per_second_node": rate * keys["size"],
            "bytes_per_second_total": total * keys["size"],
            "slowdown": most / rate if rate else math.inf,
        }


def _per_node(keys: Row, group: Sequence[SimulatedRun]) -> float:
    return statistics.fmean(
        statistics.fmean(run.in_window(sent) for sent in run.sent.values()) / run.seconds
        for run in group
    )


def _comparison(measured: Sequence[tuple[Row, list[SimulatedRun]]]) -> Iterable[Row]:
    """Of the groups: what the faster link gains, and what TCP does; repeat by repeat."""
    for question, key, over, this, apart in (
        ("link", "link", "fast", "gigabit", ("link",)),
        (
            "transport",
            "protocol",
            "jgroups-udp",
            "jgroups-tcp",
            ("series", "protocol", "variant", "stack"),
        ),
    ):
        sides = {
            (keys[key], _without(keys, *apart)): (keys, group)
            for keys, group in measured
            if keys["series"] == "group"
        }
        for (label, rest), (keys, group) in sides.items():
            # Links are compared for each protocol by itself, so the rest has the protocol in it.
            if label != this or (over, rest) not in sides:
                continue
            before = _rates(sides[over, rest][1])
            gains = [
                (after / base - 1) * 100 for after, base in zip(_rates(group), before, strict=True)
            ]
            yield {
                **keys,
                **dict.fromkeys(apart),
                "question": question,
                "over": over,
                "this": this,
                "pairs": len(gains),
                "gain_percent_min": min(gains),
                "gain_percent_mean": statistics.fmean(gains),
                "gain_percent_max": max(gains),
            }


def _queueing(keys: Row, group: Sequence[SimulatedRun]) -> Row:
    arrivals = statistics.fmean(_rates(group))
    service = NANOS / group[0].service_ns
    return {
        **keys,
        "topic": group[0].topic,
        "repeats": len(group),
        "arrival_rate": arrivals,
        "service_rate": service,
        "utilisation": arrivals / service,
        "queue_length": 2.0,
    }

"""Tables for people and one JSON document for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from antiphon.lab.bench.client_probe import CLIENTS, HEARTBEAT
from antiphon.lab.bench.machine import Machine
from antiphon.lab.bench.point import Options
from antiphon.lab.bench.prediction import SHARE, Prediction
from antiphon.lab.bench.probes import CONNECTIONS, Connections, Idle, Stalled
from antiphon.lab.bench.summary import Reach, Row
from antiphon.lab.bench.topic_probes import (
    ACTIVE,
    TOPICS,
    Dispatch,
    Echo,
    Registration,
    Scaling,
    Shares,
)
from antiphon.lab.bench.topics import PACED_RATE

__all__ = [
    "BROKERS_NOTE",
    "MESSAGES_NOTE",
    "REQUESTS_NOTE",
    "TOPICS_NOTE",
    "Probe",
    "brokers_table",
    "document",
    "print_header",
    "print_report",
    "requests_table",
    "results_table",
    "topics_table",
]

Probe = (
    Connections
    | Dispatch
    | Echo
    | Idle
    | Prediction
    | Registration
    | Scaling
    | Shares
    | Stalled
    | str
)

MESSAGES_NOTE = (
    "x pyzmq and of raw: medians, against the same size and pattern in this run. "
    "CPU/msg: all processes of the system. others: the share of the processor that went to "
    "other processes meanwhile, stolen time included."
)
REQUESTS_NOTE = (
    "Times in microseconds where they do not say ms: medians of the repeats, max the longest of "
    "all. spread: lowest and highest repeat. x pyzmq: requests/s against the first pyzmq of the "
    "same group. CPU/req: all processes of the system. others: the share of the processor that "
    "went to other processes meanwhile, stolen time included."
)

BROKERS_NOTE = (
    "Through a broker in a process of its own. Delays in microseconds where they do not say ms, "
    "from when a message was due to its handler: medians of the repeats, max the longest of all. "
    "sent late: p99 of how late the publisher itself was, which is part of the delay. lost: of all "
    "repeats. CPU/msg: publisher, broker and subscriber. others: the share of the processor that "
    "went to other processes meanwhile, stolen time included."
)

TOPICS_NOTE = (
    "Delays in microseconds where they do not say ms, from when a message was due to its handler: "
    "medians of the repeats, max the longest of all. sent late: p99 of how late the publisher "
    "itself was, which is part of the delay. lost: of all repeats. flood/s: messages of the topic "
    "beside it. CPU/msg: all processes of the system. others: the share of the processor that went "
    "to other processes meanwhile, stolen time included."
)


def print_header(
    console: Console, machine: Machine, versions: Mapping[str, str], command: str
) -> None:
    """Machine, versions and command: what a figure is worth nothing without."""
    console.print(f"machine   {machine.line()}", highlight=False)
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    console.print(f"versions  {names}", highlight=False)
    console.print(f"command   {command}", highlight=False)


def print_report(
    console: Console,
    rows: Sequence[Row],
    reach: Sequence[Reach],
    absent: Iterable[str],
    probes: Mapping[str, Probe],
    table: Callable[[Sequence[Row]], Table] | None = None,
    note: str = MESSAGES_NOTE,
    left_out: Sequence[str] = (),
) -> None:
    """The results, what went wrong, what was not measured, and the targets."""
    console.print((table or results_table)(rows))
    for row in rows:
        if row.outcome not in ("ok", "absent"):
            console.print(f"{row.point.name}: {row.outcome}, {row.reason}", highlight=False)
    for line in absent:
        console.print(f"absent: {line}", highlight=False)
    console.print(note, style="dim", highlight=False)
    if left_out:
        text = f"Not measured, so that it ends in time: {'; '.join(left_out)}."
        console.print(text, style="dim", highlight=False)
    console.print(reach_table(reach, probes))


def results_table(rows: Sequence[Row]) -> Table:
    """One line per point, a section per group."""
    table = Table(title="messages between processes on this machine", title_justify="left")
    table.add_column("system")
    table.add_column("variant")
    table.add_column("pattern")
    for name in ("size", "msgs/s", "MB/s", "spread", "x pyzmq", "of raw", "CPU/msg", "others"):
        table.add_column(name, justify="right", no_wrap=True)
    return _filled(table, rows, _cells)


def _filled(table: Table, rows: Sequence[Row], cells: Callable[[Row], list[str]]) -> Table:
    for index, row in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1].group != row.group
        table.add_row(*cells(row), end_section=last)
    return table


def requests_table(rows: Sequence[Row]) -> Table:
    """One line per point of requests, a section per group."""
    table = Table(title="round trips between processes on this machine", title_justify="left")
    for name in ("system", "variant", "callers"):
        table.add_column(name, no_wrap=True)
    for name in ("size", "req/s", "spread", "x pyzmq", "p50", "p50 spread"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("p90", "p99", "p99.9", "max", "CPU/req", "others"):
        table.add_column(name, justify="right", no_wrap=True)
    return _filled(table, rows, _request_cells)


def _request_cells(row: Row) -> list[str]:
    point = row.point
    head = [point.system, point.variant, _callers(row), _size(point.size)]
    latency = row.latency
    if row.median is None or latency is None:
        return [*head, row.outcome, *[""] * 10]
    p50 = row.latencies("p50")
    return [
        *head,
        f"{row.median:,.0f}{'' if row.outcome == 'ok' else ' *'}",
        f"{_short(row.low)}..{_short(row.high)}",
        _ratio(row.to_pyzmq),
        _micros(latency.p50),
        f"{_micros(min(p50))}..{_micros(max(p50))}",
        *(_micros(value) for value in (latency.p90, latency.p99, latency.p999, latency.maximum)),
        "" if row.cpu_per_message is None else _micros(row.cpu_per_message * 1e6),
        "" if row.others is None else f"{row.others:.0%}",
    ]


def brokers_table(rows: Sequence[Row]) -> Table:
    """One line per point of brokers, a section per group: as topics, but for what they lack."""
    table = topics_table(rows, "through a broker on this machine")
    table.columns = [one for one in table.columns if one.header not in ("x pyzmq", "flood/s")]
    return table


def topics_table(
    rows: Sequence[Row], title: str = "topics between processes on this machine"
) -> Table:
    """One line per point of topics, a section per group."""
    table = Table(title=title, title_justify="left")
    for name in ("system", "variant", "load"):
        table.add_column(name, no_wrap=True)
    for name in ("size", "msgs/s", "spread", "x pyzmq", "p50", "p99", "p99 spread", "p99.9"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("max", "sent late", "lost", "flood/s", "CPU/msg", "others"):
        table.add_column(name, justify="right", no_wrap=True)
    return _filled(table, rows, _topic_cells)


def _topic_cells(row: Row) -> list[str]:
    point = row.point
    load = {
        "one-way": "all it has",
        "paced": f"{row.figures.get('offered_per_second', PACED_RATE):,.0f}/s",
        "half": "half its most",
        "isolation": "beside a flood",
    }[point.pattern]
    head = [point.system, point.variant, load, _size(point.size)]
    if row.median is None:
        return [*head, row.outcome, *[""] * 12]
    delays = [""] * 6
    if (latency := row.latency) is not None:
        p99 = row.latencies("p99")
        delays = [
            _micros(latency.p50),
            _micros(latency.p99),
            f"{_micros(min(p99))}..{_micros(max(p99))}",
            _micros(latency.p999),
            _micros(latency.maximum),
            _micros(row.figures.get("sender_late_p99_us", 0.0)),
        ]
    # What a message costs cannot be told from what the flood beside it costs.
    cpu = None if point.pattern == "isolation" else row.cpu_per_message
    return [
        *head,
        f"{row.median:,.0f}{'' if row.outcome == 'ok' else ' *'}",
        f"{_short(row.low)}..{_short(row.high)}",
        _ratio(row.to_pyzmq) if point.pattern == "one-way" else "",
        *delays,
        f"{sum(item.sent - item.received for item in row.measurements):,}",
        _short(row.figures.get("flood_per_second")),
        "" if cpu is None else _micros(cpu * 1e6),
        "" if row.others is None else f"{row.others:.0%}",
    ]


def _callers(row: Row) -> str:
    point = row.point
    if point.pattern == "n-n":
        return f"{point.processes} processes"
    count, noun = (point.tasks, "task") if point.tasks else (point.threads, "thread")
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _micros(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}ms"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _cells(row: Row) -> list[str]:
    point = row.point
    head = [point.system, point.variant, _pattern(row), _size(point.size)]
    if row.median is None:
        return [*head, row.outcome, *[""] * 6]
    mark = "" if row.outcome == "ok" else " *"
    return [
        *head,
        f"{row.median:,.0f}{mark}",
        f"{row.megabytes:,.0f}",
        f"{_short(row.low)}..{_short(row.high)}",
        _ratio(row.to_pyzmq),
        _ratio(row.to_raw),
        "" if row.cpu_per_message is None else f"{row.cpu_per_message * 1e9:,.0f} ns",
        "" if row.others is None else f"{row.others:.0%}",
    ]


def reach_table(reach: Sequence[Reach], probes: Mapping[str, Probe]) -> Table:
    """What the project aims at, beside what this run gave."""
    table = Table(title="reach", title_justify="left")
    table.add_column("measure")
    table.add_column("target", no_wrap=True)
    table.add_column("measured", justify="right")
    table.add_column("note")
    for item in reach:
        table.add_row(item.measure, item.target, _ratio(item.measured) or "-", item.note)
    for name, probe in probes.items():
        table.add_row(*_probe_cells(name, probe))
    return table


def _probe_cells(name: str, probe: Probe) -> list[str]:
    goals = {
        "idle": "under 0.2 % of a core, under 40 MB",
        "connections": "under 20 KB each, under 1 % of a core",
        "clients": "under 20 KB each, under 3 % of a core",
        "stalled": "flat, bounded by the buffers",
        "shares": "at most 0.03 of the period",
        "prediction": "0.85 to 1.15, none above",
        "registration": "under 20 us each",
        "echo": "as by the shared clock",
        "scaling": "near the number of cores",
        "dispatch": f"at least 0.9 x {ACTIVE} topics alone",
    }
    titles = {
        "idle": "idle node, above the interpreter",
        "connections": f"{CONNECTIONS:,} idle connections, above the node alone",
        "clients": f"{CLIENTS:,} idle clients of a broker, heartbeat {HEARTBEAT:g} s",
        "stalled": "memory of a sender whose receiver has stopped",
        "shares": "processor time of busy handlers, off their shares",
        "echo": "delay at 10,000/s by echoes of a random sample: half the way, p50 and p99",
        "scaling": "as many topics as cores, batches without the GIL, to one topic",
        "prediction": f"predicted mean response to measured, share {SHARE:g}, furthest off",
        "registration": f"subscribing to {TOPICS:,} topics",
        "dispatch": f"{ACTIVE} active topics of {TOPICS:,}, msgs/s",
    }
    head = [titles[name], goals[name]]
    if isinstance(probe, Idle):
        resident = probe.resident_bytes / 1e6
        return [*head, f"{probe.core_share:.2%}, {resident:.1f} MB", f"over {probe.seconds:.0f} s"]
    if isinstance(probe, Connections):
        measured = f"{probe.bytes_each / 1e3:.1f} KB each, {probe.core_share:.2%}"
        alive = f"{probe.alive:,} of {probe.connections:,} alive"
        return [*head, measured, f"over {probe.seconds:.0f} s, {alive}"]
    if isinstance(probe, Stalled):
        growth = f"{probe.growth_bytes / 1e6:+.1f} MB in {probe.seconds:.0f} s"
        return [*head, growth, f"{probe.filled_bytes / 1e6:+.1f} MB until it waited"]
    if isinstance(probe, Shares):
        by_number = ", ".join(f"{n}: {value:.3f}" for n, value in probe.deviations.items())
        return [*head, f"{probe.largest:.3f}", f"by number of handlers {by_number}"]
    if isinstance(probe, Prediction):
        worst = probe.worst
        where = f"{worst.service}, load {worst.utilisation:.2f}"
        note = f"{where}; of {len(probe.points)} loads {probe.above_bound} above the bound"
        return [*head, _ratio(worst.ratio), f"{note}; {probe.arrivals:,} arrivals"]
    if isinstance(probe, Registration):
        each = f"{probe.subscribe_us:.1f} us each"
        return [*head, each, f"a publisher {probe.publisher_us:.1f} us"]
    if isinstance(probe, Echo):
        half, whole = probe.half_trip, probe.one_way
        clock = f"{probe.echoes:,} echoes; by the clock {whole.p50:.0f} and {whole.p99:.0f} us"
        return [*head, f"{half.p50:.0f} and {half.p99:.0f} us", clock]
    if isinstance(probe, Scaling):
        gil = f"{probe.topics} topics; {probe.event:.2f} where every event is a call in Python"
        return [*head, _ratio(probe.batch), gil]
    if isinstance(probe, Dispatch):
        rates = f"{_short(probe.among_all)} against {_short(probe.alone)} msgs/s"
        return [*head, _ratio(probe.ratio), rates]
    return [*head, "-", probe]


def document(
    machine: Machine,
    versions: Mapping[str, str],
    command: str,
    options: Options,
    rows: Sequence[Row],
    reach: Sequence[Reach],
    absent: Iterable[str],
    probes: Mapping[str, Probe],
    benchmark: str = "node",
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything, every repeat included, as plain values."""
    return {
        "schema_version": 1,
        "benchmark": benchmark,
        "command": command,
        "machine": machine.facts(),
        "versions": dict(versions),
        "options": asdict(options),
        "absent": list(absent),
        "left_out": list(left_out),
        "points": [row.facts() for row in rows],
        "reach": [item.facts() for item in reach],
        "probes": {
            name: {"error": probe} if isinstance(probe, str) else probe.facts()
            for name, probe in probes.items()
        },
    }


def _pattern(row: Row) -> str:
    point = row.point
    if point.pattern == "n-n":
        return f"n-n, {point.processes} processes"
    return f"{point.pattern}, {point.threads} threads" if point.threads > 1 else point.pattern


def _size(size: int) -> str:
    return f"{size // 1024} KiB" if size >= 1024 and size % 1024 == 0 else f"{size} B"


def _short(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e3:.0f}k" if value >= 10e3 else f"{value / 1e3:.1f}k"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"

"""Campaigns of any size that nobody had to measure, whose true answers are known.

`simulate` writes a directory as the lab does: by the lab's own plan, campaign and folders, and in
its schemas, so that the two cannot drift apart. ``answers.json`` beside the runs says what the
tables of the pipeline must contain. Rows are made and written in pieces: memory does not grow with
the campaign.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from antiphon._version import __version__
from antiphon.errors import ConfigError
from antiphon.lab.campaign import Campaign
from antiphon.lab.plan import load_plan
from antiphon.lab.protocols import PROTOCOLS
from antiphon.lab.record import SCHEMAS, RunFolder, write_json
from antiphon.pipeline.answers import answers
from antiphon.pipeline.known import (
    ERROR_NS,
    FIRST_KEPT,
    NANOS,
    SimulatedRun,
    key_facts,
    simulated_runs,
)

__all__ = ["ANSWERS", "simulate"]

ANSWERS = "answers.json"
PROTOCOLS_USED = ("antiphon-topic", "tcp-python", "pyzmq", "redis", "udp-python")
GROUPS = ("jgroups-udp", "jgroups-tcp")
ROWS_PER_SECOND = 10_000  # as many as the lab keeps
LEAST_SECONDS = 20
BATCH = 1 << 20
HOST = "local"

_PLAN = """\
name = "simulated"
title = "Made up, with known answers"
source = "antiphon pipeline simulate, {rows} rows"
repeats = {repeats}
seed = {seed}

[times]
load = 0
traffic = {traffic}
kept_from = {kept_from}
kept_until = {kept_until}

[workloads.cpu-60]
cpu = 0.60

[workloads.garbage.garbage]
live_objects = 100_000
replaced_per_second = 10_000
java_live_bytes = "64MiB"

[links.fast]
kind = "bridge"
rate_bits = "100Mbit"

[links.gigabit]
kind = "bridge"
rate_bits = "1Gbit"

[[series]]
name = "throughput"
pattern = "one-way"
protocols = {protocols}
sizes = [2000]
workloads = ["none", "garbage", "cpu-60"]

[[series]]
name = "delay"
pattern = "one-way"
protocols = {protocols}
sizes = [500]
rates = [{rate}]
workloads = ["none", "garbage", "cpu-60"]
"""

_GROUP_SERIES = """
[[series]]
name = "group"
pattern = "n-n"
protocols = {groups}
sizes = [1000]
nodes = [2, 4]
links = ["fast", "gigabit"]
"""


def simulate(
    out: Path,
    rows: int = 1_000_000,
    *,
    seed: int = 1,
    protocols: Sequence[str] = PROTOCOLS_USED,
    groups: bool = True,
    repeats: int = 3,
    slower: Mapping[str, float] | None = None,
    machine: str = "simulated",
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Path:
    """Write a campaign with ``rows`` rows of latency in all, and its answers; returns ``out``.

    The same arguments give the same campaign. ``protocols`` run alone, with garbage and beside
    load, as fast as they can and by a timetable; with ``groups`` there are also groups of two and
    four on two links. ``slower={"pyzmq": 0.8}`` leaves a protocol that part of its throughput, and
    makes its delays as much longer; ``machine`` is what it pretends to have run on. ``progress``
    is told how many rows are written. The directory must be new or empty.
    """
    _check(rows, protocols, repeats, slower or {})
    runs_in_all = repeats * (len(protocols) * 6 + (8 if groups else 0))
    if rows < 2 * runs_in_all:
        raise ConfigError(
            f"{rows} rows are too few for {runs_in_all} runs; give at least {2 * runs_in_all}",
            setting="rows",
            value=rows,
        )
    each = -(-rows // runs_in_all)
    seconds = max(LEAST_SECONDS, -(-each // ROWS_PER_SECOND))
    campaign = _create(out, rows, seed, protocols, groups, repeats, seconds, each)
    facts = _named(campaign, rows, seed, slower or {}, machine)
    variants = {name: (one.variants or (None,))[0] for name, one in PROTOCOLS.items()}
    runs = simulated_runs(campaign.plan, campaign.runs(), rows, variants, slower or {})
    done = 0
    for one in runs:
        _write(out, facts["campaign"], one)
        done += one.rows
        progress(done, rows)
    write_json(out / ANSWERS, answers(facts["campaign"], runs))
    return out


def _check(rows: int, protocols: Sequence[str], repeats: int, slower: Mapping[str, float]) -> None:
    if repeats < 1:
        raise ConfigError("at least one repeat", setting="repeats", value=repeats)
    unknown = [name for name in [*protocols, *slower] if name not in PROTOCOLS]
    if unknown or not protocols:
        raise ConfigError(
            f"no such protocol: {', '.join(unknown) or 'none given'}; there are "
            + ", ".join(PROTOCOLS),
            setting="protocols",
            value=",".join(unknown),
        )
    for name, part in slower.items():
        if not 0.01 <= part <= 100:
            raise ConfigError(
                f"slower: {name} keeps {part:g} of its throughput; give 0.01 to 100",
                setting="slower",
                value=part,
            )


def _create(
    out: Path,
    rows: int,
    seed: int,
    protocols: Sequence[str],
    groups: bool,
    repeats: int,
    seconds: int,
    each: int,
) -> Campaign:
    text = _PLAN.format(
        rows=rows,
        repeats=repeats,
        seed=seed,
        traffic=FIRST_KEPT - 1,
        kept_from=FIRST_KEPT,
        kept_until=FIRST_KEPT + seconds,
        protocols=json.dumps(list(protocols)),
        rate=max(1, each // seconds),
    )
    if groups:
        text += _GROUP_SERIES.format(groups=json.dumps(GROUPS))
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        path = Path(folder) / "simulated.toml"
        path.write_text(text, encoding="utf-8")
        return Campaign.create(load_plan(path), out)


def _named(
    campaign: Campaign, rows: int, seed: int, slower: Mapping[str, float], machine: str
) -> dict[str, Any]:
    """The campaign's own facts, with an id that is the same whenever it is made."""
    facts: dict[str, Any] = json.loads((campaign.directory / "campaign.json").read_text())
    changed = "".join(f"-{name}-{part:g}" for name, part in sorted(slower.items()))
    facts |= {"campaign": f"simulated-{rows}-{seed}{changed}", "simulated": True}
    here: dict[str, Any] = json.loads((campaign.directory / "machine.json").read_text())
    # Nothing is measured, so it does not matter what else this machine does.
    here |= {"host": machine, "cpu": machine, "other_load": None}
    write_json(campaign.directory / "machine.json", here)
    write_json(campaign.directory / "campaign.json", facts)
    return facts


def _write(directory: Path, campaign: str, one: SimulatedRun) -> None:
    folder = RunFolder(directory, one.id)
    try:
        _add_events(folder, one)
        _add_samples(folder, one)
        _add_topics(folder, one)
        for begin in range(0, one.rows, BATCH):
            folder.add_table("latency", _latency(one, begin, min(one.rows, begin + BATCH)))
        folder.finish(_facts(campaign, one))
    except BaseException:
        folder.discard()
        raise


def _facts(campaign: str, one: SimulatedRun) -> dict[str, Any]:
    begin, end = one.window_ns
    rate = one.messages / one.seconds
    loaded = one.run.workload == "cpu-60"
    return {
        "campaign": campaign,
        **key_facts(one),
        "kept_from_ns": begin,
        "kept_until_ns": end,
        "hosts": [
            {
                "name": HOST,
                "clock_offset_ns": 0,
                "clock_error_ns": 0,
                "roles": list(range(len(one.roles))),
            }
        ],
        "limits": {},
        "versions": {"adapter": __version__, one.run.protocol: "simulated"},
        "load": {"cpu_share": 0.6, "cpu_share_measured": 0.6} if loaded else {"cpu_share": None},
        "latency_one_in": one.one_in,
        "latency_left_out": 0,
        "messages_per_second": rate,
        "bytes_per_second": rate * one.run.size,
        "lab_core_share": 0.0,
        "outcome": one.outcome,
        "reason": one.reason,
    }


def _add_events(folder: RunFolder, one: SimulatedRun) -> None:
    end = one.window_ns[1]
    for event, when, text in (
        ("start", one.start_ns, ""),
        ("traffic", one.start_ns + (FIRST_KEPT - 1) * NANOS, ""),
        ("stop", end, one.outcome),
    ):
        folder.add("events", time_ns=when, host=HOST, role="", event=event, text=text)


def _add_samples(folder: RunFolder, one: SimulatedRun) -> None:
    """At every full second, what has happened before it."""
    sent, received = dict.fromkeys(one.roles, 0), dict.fromkeys(one.roles, 0)
    collects = one.run.workload == "garbage"
    for second in range(FIRST_KEPT + one.seconds + 1):
        common = {
            "time_ns": one.start_ns + second * NANOS,
            "second": second,
            "kept": second >= FIRST_KEPT,
            "host": HOST,
        }
        for number, role in enumerate(one.roles):
            folder.add(
                "samples",
                **common,
                process=1000 + number,
                role=role,
                cpu_seconds=second * one.milli_cores[role] / 1000,
                resident_bytes=(64 << 20) + (number << 20),
                threads=2 + number,
                voluntary_switches=100 * second,
                involuntary_switches=10 * second,
                network_sent_bytes=one.wire_bytes(sent[role]) if one.wire else None,
                network_sent_packets=sent[role] if one.wire else None,
                gc_collections=3 * second if collects else 0,
                gc_pause_ns=3_000_000 * second if collects else 0,
                sent_messages=sent[role],
                sent_bytes=sent[role] * one.run.size,
                received_messages=received[role],
                received_bytes=received[role] * one.run.size,
            )
            sent[role] += one.sent[role][second]
            received[role] += one.received[role][second]
        used = second * one.milli_cores["machine"] / 1000
        folder.add("samples", **common, role="machine", cpu_seconds=used, resident_bytes=4 << 30)


def _add_topics(folder: RunFolder, one: SimulatedRun) -> None:
    """One turn for each event, which finds two others waiting; no turn is too long."""
    if one.topic is None:
        return
    known = set(SCHEMAS["topics"].names)
    arrivals = 0
    for second in range(FIRST_KEPT + one.seconds + 1):
        service, response = one.service_ns / NANOS, one.response_ns / NANOS
        row = {
            "time_ns": one.start_ns + second * NANOS,
            "second": second,
            "topic": one.topic,
            "arrivals": arrivals,
            "service_seconds": arrivals * service,
            "queue_length": 2,
            "conformant": True,
            "handled": arrivals,
            "service_squares": arrivals * service * service,
            "slices": arrivals,
            "busy_slices": arrivals,
            "full_slices": 0,
            "resumed_slices": 0,
            "resumed_seconds": 0.0,
            "resumed_squares": 0.0,
            "waited_seconds": 0.0,
            "waited_squares": 0.0,
            "queue_seen": 2 * arrivals,
            "overruns": 0,
            "dropped": 0,
            "responses": arrivals,
            "response_seconds": arrivals * response,
            "response_classes": [(one.response_ns, arrivals)],
            "capacity": 10_000,
            "share": None,
            "period": 0.010,
        }
        folder.add("topics", **{name: value for name, value in row.items() if name in known})
        arrivals += one.received["reader"][second]


def _latency(one: SimulatedRun, begin: int, end: int) -> pa.Table:
    """Rows from ``begin`` to before ``end``: due evenly over the window, sent up to 1 us late."""
    rows = end - begin
    number = np.arange(begin, end, dtype=np.int64)
    start = one.window_ns[0]
    # In whole nanoseconds. The product of a row's number and the window would be too large.
    step, rest = divmod(one.seconds * NANOS, one.rows)
    intended = start + number * step + number * rest // one.rows
    delay = np.full(rows, -ERROR_NS, dtype=np.int64)
    right = max(0, min(end, one.delays.count) - begin)
    delay[:right] = one.delays.drawn(begin, begin + right)
    members = one.run.nodes if one.run.pattern != "one-way" else 0
    if members:
        source = (number % members).astype(np.int32)
        target = ((source + 1) % members).astype(np.int32)
    else:
        source, target = np.full(rows, 1, np.int32), np.zeros(rows, np.int32)
    columns = {
        "sequence": number,
        "source": source,
        "target": target,
        "topic": _repeated(one.topic, rows),
        "stage": _repeated("delivery", rows),
        "intended_ns": intended,
        "sent_ns": intended + number * 7 % 5 * 200,
        "received_ns": intended + delay,
        "weight": np.ones(rows),
    }
    schema = SCHEMAS["latency"]
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _repeated(text: str | None, rows: int) -> pa.Array:
    return pa.nulls(rows, pa.string()) if text is None else pa.repeat(pa.scalar(text), rows)

"""Campaigns on the disk, as the lab writes them, with what a test is about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.lab.record import SCHEMAS, RunFolder, write_json

SECOND = 1_000_000_000
PLAN = """\
name = "small"
title = "Small"
repeats = {repeats}
seed = 1
[times]
traffic = 0
kept_from = 1
kept_until = 5
[[series]]
name = "throughput"
pattern = "one-way"
protocols = ["tcp-python"]
sizes = [100]
workloads = ["none"]
"""
LATER = """\
[[series]]
name = "group"
later = ["antiphon-group"]
pattern = "n-n"
protocols = ["antiphon-group"]
sizes = [100]
nodes = [2, 4]
workloads = ["none"]
"""
RUN = "throughput.tcp-python.none.loopback.100B.r{}"
MACHINE = {
    "schema_version": 1,
    "cpu": "a processor",
    "cores": 2,
    "memory_gb": 8.0,
    "kernel": "Linux",
    "host": "here",
    "python": "3.11",
    "antiphon": "0.1.0",
}
FACTS: dict[str, Any] = {
    "plan": "small",
    "series": "throughput",
    "protocol": "tcp-python",
    "pattern": "one-way",
    "workload": "none",
    "link": "loopback",
    "size": 100,
    "nodes": 2,
    "senders": 1,
    "threads": 1,
    "streams": 1,
    "scheduling": "other",
    "repeat": 1,
    "seed": 1,
    "kept_from_ns": 1 * SECOND,
    "kept_until_ns": 5 * SECOND,
    "hosts": [{"name": "here", "clock_offset_ns": 0, "clock_error_ns": 7, "roles": [0, 1]}],
    "limits": {"memory_bytes": 1 << 30, "by": "cgroup"},
    "versions": {"adapter": "0.1.0", "tcp-python": "3.11"},
    "load": {"cpu_share": 0.6, "cpu_share_measured": 0.59},
    "latency_one_in": 1.0,
    "latency_left_out": 0,
    "messages_per_second": 10.0,
    "bytes_per_second": 1000.0,
    "lab_core_share": 0.01,
    "outcome": "complete",
    "reason": "",
}
Rows = Sequence[Mapping[str, Any]]


def make_campaign(directory: Path, name: str = "small-1", repeats: int = 2) -> Path:
    """A campaign without runs; its plan comes to ``repeats`` of them."""
    directory.mkdir(parents=True)
    (directory / "plan.toml").write_text(PLAN.format(repeats=repeats))
    write_json(directory / "machine.json", MACHINE)
    facts = {"schema_version": 1, "campaign": name, "plan": "small", "quick": False}
    write_json(directory / "campaign.json", {**facts, "protocols": None})
    return directory


def make_run(
    directory: Path,
    repeat: int = 1,
    *,
    samples: Rows | None = None,
    latency: Rows | None = None,
    topics: Rows = (),
    **facts: Any,
) -> Path:
    """A run of it, with five seconds of samples and ten messages unless others are given."""
    campaign = json.loads((directory / "campaign.json").read_text())["campaign"]
    name = facts.pop("run", RUN.format(repeat))
    folder = RunFolder(directory, name)
    for row in usual_samples() if samples is None else samples:
        folder.add("samples", **row)
    for row in usual_latency() if latency is None else latency:
        folder.add("latency", **row)
    for row in topics:
        folder.add("topics", **row)
    folder.add("events", time_ns=0, event="start", text="")
    folder.finish({"campaign": campaign, "run": name, **FACTS, "repeat": repeat, **facts})
    return directory / name


def sample(second: int, role: str = "reader", **values: Any) -> dict[str, Any]:
    """A row at the full second; totals grow by ten messages of 100 bytes each second."""
    return {
        "time_ns": second * SECOND,
        "second": second,
        "kept": 1 <= second <= 5,
        "host": "here",
        "process": {"reader": 10, "writer": 11}.get(role),
        "role": role,
        "cpu_seconds": second * 0.5,
        "resident_bytes": 1000 + second,
        "threads": 3,
        "received_messages": second * 10 if role == "reader" else 0,
        "received_bytes": second * 1000 if role == "reader" else 0,
        "sent_messages": second * 10 if role == "writer" else 0,
        "sent_bytes": second * 1000 if role == "writer" else 0,
        **values,
    }


def usual_samples() -> list[dict[str, Any]]:
    return [sample(second, role) for second in range(6) for role in ("reader", "writer", "machine")]


def message(number: int, due: int, delay: int, **values: Any) -> dict[str, Any]:
    return {
        "sequence": number,
        "source": 1,
        "target": 0,
        "stage": "delivery",
        "intended_ns": due,
        "sent_ns": due,
        "received_ns": due + delay,
        "weight": 1.0,
        **values,
    }


def usual_latency() -> list[dict[str, Any]]:
    """One every half second from the start: eight are due in the window of four seconds."""
    return [message(at, at * SECOND // 2, 1000 * (at + 1)) for at in range(11)]


def columns(kind: str) -> list[str]:
    return list(SCHEMAS[kind].names)

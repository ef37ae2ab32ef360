"""Who takes part in a run, and what each of them says.

Receives a run from `antiphon.lab.conduct`, which starts a process for every role and asks it once a
second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psutil

from antiphon.lab.bench.processes import Child
from antiphon.lab.places import Place
from antiphon.lab.plan import Run

__all__ = ["Party", "counts_of", "roles"]


@dataclass(slots=True)
class Party:
    """A process of a run, with its part in it."""

    role: str
    child: Child
    process: psutil.Process
    place: Place
    writes: bool = False
    reads: bool = False
    last: dict[str, Any] = field(default_factory=dict)


def roles(run: Run) -> list[tuple[str, bool, list[int]]]:
    """For every process of a run: its role, whether it reads, and to whom it writes."""
    if run.pattern != "one-way":
        count = run.nodes
        others = [[other for other in range(count) if other != own] for own in range(count)]
        return [
            (f"node-{own}", True, others[own] if own < run.senders else []) for own in range(count)
        ]
    names = ["writer"]
    if run.senders > 1:
        names = [f"writer-{number}" for number in range(run.senders)]
    return [("reader", True, []), *((name, False, [0]) for name in names)]


def counts_of(answer: dict[str, Any]) -> dict[str, Any]:
    """What a process has said of itself, as columns of the samples."""
    if not answer:
        return {}
    return {
        "gc_collections": answer.get("gc_collections"),
        "gc_pause_ns": answer.get("gc_pause_ns"),
        "sent_messages": answer["sent"],
        "sent_bytes": answer["sent_bytes"],
        "received_messages": answer["received"],
        "received_bytes": answer["received_bytes"],
        **answer.get("depths", {}),
    }

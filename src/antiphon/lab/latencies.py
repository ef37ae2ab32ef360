"""Columns of ``latency.parquet``, from what a process says when it is asked for its times.

They are columns from the first to the last: ten thousand rows a second, each a dictionary on its
way, would take a tenth of a core from what is measured.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from antiphon.lab.record import SCHEMAS
from antiphon.lab.stamps import COLUMNS, unpacked

__all__ = ["latency_table"]


def latency_table(
    answer: Mapping[str, Any], own: int, window: tuple[int, int], offsets: Mapping[int, int]
) -> pa.Table:
    """What was due in the window.

    ``own`` is the index of the process: the target of what it received, or whoever asked.
    ``offsets`` are what to take from the clock of each index to have that of the window.
    """
    stage, topics = answer.get("stage", "delivery"), answer.get("topics", {})
    times = unpacked(answer["times"])
    sequence, other, intended, sent, received = (times[at::COLUMNS] for at in range(COLUMNS))
    count = len(sequence)
    owns = pa.repeat(pa.scalar(own, pa.int32()), count)
    others = pa.array(other, pa.int32())
    source, target = (owns, others) if stage == "round-trip" else (others, owns)
    due = intended
    if any(offsets.values()):
        whose = zip(intended, source.to_pylist(), strict=True)
        due = array("q", (at - offsets[one] for at, one in whose))
    columns = {
        "sequence": pa.array(sequence, pa.int64()),
        "source": source,
        "target": target,
        "topic": pa.array([topics.get(str(one)) for one in other], pa.string())
        if topics
        else pa.nulls(count, pa.string()),
        "stage": pa.repeat(stage, count),
        "intended_ns": pa.array(intended, pa.int64()),
        "sent_ns": pa.array(sent, pa.int64()),
        "received_ns": pa.array(received, pa.int64()),
        "weight": pa.repeat(1.0, count),
    }
    begin, end = window
    clocked = pa.array(due, pa.int64())
    kept = pc.and_(pc.greater_equal(clocked, begin), pc.less(clocked, end))
    return pa.table(columns, schema=SCHEMAS["latency"]).filter(kept)

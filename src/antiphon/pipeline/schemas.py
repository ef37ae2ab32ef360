"""Every column that the pipeline reads, passes on or writes: names and types, in one place.

Types are those of Spark's DDL, so this module needs no Spark: the report and `show` read the same
tables with PyArrow. Times are nanoseconds where a name ends in ``_ns``, microseconds in ``_us``,
else seconds. Receives nothing; every stage is checked against it.
"""

from __future__ import annotations

__all__ = [
    "CLEAN",
    "FACTS",
    "FILES",
    "KEYS",
    "LATER",
    "READABLE",
    "RUNS",
    "SINCE",
    "TABLES",
    "columns",
    "ddl",
]

Columns = dict[str, str]

KEYS: Columns = {
    "campaign": "string",
    "plan": "string",
    "series": "string",
    "protocol": "string",
    "variant": "string",
    "stack": "string",
    "pattern": "string",
    "workload": "string",
    "link": "string",
    "placement": "string",
    "size": "bigint",
    "nodes": "int",
    "senders": "int",
    "threads": "int",
    "streams": "int",
    "rate": "double",
    "scheduling": "string",
    "messages": "bigint",
    "paced": "int",
}
"""What sets two measurements apart. Repeats have them in common; unused ones are null."""

FACTS: Columns = {
    **KEYS,
    "run": "string",
    "repeat": "int",
    "seed": "bigint",
    "schema_version": "int",
    "outcome": "string",
    "reason": "string",
    "kept_from_ns": "bigint",
    "kept_until_ns": "bigint",
    "messages_per_second": "double",
    "bytes_per_second": "double",
    "latency_one_in": "double",
    "latency_left_out": "bigint",
    # From schema version 3 on; null before.
    "latency_skipped": "bigint",
    # Of each message, and whether it may get lost; null where the lab did not say yet.
    "receivers": "int",
    "lossy": "boolean",
    # Of groups whose members acknowledge; null elsewhere.
    "slowest_sender_ns": "bigint",
    "cpu_share": "double",
    "cpu_share_measured": "double",
    # The same: what each process's load on its collector was to replace, and replaced.
    "garbage_per_second": "double",
    "garbage_per_second_measured": "double",
    "lab_core_share": "double",
    "memory_limit_bytes": "bigint",
    "adapter_version": "string",
    "peer_version": "string",
    "clock_error_ns": "bigint",
    "host": "string",
    "cpu": "string",
    "cores": "int",
    "memory_gb": "double",
    "kernel": "string",
    "python": "string",
    "antiphon": "string",
    # Null where the lab did not look.
    "other_load": "double",
}
"""A row per run: ``run.json`` with what ``machine.json`` says of where it ran. ``clock_error_ns``
is the largest bound among its hosts, ``other_load`` that of the busiest of its machines."""

FILES: dict[str, Columns] = {
    "samples": {
        "time_ns": "bigint",
        "second": "int",
        "kept": "boolean",
        "host": "string",
        "process": "int",
        "role": "string",
        "cpu_seconds": "double",
        "resident_bytes": "bigint",
        "threads": "int",
        "voluntary_switches": "bigint",
        "involuntary_switches": "bigint",
        "network_sent_bytes": "bigint",
        "network_received_bytes": "bigint",
        "network_sent_packets": "bigint",
        "network_received_packets": "bigint",
        "disk_read_bytes": "bigint",
        "disk_written_bytes": "bigint",
        "gc_collections": "bigint",
        "gc_pause_ns": "bigint",
        "sent_messages": "bigint",
        "sent_bytes": "bigint",
        "received_messages": "bigint",
        "received_bytes": "bigint",
        "ring_bytes": "bigint",
        "ring_waits": "bigint",
        "credit_waits": "bigint",
        "queued_messages": "bigint",
        "buffer_bytes": "bigint",
    },
    "latency": {
        "sequence": "bigint",
        "source": "int",
        "target": "int",
        "topic": "string",
        "stage": "string",
        "intended_ns": "bigint",
        "sent_ns": "bigint",
        "received_ns": "bigint",
        "weight": "double",
    },
    "topics": {
        "time_ns": "bigint",
        "second": "int",
        "topic": "string",
        "arrivals": "bigint",
        "service_seconds": "double",
        "queue_length": "bigint",
        "conformant": "boolean",
        # From schema version 2 on; null before. Sums so far, as the core has them.
        "handled": "bigint",
        "service_squares": "double",
        "slices": "bigint",
        "busy_slices": "bigint",
        "full_slices": "bigint",
        "resumed_slices": "bigint",
        "resumed_seconds": "double",
        "resumed_squares": "double",
        "waited_seconds": "double",
        "waited_squares": "double",
        "queue_seen": "bigint",
        "overruns": "bigint",
        "dropped": "bigint",
        "responses": "bigint",
        "response_seconds": "double",
        "response_classes": "map<bigint,bigint>",
        # As they are now.
        "capacity": "bigint",
        "share": "double",
        "period": "double",
    },
    "events": {
        "time_ns": "bigint",
        "host": "string",
        "role": "string",
        "event": "string",
        "text": "string",
    },
}
"""A campaign's files, as the newest lab writes them. As a DataFrame each has ``file`` besides, a
number by which a row finds its run."""

READABLE = (1, 2, 3)
"""Values of ``schema_version`` that are read."""

_FIRST_TOPICS = (
    "time_ns",
    "second",
    "topic",
    "arrivals",
    "service_seconds",
    "queue_length",
    "conformant",
)

SINCE: dict[str, dict[str, int]] = {
    "topics": {name: 2 for name in FILES["topics"] if name not in _FIRST_TOPICS}
}
"""Columns that came with a later schema version; before, they are null."""

RUNS: Columns = {
    **FACTS,
    "clock_offsets_ns": "array<bigint>",
    **{f"{kind}_file": "bigint" for kind in FILES},
}
"""What the stage ``read`` hands on of every run: beside the facts, what to take from the times of
role 0, 1 and so on (null where all have one clock), and the numbers of its files (null where there
is none)."""

CLEAN: dict[str, Columns] = {
    # All samples of all runs, as differences: what happened between this row and the one before of
    # the same process. `kept`: both rows lie in the window and the run is complete.
    "samples": {
        "campaign": "string",
        "run": "string",
        "second": "int",
        "time_ns": "bigint",
        "elapsed_ns": "bigint",
        "kept": "boolean",
        "host": "string",
        "process": "int",
        "role": "string",
        "cpu_seconds": "double",
        "resident_bytes": "bigint",
        "threads": "int",
        "voluntary_switches": "bigint",
        "involuntary_switches": "bigint",
        "network_sent_bytes": "bigint",
        "network_received_bytes": "bigint",
        "network_sent_packets": "bigint",
        "network_received_packets": "bigint",
        "disk_read_bytes": "bigint",
        "disk_written_bytes": "bigint",
        "gc_collections": "bigint",
        "gc_pause_ns": "bigint",
        "sent_messages": "bigint",
        "sent_bytes": "bigint",
        "received_messages": "bigint",
        "received_bytes": "bigint",
        "ring_bytes": "bigint",
        "ring_waits": "bigint",
        "credit_waits": "bigint",
        "queued_messages": "bigint",
        "buffer_bytes": "bigint",
    },
    # Messages of complete runs that were due in the window, on the clock of the machine that ran
    # the campaign; negative delays are still there (`latency_ns` < 0), to be counted.
    "latency": {
        "campaign": "string",
        "run": "string",
        "source": "int",
        "target": "int",
        "topic": "string",
        "stage": "string",
        "sequence": "bigint",
        "intended_ns": "bigint",
        "sent_ns": "bigint",
        "received_ns": "bigint",
        "latency_ns": "bigint",
        "weight": "double",
    },
    # As recorded, of complete runs, rows within the window; sums stay sums.
    "topics": {"campaign": "string", "run": "string", **FILES["topics"]},
}
"""What the stage ``clean`` hands on, beside the runs (`FACTS`)."""

LATER = "missing until a later version"
"""How the reason of a run begins that the plan names and this version cannot make."""

_SPREAD = ("mean", "min", "max", "stddev")


def _spread(name: str) -> Columns:
    """The usual four of a figure over repeats; the standard deviation of one repeat is null."""
    return {f"{name}_{what}": "double" for what in _SPREAD}


TABLES: dict[str, Columns] = {
    "runs": {
        **FACTS,
        "window_seconds": "double",
        "sent_messages": "bigint",
        "received_messages": "bigint",
        "lost_messages": "bigint",
        "latency_rows": "bigint",
        "clock_errors": "bigint",
        # Of each repeat, so that two campaigns can be told apart by more than one number.
        "latency_p50_us": "bigint",
        "latency_p99_us": "bigint",
    },
    "outcomes": {
        **KEYS,
        "outcome": "string",
        "runs": "bigint",
        "of": "bigint",
        "part": "double",
        "reasons": "array<string>",
    },
    "throughput": {
        **KEYS,
        "repeats": "bigint",
        **_spread("messages_per_second"),
        **_spread("bytes_per_second"),
        "worst_sender_messages_per_second": "double",
        "worst_sender_bytes_per_second": "double",
        "cpu_ns_per_message": "double",
        "wire_bytes_per_message": "double",
        "ip_bytes_per_message": "double",
    },
    "bandwidth_ecdf": {
        **KEYS,
        "bytes_per_second": "double",
        "seconds": "bigint",
        "cumulative": "double",
    },
    "cpu": {**KEYS, "role": "string", "repeats": "bigint", **_spread("cores")},
    "resources": {
        **KEYS,
        "run": "string",
        "repeat": "int",
        "second": "int",
        "host": "string",
        "role": "string",
        "processes": "bigint",
        "kept": "boolean",
        "cpu_cores": "double",
        "resident_bytes": "bigint",
        "process_threads": "bigint",
        "switches_per_second": "double",
        "gc_collections": "bigint",
        "gc_pause_ns": "bigint",
        "sent_bytes_per_second": "double",
        "received_bytes_per_second": "double",
        "queued_bytes": "bigint",
    },
    "degradation": {
        **KEYS,
        "repeats": "bigint",
        "baseline_repeats": "bigint",
        "bytes_per_second": "double",
        "baseline_bytes_per_second": "double",
        "kept": "double",
        "kept_low": "double",
        "kept_high": "double",
    },
    "stability": {
        **KEYS,
        "repeats": "bigint",
        "seconds": "bigint",
        "bytes_per_second_mean": "double",
        "bytes_per_second_median": "double",
        "variation": "double",
        "longest_stall_seconds": "double",
        "part_below_half": "double",
    },
    "latency": {
        **KEYS,
        "stage": "string",
        "topic": "string",
        "repeats": "bigint",
        "sampled_one_in": "double",
        "count": "bigint",
        "sum_ns": "decimal(38,0)",
        "mean_us": "double",
        "stddev_us": "double",
        "min_us": "bigint",
        "p50_us": "bigint",
        "p75_us": "bigint",
        "p90_us": "bigint",
        "p95_us": "bigint",
        "p99_us": "bigint",
        "p999_us": "bigint",
        "p9999_us": "bigint",
        "max_us": "bigint",
    },
    # Of what `latency` was made: how many messages took so many whole microseconds. Campaigns are
    # added up from here, without their rows.
    "latency_counts": {
        **KEYS,
        "stage": "string",
        "topic": "string",
        "latency_us": "bigint",
        "count": "bigint",
        "sum_ns": "decimal(38,0)",
        "sum_squares_ns": "decimal(38,0)",
    },
    "jitter": {
        **KEYS,
        "stage": "string",
        "repeats": "bigint",
        "count": "bigint",
        "in_stddev_us": "double",
        "out_stddev_us": "double",
        "in_rfc3550_us": "double",
        "out_rfc3550_us": "double",
    },
    "scaling": {
        **KEYS,
        "repeats": "bigint",
        "smallest_nodes": "int",
        "messages_per_second_node": "double",
        "bytes_per_second_node": "double",
        "messages_per_second_total": "double",
        "bytes_per_second_total": "double",
        "slowdown": "double",
    },
    "sizing": {
        **KEYS,
        "update_share": "double",
        "updates_per_second_node": "double",
        "updates_per_second_total": "double",
        "requests_per_second_node": "double",
        "requests_per_second_total": "double",
    },
    "comparison": {
        **KEYS,
        "question": "string",
        "over": "string",
        "this": "string",
        "pairs": "bigint",
        "gain_percent_min": "double",
        "gain_percent_mean": "double",
        "gain_percent_max": "double",
    },
    "queueing": {
        **KEYS,
        "topic": "string",
        "repeats": "bigint",
        "share": "double",
        "period": "double",
        "arrival_rate": "double",
        "arrival_variation": "double",
        "service_rate": "double",
        "service_variation": "double",
        "utilisation": "double",
        "estimate_us": "double",
        "estimate_p99_us": "double",
        "bound_us": "double",
        "measured_mean_us": "double",
        "measured_p99_us": "double",
        "delivery_mean_us": "double",
        "delivery_p99_us": "double",
        "queue_length": "double",
        "little_us": "double",
        "relative_error": "double",
        "relative_error_p99": "double",
        "stable": "boolean",
        "conformant": "boolean",
        "basis": "string",
    },
}
"""What is written: ``DIR/TABLE/campaign=ID/*.parquet``; `campaign` is the partition's name."""


def columns(table: str) -> Columns:
    """A table's columns and their types."""
    return TABLES[table]


def ddl(columns: Columns) -> str:
    """As Spark reads a schema."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())

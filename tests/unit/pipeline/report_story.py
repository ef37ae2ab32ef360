"""A made-up campaign in which it is known who holds and who collapses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unit.pipeline.report_tables import KEYS, MACHINE, spread, write

UNLOADED = {"antiphon-node": 900e6, "tcp-python": 700e6, "pyzmq": 400e6, "jgroups-udp": 60e6}
KEPT = {
    "cpu-60": {"antiphon-node": 0.81, "tcp-python": 0.72, "pyzmq": 0.55, "jgroups-udp": 0.31},
    "garbage": {"antiphon-node": 0.93, "tcp-python": 0.9, "pyzmq": 0.74, "jgroups-udp": 0.06},
}


def stability(out: Path, repeats: int = 3, campaign: str = "stability-1", **facts: Any) -> None:
    """Four protocols without load and beside two kinds of it; Spread did not finish."""
    runs: list[dict[str, Any]] = []
    throughput, cpu, kept, ecdf, stable = [], [], [], [], []
    for protocol, base in UNLOADED.items():
        for workload in ("none", *KEPT):
            keys = KEYS | {"campaign": campaign, "protocol": protocol, "workload": workload}
            part = 1.0 if workload == "none" else KEPT[workload][protocol]
            speed = base * part
            runs += [
                keys
                | MACHINE
                | {"run": f"{protocol}.{workload}.r{one}", "repeat": one, "outcome": "complete"}
                | {"bytes_per_second": speed, "messages_per_second": speed / 2000}
                | {"latency_one_in": 1.0, "window_seconds": 300.0, "schema_version": 1}
                | facts
                for one in range(1, repeats + 1)
            ]
            throughput.append(
                keys
                | {"repeats": repeats, "cpu_ns_per_message": 2e12 / speed}
                | spread("bytes_per_second", speed)
                | spread("messages_per_second", speed / 2000)
            )
            for role, cores in (("writer", 1.0), ("reader", 0.7), ("machine", 1.9)):
                cpu.append(keys | {"role": role, "repeats": repeats} | spread("cores", cores))
            for at in range(1, 61):
                value = speed * (0.7 + 0.01 * at)
                step = {"bytes_per_second": value, "seconds": 5, "cumulative": at / 60}
                ecdf.append(keys | step)
            stable.append(
                keys
                | {"repeats": repeats, "seconds": 300, "bytes_per_second_mean": speed}
                | {"bytes_per_second_median": speed, "variation": 0.02 / part}
                | {"longest_stall_seconds": 0.0 if part > 0.1 else 7.0, "part_below_half": 0.0}
            )
            if workload != "none":
                once = repeats < 2
                kept.append(
                    keys
                    | {"repeats": repeats, "baseline_repeats": repeats, "kept": part}
                    | {"kept_low": None if once else part * 0.95}
                    | {"kept_high": None if once else part * 1.05}
                    | {"bytes_per_second": speed, "baseline_bytes_per_second": base}
                )
    lost = KEYS | {"campaign": campaign, "protocol": "spread"}
    runs.append(
        lost
        | MACHINE
        | {"run": "spread.none.r1", "repeat": 1, "outcome": "disconnected"}
        | {"reason": "the daemon closed the connection"}
        | facts
    )
    ping = KEYS | {"campaign": campaign, "protocol": "link-ping", "series": "links"}
    runs.append(
        ping | MACHINE | {"run": "link-ping.loopback", "repeat": 1, "outcome": "complete"} | facts
    )
    write(out, "runs", runs)
    write(out, "outcomes", _outcomes(runs))
    write(out, "throughput", throughput)
    write(out, "cpu", cpu)
    write(out, "degradation", kept)
    write(out, "bandwidth_ecdf", ecdf)
    write(out, "stability", stable)


def _outcomes(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in KEYS), []).append(run)
    rows = []
    for key, held in groups.items():
        keys = dict(zip(KEYS, key, strict=True))
        for outcome in {run["outcome"] for run in held}:
            those = [run for run in held if run["outcome"] == outcome]
            reasons = sorted({run["reason"] for run in those if run.get("reason")})
            counts = {"runs": len(those), "of": len(held), "part": len(those) / len(held)}
            rows.append(keys | {"outcome": outcome, "reasons": reasons} | counts)
    return rows


def everything_else(out: Path) -> None:
    """One campaign of each other plan, so that every figure has something to draw."""
    delays(out)
    groups(out)
    round_trips(out)
    time_lines(out)
    streams(out)
    queues(out)


def _latency(
    keys: dict[str, Any], mean: float, stage: str = "delivery", one_in: float = 1.0
) -> dict[str, Any]:
    quantiles = {"p50": 0.8, "p75": 1.1, "p90": 1.6, "p95": 2.1, "p99": 4.0, "p999": 9.0}
    return (
        keys
        | {"stage": stage, "topic": None, "repeats": 3, "sampled_one_in": one_in, "count": 30_000}
        | {"mean_us": mean, "stddev_us": mean * 0.7, "min_us": int(mean * 0.4)}
        | {f"{name}_us": int(mean * by) for name, by in quantiles.items()}
        | {"p9999_us": int(mean * 14), "max_us": int(mean * 20)}
    )


def delays(out: Path, campaign: str = "real-time-1") -> None:
    """Delay by rate: nats falls behind at 80,000 a second."""
    runs, latency, counts, spaced = [], [], [], []
    for protocol, base in {"antiphon-topic": 60.0, "pyzmq": 95.0, "nats": 240.0}.items():
        for rate in (1_000.0, 10_000.0, 40_000.0, 80_000.0, 120_000.0):
            keys = KEYS | {"campaign": campaign, "plan": "real-time", "series": "delay-by-rate"}
            keys |= {"protocol": protocol, "rate": rate, "size": 128}
            late = 400.0 if protocol == "nats" and rate >= 80_000 else 1.0
            mean = base * (1 + rate / 60_000) * late
            run = keys | MACHINE | {"run": f"{protocol}.{rate:.0f}.r1", "repeat": 1}
            runs.append(run | {"outcome": "complete", "window_seconds": 30.0})
            latency.append(_latency(keys, mean, one_in=1.0 if rate <= 10_000 else rate / 10_000))
            for step in range(40):
                micros = int(mean * (0.4 + 0.05 * step * (1 + step / 8)))
                count = int(30_000 * 0.78**step) or 1
                counts.append(keys | {"stage": "delivery", "latency_us": micros, "count": count})
            spaced.append(
                keys
                | {"stage": "delivery", "repeats": 3, "count": 30_000}
                | {"in_stddev_us": base / 6, "out_stddev_us": mean / 2}
                | {"in_rfc3550_us": base / 9, "out_rfc3550_us": mean / 3}
            )
    throughput = []
    for senders in (1, 2, 4, 8):
        for rate in (20_000.0, 90_000.0):
            keys = KEYS | {"campaign": campaign, "plan": "real-time", "series": "publishers"}
            keys |= {"protocol": "antiphon-topic", "rate": rate, "senders": senders, "size": 128}
            total = min(senders * rate, 400_000.0 - 20_000 * senders)
            throughput.append(
                keys
                | {"repeats": 3}
                | spread("messages_per_second", total)
                | spread("bytes_per_second", 128 * total)
            )
    write(out, "runs", runs)
    write(out, "outcomes", _outcomes(runs))
    write(out, "latency", latency)
    write(out, "latency_counts", counts)
    write(out, "jitter", spaced)
    write(out, "throughput", throughput)


def groups(out: Path, campaign: str = "group-1") -> None:
    """Groups of 2 to 16 nodes over two transports: UDP breaks down, TCP does not."""
    runs, scaling, sizing, gains = [], [], [], []
    for pattern in ("1-n", "n-n"):
        for size in (100, 10_000):
            for nodes in (2, 4, 8, 16):
                for protocol, base, power in (
                    ("jgroups-tcp", 9_000.0, 0.8),
                    ("jgroups-udp", 6_000.0, 1.9),
                ):
                    keys = KEYS | {"campaign": campaign, "plan": "group", "series": pattern}
                    keys |= {"protocol": protocol, "pattern": pattern, "size": size}
                    keys |= {"nodes": nodes, "link": "gigabit"}
                    keys |= {"senders": 1 if pattern == "1-n" else nodes}
                    node = base * (2 / nodes) ** power / (1 + size / 5_000)
                    run = keys | MACHINE | {"run": f"{protocol}.{pattern}.{size}.{nodes}"}
                    runs.append(run | {"repeat": 1, "outcome": "complete", "window_seconds": 60.0})
                    scaling.append(
                        keys
                        | {"repeats": 6, "smallest_nodes": 2}
                        | {"messages_per_second_node": node, "bytes_per_second_node": node * size}
                        | {"messages_per_second_total": node * nodes * (nodes - 1)}
                        | {"bytes_per_second_total": node * nodes * (nodes - 1) * size}
                        | {"slowdown": (nodes / 2) ** power}
                    )
                    total = node * keys["senders"]
                    sizing.append(
                        keys
                        | {"update_share": 0.15, "updates_per_second_node": node}
                        | {"updates_per_second_total": total}
                        | {"requests_per_second_total": total / 0.15}
                        | {"requests_per_second_node": total / 0.15 / nodes}
                    )
                keys = keys | {"protocol": None, "series": None}
                ratio = 1.5 * (nodes / 2) ** 1.1
                gains.append(
                    keys
                    | {"question": "transport", "over": "jgroups-udp", "this": "jgroups-tcp"}
                    | {"pairs": 6, "gain_percent_min": 80 * (ratio - 1)}
                    | {"gain_percent_mean": 100 * (ratio - 1)}
                    | {"gain_percent_max": 120 * (ratio - 1)}
                )
    for other, percent in (("pyzmq", 125.0), ("tcp-python", 28.6), ("jgroups-udp", 1_400.0)):
        keys = KEYS | {"protocol": None, "campaign": campaign}
        gains.append(
            keys
            | {"question": "protocol", "over": other, "this": "antiphon-node", "pairs": 3}
            | {f"gain_percent_{what}": percent for what in ("min", "mean", "max")}
        )
    write(out, "runs", runs)
    write(out, "outcomes", _outcomes(runs))
    write(out, "scaling", scaling)
    write(out, "sizing", sizing)
    write(out, "comparison", gains)


def round_trips(out: Path, campaign: str = "all-to-all-1") -> None:
    latency = []
    for nodes in (2, 4, 8, 16):
        for threads, base in ((1, 45.0), (16, 120.0), (100, 900.0)):
            keys = KEYS | {"campaign": campaign, "plan": "all-to-all", "series": "round-trip"}
            keys |= {"variant": "request", "pattern": "n-n", "size": 64}
            keys |= {"nodes": nodes, "senders": nodes, "threads": threads}
            latency.append(_latency(keys, base * (nodes / 2) ** 0.7, "round-trip"))
    ping = KEYS | {"campaign": campaign, "plan": "all-to-all", "series": "links"}
    latency.append(_latency(ping | {"protocol": "link-ping"}, 38.0, "round-trip"))
    write(out, "latency", latency)


def time_lines(out: Path, campaign: str = "stability-1") -> None:
    rows = []
    for protocol in UNLOADED:
        for workload in ("none", *KEPT):
            keys = KEYS | {"campaign": campaign, "protocol": protocol, "workload": workload}
            for second in range(1, 61):
                for role, cores in (("writer", 0.9), ("reader", 0.6), ("machine", 1.7)):
                    going = 0.0 if second < 8 and role != "machine" else 1.0
                    rows.append(
                        keys
                        | {"run": f"{protocol}.{workload}.r1", "repeat": 1, "second": second}
                        | {"host": "aida", "role": role, "processes": 1}
                        | {"kept": 12 <= second <= 55}
                        | {"cpu_cores": cores * going * (1 + 0.1 * (second % 3))}
                        | {"resident_bytes": int(4e7 + 3e5 * second * (role == "reader"))}
                        | {"process_threads": 4, "received_bytes_per_second": 6e8 * going}
                    )
    write(out, "resources", rows)


def streams(out: Path, campaign: str = "wide-area-1") -> None:
    rows = []
    for link, gain in (("lan", 0.02), ("continental", 0.7)):
        for count in (1, 2, 4, 8):
            for size in (10**6, 10**7, 10**8, 5 * 10**8):
                keys = KEYS | {"campaign": campaign, "plan": "wide-area", "series": "streams"}
                keys |= {"protocol": "antiphon-bulk", "streams": count, "size": size, "link": link}
                speed = 9e6 * (1 + gain * (count - 1)) * (size / (size + 2e6 * count))
                rows.append(keys | {"repeats": 3} | spread("bytes_per_second", speed))
    write(out, "throughput", rows)


def queues(out: Path, campaign: str = "real-time-1") -> None:
    rows = []
    for at in range(1, 12):
        busy = at / 11
        keys = KEYS | {"campaign": campaign, "plan": "real-time", "series": "shares"}
        keys |= {"protocol": "antiphon-topic", "rate": 1_000.0 * at, "size": 128}
        estimate = 20 / (1 - busy) if busy < 1 else float("inf")
        measured = 20 / max(1 - busy, 0.02) * 1.2
        rows.append(
            keys
            | {"topic": f"sensor/{at}", "repeats": 3, "share": 0.2, "period": 0.01}
            | {"arrival_rate": 1_000.0 * at, "service_rate": 11_000.0, "utilisation": busy}
            | {"estimate_us": estimate, "bound_us": estimate * 2, "measured_mean_us": measured}
            | {"estimate_p99_us": estimate * 4.6}
            | {"measured_p99_us": measured * 4, "little_us": measured * 1.01}
            | {"relative_error": 0.2, "stable": busy < 1, "conformant": True, "basis": "M/G/1"}
        )
    write(out, "queueing", rows)

"""Ways to use a protocol that a plan can name: requests, shares; and what does not apply."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon.lab.campaign import Campaign
from antiphon.lab.competing import Competition
from antiphon.lab.conduct import conduct
from antiphon.lab.plan import load_plan
from antiphon.lab.protocols import PROTOCOLS, REQUEST, missing
from lab.small_plans import carried_out
from unit.lab.descendants import descendants

pytestmark = pytest.mark.timeout(180)

JAVA = ("java-net", "java-nio", "udp-java")
ASKING = [name for name, protocol in PROTOCOLS.items() if REQUEST in protocol.variants]


def asking(name: str) -> Any:
    needed = {"pyzmq", "zenoh", "nats", "grpc"} & {name}
    return pytest.param(name, marks=[pytest.mark.needs(*needed)] if needed else [])


def requests(protocol: str, pattern: str, more: str = "") -> str:
    return (
        f'pattern = "{pattern}"\nprotocols = ["{protocol}"]\n'
        f'variants = {{ {protocol} = ["request"] }}\n{more}\n'
    )


@pytest.mark.parametrize(
    ("pattern", "more", "pairs"),
    [
        ("one-way", "threads = [1]", {(1, 0)}),
        ("one-way", "senders = [2]", {(1, 0), (2, 0)}),
        ("duplex", "threads = [16]", {(0, 1), (1, 0)}),
        ("n-n", "nodes = [3]", {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}),
    ],
)
def test_requests_go_to_the_others_in_turn_and_are_timed(
    tmp_path: Path, pattern: str, more: str, pairs: set[tuple[int, int]]
) -> None:
    (run,) = carried_out(tmp_path, requests("antiphon-node", pattern, more), size=64)
    assert run.ended == ("complete", "")
    assert run.facts["variant"] == "request"
    assert run.facts["messages_per_second"] > 20
    rows = run.table("latency")
    assert {row["stage"] for row in rows} == {"round-trip"}
    assert {(row["source"], row["target"]) for row in rows} == pairs
    for row in rows:
        assert row["intended_ns"] == row["sent_ns"] < row["received_ns"]
        assert run.facts["kept_from_ns"] <= row["intended_ns"] < run.facts["kept_until_ns"]
    asked = [row for role, row in run.last().items() if role != "reader"]
    assert all(row["received_messages"] > 0 for row in asked)
    if pattern == "n-n":
        mine = [row["target"] for row in rows if row["source"] == 0]
        # All of them, or one in so many of a fast machine.
        assert abs(mine.count(1) - mine.count(2)) <= max(1, 0.1 * len(mine))


def test_one_caller_waits_for_each_answer_before_it_asks_again(tmp_path: Path) -> None:
    (run,) = carried_out(tmp_path, requests("antiphon-node", "one-way"), size=64)
    rows = run.table("latency")
    assert [row["sequence"] for row in rows] == sorted({row["sequence"] for row in rows})
    for before, row in itertools.pairwise(rows):
        assert before["received_ns"] <= row["intended_ns"]


@pytest.mark.parametrize("name", [asking(name) for name in ASKING if name != "antiphon-node"])
def test_others_have_requests_too(tmp_path: Path, name: str) -> None:
    (run,) = carried_out(tmp_path, requests(name, "n-n", "nodes = [3]\nthreads = [2]"), size=64)
    assert run.ended == ("complete", "")
    assert run.facts["messages_per_second"] > 10
    rows = run.table("latency")
    assert {(row["source"], row["target"]) for row in rows} == {
        (own, other) for own in range(3) for other in range(3) if own != other
    }


def test_with_shares_only_the_first_publisher_keeps_the_rate(tmp_path: Path) -> None:
    keys = (
        'pattern = "one-way"\nprotocols = ["antiphon-topic"]\nsenders = [2]\nrates = [200]\n'
        'paced = 1\nvariants = { antiphon-topic = ["callback", "shares"] }\n'
    )
    for run in carried_out(tmp_path, keys, size=128):
        assert run.ended == ("complete", "")
        assert (run.facts["paced"], run.facts["rate"]) == (1, 200)
        rows = run.table("latency")
        topics = {row["source"]: row["topic"] for row in rows}
        assert topics == {1: "lab/0/1", 2: "lab/0/2"}
        sent = {role: row["sent_messages"] for role, row in run.last().items()}
        assert 0 < sent["writer-0"] <= 200 * 60
        assert sent["writer-1"] > 3 * sent["writer-0"]
        # Every message of the first one has its times.
        first = [row["sequence"] for row in rows if row["topic"] == "lab/0/1"]
        assert first == list(range(first[0], first[0] + len(first)))
        arrivals = {row["topic"]: row["arrivals"] for row in run.table("topics")}
        assert set(arrivals) == {"lab/0/1", "lab/0/2"}
        assert arrivals["lab/0/2"] > arrivals["lab/0/1"] > 0


@pytest.mark.parametrize(
    ("keys", "size", "says"),
    [
        ('"one-way"\nprotocols = ["udp-c", "udp-python"]', 65_508, "at most 65507"),
        ('"n-n"\nprotocols = ["java-net"]\nnodes = [3]', 64, "between two"),
        ('"one-way"\nprotocols = ["tcp-python"]\nstreams = [8]', 64, "one stream"),
        ('"one-way"\nprotocols = ["nats"]\nplacements = ["near-far"]', 64, "placements"),
        ('"n-n"\nprotocols = ["pyzmq"]\nstacks = ["paper-tcp"]', 64, "no stacks"),
        ('"one-way"\nprotocols = ["java-net"]\nthreads = [2]', 64, "one thread"),
        ('"one-way"\nprotocols = ["pyzmq"]\nworkloads = ["slow"]', 64, "one of several"),
        ('"n-n"\nprotocols = ["udp-c"]\nnodes = [3]\nworkloads = ["slow"]', 64, "in the core"),
        (
            '"n-n"\nprotocols = ["nats"]\nvariants = { nats = ["request"] }\nworkloads = ["slow"]',
            64,
            "no receivers",
        ),
        (
            '"one-way"\nprotocols = ["pyzmq"]\nrates = [10]\nvariants = { pyzmq = ["request"] }',
            64,
            "have no rate",
        ),
    ],
)
def test_what_a_protocol_cannot_be_asked_for_does_not_apply(
    tmp_path: Path, keys: str, size: int, says: str
) -> None:
    for run in carried_out(tmp_path, f"pattern = {keys}", size=size):
        outcome, reason = run.ended
        assert outcome == "not_applicable"
        assert says in reason
        assert run.table("samples") == []


def test_datagrams_of_the_core_are_counted_and_timed(tmp_path: Path) -> None:
    keys = 'pattern = "one-way"\nprotocols = ["udp-c"]\nrates = ["max", 300]\n'
    runs = {run.facts["rate"]: run for run in carried_out(tmp_path, keys)}
    for run in runs.values():
        assert run.ended == ("complete", "")
        reader = run.last()["reader"]
        assert 0 < reader["received_messages"] <= run.sent()
        assert reader["received_bytes"] == 200 * reader["received_messages"]
        assert run.table("latency")
        for row in run.table("latency"):
            assert row["intended_ns"] <= row["sent_ns"] <= row["received_ns"]
    assert runs[None].facts["messages_per_second"] > runs[300].facts["messages_per_second"]
    paced = [row["sequence"] for row in runs[300].table("latency")]
    assert paced == sorted(set(paced))


def test_a_stream_of_the_core_is_one_connection_with_counts_and_times(tmp_path: Path) -> None:
    keys = 'pattern = "one-way"\nprotocols = ["tcp-c"]\nrates = ["max", 500]\n'
    runs = {run.facts["rate"]: run for run in carried_out(tmp_path, keys, size=2000)}
    for run in runs.values():
        assert run.ended == ("complete", "")
        reader = run.last()["reader"]
        assert 0 < reader["received_messages"] <= run.sent()
        # It is read while it comes: the last message may be there in part.
        assert 0 <= reader["received_bytes"] - 2000 * reader["received_messages"] < 2000
        rows = run.table("latency")
        assert rows
        for row in rows:
            assert row["intended_ns"] <= row["sent_ns"] <= row["received_ns"]
        assert run.after_window() < 10
    assert runs[None].facts["messages_per_second"] > 5000
    assert runs[None].facts["latency_one_in"] > 1
    assert runs[500].facts["latency_one_in"] == pytest.approx(1, abs=0.2)
    sequences = [row["sequence"] for row in runs[500].table("latency")]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


@pytest.mark.parametrize(
    "protocol",
    ["tcp-c", *(pytest.param(name, marks=pytest.mark.needs("java")) for name in JAVA)],
)
def test_two_write_to_each_other(tmp_path: Path, protocol: str) -> None:
    if reason := missing(PROTOCOLS[protocol]):
        pytest.skip(reason)
    (run,) = carried_out(tmp_path, f'pattern = "duplex"\nprotocols = ["{protocol}"]')
    assert run.ended == ("complete", "")
    last = run.last()
    for role in ("node-0", "node-1"):
        assert last[role]["received_messages"] > 0
        assert last[role]["sent_messages"] > 0
    assert {(row["source"], row["target"]) for row in run.table("latency")} == {(0, 1), (1, 0)}


def test_what_is_due_and_never_sent_is_counted(tmp_path: Path) -> None:
    """The slow one takes fifty a second; what a sender owes it is a second behind, or dropped."""
    keys = (
        'pattern = "n-n"\nprotocols = ["tcp-python"]\nnodes = [2]\nworkloads = ["slow"]\n'
        "rates = [4_000]"
    )
    (run,) = carried_out(tmp_path, keys, size=60_000, kept_until=6.0)
    assert run.facts["outcome"] in ("complete", "blocked"), run.ended
    assert run.facts["latency_skipped"] > 0
    skipped = run.facts["latency_skipped"]
    sent, asked = run.sent(), 2 * 4000 * 5.8
    assert sent + skipped <= asked * 1.1


def test_times_that_were_left_out_before_the_window_are_not_its_own(tmp_path: Path) -> None:
    keys = 'pattern = "one-way"\nprotocols = ["antiphon-node"]\nrates = [25_000]'
    (run,) = carried_out(tmp_path, keys, kept_from=4.0, kept_until=6.0)
    assert run.ended == ("complete", "")
    came = [
        row["received_messages"]
        for row in run.table("samples")
        if row["role"] == "reader" and row["kept"]
    ]
    assert 0 < run.facts["latency_left_out"] < came[-1] - came[0]


def test_what_a_load_took_is_measured_from_the_begin_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    measured = Competition.measured

    def look(competition: Competition) -> float | None:
        looks.append(time.monotonic_ns())
        return measured(competition)

    monkeypatch.setattr(Competition, "measured", look)
    keys = (
        'pattern = "one-way"\nprotocols = ["tcp-python"]\nworkloads = ["some"]\n'
        "[workloads.some]\ncpu = 0.1"
    )
    (run,) = carried_out(tmp_path, keys, kept_from=1.5, kept_until=3.5)
    assert run.ended == ("complete", "")
    since, until = looks[-2:]
    assert run.facts["kept_from_ns"] <= since < run.facts["kept_until_ns"] <= until


def test_a_slow_receiver_is_the_last_one_and_the_others_are_as_fast_as_they_may(
    tmp_path: Path,
) -> None:
    keys = 'pattern = "n-n"\nprotocols = ["tcp-python"]\nnodes = [3]\nworkloads = ["slow"]'
    (run,) = carried_out(tmp_path, keys)
    assert run.ended == ("complete", "")
    last = run.last()
    # Fifty a second for less than three seconds, and then some for a busy machine.
    assert 0 < last["node-2"]["received_messages"] <= 500
    assert last["node-0"]["received_messages"] > 0


@pytest.mark.needs("java")
def test_by_a_timetable_every_message_of_a_java_role_has_its_times(tmp_path: Path) -> None:
    if reason := missing(PROTOCOLS["java-net"]):
        pytest.skip(reason)
    keys = 'pattern = "one-way"\nprotocols = ["java-net"]\nrates = [200]'
    (run,) = carried_out(tmp_path, keys)
    assert run.ended == ("complete", "")
    rows = run.table("latency")
    sequences = [row["sequence"] for row in rows]
    assert sequences == list(range(sequences[0], sequences[0] + len(rows)))
    assert run.facts["latency_one_in"] < 1.2
    times = [row["intended_ns"] for row in rows]
    assert all(later - one >= 4_999_999 for one, later in itertools.pairwise(times))


@pytest.mark.parametrize("scheduling", ["other", "idle", "fifo"])
@pytest.mark.parametrize("protocol", ["tcp-python", "nats", "java-net"])
def test_processes_have_the_cores_and_the_class_of_the_plan(
    tmp_path: Path, protocol: str, scheduling: str
) -> None:
    if reason := missing(PROTOCOLS[protocol]):
        pytest.skip(reason)
    if scheduling == "fifo" and not may_be_fifo():
        pytest.skip("the class fifo needs root")
    path, out = tmp_path / "small.toml", tmp_path / "out"
    path.write_text(
        f'scheduling = "{scheduling}"\npinned = true\n[times]\nkept_until = 2.5\n'
        f'[[series]]\nname = "one"\npattern = "one-way"\nprotocols = ["{protocol}"]\n'
        "sizes = [200]\nrates = [100]\n"
    )
    campaign = Campaign.create(load_plan(path), out)
    (run,) = campaign.runs()
    seen: dict[int, list[tuple[set[int], int]]] = collections.defaultdict(list)
    before = descendants(os.getpid())
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            for process in descendants(os.getpid()) - before:
                with contextlib.suppress(OSError):
                    found = os.sched_getaffinity(process), os.sched_getscheduler(process)
                    seen[process].append(found)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with campaign:
            report = conduct(campaign, run)
    finally:
        over.set()
        watching.join()
    assert (report.outcome, report.reason) == ("complete", "")
    # Of those that were there for a while, not of a compiler or what tells a version; at the last
    # look, which was long after they were told so.
    last = [looks[-1] for looks in seen.values() if len(looks) > 15]
    assert len(last) >= 2
    assert all(len(cores) == 1 for cores, _ in last)
    assert len({min(cores) for cores, _ in last}) == min(2, len(os.sched_getaffinity(0)))
    assert {kind for _, kind in last} == {CLASSES[scheduling]}


CLASSES = {"other": os.SCHED_OTHER, "idle": os.SCHED_IDLE, "fifo": os.SCHED_FIFO}


def may_be_fifo() -> bool:
    tried = subprocess.run(["chrt", "--fifo", "1", "true"], capture_output=True, check=False)
    return tried.returncode == 0

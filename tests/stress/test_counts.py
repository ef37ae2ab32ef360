"""A hundred million messages in and out: none lost, doubled, changed or moved past another.

Every way of sending meets every way of receiving; each sender thread is a stream of its own, and
the receiver checks every byte of every message against what comes next in its stream.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.testing import Child
from stress.members import receive_all, send_all

TESTS = str(Path(__file__).parents[1])
PATIENCE = 3000.0
PATHS = ("callback", "packed", "many", "inbox", "iteration")

pytestmark = pytest.mark.stress


def run(senders: list[dict[str, dict[int, int]]], listen: str = "tcp://127.0.0.1:0") -> list[float]:
    """Runs one receiver and these senders, given path, stream and count; how long each sent."""
    wanted: dict[str, dict[str, int]] = {path: {} for path in PATHS}
    for sender in senders:
        for path, streams in sender.items():
            wanted[path].update({str(number): count for number, count in streams.items()})
    total = sum(count for streams in wanted.values() for count in streams.values())
    numbers = {path: [int(number) for number in streams] for path, streams in wanted.items()}
    receiver = Child(
        receive_all,
        tests=TESTS,
        id=1,
        listen=listen,
        numbers=numbers,
        total=total,
        patience=PATIENCE,
    )
    with receiver:
        address = receiver.expect("ready", 60)["address"]
        children = [
            Child(send_all, tests=TESTS, id=10 + at, to=1, address=address, counts=counts)
            for at, counts in enumerate(senders)
        ]
        try:
            seconds = []
            for child, counts in zip(children, senders, strict=True):
                sent = child.expect("sent", PATIENCE)
                assert sent["failures"] == []
                assert sent["messages_out"] == sum(sum(each.values()) for each in counts.values())
                assert sent["connects"] == 1
                assert sent["losses"] == 0
                seconds.append(sent["seconds"])
            receiver.tell("count")
            counted = receiver.expect("counted", PATIENCE)
            assert counted["wrong"] == []
            assert counted["counts"] == wanted
            assert counted["messages_in"] == total
            assert not any(counted["drops"].values()), counted["drops"]
            receiver.expect("closed", 60)
            for child in children:
                child.tell("end")
                assert child.wait(60) == 0
            assert receiver.wait(60) == 0
        finally:
            for child in children:
                child.close()
    return seconds


Report = Callable[[str], Any]


@pytest.fixture
def report(record_property: Any, capsys: pytest.CaptureFixture[str]) -> Report:
    """Prints one line past the capture: a stress run is read by people, too."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", flush=True)

    return show


def test_a_hundred_million_messages_over_every_path_arrive_once_and_in_order(
    count: Callable[[int, int], int], report: Report
) -> None:
    shares = {"callback": 10, "inbox": 10, "iteration": 5, "many": 25, "packed": 50}
    unit = count(10_000, 1_000_000)
    total = 0
    for path, share in shares.items():
        # Two streams of different length, so that one of them ends alone.
        whole = share * unit
        streams = {1: whole // 3, 2: whole - whole // 3}
        (seconds,) = run([{path: streams}])
        total += whole
        report(f"{path}: {whole:,} messages, {whole / seconds / 1e6:.2f} million/s")
    assert total == count(1_000_000, 100_000_000)


def test_all_paths_at_once_share_one_connection(count: Callable[[int, int], int]) -> None:
    unit = count(20_000, 1_000_000)
    run([{path: {at: unit} for at, path in enumerate(PATHS, 1)}])


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_several_senders_of_several_threads_to_one_receiver(
    transport: str, count: Callable[[int, int], int], tmp_path: Path
) -> None:
    unit = count(5_000, 300_000)
    listen = "tcp://127.0.0.1:0" if transport == "tcp" else f"unix://{tmp_path}/receiver"
    senders: list[dict[str, dict[int, int]]] = []
    for process in range(4):
        first = 1000 * (process + 1)
        senders.append(
            {
                "callback": {first + 1: unit, first + 2: unit},
                "inbox": {first + 3: unit},
                "many": {first + 4: 2 * unit},
                "packed": {first + 5: 4 * unit, first + 6: 4 * unit},
            }
        )
    run(senders, listen)

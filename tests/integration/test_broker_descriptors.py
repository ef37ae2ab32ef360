"""Descriptors and memory of a broker: as many as clients are there, and not as have ever been."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import Node
from antiphon.testing import eventually
from antiphon.topics import Bus
from integration.buses import PATIENCE, Events, serves
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)

CLIENTS = 300


@contextlib.contextmanager
def broker(soft: int, hard: int) -> Iterator[tuple[str, int]]:
    """Its address and its process, which may have so many descriptors."""
    address = free_address()
    limited = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from antiphon.cli.main import main; main()"
    )
    command = [sys.executable, "-c", limited, "broker", "--listen", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "broker at" in process.stderr.readline()
            yield address, process.pid
        finally:
            process.terminate()
        rest = process.stderr.read()
    assert "Too many open files" not in rest, rest


def descriptors(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


def maps(process: int) -> int:
    return Path(f"/proc/{process}/maps").read_text().count("\n")


def test_more_clients_one_after_the_other_than_there_are_descriptors() -> None:
    events = Events()
    with broker(200, 200) as (address, process), Bus(address) as there:
        there.subscribe("t", events)
        before = 0, 0
        for number in range(CLIENTS):
            with Node(1000 + number, listen=None) as node, Bus(address, node=node) as here:
                publisher = here.publisher("t")
                serves(publisher)
                publisher.publish(b"%d" % number)
                publisher.flush(PATIENCE)
            if number == 20:
                before = descriptors(process), maps(process)
        assert events.wait(CLIENTS) == [b"%d" % number for number in range(CLIENTS)]
        # A thread more or less has a stack, and may have an arena.
        eventually(lambda: descriptors(process) <= before[0] + 5, PATIENCE)
        eventually(lambda: maps(process) <= before[1] + 60, PATIENCE)


def test_a_client_takes_two_descriptors_and_the_command_raises_its_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = min(most, 1000)
    with broker(64, hard) as (address, process), contextlib.ExitStack() as stack:
        line = next(
            line
            for line in Path(f"/proc/{process}/limits").read_text().splitlines()
            if line.startswith("Max open files")
        )
        assert line.split()[3:5] == [str(hard), str(hard)]

        def come(count: int) -> int:
            for _ in range(count):
                bus = stack.enter_context(Bus(address))
                publisher = bus.publisher("t")
                publisher.publish(b"x")
                publisher.flush(PATIENCE)
            return descriptors(process)

        before = come(5)
        assert come(40) - before in range(2 * 40 - 2, 2 * 40 + 6)

"""Connections by the thousand: nodes that come and go, and sockets that never say a word."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.testing import Child
from stress.members import connect_many, count_senders

TESTS = str(Path(__file__).parents[1])
EACH = 20

pytestmark = pytest.mark.stress


def bother(address: str, ends: threading.Event, made: list[int]) -> None:
    """Connects and goes away, now and then with half a word. Never waits for an answer."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    while not ends.is_set():
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), 5) as stranger,
        ):
            if made[0] % 3 == 0:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n"[: made[0] % 18])
            made[0] += 1
        time.sleep(0.002)


def test_a_storm_of_nodes_is_served_to_the_last_and_leaves_no_descriptor(
    count: Callable[[int, int], int],
) -> None:
    processes, nodes = 4, count(25, 750)
    with Child(count_senders, id=60_000) as hub:
        ready = hub.expect("ready", 60)
        ends, made = threading.Event(), [0]
        stranger = threading.Thread(target=bother, args=(ready["address"], ends, made))
        children = [
            Child(
                connect_many,
                tests=TESTS,
                first=1000 * (at + 1),
                nodes=nodes,
                to=60_000,
                address=ready["address"],
                each=EACH,
            )
            for at in range(processes)
        ]
        try:
            stranger.start()
            for child in children:
                child.expect("ready", 60)
            for child in children:
                child.tell("go")
            for child in children:
                assert child.expect("done", 3000)["failures"] == []
        finally:
            ends.set()
            stranger.join()
            for child in children:
                child.close()
        assert made[0] > 10
        hub.tell("count")
        counted = hub.expect("counts", 60)
        ids = [1000 * (at + 1) + node for at in range(processes) for node in range(nodes)]
        assert counted["counts"] == {str(each): EACH for each in ids}
        # Every connection is gone, and with it its descriptors.
        deadline = time.monotonic() + 30
        while counted["descriptors"] > ready["descriptors"] + 2:
            assert time.monotonic() < deadline, (counted["descriptors"], ready["descriptors"])
            time.sleep(0.1)
            hub.tell("count")
            counted = hub.expect("counts", 60)
        hub.tell("stop")
        assert hub.wait(60) == 0

"""Processors and priority of scheduler threads: given where permitted, a warning where not."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import Node, NodeConfig, Schedule
from antiphon.testing import Child, Control, eventually
from integration.buses import PATIENCE
from unit.node.pairs import KIND

pytestmark = pytest.mark.timeout(60)

HERE = min(os.sched_getaffinity(0))
"""A processor that can be had."""

NOWHERE = 1023
"""The last one that may be asked for: there is none of that number."""


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "antiphon.node" and record.levelno == logging.WARNING
    ]


@contextlib.contextmanager
def processors(schedule: Schedule) -> Iterator[set[int]]:
    """Where a handler of a node with this schedule may run; the node is still there."""
    found: list[set[int]] = []
    ran = threading.Event()

    def look(source: int, data: bytes) -> None:
        found.append(os.sched_getaffinity(0))  # of this thread
        ran.set()

    with Node(1, config=NodeConfig(schedule=schedule)) as node:
        node.on(KIND, look)
        node.send(1, b"x", kind=KIND)
        assert ran.wait(PATIENCE)
        yield found[0]


def test_threads_run_on_the_processors_they_are_given(caplog: pytest.LogCaptureFixture) -> None:
    before = os.sched_getaffinity(0)
    with processors(Schedule(cpus=(HERE,))) as found:
        assert found == {HERE}
    assert os.sched_getaffinity(0) == before  # the program's own threads are left alone
    assert not warnings(caplog)


def test_a_processor_that_cannot_be_had_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """However many threads there are; and they work all the same."""
    with processors(Schedule(cpus=(NOWHERE,), threads=4)) as found:
        assert found == os.sched_getaffinity(0)
        eventually(lambda: warnings(caplog), PATIENCE, "a warning")
    (told,) = warnings(caplog)
    assert "node 1" in told
    assert f"processor {NOWHERE} cannot be had" in told


def test_of_several_processors_those_that_are_missing_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with processors(Schedule(cpus=(HERE, NOWHERE), threads=1)) as found:
        assert found == {HERE}
        eventually(lambda: warnings(caplog), PATIENCE, "a warning")
    (told,) = warnings(caplog)
    assert f"processor {NOWHERE} cannot be had" in told


def prioritised(control: Control, permitted: bool, cpus: list[int]) -> None:
    """A node whose threads want real-time priority, in a process that may or may not have it."""
    import ctypes
    import logging
    import os
    import resource
    import threading
    import time

    from antiphon import Node, NodeConfig, Schedule

    if not permitted:
        # CAP_SYS_NICE is bit 23 of the first word of each of the three sets; version 3.
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        sets = (ctypes.c_uint32 * 6)()
        assert libc.capget(header, sets) == 0
        for word in range(3):
            sets[word] &= ~(1 << 23)
        assert libc.capset(header, sets) == 0
        resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    told: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logging.getLogger("antiphon").addHandler(Keep())
    may: list[bool] = []

    def try_it() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
        except PermissionError:
            may.append(False)
        else:
            may.append(True)

    trying = threading.Thread(target=try_it)  # the priority goes with the thread
    trying.start()
    trying.join()
    found: list[tuple[bool, int]] = []
    ran = threading.Event()

    def look(source: int, data: bytes) -> None:
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        found.append((policy == os.SCHED_FIFO, os.sched_getparam(0).sched_priority))
        ran.set()

    schedule = Schedule(fifo_priority=2, threads=2, cpus=tuple(cpus))
    with Node(1, config=NodeConfig(schedule=schedule)) as node:
        node.on(200, look)
        node.send(1, b"x", kind=200)
        ran.wait(20)
        until = time.monotonic() + 20
        while not may[0] and not told and time.monotonic() < until:
            time.sleep(0.01)
    control.tell("ran", may=may[0], fifo=found[0][0], priority=found[0][1], told=told)


def test_threads_have_the_priority_they_are_given_or_say_why_not() -> None:
    with Child(prioritised, permitted=True, cpus=[]) as child:
        ran = child.expect("ran", 2 * PATIENCE)
    assert ran["fifo"] == ran["may"]
    if ran["may"]:
        assert ran["priority"] == 2
        assert not ran["told"]
    else:
        assert len(ran["told"]) == 1


def test_a_priority_that_is_not_permitted_is_told_with_what_it_takes() -> None:
    """And the one warning tells of everything that could not be had."""
    with Child(prioritised, permitted=False, cpus=[NOWHERE]) as child:
        ran: dict[str, Any] = child.expect("ran", 2 * PATIENCE)
    assert not ran["may"]
    assert not ran["fifo"]
    (told,) = ran["told"]
    assert "SCHED_FIFO 2 is not permitted" in told
    assert "CAP_SYS_NICE" in told
    assert f"processor {NOWHERE} cannot be had" in told

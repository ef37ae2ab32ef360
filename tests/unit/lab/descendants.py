"""Which processes a command has started, and whether they are gone."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

__all__ = ["alive", "await_none", "await_some", "descendants", "outlived_by_none"]


def _fields(pid: int) -> list[str]:
    """Of the process, from its state on. OSError when it is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid: int) -> bool:
    """Running: a zombie that nobody has waited for yet is not."""
    try:
        return _fields(pid)[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """Every process below ``pid`` that still runs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = _fields(int(path.name))
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def await_some(pid: int, count: int, besides: Iterable[int] = (), timeout: float = 20) -> set[int]:
    """Its descendants, as soon as there are so many ``besides`` those that were there before."""
    known = set(besides)
    deadline = time.monotonic() + timeout
    while len(found := descendants(pid) - known) < count:
        if time.monotonic() > deadline:
            pytest.fail(f"{len(found)} of {count} processes within {timeout:g} s")
        time.sleep(0.01)
    return found


def await_none(pids: Iterable[int], timeout: float = 20) -> None:
    """Returns when none of them runs any more."""
    deadline = time.monotonic() + timeout
    while left := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > deadline:
            pytest.fail(f"still running: {left}")
        time.sleep(0.01)


def outlived_by_none(command: list[str], ending: signal.Signals) -> None:
    """The command, ended while its workers work, takes them with it."""
    running = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        workers = await_some(running.pid, 2)
        running.send_signal(ending)
        assert running.wait(20) != 0
        await_none(workers)
    finally:
        running.kill()
        running.wait()

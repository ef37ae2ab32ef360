"""Which processes a command has started, and whether they are gone: for the benchmark's tests."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

__all__ = ["await_none", "descendants"]


def descendants(pid: int) -> set[int]:
    """Every process below ``pid`` that still runs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def await_none(pids: set[int]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = {pid for pid in pids if Path(f"/proc/{pid}").exists() and not zombie(pid)}
        if not left:
            return
        time.sleep(0.02)
    pytest.fail(f"still running: {left}")


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

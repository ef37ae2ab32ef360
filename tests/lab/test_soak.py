"""``make soak``, in short: it ends by itself, and says what it has found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unit.lab.descendants import await_none, await_some

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "benchmarks/soak_broker.py"), "--minutes", "0.1"]


def test_a_short_one_finds_memory_flat_and_nothing_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--every", "1", "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "memory: flat" in done.stdout
    assert "events: none lost" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_one_whose_broker_dies_is_not_carried_out_and_leaves_nothing(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*COMMAND, "--every", "1", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("half load"):
                break
        started = await_some(running.pid, 3)
        (broker,) = [pid for pid in started if b"broker\0--listen" in commands(pid)]
        os.kill(broker, signal.SIGKILL)
        said = running.communicate(timeout=120)[0]
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 2, said
    assert "not carried out: the broker has ended" in said
    await_none(started)
    assert list(tmp_path.iterdir()) == []


def commands(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()

"""``antiphon demo`` in less time, and Ctrl-C at a given moment of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from unit.lab.descendants import await_none, descendants

# The same acts in less time: the figures are not looked at here. The last one starts Spark, and has
# tests of its own.
QUICK = """
import sys
from antiphon.cli import demo
from antiphon.cli.acts import messages, orders, report, round_trips, shares
from antiphon.cli.main import main
from antiphon.lab.bench.point import Options
messages.OPTIONS = round_trips.OPTIONS = Options(seconds=0.15, warmup=0.05, min_bytes=0)
round_trips.ROUNDS = 2
shares.WARM = shares.SECONDS = 1.2
orders.SECONDS = 0.5
demo.ACTS = demo.ACTS[:-1]
"""
REPORT_ONLY = "demo.ACTS = (report.ACT,)\n"


def quick_demo(*arguments: str, before: str = "") -> list[str]:
    code = f"{QUICK}{before}\nsys.exit(main(['demo', *{list(arguments)!r}]))"
    return [sys.executable, "-c", code]


def interrupt(arguments: list[str], line: str, workers: int, later: float, tmp_path: Path) -> None:
    """Ctrl-C once ``line`` was said and there are so many workers: nothing is left behind."""
    command = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    seen: set[int] = set()
    try:
        assert command.stdout is not None
        assert any(line in said for said in command.stdout), command.communicate()
        deadline = time.monotonic() + 20
        while len(now := descendants(command.pid)) < workers and time.monotonic() < deadline:
            seen |= now
            time.sleep(0.005)
        time.sleep(later)
        seen |= descendants(command.pid)
        # As a terminal does it: to everyone in the foreground.
        os.killpg(command.pid, signal.SIGINT)
        output, errors = command.communicate(timeout=80)
        assert command.returncode == 130, errors
        assert "Traceback" not in output + errors
        await_none(seen)
        assert not list(tmp_path.iterdir())
    finally:
        command.kill()
        command.communicate()

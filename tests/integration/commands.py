"""``antiphon`` as people run it: a broker until it is told to end, and commands beside it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from antiphon.testing.waiting import readable
from integration.buses import PATIENCE

ANTIPHON = [sys.executable, "-m", "antiphon.cli.main"]


class Serving:
    """The command, once it has said where it is."""

    def __init__(self, *arguments: str, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [*ANTIPHON, "broker", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=cwd,
        )
        assert self.process.stderr is not None
        assert readable(self.process.stderr.fileno(), PATIENCE)
        self.greeting = self.process.stderr.readline()
        found = re.search(r"broker at (\S+), node (\d+)", self.greeting)
        assert found, self.greeting + self.process.communicate(timeout=PATIENCE)[1]
        self.address, self.node = found[1], int(found[2])

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, standard output, and what came on standard error after the greeting."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output, errors


@contextlib.contextmanager
def serving(*arguments: str, cwd: Path | None = None) -> Iterator[Serving]:
    one = Serving(*arguments, cwd=cwd)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()


def command(*arguments: str, lines: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ANTIPHON, *arguments],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def subscriber(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*ANTIPHON, "sub", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

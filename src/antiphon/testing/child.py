"""The inside of a child process: runs the function that it is sent.

The parent's end is `antiphon.testing.processes`. Facts go up as lines of JSON on a private copy of
standard output, orders come down on standard input; what the function prints goes to the error
log, so that a stray ``print`` cannot be taken for a fact.
"""

from __future__ import annotations
import __future__

import ctypes
import json
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from antiphon.testing.waiting import readable

__all__ = ["Control"]

_PR_SET_PDEATHSIG = 1


class Control:
    """What the child's function gets as its first argument: the line to the test."""

    def __init__(self, orders: int, facts: int) -> None:
        self._orders = orders
        self._facts = facts
        self._pending = b""
        self._forked()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        # Another thread may have held the old one.
        self._lock = threading.Lock()

    def tell(self, event: str, **facts: Any) -> None:
        """Report to the test. One write: threads and forked processes do not mix their lines."""
        line = json.dumps({"event": event, **facts}).encode() + b"\n"
        with self._lock:
            os.write(self._facts, line)

    def hear(self, timeout: float | None = None) -> dict[str, Any]:
        """The next order. Blocks; TimeoutError, or EOFError when the test is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not readable(self._orders, left):
                raise TimeoutError(f"no order within {timeout} s")
            chunk = os.read(self._orders, 65536)
            if not chunk:
                raise EOFError("the test has ended")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order

    def heard(self) -> bool:
        """Whether an order waits. Never blocks."""
        return b"\n" in self._pending or readable(self._orders, 0)


def main() -> NoReturn:
    """Takes the function from the first line of standard input, and ends with its outcome."""
    # A test run that is killed takes its children with it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    orders, facts = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    control = Control(orders, facts)
    job = control.hear()
    namespace: dict[str, Any] = {"__name__": "__child__"}
    # Annotations stay text, as in the file that the function comes from.
    flags = __future__.annotations.compiler_flag
    # Blank lines in front, so that a traceback names the lines of that file.
    source = "\n" * (job["line"] - 1) + job["source"]
    exec(compile(source, job["file"], "exec", flags), namespace)
    namespace[job["name"]](control, **job["arguments"])
    sys.exit(0)

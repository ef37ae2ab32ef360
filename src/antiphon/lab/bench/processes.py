"""The processes of a point: started, asked, and always ended.

Every child is the leader of its own session, so that Ctrl-C in a terminal reaches only the program
that decides, and so that one signal ends the child together with whatever it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from antiphon.lab.leftovers import owned_folder
from antiphon.testing.waiting import readable

__all__ = [
    "WORKER",
    "Child",
    "Crew",
    "WorkerFailed",
    "WorkerTimeout",
    "ask_all",
    "deferred_interrupt",
]

WORKER = "antiphon.lab.bench.worker"


class WorkerFailed(Exception):
    """A worker reported an error, or ended."""


class WorkerTimeout(WorkerFailed):
    """A worker did not answer in time."""


class Child:
    """One process that answers in lines of JSON, by default a worker.

    ``before`` stands before its command line, to start it elsewhere.
    Not thread-safe: one order at a time.
    """

    def __init__(
        self,
        label: str,
        arguments: Sequence[str] = ("-m", WORKER),
        program: str = sys.executable,
        before: Sequence[str] = (),
    ) -> None:
        self.label = label
        # Already unlinked: nothing is left behind, however this process ends.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*before, program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._pending = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, order: str, **arguments: Any) -> None:
        """Send an order without waiting for its answer."""
        line = json.dumps({"order": order, **arguments}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            raise WorkerFailed(self._ended()) from None

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next answer. Raises what the worker reports as an error."""
        answer = self._answer(timeout)
        if "error" in answer:
            raise WorkerFailed(f"{self.label}: {answer['error']}")
        return answer

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not readable(descriptor, left):
                raise WorkerTimeout(f"{self.label} did not answer within {timeout:g} s")
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise WorkerFailed(self._ended())
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, order: str, timeout: float = 20.0, **arguments: Any) -> dict[str, Any]:
        """An order and its answer."""
        self.tell(order, **arguments)
        return self.answer(timeout)

    def _ended(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        reason = f": {lines[-1]}" if lines else ""
        return f"{self.label} ended unexpectedly ({self._status()}){reason}"

    def _status(self) -> str:
        # Looked at, not reaped: until kill() the number must stay ours.
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        deadline = time.monotonic() + 1.0
        while (found := os.waitid(os.P_PID, self._process.pid, flags)) is None:
            if time.monotonic() > deadline:
                return "still running"
            time.sleep(0.01)
        killed = found.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        return f"{'signal' if killed else 'status'} {found.si_status}"

    def kill(self) -> None:
        """End the process and whatever it started, and reap it. Safe to call again."""
        # Nothing else reaps it, so its number cannot have passed to a stranger.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()
        self._errors.close()


class Crew:
    """The children of one point, as a context: all are ended on the way out, whatever happened.

    The folders that they shared are removed after them.
    """

    def __init__(self) -> None:
        self.children: list[Child] = []
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A second Ctrl-C must not leave the rest running.
        with deferred_interrupt({signal.SIGINT, signal.SIGTERM}):
            while self.children:
                self.children.pop().kill()
            while self._folders:
                self._folders.pop().cleanup()

    def start(
        self,
        label: str,
        arguments: Sequence[str] = ("-m", WORKER),
        program: str = sys.executable,
        before: Sequence[str] = (),
    ) -> Child:
        """A new child, ended with the crew."""
        return self.adopt(lambda: Child(label, arguments, program, before))

    def adopt(self, start: Callable[[], Child]) -> Child:
        """The child that ``start`` makes, ended with the crew."""
        # Ctrl-C between the start and the entry in the list would lose the child.
        with deferred_interrupt():
            child = start()
            self.children.append(child)
        return child

    def folder(self) -> Path:
        """A new folder that only this user may enter, removed with the crew."""
        with deferred_interrupt():
            folder = owned_folder()
            self._folders.append(folder)
        return Path(folder.name)

    def close(self, timeout: float = 10.0) -> None:
        """Ask every child to close and exit; those that do not are killed on the way out."""
        ask_all(self.children, "close", timeout=timeout)


@contextlib.contextmanager
def deferred_interrupt(signals: Set[int] = frozenset({signal.SIGINT})) -> Iterator[None]:
    """What these signals do is done at the end, and not meanwhile.

    By their handlers and not by the thread's mask: another thread would take the signal, and Python
    would raise on the main thread all the same. Elsewhere than on the main thread, where none is
    ever raised, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    previous: dict[int, Any] = {}
    try:
        for number in signals:
            # Ignored ones stay ignored, and what is not Python's cannot be put back.
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                previous[number] = signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def ask_all(
    children: Iterable[Child], order: str, timeout: float = 20.0, **arguments: Any
) -> list[dict[str, Any]]:
    """The same order to all, at once; their answers in order."""
    asked = list(children)
    for child in asked:
        child.tell(order, **arguments)
    return [child.answer(timeout) for child in asked]

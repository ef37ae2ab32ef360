"""A function in a process of its own.

::

    def echo(control: Control, kind: int) -> None:
        import antiphon                      # its own imports: only this function's text is sent

        with antiphon.Node(2) as node:
            inbox = node.inbox(kind)
            control.tell("ready", address=node.address)
            for source, data in inbox:
                node.send(source, data, kind=kind)

    with Child(echo, kind=100) as child:
        address = child.expect("ready")["address"]
        child.kill()

The source of the function goes over, not a pickle and not its module: a child starts in a tenth of
a second without the test framework, and shares nothing with the test by accident.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from antiphon.testing.waiting import eventually, readable

__all__ = ["Child", "ChildFailed"]

_START = "from antiphon.testing.child import main; main()"


class ChildFailed(AssertionError):
    """A child ended, or kept silent, or said something else than the test expects."""


class Child:
    """One process that runs ``function(control, **arguments)``. Not thread-safe.

    ``arguments`` must fit into JSON. ``prefix`` is a command to run it under, such as that of a
    `Member` of a network. The child leads a session of its own: a Ctrl-C in the terminal does not
    reach it, and on the way out one signal ends it with everything that it has forked off.
    """

    def __init__(
        self, function: Callable[..., object], *, prefix: Sequence[str] = (), **arguments: Any
    ) -> None:
        lines, first = inspect.getsourcelines(function)
        job = {
            "source": textwrap.dedent("".join(lines)),
            "file": inspect.getsourcefile(function),
            "line": first,
            "name": function.__name__,
            "arguments": arguments,
        }
        self.name = function.__name__
        # Already unlinked: nothing is left behind, however this process ends.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._pending = b""
        self._write(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it has written to standard output and standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def tell(self, order: str, **facts: Any) -> None:
        """Give an order; ``control.hear()`` returns it."""
        self._write({"order": order, **facts})

    def _write(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise ChildFailed(self._story("takes no orders")) from None

    def expect(self, event: str, timeout: float = 20.0) -> dict[str, Any]:
        """The next thing that the child tells, which must be ``event``. Blocks."""
        told = self.hear(timeout, waiting_for=event)
        if told["event"] != event:
            raise ChildFailed(self._story(f"told {told}, not {event}"))
        return told

    def hear(self, timeout: float = 20.0, waiting_for: str = "anything") -> dict[str, Any]:
        """The next thing that the child tells, whatever it is. Blocks."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not readable(descriptor, left):
                raise ChildFailed(self._story(f"did not tell {waiting_for} within {timeout:g} s"))
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise ChildFailed(self._story(f"ended before it told {waiting_for}"))
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def _story(self, what: str) -> str:
        return f"child {self.name} {what}\n{self.errors}".rstrip()

    # --- faults -----------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Sends a signal to it, and not to its children."""
        if self._process.returncode is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """kill -9, and reaped: afterwards the kernel has closed its sockets. Its children live."""
        self.signal(signal.SIGKILL)
        # Looked at, not reaped: until close() the number stays ours, and with it the group.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def wait(self, timeout: float = 20.0) -> int:
        """Its exit code, negative for a signal. Blocks; ChildFailed when it does not end."""
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        deadline = time.monotonic() + timeout
        while (ended := os.waitid(os.P_PID, self._process.pid, flags)) is None:
            if time.monotonic() > deadline:
                raise ChildFailed(self._story(f"did not end within {timeout:g} s"))
            time.sleep(0.005)
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def asleep(self, timeout: float = 20.0) -> None:
        """Returns once its main thread sleeps in the kernel, as one in a blocking call does."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/stat")

        def sleeps() -> bool:
            # Twice, a moment apart and without a turn between: not just between two steps.
            first = path.read_text().rpartition(")")[2].split()
            time.sleep(0.02)
            again = path.read_text().rpartition(")")[2].split()
            return first[0] == again[0] == "S" and first[11:13] == again[11:13]

        eventually(sleeps, timeout, f"{self.name} blocks")

    @property
    def resident_bytes(self) -> int:
        """Memory that it has in use now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Ends it together with everything that it started, and reaps it. Idempotent."""
        if self._process.returncode is None:
            # Nobody has reaped it, so its number cannot have passed to a stranger.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()
        self._errors.close()

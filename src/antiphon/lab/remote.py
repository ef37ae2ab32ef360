"""Hosts that are reached by SSH: whether they can take part, how a process starts there, its clock.

A process elsewhere is a worker like any other: orders go to its standard input through ``ssh``, and
answers come back the same way. When the connection ends, so does the worker.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass

from antiphon._version import __version__
from antiphon.lab.bench.processes import Child

__all__ = ["Clock", "address_of", "cannot_reach", "ssh_command", "take_clock"]

SSH = "ANTIPHON_SSH"
"""The environment's own way to call ``ssh``, such as ``ssh -F FILE -p 2222``."""

CONNECT_SECONDS = 10
ASK_SECONDS = 30.0
CLOCK_TRIES = 20
_LOOK = "import antiphon.lab.worker; print(antiphon.__version__)"


@dataclass(frozen=True, slots=True)
class Clock:
    """What to take from a host's clock to have ours, and by how much that may be wrong."""

    offset_ns: int = 0
    error_ns: int = 0

    def widened(self, later: Clock) -> Clock:
        """The same clock, wrong by as much as it was found to have moved."""
        moved = abs(later.offset_ns - self.offset_ns)
        return Clock(self.offset_ns, max(self.error_ns, moved + later.error_ns))


def ssh_command(host: str) -> tuple[str, ...]:
    """What stands before a command line that is to run there.

    Never asks anybody: a host wants a key that ssh finds by itself, and has to be known to it.
    """
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}")
    alive = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
    return (*_ssh(), "-T", *options, *alive, host)


def _ssh() -> list[str]:
    return shlex.split(os.environ.get(SSH, "")) or ["ssh"]


@functools.cache
def address_of(host: str) -> str:
    """The address behind a name that ssh knows. Raises OSError when it has none."""
    done = subprocess.run(
        [*_ssh(), "-G", host], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
    )
    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("hostname ")]
    if not names:
        raise OSError(_last_line(done) or f"ssh does not know {host}")
    return socket.gethostbyname(names[0])


@functools.cache
def cannot_reach(host: str, python: str) -> str:
    """Why nothing can run on a host, in one line; empty when it can. Asked once per process."""
    if shutil.which(_ssh()[0]) is None:
        return f"{_ssh()[0]} not found; install the system package openssh-client"
    look = shlex.join([python, "-c", _LOOK])
    try:
        address_of(host)
        done = subprocess.run(
            [*ssh_command(host), look],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{host} did not answer within {ASK_SECONDS:g} s"
    except OSError as error:
        return f"{host}: {error}"
    if done.returncode != 0:
        return (
            f"{host}: {_last_line(done)}; {python} there has to be one with antiphon[lab], "
            "and ssh has to let you in without asking"
        )
    if done.stdout.split()[-1:] != [__version__]:
        return f"{host} has antiphon {done.stdout.strip()}, here is {__version__}; install the same"
    return ""


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"status {done.returncode}"


def take_clock(child: Child) -> Clock:
    """Compare a worker's monotonic clock with ours: the quickest of several questions counts."""
    best = Clock(0, 1 << 62)
    for _ in range(CLOCK_TRIES):
        asked = time.monotonic_ns()
        theirs = int(child.ask("clock")["time_ns"])
        answered = time.monotonic_ns()
        error = (answered - asked + 1) // 2
        if error < best.error_ns:
            best = Clock(theirs - (asked + answered) // 2, error)
    return best

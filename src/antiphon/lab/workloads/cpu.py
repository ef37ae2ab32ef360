"""A pool of processes that together hold a share of all cores.

Many processes that alternate between busy and idle are what a loaded server looks like to the
scheduler. One endless loop is not: the kernel soon learns to prefer everybody else to it.

Run as a module, this is one process of the pool. It answers when it is ready, begins on the first
line of its input, and ends with its input, with its parent, or at its time limit.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from antiphon.errors import Closed, ConfigError
from antiphon.lab.bench.machine import process_cpu, threads_cpu
from antiphon.lab.bench.processes import Child, Crew, WorkerFailed
from antiphon.lab.workloads.load import Load

__all__ = [
    "LIMIT",
    "MOST_SEED",
    "CpuLoad",
    "Pace",
    "await_word",
    "check_limit",
    "check_number",
    "check_whole",
    "tie_to_parent",
]

LIMIT = 3600.0
"""Seconds after which a child ends, unless whoever starts it knows how long it is needed."""

PR_SET_PDEATHSIG = 1
MOST_PROCESSES = 1024
MOST_SEED = 2**63 - 1
# How long a shortfall is remembered. Longer would turn a short squeeze into a long burst.
WINDOW = 2.0
_START_PATIENCE = 60.0
_STEPS = 400
_FIRST = -20


class CpuLoad(Load):
    """Holds ``share`` of all cores: 0.6 on two cores is 1.2 cores, in sum over the processes.

    The cores are those that this process may use. There are as many processes as cores unless
    ``processes`` says otherwise. ``cycle`` is the mean time in seconds from one busy period to the
    next; the lengths vary by ``seed``, so that the processes do not run in step. Whatever happens
    to this program, they end after ``limit`` seconds.

    As root its processes go before all others, so that it has its share whoever else wants the
    processor. Without that right it competes as an equal; `measured` tells what it got.

    Start it by hand or as a context. Not thread-safe. Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        share: float,
        processes: int | None = None,
        cycle: float = 0.02,
        seed: int = 0,
        limit: float = LIMIT,
    ) -> None:
        self.cores = len(os.sched_getaffinity(0))
        self.share = check_number("share", share, 0.001, 1)
        self.processes = _check_processes(processes, self.cores, self.share)
        self.cycle = check_number("cycle", cycle, 0.001, 1)
        self.seed = check_whole("seed", seed, 0, MOST_SEED)
        self.limit = check_limit(limit)
        self._crew = Crew()
        self._started = False
        self._open = False
        self._at = 0.0
        self._spent: dict[int, float] = {}

    def start(self) -> None:
        """Start the processes. Blocks until all are at work.

        Raises `Closed` on a second start, and `WorkerFailed` when a process cannot be started;
        then none is left.
        """
        if self._started:
            raise Closed("a CPU load starts only once; make another one", what="CpuLoad")
        self._started = self._open = True
        try:
            children = [
                self._crew.start(f"CPU load {index}", self._command(index))
                for index in range(self.processes)
            ]
            for child in children:
                child.answer(_START_PATIENCE)
            self._at, self._spent = self._look()
            for child in children:
                child.tell("go")
        except BaseException:
            self.close()
            raise

    def _command(self, index: int) -> tuple[str, ...]:
        own = self.share * self.cores / self.processes
        return (
            *("-m", "antiphon.lab.workloads.cpu"),
            *("--share", repr(min(1.0, own))),
            *("--cycle", repr(self.cycle)),
            *("--seed", f"{self.seed}/{index}"),
            *("--limit", repr(self.limit)),
            *("--parent", str(os.getpid())),
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the pool; empty before start and after close."""
        return tuple(child.pid for child in self._crew.children)

    def measured(self) -> float:
        """The share of all cores that the processes have used since the last call, or the start.

        Never blocks. Raises `Closed` when it does not run, and `WorkerFailed` when one of the
        processes has ended: a load that lost a part is not the load that was asked for.
        """
        if not self._open:
            raise Closed("the CPU load does not run", what="CpuLoad")
        for child in self._crew.children:
            if _ended(child):
                raise WorkerFailed(f"{child.label} has ended")
        before, spent = self._at, self._spent
        self._at, self._spent = self._look()
        used = sum(now - spent[pid] for pid, now in self._spent.items())
        elapsed = self._at - before
        return used / (elapsed * self.cores) if elapsed > 0 else 0.0

    def _look(self) -> tuple[float, dict[int, float]]:
        # Ticks are for kernels without the finer clock.
        spent = {pid: threads_cpu(pid) or process_cpu(pid) for pid in self.pids}
        return time.monotonic(), spent

    def close(self) -> None:
        """End the processes. Blocks until they are gone. Safe to call again."""
        self._open = False
        self._crew.__exit__(None, None, None)


class Pace:
    """How much CPU time to use next, from what was used so far. Knows no clock.

    Every second of wall time owes ``share`` seconds of CPU, and a debt is worked off as soon as the
    kernel lets us; what is older than ``window`` seconds is forgiven. A plain average over the last
    window would not do: when a shortfall leaves it and the work that made up for it does not, the
    average looks too high, and the shortfall comes again, once a window for ever.
    """

    def __init__(self, share: float, wall: float, cpu: float, window: float = WINDOW) -> None:
        self._share = share
        self._most = share * window
        self._wall = wall
        self._cpu = cpu
        self._debt = 0.0

    def next(self, wall: float, cpu: float, length: float) -> float:
        """CPU seconds to use in a cycle of so many seconds that begins now."""
        self._debt += self._share * (wall - self._wall) - (cpu - self._cpu)
        self._debt = min(self._debt, self._most)
        self._wall, self._cpu = wall, cpu
        return min(length, max(0.0, self._debt + self._share * length))


# --- in the child ---------------------------------------------------------------------------------


def tie_to_parent(parent: int, limit: float) -> None:
    """End this process when the process ``parent`` does, and in any case after ``limit`` seconds.

    The caller also watches its input, which the parent's death closes unless a fork of the parent
    still holds the other end.
    """

    def look(signum: int, frame: object) -> None:
        # The signal tells of the end of the thread that started us, which may not be the end of
        # its process.
        if os.getppid() != parent:
            os._exit(1)

    # Not SIGTERM, which is to end this process whoever sends it.
    signal.signal(signal.SIGUSR1, look)
    # Ctrl-C belongs to the parent, which ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The default action, so that not even a stuck interpreter outlives it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != parent:
        os._exit(1)


def take_precedence() -> None:
    """Run before what competes, where that is allowed.

    A kernel that shares the processor between sessions counts the session's own precedence.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
        Path("/proc/self/autogroup").write_text(str(_FIRST), encoding="ascii")


def await_word(seconds: float | None) -> bool:
    """Whether the parent said something within that time, or is gone. None waits for ever."""
    # The pipe is descriptor 0, so select() will do, and it is finer than the milliseconds of poll.
    return bool(select.select([0], [], [], seconds)[0])


def _alternate(share: float, cycle: float, chance: random.Random) -> None:
    """Busy and idle in turn, until the input ends."""
    pace = Pace(share, time.monotonic(), time.thread_time())
    while True:
        begin = time.monotonic()
        length = cycle * chance.uniform(0.5, 1.5)
        used = time.thread_time()
        until = used + pace.next(begin, used, length)
        while used < until:
            for _ in range(_STEPS):
                pass
            used = time.thread_time()
        if await_word(max(0.0, begin + length - time.monotonic())):
            return


def _main() -> None:
    parser = argparse.ArgumentParser(description="one process of a CPU load")
    parser.add_argument("--share", type=float, required=True, help="of one core")
    parser.add_argument("--cycle", type=float, required=True, help="seconds")
    parser.add_argument("--seed", required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds")
    parser.add_argument("--parent", type=int, required=True, help="process to end with")
    given = parser.parse_args()
    tie_to_parent(given.parent, given.limit)
    take_precedence()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write('{"ready": true}\n')
        sys.stdout.flush()
        if await_word(None) and os.read(0, 4096):
            _alternate(given.share, given.cycle, random.Random(given.seed))
    os._exit(0)


# --- checks ---------------------------------------------------------------------------------------


def _ended(child: Child) -> bool:
    """Whether it has; looked at, not reaped, so that its number stays ours."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _refuse(setting: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{setting} is {value!r}; it must be {wanted}", setting=setting, value=value)


def check_number(setting: str, value: object, low: float, high: float) -> float:
    """The value, if it is a number in bounds; otherwise `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _refuse(setting, value, f"a number from {low:g} to {high:g}")
    return float(value)


def check_limit(limit: object) -> float:
    """The limit, if a child may run for so many seconds; otherwise `ConfigError`."""
    return check_number("limit", limit, 0.1, 7 * 86400)


def check_whole(setting: str, value: object, low: int, high: int) -> int:
    """The value, if it is a whole number in bounds; otherwise `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _refuse(setting, value, f"a whole number from {low} to {high}")
    return value


def _check_processes(processes: int | None, cores: int, share: float) -> int:
    if processes is None:
        return cores
    check_whole("processes", processes, 1, MOST_PROCESSES)
    if processes < share * cores:
        wanted = f"at least {share * cores:g}: {share:g} of {cores} cores is more than it can use"
        raise _refuse("processes", processes, wanted)
    return processes


if __name__ == "__main__":
    _main()

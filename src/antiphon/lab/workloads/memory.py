"""A process that holds memory and keeps touching it, so that the kernel finds no page to take back.

Run as a module, this is that process. It answers when it has touched every page once, and ends with
its input, with its parent, or at its time limit.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import sys
from pathlib import Path

from antiphon.errors import Closed, ConfigError
from antiphon.lab.bench.machine import resident_bytes
from antiphon.lab.bench.processes import Crew
from antiphon.lab.workloads.cpu import LIMIT, await_word, check_limit, check_whole, tie_to_parent
from antiphon.lab.workloads.load import Load

__all__ = ["MemoryPressure"]

# Of what is available, the part that is left to others, or the kernel would end somebody.
_LEFT_TO_OTHERS = 0.1
# A whole sweep takes about a second, in at most so many steps.
_STEPS = 100
_SWEEP = 1.0
# Bytes per second; the kernel needs most of that for clearing the pages.
_SLOWEST_TOUCH = 100e6


class MemoryPressure(Load):
    """Holds that many bytes in a process of its own, every page written to about once a second.

    Whatever happens to this program, the process ends after ``limit`` seconds.

    Start it by hand or as a context. Not thread-safe. Raises `ConfigError` for a bad argument.
    """

    def __init__(self, bytes: int, limit: float = LIMIT) -> None:
        most = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        self.bytes = check_whole("bytes", bytes, 1, most)
        self.limit = check_limit(limit)
        self._crew = Crew()
        self._started = False

    def start(self) -> None:
        """Start the process. Blocks until every page was touched.

        Raises `ConfigError` when so much is not available now, `Closed` on a second start, and
        `WorkerFailed` when the process cannot be started.
        """
        if self._started:
            raise Closed("memory pressure starts only once; make another", what="MemoryPressure")
        most = int(_available() * (1 - _LEFT_TO_OTHERS))
        if self.bytes > most:
            raise ConfigError(
                f"bytes is {self.bytes}; at most {most} are available now",
                setting="bytes",
                value=self.bytes,
            )
        self._started = True
        command = (
            *("-m", "antiphon.lab.workloads.memory"),
            *("--bytes", str(self.bytes)),
            *("--limit", repr(self.limit)),
            *("--parent", str(os.getpid())),
        )
        try:
            child = self._crew.start("memory pressure", command)
            child.answer(60.0 + self.bytes / _SLOWEST_TOUCH)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The process, alone; empty before start and after close."""
        return tuple(child.pid for child in self._crew.children)

    def held(self) -> int:
        """Bytes that are resident for it now, its interpreter's own among them; else 0."""
        return sum(resident_bytes(pid) for pid in self.pids)

    def close(self) -> None:
        """End the process. Blocks until it is gone. Safe to call again."""
        self._crew.__exit__(None, None, None)


def _available() -> int:
    """Bytes that can be had without anybody's being swapped out or ended."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE


# --- in the child ---------------------------------------------------------------------------------


def _touch(memory: mmap.mmap, pages: range, mark: int) -> None:
    """Write one byte to each of these pages."""
    part = slice(pages.start * mmap.PAGESIZE, pages.stop * mmap.PAGESIZE, mmap.PAGESIZE)
    memory[part] = bytes([mark]) * len(pages)


def _main() -> None:
    parser = argparse.ArgumentParser(description="the process of a memory pressure")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds")
    parser.add_argument("--parent", type=int, required=True, help="process to end with")
    given = parser.parse_args()
    tie_to_parent(given.parent, given.limit)
    # Should memory run out after all, this process is the one to go.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    count = -(-given.bytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, count * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    steps = min(count, _STEPS)
    step = -(-count // steps)
    sweep, pause = 0, 0.0
    with contextlib.suppress(BrokenPipeError):
        while True:
            for first in range(0, count, step):
                _touch(memory, range(first, min(count, first + step)), sweep % 255 + 1)
                if await_word(pause):
                    os._exit(0)
            if not sweep:
                # The first sweep was as fast as it could be: the parent waits for it.
                pause = _SWEEP / steps
                sys.stdout.write('{"ready": true}\n')
                sys.stdout.flush()
            sweep += 1
    os._exit(0)


if __name__ == "__main__":
    _main()
